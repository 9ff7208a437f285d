//! Promises about listing dead letters.

use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;

use redrive_retry::decision::DeadReason;

use super::scene::{
    Worker, append, at, dead, done, event, event_type, later, name, of, retry, settle, subscription_of,
    to_each,
};
use crate::dead_letter::{DeadLetter, DlqCursor, DlqFilter, DlqPage, Redrive, fingerprint};
use crate::error::StoreError;
use crate::event::{EventId, EventStatus, NewEvent};
use crate::store::Store;

/// Publishes events at these times and dead-letters all of them.
async fn kill_all(
    store: &dyn Store,
    worker: &mut Worker,
    created: impl IntoIterator<Item = i64>,
) -> Vec<EventId> {
    let ids = append(store, created.into_iter().map(event).collect()).await;
    for claimed in worker.handed_over() {
        settle(store, claimed, dead(10_000, DeadReason::Permanent, "no")).await;
    }
    ids
}

async fn list(store: &dyn Store, page: DlqPage) -> Vec<DeadLetter> {
    store.dead_letters(DlqFilter::default(), page).await.unwrap()
}

fn ids(letters: &[DeadLetter]) -> Vec<EventId> {
    letters.iter().map(|letter| letter.id).collect()
}

/// Reads the whole list by cursor in pages of this size; `meanwhile` runs between two pages.
async fn walk(store: &dyn Store, limit: u32, mut meanwhile: impl AsyncFnMut(usize)) -> Vec<DeadLetter> {
    let mut page = DlqPage { limit, ..DlqPage::default() };
    let mut seen = Vec::new();
    for pages in 0.. {
        let letters = list(store, page).await;
        let Some(last) = letters.last() else { break };
        page.after = Some(last.cursor);
        seen.extend(letters);
        meanwhile(pages).await;
    }
    seen
}

fn assert_newest_first(letters: &[DeadLetter]) {
    assert!(
        letters.is_sorted_by(|one, next| one.created_at >= next.created_at),
        "descending by time of publishing"
    );
}

pub(super) async fn dead_letters_are_listed_newest_first(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 100);
    assert!(list(store.as_ref(), DlqPage::default()).await.is_empty());
    let killed = kill_all(store.as_ref(), &mut worker, [300, 100, 500, 200, 400]).await;
    // The order of dead-lettering differs from the order of publishing.
    let letters = list(store.as_ref(), DlqPage::default()).await;
    assert_eq!(ids(&letters), [2, 4, 0, 3, 1].map(|place| killed[place]));
    assert!(
        letters.iter().all(|letter| letter.errors == ["no"] && letter.attempts.is_empty()),
        "{letters:?}"
    );
    assert!(letters.iter().all(|letter| letter.dlq_at == at(10_000) && letter.reason == "permanent"));
    assert_eq!(letters[0].payload.get(), r#"{"created":500}"#);
}

pub(super) async fn the_first_hundred_are_listed_by_default(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 1000);
    let killed = kill_all(store.as_ref(), &mut worker, 0..120).await;
    let letters = list(store.as_ref(), DlqPage::default()).await;
    assert_eq!(ids(&letters), killed.iter().rev().take(100).copied().collect::<Vec<_>>());
}

pub(super) async fn offset_and_limit_select_a_page(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 100);
    let mut killed = kill_all(store.as_ref(), &mut worker, 0..10).await;
    killed.reverse();
    for (offset, limit, expected) in
        [(0, 3, 0..3), (3, 3, 3..6), (8, 5, 8..10), (10, 5, 10..10), (99, 1, 10..10)]
    {
        let letters = list(store.as_ref(), DlqPage { offset, limit, after: None }).await;
        assert_eq!(ids(&letters), killed[expected], "offset {offset}, limit {limit}");
    }
    assert!(list(store.as_ref(), DlqPage { limit: 0, ..DlqPage::default() }).await.is_empty());
}

pub(super) async fn pages_by_cursor_show_each_dead_letter_once(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 1000);
    // Several were published in the same millisecond.
    let killed = kill_all(store.as_ref(), &mut worker, (0..250).map(|n| n / 9)).await;
    let seen = walk(store.as_ref(), 7, async |_| {}).await;
    assert_newest_first(&seen);
    assert_eq!(seen.len(), 250, "none is seen twice");
    assert_eq!(
        ids(&seen).into_iter().collect::<HashSet<_>>(),
        killed.into_iter().collect(),
        "none is left out"
    );
}

pub(super) async fn pages_by_cursor_show_each_dead_letter_once_while_more_die(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 1000);
    let killed = kill_all(store.as_ref(), &mut worker, (0..250).map(|n| n / 9)).await;
    // Newer than everything, in the middle of it, and older than everything.
    let seen = walk(store.as_ref(), 7, async |pages| {
        let mut worker = Worker::attach(store.as_ref(), 10);
        if pages < 50 {
            kill_all(store.as_ref(), &mut worker, [9000, 14, -9000]).await;
        }
    })
    .await;
    assert_newest_first(&seen);
    let distinct: HashSet<_> = ids(&seen).into_iter().collect();
    assert_eq!(distinct.len(), seen.len(), "none is seen twice");
    assert!(
        killed.iter().all(|id| distinct.contains(id)),
        "none that was there from the beginning is left out"
    );
}

pub(super) async fn a_cursor_survives_as_text(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 100);
    let mut killed = kill_all(store.as_ref(), &mut worker, [1, 1, 1, 2, 2, 3]).await;
    killed.reverse();
    let first = list(store.as_ref(), DlqPage { limit: 2, ..DlqPage::default() }).await;
    let kept = first[1].cursor.to_string();
    let after: DlqCursor = kept.parse().unwrap();
    assert_eq!(after, first[1].cursor);
    let rest = list(store.as_ref(), DlqPage { after: Some(after), ..DlqPage::default() }).await;
    let all: HashSet<_> = ids(&first).into_iter().chain(ids(&rest)).collect();
    assert_eq!((first.len() + rest.len(), all), (6, killed.into_iter().collect()));
    // With an offset on top of it.
    let rest = list(store.as_ref(), DlqPage { after: Some(after), offset: 3, limit: 100 }).await;
    assert_eq!(rest.len(), 1);
}

/// Makes ten events with three dead deliveries each.
async fn kill_by_three(store: &dyn Store, worker: &mut Worker) -> BTreeSet<(EventId, String)> {
    let mut expected = BTreeSet::new();
    for created in 0..10 {
        let id = append(store, vec![to_each(created / 2, &["audit", "billing", "mail"])]).await.remove(0);
        for claimed in worker.handed_over() {
            let subscription = subscription_of(&claimed).unwrap().to_owned();
            settle(
                store,
                claimed,
                of(&subscription, dead(100, DeadReason::Permanent, &format!("{subscription} says no"))),
            )
            .await;
            expected.insert((id, subscription));
        }
    }
    expected
}

fn entries(letters: &[DeadLetter]) -> BTreeSet<(EventId, String)> {
    letters.iter().map(|letter| (letter.id, letter.subscription.clone().unwrap().into())).collect()
}

pub(super) async fn each_dead_delivery_has_its_own_dead_letter(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 100);
    let id = append(store.as_ref(), vec![to_each(1, &["audit", "billing", "mail"])]).await.remove(0);
    for claimed in worker.handed_over() {
        match subscription_of(&claimed) {
            Some("audit") => settle(store.as_ref(), claimed, done(10)).await,
            Some("billing") => {
                settle(store.as_ref(), claimed, of("billing", dead(20, DeadReason::Permanent, "bad card")))
                    .await
            }
            _ => settle(store.as_ref(), claimed, of("mail", retry(10, 50, "greylisted"))).await,
        };
    }
    let claimed = worker.claim_only(store.as_ref(), 50).await;
    settle(store.as_ref(), claimed, of("mail", dead(60, DeadReason::AttemptsExhausted, "bounced"))).await;

    for mut letters in [store.dead_letter(id).await.unwrap(), list(store.as_ref(), DlqPage::default()).await]
    {
        letters.sort_by(|one, other| one.subscription.cmp(&other.subscription));
        assert_eq!(letters.len(), 2, "a done delivery has none");
        let (billing, mail) = (&letters[0], &letters[1]);
        assert_eq!((billing.id, &billing.subscription), (id, &Some(name("billing"))));
        assert_eq!((billing.retry_count, billing.dlq_at, billing.reason.as_str()), (1, at(20), "permanent"));
        assert_eq!(billing.errors, ["bad card"]);
        assert_eq!((mail.id, &mail.subscription), (id, &Some(name("mail"))));
        assert_eq!((mail.retry_count, mail.dlq_at, mail.reason.as_str()), (2, at(60), "attempts_exhausted"));
        assert_eq!(mail.errors, ["greylisted", "bounced"]);
    }
    let letters = store.dead_letter(id).await.unwrap();
    for letter in &letters {
        let own = letter.subscription.as_ref().unwrap().as_str();
        assert!(
            letter.attempts.iter().all(|attempt| attempt.subscription == own),
            "its own attempts: {letter:?}"
        );
        assert_eq!(letter.attempts.len(), letter.errors.len());
    }
}

pub(super) async fn pages_by_cursor_show_every_dead_letter_of_an_event(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 100);
    let expected = kill_by_three(store.as_ref(), &mut worker).await;
    for limit in 1..=7 {
        let seen = walk(store.as_ref(), limit, async |_| {}).await;
        assert_newest_first(&seen);
        assert_eq!(seen.len(), 30, "none is seen twice, {limit} at a time");
        assert_eq!(entries(&seen), expected, "none is left out, {limit} at a time");
    }
}

/// A redrive of the whole queue must not meet an event again that died once more meanwhile.
pub(super) async fn a_cursor_behind_an_event_skips_all_its_dead_letters(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 100);
    kill_by_three(store.as_ref(), &mut worker).await;
    let last = list(store.as_ref(), DlqPage { limit: 1, ..DlqPage::default() }).await.remove(0);
    store.redrive(last.id, Redrive { at: at(200), payload: None }).await.unwrap();
    store.claim(at(200)).await.unwrap();
    for claimed in worker.handed_over() {
        let subscription = subscription_of(&claimed).unwrap().to_owned();
        settle(store.as_ref(), claimed, of(&subscription, dead(300, DeadReason::Permanent, "again"))).await;
    }
    let after = Some(last.cursor.behind_event());
    let rest = list(store.as_ref(), DlqPage { after, ..DlqPage::default() }).await;
    assert_eq!(rest.len(), 27);
    assert!(rest.iter().all(|letter| letter.id != last.id));
}

pub(super) async fn pages_by_offset_never_repeat_a_dead_letter(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 100);
    let expected = kill_by_three(store.as_ref(), &mut worker).await;
    let mut seen = Vec::new();
    for offset in (0..30).step_by(4) {
        seen.extend(list(store.as_ref(), DlqPage { offset, limit: 4, after: None }).await);
    }
    assert_eq!(seen.len(), 30, "none is seen twice");
    assert_eq!(entries(&seen), expected, "none is left out");
}

pub(super) async fn a_page_holds_no_more_than_its_limit(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 100);
    kill_by_three(store.as_ref(), &mut worker).await;
    for limit in [1, 2, 4, 5] {
        let letters = list(store.as_ref(), DlqPage { limit, ..DlqPage::default() }).await;
        assert_eq!(letters.len(), limit as usize, "at most {limit}");
    }
}

/// Makes ten dead events, published at 0, 100, … 900, with two types, two reasons and two kinds of error.
async fn kill_ten(store: &dyn Store) -> Vec<EventId> {
    let mut worker = Worker::attach(store, 100);
    let mut killed = Vec::new();
    for n in 0..10 {
        let kind = if n < 5 { "order.created" } else { "order.shipped" };
        let reason = if n % 2 == 0 { DeadReason::Permanent } else { DeadReason::AttemptsExhausted };
        let error =
            if n < 4 { format!("connect to 10.0.0.{n}:443 failed") } else { format!("order {n} not found") };
        let new = NewEvent { event_type: event_type(kind), ..event(n * 100) };
        let (id, claimed) = worker.start(store, new).await;
        settle(store, claimed, dead(5000 + n, reason, &error)).await;
        killed.push(id);
    }
    killed
}

pub(super) async fn dead_letters_are_filtered(store: &Arc<dyn Store>) {
    let killed = kill_ten(store.as_ref()).await;
    let none = DlqFilter::default;
    let filters = [
        (none(), vec![9, 8, 7, 6, 5, 4, 3, 2, 1, 0]),
        (DlqFilter { event_type: Some(event_type("order.shipped")), ..none() }, vec![9, 8, 7, 6, 5]),
        (DlqFilter { event_type: Some(event_type("order")), ..none() }, vec![]),
        (DlqFilter { since: Some(at(700)), ..none() }, vec![9, 8, 7]),
        (DlqFilter { since: Some(at(701)), ..none() }, vec![9, 8]),
        (DlqFilter { until: Some(at(200)), ..none() }, vec![1, 0]),
        (DlqFilter { until: Some(at(201)), ..none() }, vec![2, 1, 0]),
        (DlqFilter { since: Some(at(200)), until: Some(at(400)), ..none() }, vec![3, 2]),
        (DlqFilter { reason: Some("permanent".into()), ..none() }, vec![8, 6, 4, 2, 0]),
        (DlqFilter { reason: Some("perm".into()), ..none() }, vec![]),
        (DlqFilter { text: Some("failed".into()), ..none() }, vec![3, 2, 1, 0]),
        (DlqFilter { text: Some("10.0.0.2".into()), ..none() }, vec![2]),
        (DlqFilter { fingerprint: Some(fingerprint("order 0 not found")), ..none() }, vec![9, 8, 7, 6, 5, 4]),
        (DlqFilter { fingerprint: Some("unheard of".into()), ..none() }, vec![]),
        (
            DlqFilter {
                event_type: Some(event_type("order.shipped")),
                since: Some(at(600)),
                until: Some(at(900)),
                reason: Some("permanent".into()),
                text: Some("not found".into()),
                fingerprint: Some(fingerprint("order 0 not found")),
                subscription: None,
            },
            vec![8, 6],
        ),
        // These are dead as a whole, and this handler has failed.
        (DlqFilter { subscription: Some(name("shipping")), ..none() }, vec![9, 8, 7, 6, 5, 4, 3, 2, 1, 0]),
        (DlqFilter { subscription: Some(name("audit")), ..none() }, vec![]),
    ];
    for (filter, expected) in filters {
        let expected: Vec<_> = expected.into_iter().map(|n| killed[n]).collect();
        let letters = store.dead_letters(filter.clone(), DlqPage::default()).await.unwrap();
        assert_eq!(ids(&letters), expected, "{filter:?}");
        // Also page by page.
        let mut page = DlqPage { limit: 2, ..DlqPage::default() };
        let mut seen = Vec::new();
        loop {
            let letters = store.dead_letters(filter.clone(), page).await.unwrap();
            let Some(last) = letters.last() else { break };
            page.after = Some(last.cursor);
            seen.extend(ids(&letters));
        }
        assert_eq!(seen, expected, "{filter:?}, two at a time");
    }
}

pub(super) async fn text_is_searched_verbatim(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 100);
    let killed = worker.kill(store.as_ref(), event(1), 10, "100% of 'a_b' and \\ \"q\" failed: 漢").await;
    worker.kill(store.as_ref(), event(2), 10, "1000 of axb").await;
    for text in ["100%", "a_b", "'a_b'", "\\ \"q\"", "漢", "100% of 'a_b' and \\ \"q\" failed: 漢"] {
        let filter = DlqFilter { text: Some(text.into()), ..DlqFilter::default() };
        let letters = store.dead_letters(filter, DlqPage::default()).await.unwrap();
        assert_eq!(ids(&letters), [killed], "{text}");
    }
    for text in ["%", "_"] {
        let filter = DlqFilter { text: Some(text.into()), ..DlqFilter::default() };
        let letters = store.dead_letters(filter, DlqPage::default()).await.unwrap();
        assert_eq!(ids(&letters), [killed], "{text} is no wildcard");
    }
}

pub(super) async fn text_is_searched_in_every_error(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 100);
    let (id, claimed) = worker.start(store.as_ref(), event(1)).await;
    settle(store.as_ref(), claimed, retry(10, 20, "certificate has expired")).await;
    let claimed = worker.claim_only(store.as_ref(), 20).await;
    settle(store.as_ref(), claimed, dead(30, DeadReason::AttemptsExhausted, "no answer")).await;
    for text in ["no answer", "certificate"] {
        let filter = DlqFilter { text: Some(text.into()), ..DlqFilter::default() };
        let letters = store.dead_letters(filter, DlqPage::default()).await.unwrap();
        assert_eq!(ids(&letters), [id], "{text:?} is in one of its errors");
    }
}

pub(super) async fn errors_of_one_kind_are_one_group(store: &Arc<dyn Store>) {
    assert!(store.dead_groups(DlqFilter::default()).await.unwrap().is_empty());
    kill_ten(store.as_ref()).await;
    let groups = store.dead_groups(DlqFilter::default()).await.unwrap();
    assert_eq!(groups.len(), 2);
    let (larger, smaller) = (&groups[0], &groups[1]);
    assert_eq!(
        (larger.count, &larger.fingerprint),
        (6, &fingerprint("order 0 not found")),
        "the largest first"
    );
    assert!(larger.example.ends_with("not found"), "{}", larger.example);
    assert_eq!((larger.first_at, larger.last_at), (at(5004), at(5009)));
    assert_eq!((smaller.count, smaller.first_at, smaller.last_at), (4, at(5000), at(5003)));
    for group in groups {
        assert_eq!(fingerprint(&group.example), group.fingerprint, "an example is of its kind");
        let filter = DlqFilter { fingerprint: Some(group.fingerprint), ..DlqFilter::default() };
        let letters = store.dead_letters(filter, DlqPage::default()).await.unwrap();
        assert_eq!(letters.len() as u64, group.count, "the list shows the group");
    }
}

pub(super) async fn dead_letters_are_grouped_by_target_and_http_status(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let mut last = Vec::new();
    for (when, status) in (1..).zip([500, 500, 422, 401, 302]) {
        let (id, claimed) = worker.start(store.as_ref(), to_each(when, &["shop"])).await;
        let error = format!("the endpoint answered {status}");
        settle(store.as_ref(), claimed, of("shop", dead(when, DeadReason::Permanent, &error))).await;
        last.push(id);
    }
    let other = NewEvent { event_type: event_type("order.shipped"), ..to_each(6, &["bank"]) };
    let (_, claimed) = worker.start(store.as_ref(), other).await;
    let of_bank = of("bank", dead(6, DeadReason::Permanent, "the endpoint answered 500"));
    settle(store.as_ref(), claimed, of_bank).await;
    let whole = worker.kill(store.as_ref(), event(7), 7, "the endpoint answered 500").await;

    let groups = store.dead_groups(DlqFilter::default()).await.unwrap();
    let mut shown: Vec<_> = groups
        .iter()
        .map(|group| (group.target.as_ref().unwrap().as_str(), group.fingerprint.as_str(), group.count))
        .collect();
    shown[1..].sort_unstable();
    assert_eq!(
        shown,
        [
            ("shop", "the endpoint answered 500", 2),
            ("bank", "the endpoint answered 500", 1),
            ("shipping", "the endpoint answered 500", 1),
            ("shop", "the endpoint answered 302", 1),
            ("shop", "the endpoint answered 401", 1),
            ("shop", "the endpoint answered 422", 1),
        ]
    );
    assert_eq!(
        (groups[0].example_id, groups[0].types.as_slice()),
        (last[1], &[event_type("order.created")][..])
    );
    assert_eq!((groups[0].first_at, groups[0].last_at), (at(1), at(2)));
    for group in groups {
        let filter = DlqFilter {
            fingerprint: Some(group.fingerprint),
            subscription: group.target,
            ..DlqFilter::default()
        };
        let listed = store.dead_letters(filter, DlqPage::default()).await.unwrap();
        assert_eq!(listed.len() as u64, group.count, "target and fingerprint select the group");
        assert_eq!(listed[0].id, group.example_id);
    }
    let of_handler = DlqFilter { subscription: Some(name("shipping")), ..DlqFilter::default() };
    let listed = store.dead_letters(of_handler, DlqPage::default()).await.unwrap();
    assert_eq!((listed[0].id, &listed[0].subscription), (whole, &None), "an event that is dead as a whole");
}

pub(super) async fn groups_are_filtered_like_the_list(store: &Arc<dyn Store>) {
    kill_ten(store.as_ref()).await;
    for filter in [
        DlqFilter { event_type: Some(event_type("order.created")), ..DlqFilter::default() },
        DlqFilter { since: Some(at(300)), until: Some(at(800)), ..DlqFilter::default() },
        DlqFilter { reason: Some("permanent".into()), ..DlqFilter::default() },
        DlqFilter { text: Some("not found".into()), ..DlqFilter::default() },
        DlqFilter { text: Some("nowhere".into()), ..DlqFilter::default() },
    ] {
        let listed = store.dead_letters(filter.clone(), DlqPage::default()).await.unwrap().len() as u64;
        let groups = store.dead_groups(filter.clone()).await.unwrap();
        assert_eq!(groups.iter().map(|group| group.count).sum::<u64>(), listed, "{filter:?}");
    }
}

pub(super) async fn only_dead_events_have_dead_letters(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 100);
    let (running, _claimed) = worker.start(store.as_ref(), event(1)).await;
    let (finished, claimed) = worker.start(store.as_ref(), event(2)).await;
    settle(store.as_ref(), claimed, done(3)).await;
    let pending = append(store.as_ref(), vec![later(3, 9000)]).await.remove(0);
    assert!(list(store.as_ref(), DlqPage::default()).await.is_empty());
    for (id, expected) in
        [(running, EventStatus::Processing), (finished, EventStatus::Done), (pending, EventStatus::Pending)]
    {
        let error = store.dead_letter(id).await.unwrap_err();
        assert!(
            matches!(error, StoreError::NotDead { id: which, status } if which == id && status == expected),
            "{error}"
        );
    }
    let unknown = EventId::new();
    let error = store.dead_letter(unknown).await.unwrap_err();
    assert!(matches!(error, StoreError::NoSuchEvent { id } if id == unknown), "{error}");
}

pub(super) async fn dead_letter_summaries_have_every_field_but_the_payload(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 100);
    kill_by_three(store.as_ref(), &mut worker).await;
    kill_all(store.as_ref(), &mut worker, 100..105).await;
    let by_audit = DlqFilter { text: Some("audit says".into()), ..DlqFilter::default() };
    for (filter, count) in [(DlqFilter::default(), 12), (by_audit, 7)] {
        let page = DlqPage { offset: 3, limit: 12, after: None };
        let whole = store.dead_letters(filter.clone(), page).await.unwrap();
        let short = store.dead_letter_summaries(filter, page).await.unwrap();
        assert_eq!((whole.len(), short.len()), (count, count));
        for (whole, short) in whole.into_iter().zip(short) {
            assert_eq!(whole.cursor, short.cursor);
            let again = short.with(whole.payload.clone());
            assert_eq!(serde_json::to_value(again).unwrap(), serde_json::to_value(whole).unwrap());
        }
    }
}
