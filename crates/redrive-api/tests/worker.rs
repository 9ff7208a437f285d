//! Workers on virtual time, over a server in memory.
#![cfg(feature = "worker")]
#![allow(clippy::unwrap_used)] // a panic is a failed test

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use redrive_api::client::{Client, Clock, Error, ResponseFuture, Retries, Transport};
use redrive_api::worker::{BoxError, CancelReason, ClassifyError as _, Context, HandlerResult, Snooze};
use redrive_retry::{Timestamp, VirtualTime};
use serde_json::{Value, json};
use uuid::Uuid;

/// How the server answers requests of one kind.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Mood {
    Fine,
    Unreachable,
    /// Every lease has ended.
    Lost,
    MissingScope,
}

/// A request that arrived.
#[derive(Clone, Debug)]
struct Sent {
    at: Timestamp,
    what: String,
    body: Value,
}

/// A server with a few events, each of which it hands out once.
#[derive(Clone, Debug)]
struct Server {
    clock: Clock,
    state: Arc<Mutex<ServerState>>,
}

#[derive(Debug)]
struct ServerState {
    events: VecDeque<Value>,
    sent: Vec<Sent>,
    pull: Mood,
    settle: Mood,
    extend: Mood,
}

impl Server {
    fn new(time: &VirtualTime, events: u128) -> Self {
        let event = |n: u128| {
            json!({
                "lease": format!("lease-{n}"), "leased_until": "2026-01-31T12:00:30Z", "id": Uuid::from_u128(n), "type": "order.created",
                "payload": {"order": n.to_string()}, "metadata": {"traceparent": "00-0-1-01"}, "created_at": "2026-01-31T12:00:00Z",
                "attempt": 1, "max_attempts": 5
            })
        };
        let state = ServerState {
            events: (1..=events).map(event).collect(),
            sent: Vec::new(),
            pull: Mood::Fine,
            settle: Mood::Fine,
            extend: Mood::Fine,
        };
        Server { clock: time.clock(), state: Arc::new(Mutex::new(state)) }
    }

    fn client(&self) -> Client {
        Client::new(self.clone()).with_retries(Retries::default()).with_clock(self.clock.clone())
    }

    fn set(&self, change: impl FnOnce(&mut ServerState)) {
        change(&mut self.state.lock().unwrap());
    }

    fn sent(&self, what: &str) -> Vec<Sent> {
        let sent = self.state.lock().unwrap().sent.clone();
        sent.into_iter().filter(|request| request.what == what).collect()
    }

    fn answer(&self, what: &str, body: &Value) -> Option<Result<Value, Mood>> {
        let mut state = self.state.lock().unwrap();
        state.sent.push(Sent { at: self.clock.steady(), what: what.to_owned(), body: body.clone() });
        let mood = match what {
            "pull" => state.pull,
            "extend" => state.extend,
            "ack" | "nack" => state.settle,
            _ => Mood::Fine,
        };
        Some(match (mood, what) {
            (Mood::Fine, "pull") => {
                let max = usize::try_from(body["max"].as_u64().unwrap()).unwrap();
                let count = max.min(state.events.len());
                if count == 0 {
                    return None; // a long poll
                }
                Ok(json!({ "data": state.events.drain(..count).collect::<Vec<_>>() }))
            }
            (Mood::Fine, _) => Ok(json!({ "done": body["leases"].as_array().unwrap().len(), "lost": [] })),
            (Mood::Lost, _) => Ok(json!({ "done": 0, "lost": body["leases"] })),
            (mood, _) => Err(mood),
        })
    }
}

impl Transport for Server {
    fn call(&self, request: Request<Bytes>) -> ResponseFuture<'_> {
        Box::pin(async move {
            let what = request.uri().path().rsplit('/').next().unwrap().to_owned();
            let body: Value = serde_json::from_slice(request.body()).unwrap();
            let (status, body) = match self.answer(&what, &body) {
                None => std::future::pending().await,
                Some(Ok(body)) => (200, body),
                Some(Err(Mood::MissingScope)) => {
                    let problem = json!({"type": "urn:x", "title": "x", "status": 403, "code": "missing_scope", "detail": "x"});
                    (403, problem)
                }
                Some(Err(_)) => return Err(Error::Unreachable("connection refused".to_owned())),
            };
            let body = Full::new(Bytes::from(body.to_string())).map_err(Into::into).boxed_unsync();
            Ok(Response::builder().status(status).body(body).unwrap())
        })
    }
}

const SECOND: Duration = Duration::from_secs(1);

async fn sleep(clock: &Clock, duration: Duration) {
    clock.sleep(duration).await;
}

#[tokio::test]
async fn acks_are_collected_in_batches() {
    let time = VirtualTime::new();
    let server = Server::new(&time, 250);
    let worker = server.client().worker("billing", |_, _| async { HandlerResult::<Error>::Ok(()) });
    let stats = time.drive(worker.concurrency(250).run_until(sleep(&server.clock, SECOND))).await.unwrap();
    assert_eq!((stats.handled, stats.running), (250, 0));
    let acks = server.sent("ack");
    assert!(acks.iter().all(|ack| ack.body["leases"].as_array().unwrap().len() <= 100));
    assert!((3..=6).contains(&acks.len()), "{}", acks.len());
}

#[tokio::test]
async fn no_more_events_are_pulled_than_handlers_can_run() {
    let time = VirtualTime::new();
    let server = Server::new(&time, 9);
    let clock = server.clock.clone();
    let worker = server.client().worker("billing", move |_, _| {
        let clock = clock.clone();
        async move {
            clock.sleep(SECOND).await;
            HandlerResult::<Error>::Ok(())
        }
    });
    let stats = time.drive(worker.concurrency(4).run_until(sleep(&server.clock, SECOND * 10))).await.unwrap();
    assert_eq!(stats.handled, 9);
    assert!(server.sent("pull").iter().all(|pull| pull.body["max"].as_u64().unwrap() <= 4));
}

#[tokio::test]
async fn leases_are_extended_while_the_handler_runs() {
    let time = VirtualTime::new();
    let server = Server::new(&time, 1);
    let clock = server.clock.clone();
    let worker = server.client().worker("billing", move |_, context: Context| {
        let clock = clock.clone();
        async move {
            assert_eq!(context.traceparent(), Some("00-0-1-01"));
            clock.sleep(SECOND * 100).await;
            HandlerResult::<Error>::Ok(())
        }
    });
    let stats = time.drive(worker.run_until(sleep(&server.clock, SECOND * 101))).await.unwrap();
    assert_eq!((stats.handled, stats.lost), (1, 0));
    let times: Vec<Timestamp> = server.sent("extend").iter().map(|request| request.at).collect();
    assert!((6..=11).contains(&times.len()), "{times:?}");
    assert!(times.windows(2).all(|two| two[1].since(two[0]) <= SECOND * 15), "{times:?}");
}

/// Sets a flag when it is dropped.
struct OnDrop(Arc<AtomicBool>);

impl Drop for OnDrop {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn the_handler_of_a_lost_lease_is_dropped_and_not_settled() {
    let time = VirtualTime::new();
    let server = Server::new(&time, 1);
    server.set(|state| state.extend = Mood::Lost);
    let dropped = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&dropped);
    let worker = server.client().worker("billing", move |_, _| {
        let guard = OnDrop(Arc::clone(&flag));
        async move {
            let _guard = guard;
            std::future::pending::<HandlerResult<Error>>().await
        }
    });
    let stats = time.drive(worker.run_until(sleep(&server.clock, SECOND * 20))).await.unwrap();
    assert_eq!((stats.lost, stats.running, dropped.load(Ordering::Relaxed)), (1, 0, true));
    assert!(server.sent("ack").is_empty() && server.sent("nack").is_empty());
}

#[tokio::test]
async fn without_a_server_the_handler_is_told_and_its_result_is_sent_all_the_same() {
    let time = VirtualTime::new();
    let server = Server::new(&time, 1);
    server.set(|state| state.extend = Mood::Unreachable);
    let (clock, reason) = (server.clock.clone(), Arc::new(Mutex::new(None)));
    let seen = Arc::clone(&reason);
    let worker = server.client().worker("billing", move |_, context: Context| {
        let (clock, seen, began) = (clock.clone(), Arc::clone(&seen), clock.steady());
        async move {
            let told = context.cancelled().await;
            *seen.lock().unwrap() = Some((told, clock.steady().since(began)));
            HandlerResult::<Error>::Ok(())
        }
    });
    let stats = time.drive(worker.run_until(sleep(&server.clock, SECOND * 50))).await.unwrap();
    let (told, after) = reason.lock().unwrap().unwrap();
    assert_eq!(told, CancelReason::LeaseLost);
    assert!((SECOND * 30..=SECOND * 36).contains(&after), "{after:?}");
    assert_eq!(stats.handled, 1);
}

#[tokio::test]
async fn late_acks_are_counted_as_lost() {
    let time = VirtualTime::new();
    let server = Server::new(&time, 3);
    server.set(|state| state.settle = Mood::Lost);
    let worker = server.client().worker("billing", |_, _| async { HandlerResult::<Error>::Ok(()) });
    let stats = time.drive(worker.run_until(sleep(&server.clock, SECOND))).await.unwrap();
    assert_eq!((stats.handled, stats.lost), (0, 3));
}

#[tokio::test]
async fn an_ack_is_sent_again_until_a_server_answers() {
    let time = VirtualTime::new();
    let server = Server::new(&time, 1);
    server.set(|state| state.settle = Mood::Unreachable);
    let worker = server.client().worker("billing", |_, _| async { HandlerResult::<Error>::Ok(()) });
    let outage = async {
        server.clock.sleep(SECOND * 20).await;
        server.set(|state| state.settle = Mood::Fine);
        server.clock.sleep(SECOND * 10).await;
    };
    let stats = time.drive(worker.run_until(outage)).await.unwrap();
    assert_eq!(stats.handled, 1);
    assert!(server.sent("ack").len() > 6, "beyond the repetitions of the client");
}

#[tokio::test]
async fn results_of_handlers_become_nacks() {
    let time = VirtualTime::new();
    let server = Server::new(&time, 6);
    let clock = server.clock.clone();
    let worker =
        server.client().worker("billing", move |event: redrive_api::subscriptions::LeasedEvent, _| {
            let clock = clock.clone();
            async move {
                let payload: Value = event.json()?;
                match payload["order"].as_str().unwrap() {
                    "1" => Err("no such customer".permanent().into()),
                    "2" => Err("busy".retry_after(SECOND * 30).into()),
                    "3" => Err(Snooze::new(SECOND * 60).into()),
                    "4" => panic!("a bug at {}", event.id),
                    "5" => {
                        clock.sleep(SECOND * 1000).await;
                        Ok(())
                    }
                    _ => HandlerResult::<BoxError>::Err("no ink".into()),
                }
            }
        });
    let worker = worker.timeout(SECOND * 5).retry_delay(|event, _| Some(SECOND * event.attempt));
    let stats = time.drive(worker.run_until(sleep(&server.clock, SECOND * 10))).await.unwrap();
    assert_eq!((stats.handled, stats.failed, stats.snoozed), (0, 5, 1));
    let mut nacks: Vec<Value> = server.sent("nack").into_iter().map(|request| request.body).collect();
    nacks.sort_by_key(|nack| nack["leases"].to_string());
    let nack = |n: usize, outcome: &str, delay_ms: Option<u64>, reason: Option<&str>| json!({"leases": [format!("lease-{n}")], "outcome": outcome, "delay_ms": delay_ms, "reason": reason});
    let panicked = format!("panicked: a bug at {}", Uuid::from_u128(4));
    assert_eq!(
        nacks,
        [
            nack(1, "permanent", None, Some("no such customer")),
            nack(2, "failed", Some(30_000), Some("busy")),
            nack(3, "snooze", Some(60_000), None),
            nack(4, "failed", None, Some(&panicked)),
            nack(5, "failed", Some(1000), Some("no result within 5s")),
            nack(6, "failed", Some(1000), Some("no ink")),
        ]
    );
}

#[tokio::test]
async fn a_stop_that_waits_too_long_releases_the_events() {
    let time = VirtualTime::new();
    let server = Server::new(&time, 2);
    let reasons = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&reasons);
    let worker = server.client().worker("billing", move |_, context: Context| {
        let seen = Arc::clone(&seen);
        // A task of the handler's own learns why its future was dropped.
        tokio::spawn(async move {
            let reason = context.cancelled().await;
            seen.lock().unwrap().push(reason);
        });
        std::future::pending::<HandlerResult<Error>>()
    });
    let handle = worker.stop_timeout(SECOND * 3).start();
    let began = server.clock.steady();
    let stats = time
        .drive(async {
            server.clock.sleep(SECOND).await;
            assert_eq!(handle.stats().running, 2);
            handle.stop().await
        })
        .await
        .unwrap();
    assert_eq!((stats.snoozed, stats.running), (2, 0));
    assert!(server.clock.steady().since(began) < SECOND * 5);
    assert_eq!(server.sent("nack")[0].body["delay_ms"], 1);
    tokio::task::yield_now().await;
    assert_eq!(*reasons.lock().unwrap(), [CancelReason::Stopping; 2]);
}

#[tokio::test]
async fn failed_pulls_are_repeated_less_and_less_often() {
    let time = VirtualTime::new();
    let server = Server::new(&time, 1);
    server.set(|state| state.pull = Mood::Unreachable);
    let worker = server.client().worker("billing", |_, _| async { HandlerResult::<Error>::Ok(()) });
    let outage = async {
        server.clock.sleep(SECOND * 60).await;
        server.set(|state| state.pull = Mood::Fine);
        server.clock.sleep(SECOND * 10).await;
    };
    let stats = time.drive(worker.run_until(outage)).await.unwrap();
    assert_eq!(stats.handled, 1);
    let times: Vec<Timestamp> = server.sent("pull").iter().map(|request| request.at).collect();
    assert!(times[1].since(times[0]) <= Duration::from_millis(200));
    assert!((14..=40).contains(&times.len()), "{}", times.len());
}

#[tokio::test]
async fn a_worker_ends_with_an_error_that_no_repetition_mends() {
    let time = VirtualTime::new();
    let server = Server::new(&time, 1);
    server.set(|state| state.pull = Mood::MissingScope);
    let worker = server.client().worker("billing", |_, _| async { HandlerResult::<Error>::Ok(()) });
    let error = time.drive(worker.start().join()).await.unwrap_err();
    assert_eq!(error.code().as_str(), "missing_scope");
    assert_eq!(server.sent("pull").len(), 1);
}
