//! Idempotency keys: a repeated request stores nothing new.

use std::collections::BTreeSet;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use redrive_api::events::PublishEvent;
use redrive_api::retry::Retry;
use serde::Serialize;

use crate::http::{Answer, Connection, request};
use crate::world::{JSON, TestDatabase, World, event, to_json};

fn keyed(world: &World, key: &str, body: &impl Serialize) -> Answer {
    world.send("POST", "/v1/events", &[JSON, ("idempotency-key", key)], &to_json(body))
}

fn count(world: &World) -> usize {
    world.get("/v1/events?limit=200").ok(200)["data"].as_array().unwrap().len()
}

#[test]
fn a_repeated_key_gets_the_first_response() {
    for database in [TestDatabase::sqlite(), TestDatabase::postgres()] {
        let world = database.serve(&[]);
        let one = event("a", 1);
        let first = keyed(&world, "order-7", &one);
        let again = keyed(&world, "order-7", &one);
        assert_eq!(first.ok(202), again.ok(202));
        assert_eq!(
            (first.header("idempotency-replayed"), again.header("idempotency-replayed")),
            (None, Some("true"))
        );
        keyed(&world, "order-7", &event("a", 2)).problem(422, "other_payload");
        let batch = world.send(
            "POST",
            "/v1/events/batch",
            &[JSON, ("idempotency-key", "order-7")],
            &to_json(&[&one]),
        );
        batch.problem(422, "other_payload");
        assert_ne!(keyed(&world, "order-8", &one).ok(202)["id"], first.json()["id"]);
        assert_eq!(count(&world), 2);
        let batch = to_json(&[&one, &one, &one]);
        let send =
            || world.send("POST", "/v1/events/batch", &[JSON, ("idempotency-key", "batch")], &batch).ok(202);
        let ids: BTreeSet<String> =
            send()["data"].as_array().unwrap().iter().map(|event| event["id"].to_string()).collect();
        assert_eq!(ids.len(), 3, "each event has its own id");
        assert_eq!(send(), send());
        assert_eq!(count(&world), 5);
        // Responses survive a restart.
        let world = World::start(world.kill(), &[]);
        assert_eq!(keyed(&world, "order-7", &one).ok(202), first.json());
        assert_eq!(count(&world), 5);
    }
}

#[test]
fn a_refused_request_does_not_use_up_its_key() {
    let world = World::new();
    keyed(&world, "k", &event("a b", 1)).problem(400, "invalid_request");
    let retry = Some(Retry { max_attempts: Some(0), ..Retry::default() });
    keyed(&world, "k", &PublishEvent { retry, ..event("a", 1) }).problem(400, "invalid_request");
    keyed(&world, "k", &event("a", 1)).ok(202);
    for bad in ["", &"x".repeat(201)] {
        keyed(&world, bad, &event("a", 1)).problem(400, "invalid_request");
    }
}

#[test]
fn keys_are_scoped_to_the_caller() {
    let database = TestDatabase::sqlite();
    let (one, _) = database.token("publish", &[]);
    let (two, _) = database.token("publish", &[]);
    let world = database.serve(&[]);
    let send = |token: &str, payload: u32| {
        let authorization = format!("Bearer {token}");
        let body = to_json(&event("a", payload));
        world.send(
            "POST",
            "/v1/events",
            &[JSON, ("authorization", &authorization), ("idempotency-key", "k")],
            &body,
        )
    };
    let first = send(&one, 1).ok(202);
    assert_ne!(send(&two, 2).ok(202)["id"], first["id"]);
    assert_eq!(send(&one, 1).ok(202), first);
}

#[test]
fn concurrent_requests_with_one_key_store_one_event() {
    for database in [TestDatabase::sqlite(), TestDatabase::postgres()] {
        let world = Arc::new(database.serve(&[]));
        let event = event("a", 1);
        for round in 0..10 {
            let (key, start) = (format!("k{round}"), Arc::new(Barrier::new(8)));
            let threads: Vec<_> = (0..8)
                .map(|_| {
                    let (world, event, key, start) =
                        (Arc::clone(&world), event.clone(), key.clone(), Arc::clone(&start));
                    std::thread::spawn(move || {
                        start.wait();
                        keyed(&world, &key, &event)
                    })
                })
                .collect();
            let answers: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            let mut ids = BTreeSet::new();
            for answer in &answers {
                match answer.status {
                    202 => drop(ids.insert(answer.json()["id"].to_string())),
                    _ => {
                        answer.problem(409, "in_progress");
                        assert_eq!(answer.header("retry-after"), Some("1"));
                    }
                }
            }
            assert_eq!(ids.len(), 1, "{answers:?}");
            assert_eq!(count(&world), round + 1);
        }
    }
}

/// Kills the server during keyed requests: a repeated request succeeds, and each key has one event.
#[test]
fn a_kill_during_keyed_requests_stores_no_event_twice() {
    for (database, rounds) in [(TestDatabase::sqlite(), 6), (TestDatabase::postgres(), 3)] {
        let mut world = database.serve(&[]);
        let mut keys = Vec::new();
        for round in 0..rounds {
            let new: Vec<String> = (0..24).map(|n| format!("key-{round}-{n}")).collect();
            let start = Arc::new(Barrier::new(new.len() + 1));
            let threads: Vec<_> = new
                .iter()
                .map(|key| {
                    let (address, key, start) = (world.address, key.clone(), Arc::clone(&start));
                    std::thread::spawn(move || {
                        let mut connection = Connection::open(address);
                        let text =
                            request("POST", "/v1/events", &[JSON, ("idempotency-key", &key)], &named(&key));
                        start.wait();
                        let _ = connection.send(text); // the server may be gone
                        connection.answer().map(|answer| answer.status)
                    })
                })
                .collect();
            start.wait();
            std::thread::sleep(Duration::from_millis(2 + 3 * round));
            let database = world.kill();
            for thread in threads {
                let _ = thread.join();
            }
            world = World::start(database, &[]);
            keys.extend(new);
        }
        let mut ids = BTreeSet::new();
        for key in &keys {
            world.until("the key is free or done", || {
                let answer = world.send("POST", "/v1/events", &[JSON, ("idempotency-key", key)], &named(key));
                match answer.status {
                    202 => ids.insert(answer.json()["id"].to_string()),
                    _ => {
                        answer.problem(409, "in_progress");
                        false
                    }
                }
            });
        }
        assert_eq!(ids.len(), keys.len(), "each key is one event");
        let stats = world.get("/v1/stats").ok(200);
        let all: u64 =
            ["pending", "processing", "done", "dlq"].iter().map(|name| stats[name].as_u64().unwrap()).sum();
        assert_eq!(all, keys.len() as u64, "no event is stored twice: {stats}");
    }
}

/// The body of an event whose payload is its key.
fn named(key: &str) -> String {
    to_json(&event("a", key))
}
