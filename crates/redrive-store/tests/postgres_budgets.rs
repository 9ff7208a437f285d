//! Shared retry budgets in the database.
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::time::Duration;

use redrive_store::traits::*;
use redrive_store::{BudgetReport, PostgresStore, Store, SubscriptionName};

use crate::postgres_server::{Schema, server};

fn report(subscription: &str) -> BudgetReport {
    let subscription = SubscriptionName::new(subscription).unwrap();
    BudgetReport { subscription, retries_left: 7, window: Duration::from_secs(15) }
}

/// Reports to the budgets. Returns the number of other processes for each.
async fn others(store: &PostgresStore, subscriptions: &[&str]) -> Vec<u32> {
    let reports: Vec<_> = subscriptions.iter().map(|name| report(name)).collect();
    let views = store.share_budgets(reports).await.unwrap().expect("a PostgreSQL store is shared");
    let of = |name: &&str| views.iter().find(|view| view.subscription.as_str() == *name).unwrap().others;
    subscriptions.iter().map(of).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_process_counts_the_live_processes_that_share_a_budget() {
    let schema = Schema::new();
    let open = || async { PostgresStore::open(&server(), schema.options()).await.unwrap() };
    let (one, two, three) = (open().await, open().await, open().await);
    assert_eq!(others(&one, &["mail"]).await, [0]);
    assert_eq!(others(&one, &["mail"]).await, [0], "the process does not count itself");
    assert_eq!(others(&two, &["mail", "index"]).await, [1, 0], "of this subscription");
    assert_eq!(others(&three, &["index", "mail"]).await, [1, 2]);
    schema.move_time(Duration::from_secs(10)).await;
    assert_eq!(others(&one, &["mail"]).await, [2]);
    schema.move_time(Duration::from_secs(6)).await;
    assert_eq!(others(&two, &["mail", "index"]).await, [1, 0], "silent for longer than the window");
    // Processes that report at the same moment see each other at the second report at the latest.
    let (first, second) = (open().await, open().await);
    tokio::join!(others(&first, &["new"]), others(&second, &["new"]));
    assert_eq!((others(&first, &["new"]).await, others(&second, &["new"]).await), (vec![1], vec![1]));
    for store in [one, two, three, first, second] {
        store.close().await.unwrap();
    }
}
