//! Promises about depth and stats.

use std::sync::Arc;

use redrive_retry::decision::DeadReason;

use super::scene::{
    Worker, append, at, dead, defer, depth, done, event, later, of, retry, settle, split_off, stats, to_each,
};
use crate::due::Due;
use crate::event::{EventStatus, SubscriptionName};
use crate::query::{Depth, EventFilter, EventPage, Stats, SubscriptionRow, WaitingDeliveries};
use crate::store::Store;
use crate::work::{Settlement, Verdict};

pub(super) async fn an_empty_store_counts_nothing(store: &Arc<dyn Store>) {
    assert_eq!(stats(store.as_ref()).await, Stats::default());
    assert_eq!(depth(store.as_ref()).await, Depth::default());
}

pub(super) async fn depth_and_stats_agree_with_a_full_count(store: &Arc<dyn Store>) {
    let mut worker = Worker::attach(store.as_ref(), 1000);
    let mut running = Vec::new();
    for n in 0..64 {
        let (_, claimed) = worker.start(store.as_ref(), event(n)).await;
        let settlement = match n % 8 {
            0 => done(100),
            1 => retry(100, 5000, "no"),
            2 => defer(100, 5000),
            3 => dead(100, DeadReason::Permanent, "no"),
            4 => split_off(done(100), &[("audit", 5000), ("billing", 6000)]),
            5 => split_off(dead(100, DeadReason::Permanent, "no"), &[("audit", 7000)]),
            _ => {
                running.push(claimed);
                continue;
            }
        };
        settle(store.as_ref(), claimed, settlement).await;
    }
    append(store.as_ref(), vec![later(70, 9000), to_each(71, &["audit", "billing", "mail"])]).await;
    for (n, claimed) in worker.handed_over().into_iter().enumerate() {
        let settlement = if n == 0 { done(100) } else { of("mail", dead(100, DeadReason::Permanent, "no")) };
        settle(store.as_ref(), claimed, settlement).await;
    }

    let page = EventPage { limit: 1000, after: None };
    let listed = store.events(EventFilter::default(), page).await.unwrap();
    let mut full_count = Stats::default();
    let mut unfinished = Depth { running: running.len() as u64, ..Depth::default() };
    for shown in listed {
        let shown = store.event(shown.id).await.unwrap();
        let open = |status| matches!(status, EventStatus::Pending | EventStatus::Processing);
        full_count.open_deliveries +=
            shown.deliveries.iter().filter(|delivery| open(delivery.status)).count() as u64;
        match shown.status {
            EventStatus::Pending => full_count.pending += 1,
            EventStatus::Processing => full_count.processing += 1,
            EventStatus::Done => full_count.done += 1,
            EventStatus::Dlq => full_count.dlq += 1,
        }
        let is_running = running.iter().any(|claimed| claimed.event.id == shown.id);
        match shown.status {
            EventStatus::Pending => unfinished.pending += 1,
            EventStatus::Processing if !is_running && shown.deliveries.is_empty() => unfinished.waiting += 1,
            _ => {}
        }
    }
    unfinished.open_deliveries = full_count.open_deliveries;
    assert_eq!(stats(store.as_ref()).await, full_count);
    assert_eq!(depth(store.as_ref()).await, unfinished);
    let by_hand =
        Stats { pending: 9, processing: 32, done: 8, dlq: 17, open_deliveries: 24, ..Stats::default() };
    assert_eq!(full_count, by_hand, "and with the number of operations");
}

pub(super) async fn waiting_deliveries_are_counted_by_subscription_with_the_age_of_the_oldest(
    store: &Arc<dyn Store>,
) {
    let mut worker = Worker::attach(store.as_ref(), 100);
    for name in ["mail", "audit"] {
        let row = SubscriptionRow {
            id: name.to_owned(),
            name: SubscriptionName::new(name).unwrap(),
            event_type: "*".to_owned(),
            created_at: at(0),
        };
        store.register(row).await.unwrap();
    }
    let backlog = || Settlement { verdict: Verdict::Defer(Due::Backlog), ..done(100) };
    for (created, names) in [(1, &["mail", "audit"][..]), (2, &["mail"]), (3, &["mail"]), (4, &["gone"])] {
        append(store.as_ref(), vec![to_each(created, names)]).await;
        for claimed in worker.handed_over() {
            let settlement = match (created, claimed.subscription.as_ref().map(SubscriptionName::as_str)) {
                (1, Some("mail")) => of("mail", retry(100, 5000, "no")),
                (1, _) => done(100),
                (2, _) => defer(100, 6000),
                _ => backlog(),
            };
            settle(store.as_ref(), claimed, settlement).await;
        }
    }
    append(store.as_ref(), vec![later(5, 1000)]).await;
    let found = store.waiting(at(2000), at(1500)).await.unwrap();
    assert_eq!(found.overdue, 1, "the whole event");
    let none = WaitingDeliveries {
        subscription: "mail".to_owned(),
        is_on_record: true,
        due: 0,
        parked: 0,
        oldest_parked_at: None,
        retrying: 0,
        backlogged: 0,
        oldest_backlogged_at: None,
    };
    let mail = WaitingDeliveries {
        parked: 1,
        oldest_parked_at: Some(at(2)),
        retrying: 1,
        backlogged: 1,
        oldest_backlogged_at: Some(at(3)),
        ..none.clone()
    };
    let gone = WaitingDeliveries {
        subscription: "gone".to_owned(),
        is_on_record: false,
        backlogged: 1,
        oldest_backlogged_at: Some(at(4)),
        ..none.clone()
    };
    assert_eq!(found.subscriptions, [mail, gone.clone()]);
    let found = store.waiting(at(10_000), at(9000)).await.unwrap();
    let mail = WaitingDeliveries { due: 2, backlogged: 1, oldest_backlogged_at: Some(at(3)), ..none };
    assert_eq!((found.overdue, found.subscriptions), (3, vec![mail, gone]));
}
