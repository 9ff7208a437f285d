//! Shows that every check of the oracle fires: damages a consistent store in one way after the other.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use redrive::EventType;
use rusqlite::Connection;

use super::*;
use crate::journal::{Fact, Journal, Refusal, Whom};
use crate::plan::Plan;
use crate::publisher::{Order, Publisher};
use crate::subject::MAX_ATTEMPTS;

/// A drained store with every kind of event, and its journal.
struct Scene {
    _folder: TempDir,
    database: PathBuf,
    journal: PathBuf,
    counting: Counting,
}

impl Scene {
    async fn new(counting: Counting) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (database, path) = (folder.path().join("events.db"), folder.path().join("journal"));
        let journal = Arc::new(Journal::open(&path, 1, false).unwrap());
        let bus = subject::open(&database, counting, &journal, subject::Manner::default()).await.unwrap();
        bus.start().await.unwrap();
        let mut publisher = Publisher::new(bus.clone(), journal, Duration::from_secs(5));
        for (n, plan) in [Plan::Succeed, Plan::Fail(2), Plan::Never, Plan::Permanent].into_iter().enumerate()
        {
            let order = Order::new("t.work.audited", plan, n as u64);
            assert!(publisher.publish_and_wait(Order { has_metadata: true, ..order }).await);
        }
        publisher
            .publish_batch(&[("t.unwanted", Plan::Succeed, 10), ("t.unwanted", Plan::Succeed, 11)])
            .await;
        publisher.rest(DRAIN_TIMEOUTS.total).await;
        bus.shutdown().await.unwrap();
        Scene { _folder: folder, database, journal: path, counting }
    }

    fn damage(&self, sql: &str) {
        let connection = Connection::open(&self.database).unwrap();
        connection.execute_batch("PRAGMA foreign_keys = ON").unwrap();
        connection.execute_batch(sql).unwrap();
    }

    fn facts(&self) -> Vec<Fact> {
        Reader::default().read(&self.journal).unwrap()
    }

    /// The event with this number in its payload.
    fn id(&self, n: u32) -> EventId {
        let connection = Connection::open(&self.database).unwrap();
        let query = "SELECT id FROM events WHERE payload ->> 'n' = ?1";
        let id: String = connection.query_row(query, [n], |row| row.get(0)).unwrap();
        id.parse().unwrap()
    }

    /// Judgement of an oracle with these facts.
    async fn judged_by(&self, facts: impl IntoIterator<Item = Fact>) -> Oracle {
        let mut oracle = Oracle::new(self.counting);
        oracle.hear(facts);
        oracle.at(&self.database, async |oracle, store| oracle.judge(store).await).await;
        oracle
    }
}

/// No violation.
const NOTHING: &[String] = &[];

/// Nothing is lost, and one violation contains this text.
fn assert_says(oracle: &Oracle, expected: &str) {
    assert_eq!(oracle.lost(), 0, "{:?}", oracle.lost);
    assert!(
        oracle.violations().iter().any(|said| said.contains(expected)),
        "{expected}: {:?}",
        oracle.violations()
    );
}

/// Damages the store with this SQL and expects this violation.
async fn assert_seen(counting: Counting, sql: &str, expected: &str) {
    let scene = Scene::new(counting).await;
    scene.damage(sql);
    assert_says(&scene.judged_by(scene.facts()).await, expected);
}

#[tokio::test]
async fn a_whole_store_is_found_whole() {
    for counting in [Counting::Event, Counting::Subscription] {
        let scene = Scene::new(counting).await;
        let mut oracle = Oracle::new(counting);
        oracle.examine(&scene.database, &scene.journal).await;
        assert_eq!((oracle.violations(), oracle.lost()), (NOTHING, 0));
        let mut report = Report { rounds: 1, ..Report::default() };
        oracle.add_to(&mut report);
        assert_eq!((report.acknowledged, report.duplicates, report.is_clean()), (6, 0, true));
    }
}

#[tokio::test]
async fn an_acknowledged_event_that_is_gone_is_lost() {
    let scene = Scene::new(Counting::Event).await;
    scene.damage("DELETE FROM event WHERE payload ->> 'n' = 0");
    assert_eq!(scene.judged_by(scene.facts()).await.lost(), 1);
    let scene = Scene::new(Counting::Event).await;
    let mut facts = scene.facts();
    let event_type = EventType::new("t.work.alone").unwrap();
    facts.push(Fact::Ack { id: EventId::new(), plan: Plan::Succeed, event_type, since: 0, content: 0 });
    assert_eq!(scene.judged_by(facts).await.lost(), 1, "one that was never stored");
}

#[tokio::test]
async fn a_purge_explains_only_what_was_dead_and_old_enough() {
    let scene = Scene::new(Counting::Event).await;
    let (dead, done) = (scene.id(3), scene.id(0));
    let created = scene.facts().iter().find_map(|fact| match fact {
        Fact::Failed { id, created, .. } if *id == dead => Some(*created),
        _ => None,
    });
    scene.damage("DELETE FROM event WHERE payload ->> 'n' IN (0, 3)");
    for (until, lost) in [(created.unwrap(), vec![done]), (created.unwrap() - 1, vec![done, dead])] {
        let begin = Fact::PurgeBegin { until, last: EventId::new(), candidates: 1 };
        let oracle = scene.judged_by(scene.facts().into_iter().chain([begin])).await;
        let mut found: Vec<_> = oracle.lost.keys().copied().collect();
        found.sort_unstable();
        let mut expected = lost;
        expected.sort_unstable();
        assert_eq!(found, expected, "until {until}");
    }
}

#[tokio::test]
async fn a_purge_explains_no_more_than_it_deleted_and_nothing_that_was_never_tried() {
    let scene = Scene::new(Counting::Event).await;
    let (never, permanent) = (scene.id(2), scene.id(3));
    scene.damage("DELETE FROM event WHERE payload ->> 'n' IN (2, 3)");
    let purge = |count| {
        let begin = Fact::PurgeBegin { until: i64::MAX, last: EventId::new(), candidates: 2 };
        [begin, Fact::Purged { until: i64::MAX, count }]
    };
    let facts = || scene.facts().into_iter();
    assert_eq!(scene.judged_by(facts().chain(purge(2))).await.violations(), NOTHING);
    let oracle = scene.judged_by(facts().chain(purge(1))).await;
    assert_says(&oracle, "2 events are gone, and only 1 can have been deleted");
    // The last attempt may have ended with its process; the one before may not.
    let without = |from: u32| {
        facts().filter(move |fact| !matches!(fact, Fact::Failed { attempt, .. } if *attempt >= from))
    };
    assert_eq!(scene.judged_by(without(MAX_ATTEMPTS).chain(purge(2))).await.lost(), 0);
    let lost = scene.judged_by(without(MAX_ATTEMPTS - 1).chain(purge(2))).await;
    assert_eq!(lost.lost.keys().copied().collect::<Vec<_>>(), [never]);
    let lost = scene.judged_by(without(1).chain(purge(2))).await;
    assert_eq!(lost.lost.len(), 2, "{permanent} never failed");
}

#[tokio::test]
async fn an_event_with_another_content_is_seen() {
    let set = |change: &str| format!("UPDATE event SET {change} WHERE payload ->> 'n' = 0");
    let other = set(r#"payload = '{"plan":"dawdle","n":0}'"#);
    assert_seen(Counting::Event, &other, "has the payload or metadata of another event").await;
    assert_seen(Counting::Event, &set("payload = '[]'"), "has a payload that no publisher sent").await;
    let other = set(r#"metadata = '{"n":"7"}'"#);
    assert_seen(Counting::Event, &other, "has the metadata of another event").await;
    for other in ["metadata = NULL", r#"payload = '{"plan":"succeed","n":0,"ballast":"x"}'"#] {
        assert_seen(Counting::Event, &set(other), "has the payload or metadata of another event").await;
    }
    assert_seen(Counting::Event, &set("type = 't.work.alone'"), "another type than it was published with")
        .await;
}

#[tokio::test]
async fn an_error_that_is_missing_or_in_the_wrong_place_is_seen() {
    let missing = "DELETE FROM attempt WHERE key IN (SELECT min(key) FROM attempt GROUP BY event_key)";
    assert_seen(Counting::Event, missing, "are kept").await;
    let swapped = "UPDATE attempt SET error = (SELECT b.error FROM attempt b WHERE b.event_key = attempt.event_key ORDER BY key DESC)";
    assert_seen(Counting::Event, swapped, "has the error").await;
    let missing = "UPDATE delivery SET retry_count = retry_count + 1 WHERE status = 4";
    assert_seen(Counting::Subscription, missing, "the delivery to work has failed").await;
}

/// Looks, damages, looks again.
async fn assert_seen_between(counting: Counting, sql: &str, expected: &str) {
    let scene = Scene::new(counting).await;
    let mut oracle = Oracle::new(counting);
    oracle.look_at_file(&scene.database, &scene.journal).await;
    assert_eq!(oracle.violations(), NOTHING);
    scene.damage(sql);
    oracle.look_at_file(&scene.database, &scene.journal).await;
    assert_says(&oracle, expected);
    // A redriven event starts again.
    let mut oracle = Oracle::new(counting);
    oracle.hear(scene.facts());
    let redrives = oracle.account.events.keys().map(|id| Fact::RedriveBegin { id: *id, edited: None });
    let redrives: Vec<_> = redrives.collect();
    oracle.at(&scene.database, async |oracle, store| oracle.look(store).await).await;
    oracle.violations.clear();
    oracle.hear(redrives);
    oracle.at(&scene.database, async |oracle, store| oracle.look(store).await).await;
    assert!(!oracle.violations().iter().any(|said| said.contains(expected)), "{:?}", oracle.violations());
}

#[tokio::test]
async fn a_state_that_goes_backwards_is_found() {
    let undone = "UPDATE event SET status = 0, due_at = 1 WHERE payload ->> 'n' = 10";
    assert_seen_between(Counting::Event, undone, "was done and is pending").await;
    let alive = "UPDATE event SET status = 2, due_at = 1 WHERE status = 4; DELETE FROM dead_letter";
    assert_seen_between(Counting::Event, alive, "was dlq and is processing").await;
    let fewer = "DELETE FROM attempt WHERE key = (
                   SELECT max(a.key) FROM attempt a JOIN event e ON e.key = a.event_key WHERE e.payload ->> 'n' = 1)";
    assert_seen_between(Counting::Event, fewer, "had 2 failed attempts and has 1").await;
    let fewer = "UPDATE delivery SET retry_count = 0, last_error = NULL WHERE status = 4";
    assert_seen_between(Counting::Subscription, fewer, "the delivery to work was dlq after").await;
}

#[tokio::test]
async fn a_refused_event_that_is_stored_is_found() {
    let scene = Scene::new(Counting::Event).await;
    let id = scene.id(0);
    let mut facts = scene.facts();
    facts.retain(|fact| !matches!(fact, Fact::Ack { id: acknowledged, .. } if *acknowledged == id));
    facts.push(Fact::Refused { whom: Whom::Event(id), refusal: Refusal::DiskFull, why: String::new() });
    assert_says(&scene.judged_by(facts).await, "is stored, though its publisher was told that it is not");
}

#[tokio::test]
async fn a_batch_that_was_refused_and_is_stored_is_seen() {
    let scene = Scene::new(Counting::Event).await;
    let batch = [scene.id(10), scene.id(11)];
    let mut facts = scene.facts();
    facts.retain(|fact| !matches!(fact, Fact::Ack { id, .. } if batch.contains(id)));
    let key: i64 = Connection::open(&scene.database)
        .unwrap()
        .query_row("SELECT payload ->> '$.batch.key' FROM events WHERE payload ->> 'n' = 10", [], |row| {
            row.get(0)
        })
        .unwrap();
    let whom = Whom::Batch(u64::try_from(key).unwrap());
    facts.push(Fact::Refused { whom, refusal: Refusal::DiskFull, why: String::new() });
    assert_says(&scene.judged_by(facts).await, "is stored, though its publisher was told that it is not");
}

#[tokio::test]
async fn a_redriven_event_that_is_still_dead_is_found() {
    let scene = Scene::new(Counting::Event).await;
    let id = scene.id(3);
    let redriven = [Fact::RedriveBegin { id, edited: None }, Fact::Redriven { id, edited: None }];
    let oracle = scene.judged_by(scene.facts().into_iter().chain(redriven.clone())).await;
    assert_says(&oracle, "was redriven, and is dead as before");
    let again = Fact::Failed { id, subscription: subject::WORK.into(), attempt: 1, created: 1 };
    let facts = scene.facts().into_iter().chain(redriven).chain([again]);
    assert_eq!(scene.judged_by(facts).await.violations(), NOTHING, "it has died again");
}

#[tokio::test]
async fn a_death_that_was_charged_twice_is_seen() {
    let charged = format!(
        "UPDATE attempt SET error = '{CRASHED}' WHERE key = (
           SELECT min(a.key) FROM attempt a JOIN event e ON e.key = a.event_key WHERE e.status = 4)"
    );
    assert_seen(Counting::Event, &charged, "was charged for 1 deaths, and there were 0 lives").await;
}

#[tokio::test]
async fn work_that_no_living_process_ended_is_seen() {
    let scene = Scene::new(Counting::Event).await;
    let no_answer = Fact::Refused { whom: Whom::Other, refusal: Refusal::NoAnswer, why: "no end".into() };
    let oracle = scene.judged_by(scene.facts().into_iter().chain([no_answer])).await;
    assert_says(&oracle, "the process lived on, and no end");
}

#[tokio::test]
async fn a_publisher_who_was_left_waiting_is_seen() {
    let scene = Scene::new(Counting::Event).await;
    let no_answer =
        Fact::Refused { whom: Whom::Event(scene.id(0)), refusal: Refusal::NoAnswer, why: String::new() };
    let oracle = scene.judged_by(scene.facts().into_iter().chain([no_answer])).await;
    assert_says(&oracle, "waited for its end and got no answer");
}

#[tokio::test]
async fn a_purged_event_that_is_stored_is_found() {
    let scene = Scene::new(Counting::Event).await;
    let begin = Fact::PurgeBegin { until: 9, last: scene.id(3), candidates: 1 };
    let purge = [begin, Fact::Purged { until: 9, count: 1 }];
    let oracle = scene.judged_by(scene.facts().into_iter().chain(purge)).await;
    assert_says(&oracle, "is there, though it was purged");
}

#[tokio::test]
async fn an_end_that_was_told_too_early_is_seen_unless_the_power_may_have_taken_it() {
    let scene = Scene::new(Counting::Event).await;
    scene.damage("UPDATE event SET status = 0, due_at = 1 WHERE payload ->> 'n' = 0");
    let expected = "though its publisher was told that it had ended";
    assert_says(&scene.judged_by(scene.facts()).await, expected);
    let mut oracle = Oracle::after_power_loss(Counting::Event);
    oracle.look_at_file(&scene.database, &scene.journal).await;
    assert_eq!(oracle.violations(), NOTHING);
}

#[tokio::test]
async fn half_a_batch_is_seen() {
    let scene = Scene::new(Counting::Event).await;
    let mut facts = scene.facts();
    // Unacknowledged: it may be stored or not, but as a whole.
    let batch = [scene.id(10), scene.id(11)];
    facts.retain(|fact| !matches!(fact, Fact::Ack { id, .. } if batch.contains(id)));
    scene.damage("DELETE FROM event WHERE payload ->> 'n' = 10");
    assert_says(&scene.judged_by(facts.clone()).await, "there are 1 events of 2");
    scene.damage("DELETE FROM event WHERE payload ->> 'n' = 11");
    assert_eq!(scene.judged_by(facts).await.violations(), NOTHING);
}

#[tokio::test]
async fn a_dead_letter_queue_that_does_not_agree_with_the_events_is_seen() {
    use Counting::{Event, Subscription};
    let missing = "DELETE FROM dead_letter";
    assert_seen(Event, missing, "it is dead and is not in the dead-letter queue").await;
    assert_seen(Subscription, missing, "its delivery to work is dlq and has 0 dead letters").await;
    let columns = "event_key, subscription, type, created_at, dlq_at, reason, fingerprint, error";
    let twice = format!("INSERT INTO dead_letter ({columns}) SELECT {columns} FROM dead_letter");
    assert_seen(Event, &twice, "it has 2 dead letters").await;
    assert_seen(Subscription, &twice, "its delivery to work is dlq and has 2 dead letters").await;
    let alive = "UPDATE event SET status = 2, due_at = 1 WHERE status = 4";
    assert_seen(Event, alive, "it is processing and in the dead-letter queue").await;
    let unknown = "UPDATE dead_letter SET subscription = 'unknown'";
    assert_seen(Event, unknown, "for unknown, which has no delivery of it").await;
}

#[tokio::test]
async fn a_dead_letter_without_an_event_is_seen() {
    let scene = Scene::new(Counting::Event).await;
    let options = SqliteOptions { owner: false, ..SqliteOptions::default() };
    let store = SqliteStore::open(&scene.database, options).unwrap();
    let mut picture = Picture::take(&store).await.unwrap();
    picture.events.clear();
    let mut oracle = Oracle::new(Counting::Event);
    oracle.compare(&picture);
    assert_says(&oracle, "is in the dead-letter queue without an event");
}

#[tokio::test]
async fn an_open_event_after_the_drain_is_found() {
    let open = "UPDATE event SET status = 0, due_at = 1 WHERE payload ->> 'n' = 10";
    assert_seen(Counting::Event, open, "is pending though all work is done").await;
}

#[tokio::test]
async fn done_without_having_been_handled_is_seen() {
    let scene = Scene::new(Counting::Event).await;
    let id = scene.id(0);
    let is_audit = |fact: &Fact| matches!(fact, Fact::Handled { id: handled, subscription, .. } if *handled == id && subscription == subject::AUDIT);
    let facts: Vec<_> = scene.facts().into_iter().filter(|fact| !is_audit(fact)).collect();
    assert_says(&scene.judged_by(facts).await, "is done and was never handled by audit");
}

#[tokio::test]
async fn an_end_that_was_not_planned_is_seen() {
    let scene = Scene::new(Counting::Event).await;
    let plan = |n: u64, plan: &str| {
        format!(
            "UPDATE event SET payload = json_set(payload, '$.plan', '{plan}') WHERE payload ->> 'n' = {n}"
        )
    };
    scene.damage(&plan(0, "never"));
    scene.damage(&plan(2, "fail-2"));
    let facts = scene.facts().into_iter().filter(|fact| !matches!(fact, Fact::Ack { .. }));
    let oracle = scene.judged_by(facts).await;
    assert_says(&oracle, "is done, though its plan is never");
    assert_says(&oracle, "is dead, though its plan is fail-2");
}

#[tokio::test]
async fn a_death_by_crashes_is_no_violation_if_all_attempts_were_charged() {
    let scene = Scene::new(Counting::Event).await;
    let errors = |crashes: usize| {
        let errors: Vec<String> =
            (1..=6)
                .map(|n| {
                    if n > crashes {
                        subject::error_of(u32::try_from(n).unwrap_or(0))
                    } else {
                        CRASHED.into()
                    }
                })
                .collect();
        serde_json::to_string(&errors).unwrap()
    };
    for (crashes, is_fine) in [(6, true), (4, true), (3, false)] {
        let errors = errors(crashes);
        scene.damage(&format!(
            "UPDATE event SET last_error = '{errors}', payload = json_set(payload, '$.plan', 'fail-2')
             WHERE payload ->> 'n' = 2"
        ));
        let facts = scene.facts().into_iter().filter(|fact| !matches!(fact, Fact::Ack { .. }));
        let lives = (1..=6).map(|seed| Fact::Begin { seed });
        let oracle = scene.judged_by(facts.chain(lives)).await;
        assert_eq!(oracle.violations().is_empty(), is_fine, "{crashes}: {:?}", oracle.violations());
    }
}

#[tokio::test]
async fn a_reason_that_the_errors_do_not_say_is_seen() {
    let exhausted = "UPDATE dead_letter SET reason = 'attempts_exhausted' WHERE reason = 'permanent'";
    assert_seen(Counting::Event, exhausted, "which its errors do not say").await;
    let unknown = "UPDATE dead_letter SET reason = 'deadline_exceeded'";
    assert_seen(Counting::Subscription, unknown, "is dead for work because of \"deadline_exceeded\"").await;
}

#[tokio::test]
async fn an_attempt_that_was_not_kept_is_seen() {
    let gone = "DELETE FROM attempt WHERE attempt = 1";
    assert_seen(Counting::Event, gone, "is dead after 6 attempts, of which 5 are kept").await;
}

#[tokio::test]
async fn a_file_that_is_damaged_is_seen() {
    let scene = Scene::new(Counting::Event).await;
    assert_eq!(integrity(&scene.database), Ok(()));
    let connection = Connection::open(&scene.database).unwrap();
    connection.execute_batch("PRAGMA foreign_keys = OFF; DELETE FROM event WHERE status = 4").unwrap();
    drop(connection);
    assert!(integrity(&scene.database).unwrap_err().contains("belongs to no event"));
    let mut bytes = std::fs::read(&scene.database).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle..middle + 4096].fill(0xa5);
    std::fs::write(&scene.database, &bytes).unwrap();
    assert!(integrity(&scene.database).is_err());
    std::fs::write(&scene.database, b"not a database at all, and long enough to be read as one").unwrap();
    let mut oracle = Oracle::new(Counting::Event);
    oracle.look_at_file(&scene.database, &scene.journal).await;
    assert!(oracle.violations()[0].starts_with("the store cannot be opened"), "{:?}", oracle.violations());
}

#[tokio::test]
async fn work_that_does_not_end_is_seen() {
    let scene = Scene::new(Counting::Event).await;
    let later = redrive::retry::Clock::system().now().plus_millis(3_600_000);
    scene.damage(&format!(
        "UPDATE event SET status = 0, due_at = {} WHERE payload ->> 'n' = 10",
        later.as_millis()
    ));
    let (short, long) = (Duration::from_millis(50), Duration::from_secs(600));
    for (total, idle) in [(short, long), (long, short)] {
        let timeouts = DrainTimeouts { total, idle };
        let ended = subject::drain(&scene.database, scene.counting, &scene.journal, timeouts).await;
        assert!(ended.unwrap_err().contains("work is left"));
    }
}

#[tokio::test]
async fn a_handler_that_ran_again_is_counted() {
    let scene = Scene::new(Counting::Event).await;
    let again = Fact::Handled { id: scene.id(0), subscription: subject::WORK.into(), life: 1 };
    let oracle = scene.judged_by(scene.facts().into_iter().chain([again])).await;
    assert_eq!((oracle.duplicates(), oracle.violations()), (1, NOTHING));
}
