//! Promises about settlements: every column for every verdict.

use std::sync::Arc;

use redrive_retry::FailureClass;
use redrive_retry::decision::DeadReason;
use tokio::task::JoinSet;

use super::scene::{
    Worker, append, at, dead, defer, depth, detail, done, event, failure, name, retry, settle,
};
use crate::event::EventStatus;
use crate::query::{AttemptFilter, AttemptRow, Depth, EventPage, RawJson};
use crate::store::{Finished, Store};
use crate::work::{FailedAttempt, Settlement, SucceededAttempt, Verdict};

/// Returns the row that a failed attempt must leave.
fn row(attempt: u32, failure: &FailedAttempt) -> AttemptRow {
    AttemptRow {
        attempt,
        subscription: failure.subscription.as_str().to_owned(),
        started_at: failure.started_at,
        duration_ms: failure.duration_ms,
        class: Some(failure.class),
        delay_ms: failure.delay_ms,
        error: failure.error.clone(),
        record: failure.record.clone().map(|record| Box::new(RawJson(record))),
        detail: failure.detail.clone().map(|detail| Box::new(RawJson(detail))),
    }
}

pub(super) async fn the_details_of_an_attempt_are_stored(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let (id, claimed) = worker.start(store.as_ref(), event(1)).await;
    let failed = FailedAttempt { detail: Some(r#"{"status":503}"#.to_owned()), ..failure(10, "no") };
    let again = Settlement { failure: Some(failed.clone()), ..retry(10, 20, "no") };
    settle(store.as_ref(), claimed, again).await;
    let claimed = worker.claim_only(store.as_ref(), 20).await;
    let success_with = |subscription: &str, detail: &str| SucceededAttempt {
        subscription: name(subscription),
        started_at: at(20),
        duration_ms: 7,
        detail: detail.to_owned(),
    };
    let succeeded = vec![
        success_with("shipping", r#"{"status":200}"#),
        success_with("billing", r#"{"body":"ok \u0000"}"#),
    ];
    let finished = settle(store.as_ref(), claimed, Settlement { succeeded, ..done(30) }).await;
    assert_eq!(finished, Finished::Done { retried: true });
    let shown = detail(store.as_ref(), id).await;
    assert_eq!((shown.status, shown.retry_count, shown.errors.len()), (EventStatus::Done, 1, 1));
    let success = |subscription: &str, detail: &str| AttemptRow {
        attempt: 2,
        subscription: subscription.to_owned(),
        started_at: at(20),
        duration_ms: 7,
        class: None,
        delay_ms: 0,
        error: String::new(),
        record: None,
        detail: Some(Box::new(RawJson(detail.to_owned()))),
    };
    let expected = [
        row(1, &failed),
        success("shipping", r#"{"status":200}"#),
        success("billing", r#"{"body":"ok \u0000"}"#),
    ];
    assert_eq!(shown.attempts, expected);
}

pub(super) async fn the_attempts_of_one_subscription_are_listed_newest_first(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let mut ids = Vec::new();
    for n in 1..=5 {
        let (id, claimed) = worker.start(store.as_ref(), event(n)).await;
        settle(store.as_ref(), claimed, dead(n, DeadReason::Permanent, &format!("no {n}"))).await;
        ids.push(id);
    }
    let (any, failed) = (AttemptFilter::default(), AttemptFilter { failed: true });
    let of = |after, limit| store.attempts_of(name("shipping"), any, EventPage { limit, after });
    let all = of(None, 10).await.unwrap();
    let shown: Vec<_> = all.iter().map(|one| (one.event_id, one.attempt.error.clone())).collect();
    let expected: Vec<_> = (1..=5).rev().map(|n| (ids[n - 1], format!("no {n}"))).collect();
    assert_eq!(shown, expected);
    let first = of(None, 2).await.unwrap();
    let rest = of(first.last().map(|one| one.cursor), 10).await.unwrap();
    assert_eq!([first, rest].concat(), all);
    assert!(store.attempts_of(name("unknown"), any, EventPage::default()).await.unwrap().is_empty());
    let (_, claimed) = worker.start(store.as_ref(), event(6)).await;
    let success = SucceededAttempt {
        subscription: name("shipping"),
        started_at: at(6),
        duration_ms: 7,
        detail: "{}".to_owned(),
    };
    settle(store.as_ref(), claimed, Settlement { succeeded: vec![success], ..done(6) }).await;
    assert_eq!(of(None, 10).await.unwrap().len(), 6);
    let page = EventPage { limit: 2, after: None };
    let failures = store.attempts_of(name("shipping"), failed, page).await.unwrap();
    assert_eq!(failures, all[..2], "without the success");
}

pub(super) async fn done_is_recorded_in_every_column(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let (id, claimed) = worker.start(store.as_ref(), event(1)).await;
    assert_eq!(settle(store.as_ref(), claimed, done(50)).await, Finished::Done { retried: false });
    let shown = detail(store.as_ref(), id).await;
    assert_eq!((shown.status, shown.retry_count, shown.errors.len()), (EventStatus::Done, 0, 0));
    assert_eq!((shown.created_at, shown.updated_at, shown.due_at), (at(1), at(50), None));
    assert!(shown.attempts.is_empty() && shown.deliveries.is_empty());
    assert_eq!(depth(store.as_ref()).await, Depth::default());
    assert!(worker.claim(store.as_ref(), 1_000_000).await.is_empty(), "it is never claimed again");
}

pub(super) async fn retry_is_recorded_in_every_column(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let (id, claimed) = worker.start(store.as_ref(), event(1)).await;
    let first = Arc::clone(&claimed.event);
    assert_eq!(settle(store.as_ref(), claimed, retry(50, 1050, "refused")).await, Finished::NotYet);
    let shown = detail(store.as_ref(), id).await;
    assert_eq!((shown.status, shown.retry_count), (EventStatus::Processing, 1));
    assert_eq!(shown.errors, ["refused"]);
    assert_eq!((shown.created_at, shown.updated_at, shown.due_at), (at(1), at(50), Some(at(1050))));
    assert_eq!(shown.attempts, [row(1, &failure(50, "refused"))]);
    assert_eq!(depth(store.as_ref()).await, Depth { waiting: 1, ..Depth::default() });
    assert_eq!(worker.sink.free_slots(), 10, "waiting work takes no slot");

    assert!(worker.claim(store.as_ref(), 1049).await.is_empty(), "not before it is due");
    let claimed = worker.claim_only(store.as_ref(), 1050).await;
    assert_eq!((claimed.attempt, &claimed.subscription), (2, &None));
    assert_eq!(claimed.event, first, "the same event");
    assert_eq!(settle(store.as_ref(), claimed, done(1060)).await, Finished::Done { retried: true });
    let shown = detail(store.as_ref(), id).await;
    assert_eq!((shown.status, shown.retry_count, shown.due_at), (EventStatus::Done, 1, None));
    assert_eq!(
        (shown.errors.len(), shown.attempts.len()),
        (1, 1),
        "what it had gone through stays on record"
    );
}

pub(super) async fn every_retry_adds_to_the_errors(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let (id, mut claimed) = worker.start(store.as_ref(), event(0)).await;
    for attempt in 1..=5_u32 {
        assert_eq!(claimed.attempt, attempt);
        let now = i64::from(attempt) * 100;
        settle(store.as_ref(), claimed, retry(now, now + 100, &format!("error {attempt}"))).await;
        claimed = worker.claim_only(store.as_ref(), now + 100).await;
    }
    drop(claimed);
    let shown = detail(store.as_ref(), id).await;
    assert_eq!(shown.retry_count, 5);
    assert_eq!(shown.errors, ["error 1", "error 2", "error 3", "error 4", "error 5"]);
    let numbers: Vec<_> = shown.attempts.iter().map(|row| (row.attempt, row.error.as_str())).collect();
    assert_eq!(numbers, [(1, "error 1"), (2, "error 2"), (3, "error 3"), (4, "error 4"), (5, "error 5")]);
}

pub(super) async fn defer_at_the_first_attempt_charges_nothing(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let (id, claimed) = worker.start(store.as_ref(), event(1)).await;
    assert_eq!(settle(store.as_ref(), claimed, defer(50, 500)).await, Finished::NotYet);
    let shown = detail(store.as_ref(), id).await;
    assert_eq!(
        (shown.status, shown.retry_count),
        (EventStatus::Pending, 0),
        "still before its first attempt"
    );
    assert!(shown.errors.is_empty() && shown.attempts.is_empty());
    assert_eq!((shown.updated_at, shown.due_at), (at(50), Some(at(500))));
    assert_eq!(depth(store.as_ref()).await, Depth { pending: 1, ..Depth::default() });
    assert!(worker.claim(store.as_ref(), 499).await.is_empty());
    let claimed = worker.claim_only(store.as_ref(), 500).await;
    assert_eq!(claimed.attempt, 1);
    assert_eq!(settle(store.as_ref(), claimed, done(501)).await, Finished::Done { retried: false });
}

pub(super) async fn defer_at_a_later_attempt_charges_nothing(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let (id, claimed) = worker.start(store.as_ref(), event(1)).await;
    settle(store.as_ref(), claimed, retry(50, 100, "refused")).await;
    let claimed = worker.claim_only(store.as_ref(), 100).await;
    assert_eq!(settle(store.as_ref(), claimed, defer(101, 500)).await, Finished::NotYet);
    let shown = detail(store.as_ref(), id).await;
    assert_eq!((shown.status, shown.retry_count), (EventStatus::Processing, 1));
    assert_eq!((shown.errors.len(), shown.attempts.len()), (1, 1));
    assert_eq!(shown.due_at, Some(at(500)));
    assert_eq!(worker.claim_only(store.as_ref(), 500).await.attempt, 2);
}

pub(super) async fn dead_is_recorded_in_every_column(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let new = event(1);
    let (id, claimed) = worker.start(store.as_ref(), new.clone()).await;
    settle(store.as_ref(), claimed, retry(50, 100, "refused")).await;
    let claimed = worker.claim_only(store.as_ref(), 100).await;
    let settlement = dead(130, DeadReason::AttemptsExhausted, "refused again");
    assert_eq!(settle(store.as_ref(), claimed, settlement).await, Finished::Dead { retried: true });

    let attempts = [row(1, &failure(50, "refused")), row(2, &failure(130, "refused again"))];
    let shown = detail(store.as_ref(), id).await;
    assert_eq!((shown.status, shown.retry_count), (EventStatus::Dlq, 2));
    assert_eq!(shown.errors, ["refused", "refused again"]);
    assert_eq!((shown.created_at, shown.updated_at, shown.due_at), (at(1), at(130), None));
    assert_eq!(shown.attempts, attempts);

    let letters = store.dead_letter(id).await.unwrap();
    assert_eq!(letters.len(), 1);
    let letter = &letters[0];
    assert_eq!((letter.id, &letter.event_type), (id, &new.event_type));
    assert_eq!((letter.payload.get(), &letter.metadata), (&*new.payload, &new.metadata));
    assert_eq!((letter.created_at, letter.dlq_at), (at(1), at(130)));
    assert_eq!((&letter.subscription, letter.retry_count), (&None, 2));
    assert_eq!(letter.reason, "attempts_exhausted");
    assert_eq!(letter.errors, ["refused", "refused again"]);
    assert_eq!(letter.attempts, attempts);

    assert_eq!(depth(store.as_ref()).await, Depth::default());
    assert_eq!(worker.sink.free_slots(), 10);
    assert!(worker.claim(store.as_ref(), 1_000_000).await.is_empty(), "it stays in the queue");
}

pub(super) async fn dead_at_the_first_attempt_was_not_retried(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let (_, claimed) = worker.start(store.as_ref(), event(1)).await;
    let finished = settle(store.as_ref(), claimed, dead(50, DeadReason::Permanent, "bad address")).await;
    assert_eq!(finished, Finished::Dead { retried: false });
}

pub(super) async fn dead_without_a_failure_adds_no_error(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let exhausted = || Settlement { verdict: Verdict::Dead(DeadReason::AttemptsExhausted), ..done(200) };
    let (id, claimed) = worker.start(store.as_ref(), event(1)).await;
    settle(store.as_ref(), claimed, retry(50, 100, "refused")).await;
    let claimed = worker.claim_only(store.as_ref(), 100).await;
    assert_eq!(settle(store.as_ref(), claimed, exhausted()).await, Finished::Dead { retried: true });
    let letter = store.dead_letter(id).await.unwrap().remove(0);
    assert_eq!(
        (letter.retry_count, letter.errors, letter.attempts.len()),
        (1, vec!["refused".to_owned()], 1)
    );

    let (id, claimed) = worker.start(store.as_ref(), event(2)).await;
    settle(store.as_ref(), claimed, exhausted()).await;
    let letter = store.dead_letter(id).await.unwrap().remove(0);
    assert_eq!(
        (letter.retry_count, letter.errors.len(), letter.attempts.len()),
        (0, 0, 0),
        "nothing was ever said"
    );
    assert_eq!((letter.reason.as_str(), letter.dlq_at), ("attempts_exhausted", at(200)));
}

pub(super) async fn every_dead_letter_reason_has_its_name(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    for (reason, name) in [
        (DeadReason::Permanent, "permanent"),
        (DeadReason::AttemptsExhausted, "attempts_exhausted"),
        (DeadReason::DeadlineExceeded, "deadline_exceeded"),
        (DeadReason::BudgetSpent, "budget_spent"),
        (DeadReason::WaitTooLong, "wait_too_long"),
        (DeadReason::NoSubscription, "no_subscription"),
    ] {
        let (id, claimed) = worker.start(store.as_ref(), event(1)).await;
        settle(store.as_ref(), claimed, dead(2, reason, "no")).await;
        assert_eq!(store.dead_letter(id).await.unwrap()[0].reason, name);
    }
}

pub(super) async fn every_class_of_failure_is_kept(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    for class in [
        FailureClass::Transient,
        FailureClass::Throttled { retry_after: Some(1500) },
        FailureClass::Throttled { retry_after: None },
        FailureClass::Timeout,
        FailureClass::Permanent,
        FailureClass::Crashed,
    ] {
        let (id, claimed) = worker.start(store.as_ref(), event(1)).await;
        let failed = FailedAttempt { class, record: None, duration_ms: 0, ..failure(2, "no") };
        let settlement = Settlement { failure: Some(failed.clone()), ..retry(2, 1_000_000, "no") };
        settle(store.as_ref(), claimed, settlement).await;
        assert_eq!(detail(store.as_ref(), id).await.attempts, [row(1, &failed)]);
    }
}

pub(super) async fn errors_are_stored_verbatim(store: &Arc<dyn Store>) {
    let errors = [
        "plain",
        "",
        r#"{"looks":"like JSON"}"#,
        r#"["an", "array"]"#,
        "a \"quote\", a \\ and a \u{0} and a \u{7}",
        "lines\r\nand\ttabs",
        "漢字 и 🙂",
        "null",
        "'); DROP TABLE event; --",
    ];
    let mut worker = Worker::attach(store.as_ref(), 10);
    let (id, mut claimed) = worker.start(store.as_ref(), event(0)).await;
    for error in errors {
        settle(store.as_ref(), claimed, retry(10, 10, error)).await;
        claimed = worker.claim_only(store.as_ref(), 10).await;
    }
    settle(store.as_ref(), claimed, dead(20, DeadReason::Permanent, "the end\u{0}")).await;
    let expected: Vec<_> = errors.into_iter().chain(["the end\u{0}"]).collect();
    assert_eq!(detail(store.as_ref(), id).await.errors, expected);
    let letter = store.dead_letter(id).await.unwrap().remove(0);
    assert_eq!(letter.errors, expected);
    assert_eq!(letter.attempts.iter().map(|row| row.error.as_str()).collect::<Vec<_>>(), expected);
}

pub(super) async fn concurrent_settlements_do_not_mix(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 1000);
    append(store.as_ref(), (0..200).map(event).collect()).await;
    let mut tasks = JoinSet::new();
    for (n, claimed) in (0..).zip(worker.handed_over()) {
        let (store, id) = (Arc::clone(store), claimed.event.id);
        // Mostly plain settlements, each at its own time, mixed with others.
        let (settlement, status) = match n % 10 {
            3 => (retry(1000 + n, 9000, &format!("error {n}")), EventStatus::Processing),
            6 => (dead(1000 + n, DeadReason::Permanent, &format!("error {n}")), EventStatus::Dlq),
            8 => (defer(1000 + n, 9000), EventStatus::Pending),
            _ => (done(1000 + n), EventStatus::Done),
        };
        tasks.spawn(async move { (id, n, status, store.settle(claimed, settlement).await.unwrap()) });
    }
    for (id, n, status, finished) in tasks.join_all().await {
        let shown = detail(store.as_ref(), id).await;
        assert_eq!(shown.status, status, "event {n}");
        match status {
            EventStatus::Done => assert_eq!(finished, Finished::Done { retried: false }),
            EventStatus::Dlq => assert_eq!(finished, Finished::Dead { retried: false }),
            _ => assert_eq!(finished, Finished::NotYet),
        }
        let errors = if matches!(n % 10, 3 | 6) { vec![format!("error {n}")] } else { Vec::new() };
        assert_eq!(shown.errors, errors, "event {n}");
    }
    assert_eq!(worker.sink.free_slots(), 1000);
}

pub(super) async fn concurrent_settlements_keep_their_own_times(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 1000);
    append(store.as_ref(), (0..100).map(event).collect()).await;
    let mut tasks = JoinSet::new();
    for (n, claimed) in (0..).zip(worker.handed_over()) {
        let (store, id) = (Arc::clone(store), claimed.event.id);
        tasks.spawn(async move { (id, n, store.settle(claimed, done(1000 + n)).await.unwrap()) });
    }
    for (id, n, _) in tasks.join_all().await {
        assert_eq!(detail(store.as_ref(), id).await.updated_at, at(1000 + n), "event {n}");
    }
}

pub(super) async fn a_running_event_is_not_shown_as_due(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 10);
    let (id, claimed) = worker.start(store.as_ref(), event(1)).await;
    assert_eq!(detail(store.as_ref(), id).await.due_at, None, "it does not wait");
    settle(store.as_ref(), claimed, retry(10, 50, "no")).await;
    let _claimed = worker.claim_only(store.as_ref(), 50).await;
    assert_eq!(detail(store.as_ref(), id).await.due_at, None, "it does not wait any more");
}
