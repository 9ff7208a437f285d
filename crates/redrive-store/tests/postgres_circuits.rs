//! Shared circuit breakers in the database.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::time::Duration;

use redrive_retry::Timestamp;
use redrive_retry::internal::CallCounts;
use redrive_store::traits::*;
use redrive_store::{CircuitReport, CircuitState, CircuitView, PostgresStore, Store, SubscriptionName};

use crate::postgres_server::{Schema, server};

fn name(text: &str) -> SubscriptionName {
    SubscriptionName::new(text).unwrap()
}

fn report(subscription: &str, generation: i64, succeeded: u32, failed: u32) -> CircuitReport {
    let (subscription, counts) = (name(subscription), CallCounts { succeeded, failed });
    CircuitReport { subscription, generation, counts, window: Duration::from_secs(60) }
}

async fn share(store: &PostgresStore, report: CircuitReport) -> CircuitView {
    store.share_circuits(vec![report]).await.unwrap().expect("a PostgreSQL store is shared").remove(0)
}

fn counts(view: &CircuitView) -> Vec<(u32, u32)> {
    let mut counts: Vec<_> = view.others.iter().map(|counts| (counts.succeeded, counts.failed)).collect();
    counts.sort_unstable();
    counts
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_process_sees_the_counts_of_live_processes() {
    let schema = Schema::new();
    let open = || async { PostgresStore::open(&server(), schema.options()).await.unwrap() };
    let (one, two, three) = (open().await, open().await, open().await);
    assert_eq!(counts(&share(&one, report("mail", 0, 1, 2)).await), []);
    share(&one, report("other", 0, 9, 9)).await;
    assert_eq!(counts(&share(&two, report("mail", 0, 3, 4)).await), [(1, 2)], "of this subscription");
    share(&one, report("mail", 0, 1, 5)).await;
    assert_eq!(
        counts(&share(&three, report("mail", 0, 0, 0)).await),
        [(1, 5), (3, 4)],
        "totals, not increments"
    );
    assert_eq!(
        counts(&share(&one, report("mail", 0, 1, 5)).await),
        [(0, 0), (3, 4)],
        "live processes are included"
    );
    schema.move_time(Duration::from_secs(40)).await;
    share(&two, report("mail", 0, 3, 4)).await;
    schema.move_time(Duration::from_secs(21)).await;
    assert_eq!(
        counts(&share(&three, report("mail", 0, 0, 1)).await),
        [(3, 4)],
        "silent for longer than the window"
    );
    let all = vec![report("mail", 0, 0, 1), report("other", 0, 0, 0)];
    assert_eq!(three.share_circuits(all).await.unwrap().unwrap().len(), 2, "all at once");
    for store in [one, two, three] {
        store.close().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_several_concurrent_circuit_changes_wins() {
    let schema = Schema::new();
    let one = PostgresStore::open(&server(), schema.options()).await.unwrap();
    let two = PostgresStore::open(&server(), schema.options()).await.unwrap();
    assert_eq!(share(&one, report("mail", 0, 0, 0)).await.state, CircuitState::default());
    let time = |millis| Some(Timestamp::from_millis(millis));
    let open = CircuitState { generation: 0, until: time(7000), probe_until: None, openings: 1 };
    let (first, second) =
        tokio::join!(one.change_circuit(name("mail"), open), two.change_circuit(name("mail"), open));
    let made: Vec<_> = [first.unwrap(), second.unwrap()].into_iter().flatten().collect();
    assert_eq!(made, [1]);
    let view = share(&one, report("mail", 0, 0, 4)).await;
    assert_eq!(view.state, CircuitState { generation: 1, ..open });
    assert_eq!(
        counts(&share(&two, report("mail", 1, 0, 0)).await),
        [(0, 0)],
        "counts of an older generation are ignored"
    );
    let probe = CircuitState { generation: 1, probe_until: time(9000), ..open };
    assert_eq!(two.change_circuit(name("mail"), probe).await.unwrap(), Some(2));
    let closed = CircuitState { generation: 1, ..CircuitState::default() };
    assert_eq!(one.change_circuit(name("mail"), closed).await.unwrap(), None, "the generation has changed");
    assert_eq!(
        two.change_circuit(name("mail"), CircuitState { generation: 2, ..closed }).await.unwrap(),
        Some(3)
    );
    let view = share(&one, report("mail", 1, 0, 0)).await;
    assert_eq!(view.state, CircuitState { generation: 3, ..CircuitState::default() });
    one.close().await.unwrap();
    two.close().await.unwrap();
}
