//! Rows that were changed by hand with SQL. Whatever a row contains, the store does not panic or hang, handles all other
//! events, and can read the damaged one.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use redrive_retry::decision::DeadReason;
use redrive_retry::{FailureClass, Timestamp};
use redrive_store::traits::*;
use redrive_store::{
    ClaimSink, Claimed, DlqFilter, DlqPage, EventFilter, EventId, EventPage, EventStatus, EventType,
    FailedAttempt, Metadata, NewEvent, PostgresOptions, PostgresStore, Redrive, Routing, Settlement, Store,
    StoreError, SubscriptionName, SubscriptionRow, Verdict,
};
use tokio::sync::mpsc::UnboundedReceiver;

use crate::postgres_server::{Schema, connect, server};

const NOW: Timestamp = Timestamp::from_millis(1_767_225_600_000);

/// The number of schemas to damage; `REDRIVE_BY_HAND_CASES` overrides it.
const CASES: u64 = 24;

/// A small deterministic generator (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        usize::try_from((mixed ^ (mixed >> 31)) % (limit.max(1) as u64)).unwrap()
    }
}

/// The columns that a test can change.
const COLUMNS: [(&str, &[&str]); 6] = [
    (
        "event",
        &[
            "type",
            "status",
            "retry_count",
            "crashes",
            "first_at",
            "due_at",
            "ready_at",
            "created_at",
            "updated_at",
            "owner",
            "token",
            "owes",
            "last_error",
            "handled",
        ],
    ),
    ("payload", &["payload", "metadata", "retry", "event_key"]),
    (
        "delivery",
        &[
            "subscription",
            "status",
            "retry_count",
            "crashes",
            "first_at",
            "due_at",
            "ready_at",
            "last_error",
            "updated_at",
        ],
    ),
    (
        "attempt",
        &["subscription", "attempt", "started_at", "duration_ms", "class", "delay_ms", "error", "record"],
    ),
    ("dead_letter", &["subscription", "type", "created_at", "dlq_at", "reason", "fingerprint", "error"]),
    ("subscriptions", &["id", "name", "event_type", "created_at"]),
];

/// The values that a test writes. The server refuses values of the wrong type.
const VALUES: [&str; 17] = [
    "NULL",
    "-1",
    "0",
    "1",
    "2",
    "99",
    "32767",
    "2147483647",
    "-2147483648",
    "9223372036854775807",
    "-9223372036854775808",
    "''",
    "'a b'",
    "'*'",
    "'not json'",
    "'[1,null,{\"a\":2}]'",
    "repeat('x', 100000)",
];

fn name(text: &str) -> SubscriptionName {
    SubscriptionName::new(text).unwrap()
}

fn event(n: u32) -> NewEvent {
    let to = if n % 5 == 4 { Routing::Each(vec![name("mail"), name("late")]) } else { Routing::Matching };
    NewEvent {
        id: EventId::new(),
        event_type: EventType::new("order.created").unwrap(),
        payload: Arc::from(format!(r#"{{"order":{n}}}"#)),
        metadata: Metadata::new(),
        created_at: NOW,
        due_at: NOW,
        is_scheduled: false,
        retry: None,
        to,
    }
}

fn settlement(verdict: Verdict, failed: Option<&str>) -> Settlement {
    let failure = failed.map(|error| FailedAttempt {
        subscription: name("mail"),
        started_at: NOW,
        duration_ms: 1,
        class: FailureClass::Transient,
        delay_ms: 1,
        error: error.to_owned(),
        record: None,
        detail: None,
    });
    Settlement { failure, ..Settlement::new(NOW, verdict) }
}

async fn open(schema: &Schema) -> PostgresStore {
    PostgresStore::open(&server(), PostgresOptions { write_connections: 2, ..schema.options() })
        .await
        .unwrap()
}

fn attach(store: &PostgresStore, slots: usize) -> UnboundedReceiver<Claimed> {
    let (sink, claims) = ClaimSink::new(slots);
    store.attach(Some(sink));
    claims
}

/// Stores events in every state, and ends the process without closing the store.
async fn populate(schema: &Schema) {
    let store = open(schema).await;
    let mut claims = attach(&store, 1000);
    store.append((0..40).map(event).collect()).await.unwrap();
    let mut number = 0;
    while let Ok(claimed) = claims.try_recv() {
        number += 1;
        let how = match number % 4 {
            0 => settlement(Verdict::Retry(NOW.plus_millis(1000).into()), Some("failed")),
            1 => settlement(Verdict::Dead(DeadReason::Permanent), Some("never")),
            2 => continue,
            _ if claimed.subscription.is_some() => settlement(Verdict::Done, None),
            _ => {
                Settlement { split_off: vec![(name("late"), NOW.into())], ..settlement(Verdict::Done, None) }
            }
        };
        store.settle(claimed, how).await.unwrap();
    }
    store.attach(None);
    store.append((40..60).map(event).collect()).await.unwrap();
    let row = SubscriptionRow {
        id: EventId::random().to_string(),
        name: name("mail"),
        event_type: "order.*".to_owned(),
        created_at: NOW,
    };
    store.register(row).await.unwrap();
    drop(store);
    schema.is_unlocked().await;
}

/// Changes a few rows by hand. Returns the statements and the events of the rows.
async fn change_by_hand(schema: &Schema, random: &mut Random) -> (Vec<String>, BTreeSet<i64>) {
    let client = connect().await;
    let (mut done, mut touched) = (Vec::new(), BTreeSet::new());
    for _ in 0..20 {
        let (table, columns) = COLUMNS[random.below(COLUMNS.len())];
        let column = columns[random.below(columns.len())];
        let value = VALUES[random.below(VALUES.len())];
        let key = match table {
            "payload" => "event_key",
            _ => "key",
        };
        let event = match table {
            "event" | "payload" => key,
            "subscriptions" => "NULL::bigint",
            _ => "event_key",
        };
        let count = client
            .query_one(&schema.sql(&format!("SELECT count(*) FROM redrive.{table}")), &[])
            .await
            .unwrap()
            .get::<_, i64>(0);
        let offset = random.below(usize::try_from(count).unwrap());
        let find =
            format!("SELECT {key}, {event} FROM redrive.{table} ORDER BY {key} LIMIT 1 OFFSET {offset}");
        let Some(row) = client.query_opt(&schema.sql(&find), &[]).await.unwrap() else { continue };
        let statement =
            format!("UPDATE redrive.{table} SET {column} = {value} WHERE {key} = {}", row.get::<_, i64>(0));
        if client.execute(&schema.sql(&statement), &[]).await.is_ok_and(|changed| changed == 1) {
            done.push(statement);
            touched.extend(row.get::<_, Option<i64>>(1));
            if done.len() > random.below(4) {
                break;
            }
        }
    }
    (done, touched)
}

/// Uses the store like a bus, and handles all undamaged events.
async fn handle_all(schema: &Schema, touched: &BTreeSet<i64>) -> Result<(), String> {
    let store = open(schema).await;
    let failed = |what: &'static str| move |error: StoreError| format!("{what}: {error}");
    store.subscriptions().await.map_err(failed("subscriptions"))?;
    let later = NOW.plus_millis(100_000);
    store.recover(later).await.map_err(failed("recover"))?;
    store.stats().await.map_err(failed("stats"))?;
    store.depth().await.map_err(failed("depth"))?;
    let mut claims = attach(&store, 16);
    while let Some(claimed) =
        store.claim_suspect(later, ClaimSink::new(1).0).await.map_err(failed("suspects"))?
    {
        store.settle(claimed, settlement(Verdict::Done, None)).await.map_err(failed("settle a suspect"))?;
    }
    let mut number = 0;
    let mut idle = 0;
    while idle < 3 {
        let claimed = store.claim(later).await.map_err(failed("claim"))?;
        idle = if claimed == 0 { idle + 1 } else { 0 };
        while let Ok(claimed) = claims.try_recv() {
            number += 1;
            let how = match number % 3 {
                0 if claimed.attempt < 9 => settlement(Verdict::Retry(NOW.into()), Some("again")),
                1 if claimed.attempt > 1 => settlement(Verdict::Dead(DeadReason::Permanent), None),
                _ => settlement(Verdict::Done, None),
            };
            store.settle(claimed, how).await.map_err(failed("settle"))?;
        }
        store.heartbeat().await.map_err(failed("heartbeat"))?;
    }
    let page = EventPage { limit: 1000, after: None };
    let listed = store.events(EventFilter::default(), page).await.map_err(failed("events"))?;
    if listed.len() != 60 {
        return Err(format!("{} events are listed, and should be 60", listed.len()));
    }
    for event in listed.iter().filter(|event| !touched.contains(&event.cursor)) {
        let shown = store.event(event.id).await.map_err(failed("an undamaged event"))?;
        if !matches!(shown.status, EventStatus::Done | EventStatus::Dlq) {
            return Err(format!("an undamaged event was never handled: {shown:?}"));
        }
    }
    for event in listed.iter().filter(|event| touched.contains(&event.cursor)) {
        store.event(event.id).await.map_err(failed("read a damaged event"))?;
    }
    let page = DlqPage { limit: 1000, ..DlqPage::default() };
    let dead = store.dead_letters(DlqFilter::default(), page).await.map_err(failed("dead letters"))?;
    for text in ["never", "process ended"] {
        let filter = DlqFilter { text: Some(text.to_owned()), ..DlqFilter::default() };
        store.dead_letters(filter, page).await.map_err(failed("dead letters by text"))?;
    }
    store.dead_groups(DlqFilter::default()).await.map_err(failed("groups"))?;
    let good: BTreeSet<EventId> =
        listed.iter().filter(|event| !touched.contains(&event.cursor)).map(|event| event.id).collect();
    let dead: BTreeSet<EventId> = dead.iter().map(|letter| letter.id).collect();
    for id in dead.intersection(&good) {
        store.redrive(*id, Redrive { at: NOW, payload: None }).await.map_err(failed("redrive"))?;
    }
    store.maintain(later, Some(Duration::from_secs(1))).await.map_err(failed("maintain"))?;
    store.purge_done(later, 1000).await.map_err(failed("purge done"))?;
    store.purge_dead(later).await.map_err(failed("purge dead"))?;
    store.close().await.map_err(failed("close"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_row_changed_by_hand_does_not_block_other_events() {
    let cases = std::env::var("REDRIVE_BY_HAND_CASES").ok().and_then(|cases| cases.parse().ok());
    let mut problems = BTreeMap::<String, (u64, String)>::new();
    for seed in 0..cases.unwrap_or(CASES) {
        let schema = Schema::new();
        populate(&schema).await;
        let (changes, touched) = change_by_hand(&schema, &mut Random(seed)).await;
        let outcome = tokio::time::timeout(Duration::from_secs(60), handle_all(&schema, &touched)).await;
        if let Err(why) = outcome.unwrap_or_else(|_| panic!("seed {seed} hangs: {changes:?}")) {
            let entry = problems.entry(why).or_insert((0, String::new()));
            entry.0 += 1;
            // Keeps the shortest list of changes that causes it.
            if entry.1.is_empty() || changes.join("; ").len() < entry.1.len() {
                entry.1 = changes.join("; ");
            }
        }
    }
    assert!(problems.is_empty(), "{problems:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_event_damaged_by_hand_is_handled_and_can_be_read() {
    let schema = Schema::new();
    let store = open(&schema).await;
    let new: Vec<NewEvent> = (0..3).map(event).collect();
    let ids: Vec<EventId> = new.iter().map(|event| event.id).collect();
    store.append(new).await.unwrap();
    let client = connect().await;
    let damage = format!(
        "UPDATE redrive.event SET type = 'not a *type', retry_count = 2147483647 WHERE id = '{}';
         DELETE FROM redrive.payload USING redrive.event e WHERE event_key = e.key AND e.id = '{}'",
        ids[0], ids[1]
    );
    client.batch_execute(&schema.sql(&damage)).await.unwrap();
    let mut claims = attach(&store, 10);
    assert_eq!(store.claim(NOW).await.unwrap(), 3, "all of them");
    for (id, event_type, payload) in [
        (ids[0], "not a *type", r#"{"order":0}"#),
        (ids[1], "order.created", ""),
        (ids[2], "order.created", r#"{"order":2}"#),
    ] {
        let claimed = claims.try_recv().unwrap();
        assert_eq!((claimed.event.id, claimed.event.event_type.as_str()), (id, event_type));
        assert_eq!(&*claimed.event.payload, payload, "a missing payload is empty");
        assert_eq!(store.event(id).await.unwrap().status, EventStatus::Processing);
        let end = settlement(Verdict::Dead(DeadReason::Permanent), Some("what is this?"));
        store.settle(claimed, end).await.unwrap();
        let letters = store.dead_letter(id).await.unwrap();
        assert_eq!(letters[0].event_type.as_str(), event_type);
    }
    // A repaired event can be redriven.
    let repair = format!("UPDATE redrive.event SET type = 'order.created' WHERE id = '{}'", ids[0]);
    client.batch_execute(&schema.sql(&repair)).await.unwrap();
    store.redrive(ids[0], Redrive { at: NOW, payload: None }).await.unwrap();
    store.redrive(ids[1], Redrive { at: NOW, payload: Some(r#"{"order":1}"#.into()) }).await.unwrap();
    assert_eq!(store.claim(NOW).await.unwrap(), 2);
    for id in &ids[..2] {
        let claimed = claims.try_recv().unwrap();
        assert_eq!((claimed.event.id, claimed.attempt), (*id, 1));
        assert_eq!(claimed.event.event_type.as_str(), "order.created");
        store.settle(claimed, settlement(Verdict::Done, None)).await.unwrap();
    }
}
