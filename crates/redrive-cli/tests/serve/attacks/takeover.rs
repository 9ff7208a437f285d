//! Leases of a server that was stopped: every server on the database honours them until they end, and none afterwards.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redrive_api::retry::Retry;
use redrive_api::subscriptions::{
    Ack, Extend, LeaseResults, LeasedEvent, Nack, Pull, PutSubscription, Subscriptions,
};
use serde_json::{Value, json};

use crate::world::{TestDatabase, World, ok};

fn pull(world: &World, how: &Pull) -> Vec<LeasedEvent> {
    ok(world.client().subscriptions().pull("billing", how)).data
}

fn waiting(wait_ms: u64) -> Pull {
    Pull { wait_ms: Some(wait_ms), ..Pull::default() }
}

/// A way to end or extend leases of the subscription `billing`.
type End = fn(&Subscriptions<'_>, Vec<String>) -> LeaseResults;

const ACK: End = |billing, leases| ok(billing.ack("billing", &Ack { leases }));
const NACK: End = |billing, leases| {
    ok(billing.nack("billing", &Nack { leases, outcome: None, delay_ms: None, reason: None }))
};
const EXTEND: End = |billing, leases| ok(billing.extend("billing", &Extend { leases, lease_ms: 60_000 }));

fn end(world: &World, how: End, leases: &[&String]) -> LeaseResults {
    let leases = leases.iter().map(|lease| (*lease).clone()).collect();
    how(&world.client().subscriptions(), leases)
}

fn done(done: usize) -> LeaseResults {
    LeaseResults { done, lost: Vec::new() }
}

fn lost(leases: &[&String]) -> LeaseResults {
    LeaseResults { done: 0, lost: leases.iter().map(|lease| (*lease).clone()).collect() }
}

fn status(world: &World, id: &str) -> Value {
    world.get(&format!("/v1/events/{id}")).ok(200)["status"].clone()
}

/// Creates a subscription, publishes three events and leases them. Returns their ids and leases.
fn leased_by(first: &World, lease_ms: u64) -> (Vec<String>, Vec<String>) {
    let retry = Some(Retry { base_delay_ms: Some(10), ..Retry::default() });
    let orders = PutSubscription { patterns: vec!["order.*".to_owned()], lease_ms: Some(lease_ms), retry };
    ok(first.client().subscriptions().put("billing", &orders));
    (0..3).for_each(|n| drop(first.publish("order.created", &json!(n))));
    let mut leased = Vec::new();
    while leased.len() < 3 {
        leased.extend(pull(first, &waiting(20_000)));
    }
    leased.into_iter().map(|event| (event.id.to_string(), event.lease)).unzip()
}

#[test]
fn every_server_ends_the_leases_of_a_stopped_one() {
    let database = Arc::new(TestDatabase::postgres());
    let first = World::start(Arc::clone(&database), &[]);
    let (second, third) =
        (World::start(Arc::clone(&database), &[]), World::start(Arc::clone(&database), &[]));
    let (ids, leases) = leased_by(&first, 600_000);
    first.signal("STOP");
    // Longer than the lease of the process on its claims.
    assert!(pull(&second, &waiting(20_000)).is_empty(), "the consumers still have them");
    assert_eq!(end(&second, EXTEND, &[&leases[0]]), done(1));
    assert_eq!(end(&third, ACK, &[&leases[0]]), done(1));
    assert_eq!(end(&third, NACK, &[&leases[1]]), done(1));
    assert_eq!(status(&second, &ids[0]), "done");
    first.signal("CONT");
    for how in [EXTEND, ACK, NACK] {
        let ended = [&leases[0], &leases[1]];
        assert_eq!(end(&first, how, &ended), lost(&ended));
    }
    assert_eq!(end(&first, ACK, &[&leases[2]]), done(1), "its own lease is as good as before");
    let again = pull(&second, &waiting(20_000)).remove(0);
    assert_eq!((again.id.to_string(), again.attempt), (ids[1].clone(), 2));
    assert_eq!(end(&first, ACK, &[&again.lease]), done(1), "and so is that of another server");
    for id in &ids {
        assert_eq!(status(&first, id), "done"); // the ack is answered after it is stored
    }
}

#[test]
fn no_server_honours_a_lease_that_ended_while_its_server_was_stopped() {
    let database = Arc::new(TestDatabase::postgres());
    let first = World::start(Arc::clone(&database), &[]);
    let (ids, leases) = leased_by(&first, 1500);
    let second = World::start(Arc::clone(&database), &[]);
    first.signal("STOP");
    let mut taken_over = Vec::new();
    second.until("the leases have ended", || {
        taken_over.extend(pull(&second, &Pull { lease_ms: Some(600_000), ..waiting(1000) }));
        taken_over.len() == 3
    });
    first.signal("CONT");
    for (how, lease) in [EXTEND, ACK, NACK].into_iter().zip(&leases) {
        for world in [&first, &second] {
            assert_eq!(end(world, how, &[lease]), lost(&[lease]));
        }
    }
    for id in &ids {
        assert_eq!(status(&second, id), "processing");
    }
    assert!(taken_over.iter().all(|event| event.attempt == 2), "the ended lease was an attempt");
    let leases: Vec<_> = taken_over.iter().map(|event| &event.lease).collect();
    assert_eq!(end(&first, ACK, &leases), done(3));
    for id in &ids {
        assert_eq!(status(&second, id), "done");
    }
}

#[test]
fn a_waiting_pull_gets_an_event_that_another_server_has_stored() {
    let database = Arc::new(TestDatabase::postgres());
    let (first, second) =
        (World::start(Arc::clone(&database), &[]), World::start(Arc::clone(&database), &[]));
    leased_by(&first, 600_000);
    for n in 0..5 {
        let (began, published) = std::thread::scope(|scope| {
            let pulling = scope.spawn(|| {
                let began = Instant::now();
                (began, pull(&second, &waiting(20_000)))
            });
            std::thread::sleep(Duration::from_millis(300));
            let id = first.publish("order.created", &json!(n));
            let (began, pulled) = pulling.join().unwrap();
            assert_eq!(pulled[0].id.to_string(), id);
            (began, pulled)
        });
        assert!(began.elapsed() < Duration::from_secs(3), "{:?} after the pull began", began.elapsed());
        end(&first, ACK, &[&published[0].lease]);
    }
}
