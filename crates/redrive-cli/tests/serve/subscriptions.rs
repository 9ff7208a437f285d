//! Pull subscriptions over HTTP.

use redrive_api::client::Client;
use redrive_api::retry::Retry;
use redrive_api::subscriptions::{
    Ack, Extend, LeaseResults, LeasedEvent, Nack, NackOutcome, Pull, PutSubscription,
};
use serde::Serialize;
use serde_json::{Value, json};

use crate::world::{JSON, TestDatabase, World, ok, to_json};

/// The text of a lease that never was.
const UNKNOWN: &str = "1.00000000000000000000000000000000";

fn put(world: &World, name: &str, body: &impl Serialize) -> Value {
    world.send("PUT", &format!("/v1/subscriptions/{name}"), &[JSON], &to_json(body)).ok(200)
}

/// A subscription to orders, on the server's policy.
fn orders() -> PutSubscription {
    PutSubscription { patterns: vec!["order.*".to_owned()], lease_ms: None, retry: None }
}

/// A subscription to orders whose first wait is short.
fn quick_orders() -> PutSubscription {
    PutSubscription { retry: Some(quick()), ..orders() }
}

fn quick() -> Retry {
    Retry { base_delay_ms: Some(10), ..Retry::default() }
}

/// Pulls from the subscription `billing`, with a wait for the first event.
fn pull(client: &Client) -> Vec<LeasedEvent> {
    let pull = Pull { wait_ms: Some(20_000), ..Pull::default() };
    ok(client.subscriptions().pull("billing", &pull)).data
}

fn status(world: &World, id: &str) -> String {
    world.get(&format!("/v1/events/{id}")).ok(200)["status"].as_str().unwrap().to_owned()
}

#[test]
fn events_are_pulled_acked_nacked_and_extended() {
    for database in [TestDatabase::sqlite(), TestDatabase::postgres()] {
        let world = database.serve(&[]);
        let retry = json!({"base_delay_ms": 10, "max_delay_ms": 20});
        put(&world, "billing", &json!({"patterns": ["order.*"], "lease_ms": 30_000, "retry": retry}));
        let ids: Vec<String> = (0..3).map(|n| world.publish("order.created", &json!({ "n": n }))).collect();
        let client = world.client();
        let billing = client.subscriptions();
        let mut fetched = Vec::new();
        while fetched.len() < 3 {
            let two = Pull { max: Some(2), wait_ms: Some(10_000), lease_ms: None };
            fetched.extend(ok(billing.pull("billing", &two)).data);
        }
        let rest = ok(billing.pull("billing", &Pull::default())).data;
        assert!(rest.is_empty(), "leased events are not pulled again");
        let leases = |range: std::ops::Range<usize>| -> Vec<String> {
            fetched[range].iter().map(|event| event.lease.clone()).collect()
        };
        let extend = Extend { leases: leases(0..1), lease_ms: 60_000 };
        assert_eq!(ok(billing.extend("billing", &extend)).done, 1);
        assert_eq!(ok(billing.ack("billing", &Ack { leases: leases(0..2) })).done, 2);
        let late = ok(billing.ack("billing", &Ack { leases: leases(0..1) }));
        assert_eq!(late, LeaseResults { done: 0, lost: leases(0..1) });
        let nack = Nack {
            leases: leases(2..3),
            delay_ms: Some(20),
            reason: Some("no ink".to_owned()),
            outcome: None,
        };
        assert_eq!(ok(billing.nack("billing", &nack)).done, 1);
        let again = pull(&client);
        assert_eq!((again[0].id, again[0].attempt), (fetched[2].id, 2));
        ok(billing.ack("billing", &Ack { leases: vec![again[0].lease.clone()] }));
        for id in &ids {
            world.until("it is done", || status(&world, id) == "done");
        }
        let event = ok(client.events().get(fetched[2].id));
        assert_eq!(event.attempts[0].error.as_deref(), Some("no ink"));
    }
}

#[test]
fn a_nack_may_snooze_an_event_or_end_it_for_good() {
    for database in [TestDatabase::sqlite(), TestDatabase::postgres()] {
        let world = database.serve(&[]);
        let retry = Some(Retry { max_attempts: Some(2), ..quick() });
        put(&world, "billing", &PutSubscription { retry, ..orders() });
        let id = world.publish("order.created", &json!(1));
        let client = world.client();
        let nack = |outcome: NackOutcome, delay_ms, reason: Option<&str>| {
            let leases = vec![pull(&client)[0].lease.clone()];
            let reason = reason.map(str::to_owned);
            ok(client
                .subscriptions()
                .nack("billing", &Nack { leases, outcome: Some(outcome), delay_ms, reason }))
            .done
        };
        for _ in 0..4 {
            assert_eq!(nack(NackOutcome::Snooze, Some(5), None), 1, "no attempt is charged");
        }
        assert_eq!(nack(NackOutcome::Failed, Some(5), Some("no ink")), 1);
        let event = ok(client.events().get(id.parse().unwrap()));
        assert_eq!((event.retry_count, event.attempts.len()), (1, 1), "{event:?}");
        assert_eq!(nack(NackOutcome::Permanent, None, Some("no such customer")), 1);
        world.until("it is dead", || status(&world, &id) == "dlq");
        let dead = ok(client.dlq().get(id.parse().unwrap())).data;
        assert_eq!(
            (dead[0].reason.as_str(), dead[0].errors.clone()),
            ("permanent", vec!["no ink".to_owned(), "no such customer".to_owned()])
        );

        let path = "/v1/subscriptions/billing/nack";
        for wrong in [
            json!({"leases": ["x"], "outcome": "snooze"}),
            json!({"leases": ["x"], "outcome": "permanent", "delay_ms": 1}),
            json!({"leases": ["x"], "outcome": "later"}),
        ] {
            world.post(path, &wrong).problem(400, "invalid_request");
        }
    }
}

#[test]
fn invalid_pull_requests_are_refused() {
    let world = World::new();
    let path = "/v1/subscriptions/billing";
    world.post(&format!("{path}/pull"), &json!({})).problem(404, "not_found");
    world.get(path).problem(404, "not_found");
    world.send("PUT", path, &[JSON], r#"{"patterns": []}"#).problem(400, "invalid_request");
    world
        .send("PUT", "/v1/subscriptions/ep_1", &[JSON], r#"{"patterns": ["*"]}"#)
        .problem(400, "invalid_request");
    put(&world, "billing", &orders());
    world.post(&format!("{path}/pull"), &json!({"max": 101})).problem(400, "invalid_request");
    world.post(&format!("{path}/pull"), &json!({"lease_ms": 1})).problem(400, "invalid_request");
    world.post(&format!("{path}/ack"), &json!({"leases": ["x"]})).problem(400, "invalid_request");
    world.post(&format!("{path}/ack"), &json!({"leases": []})).problem(400, "invalid_request");
    let unknown = json!([UNKNOWN]);
    let lost = json!({"done": 0, "lost": unknown});
    assert_eq!(world.post(&format!("{path}/ack"), &json!({"leases": unknown})).ok(200), lost);
    assert_eq!(world.get("/v1/subscriptions").ok(200)["data"][0]["name"], "billing");
}

#[test]
fn an_unknown_lease_does_not_block_the_other_leases() {
    let world = World::new();
    let client = world.client();
    let billing = client.subscriptions();
    put(&world, "billing", &quick_orders());
    let id = world.publish("order.created", &json!(1));
    let leases = |lease: &str| vec![UNKNOWN.to_owned(), lease.to_owned()];
    let one_lost = LeaseResults { done: 1, lost: vec![UNKNOWN.to_owned()] };
    let first = leases(&pull(&client)[0].lease);
    let extend = Extend { leases: first.clone(), lease_ms: 60_000 };
    assert_eq!(ok(billing.extend("billing", &extend)), one_lost);
    let nack = Nack { leases: first, delay_ms: Some(10), reason: None, outcome: None };
    assert_eq!(ok(billing.nack("billing", &nack)), one_lost);
    let second = leases(&pull(&client)[0].lease);
    assert_eq!(ok(billing.ack("billing", &Ack { leases: second })), one_lost);
    world.until("it is done", || status(&world, &id) == "done");
}

#[tokio::test]
async fn removed_subscriptions_do_not_count_for_the_limit() {
    let database = TestDatabase::sqlite();
    let options = redrive::store::SqliteOptions { owner: false, ..Default::default() };
    let store = redrive::store::SqliteStore::open(database.name(), options).unwrap();
    for n in 0..1002 {
        let body = json!({"patterns": ["order.*"], "lease_ms": 1000, "is_removed": n >= 999});
        let key = format!("queue/q{n}").parse().unwrap();
        redrive_store::Documents::create(&store, key, body.to_string()).await.unwrap();
    }
    redrive::store::Store::close(&store).await.unwrap();
    let world = database.serve(&[]);
    let body = orders();
    put(&world, "last", &body);
    let more = || world.send("PUT", "/v1/subscriptions/q1000", &[JSON], &to_json(&body));
    let problem = more().problem(409, "conflict");
    assert!(problem["detail"].as_str().unwrap().contains("1000 subscriptions"), "{problem}");
    put(&world, "q5", &body);
    assert_eq!(world.send("DELETE", "/v1/subscriptions/q5", &[], "").status, 204);
    more().ok(200);
}

#[test]
fn deliveries_of_a_removed_subscription_are_dead_lettered() {
    let world = World::new();
    put(&world, "billing", &orders());
    let id = world.publish("order.created", &json!({"n": 1}));
    assert_eq!(world.send("DELETE", "/v1/subscriptions/billing", &[], "").status, 204);
    world.until("it is dead-lettered", || status(&world, &id) == "dlq");
    let dead = world.get("/v1/dlq?subscription=billing").ok(200);
    assert!(dead["data"][0]["errors"][0].as_str().unwrap().contains("was removed"), "{dead}");
    let next = world.publish("order.created", &json!({"n": 2}));
    world.until("the unmatched event is done", || status(&world, &next) == "done");
    // A recreated subscription gets its dead letters by a retry.
    put(&world, "billing", &orders());
    world.send("POST", &format!("/v1/dlq/{id}/retry"), &[], "").ok(202);
    assert_eq!(pull(&world.client())[0].id.to_string(), id);
}

#[test]
fn a_consumer_can_finish_its_work_for_a_removed_subscription() {
    let world = World::new();
    put(&world, "billing", &orders());
    let id = world.publish("order.created", &json!(1));
    let lease = pull(&world.client()).remove(0).lease;
    assert_eq!(world.send("DELETE", "/v1/subscriptions/billing", &[], "").status, 204);
    let client = world.client();
    let billing = client.subscriptions();
    let extend = Extend { leases: vec![lease.clone()], lease_ms: 60_000 };
    assert_eq!(ok(billing.extend("billing", &extend)).done, 1);
    assert_eq!(ok(billing.ack("billing", &Ack { leases: vec![lease] })).done, 1);
    assert_eq!(status(&world, &id), "done");
    world.post("/v1/subscriptions/billing/pull", &json!({})).problem(404, "not_found");
}

#[test]
fn a_lease_outlives_the_server_that_granted_it() {
    for signal in ["TERM", "KILL"] {
        let mut world = World::new();
        put(&world, "billing", &quick_orders());
        (1..=2).for_each(|n| drop(world.publish("order.created", &json!({ "n": n }))));
        let (mut ids, mut leases) = (Vec::new(), Vec::new());
        while leases.len() < 2 {
            for event in pull(&world.client()) {
                ids.push(event.id.to_string());
                leases.push(event.lease);
            }
        }
        world.signal(signal);
        world.ended();
        let world = World::start(world.database.clone(), &[]);
        let client = world.client();
        let billing = client.subscriptions();
        assert!(ok(billing.pull("billing", &Pull::default())).data.is_empty(), "{signal}: both are leased");
        let extend = Extend { leases: leases.clone(), lease_ms: 60_000 };
        assert_eq!(ok(billing.extend("billing", &extend)), LeaseResults { done: 2, lost: Vec::new() });
        let ack = Ack { leases: vec![leases[0].clone()] };
        assert_eq!(ok(billing.ack("billing", &ack)), LeaseResults { done: 1, lost: Vec::new() }, "{signal}");
        let nack = Nack { leases: vec![leases[1].clone()], delay_ms: None, reason: None, outcome: None };
        assert_eq!(ok(billing.nack("billing", &nack)).done, 1, "{signal}");
        let again = pull(&client).remove(0);
        assert_eq!((again.id.to_string(), again.attempt), (ids[1].clone(), 2), "{signal}");
        ok(billing.ack("billing", &Ack { leases: vec![again.lease] }));
        for id in &ids {
            assert_eq!(status(&world, id), "done", "{signal}");
        }
    }
}
