//! Kills `redrive serve` under load, with publishers, consumers and receivers outside of it.
//!
//! Publishers repeat a request under its `Idempotency-Key` until it is answered. An acknowledged event must reach every
//! working endpoint and a pull consumer, and the dead-letter queue for the endpoint that never works; and a key never refers
//! to two events.

mod http;
mod process;
mod receiver;

use std::collections::{HashMap, HashSet};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use clap::Args;
use redrive_api::endpoints::CreateEndpoint;
use redrive_api::events::PublishEvent;
use redrive_api::retry::Retry;
use redrive_api::subscriptions::{Ack, Nack, Pull, PutSubscription};
use serde::Serialize;
use serde_json::value::to_raw_value;
use serde_json::{Value, json};

use crate::dice::Dice;
use crate::options::{Options, is_interrupted};
use crate::report::Report;

use self::http::ask;
use self::process::Server;
use self::receiver::{Manner, Receiver};

const PUBLISHERS: u64 = 4;
const CONSUMERS: u64 = 2;

/// Name of the pull subscription.
const QUEUE: &str = "consumer";

/// Event type of the endpoint that never works: so rare that its circuit stays closed.
const BROKEN: &str = "order.broken";

fn is_for_broken(key: &str) -> bool {
    matches!(key, "0-0" | "0-1" | "1-0")
}

/// Timeout of the drain.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(120);

/// Arguments of the command `server`.
#[derive(Clone, Debug, Args)]
pub struct ServerArgs {
    /// For how long, and with which seed
    #[command(flatten)]
    pub options: Options,
    /// Path of the `redrive` command; by default beside this program
    #[arg(long)]
    pub program: Option<PathBuf>,
    /// A database of its own on a PostgreSQL server, instead of a file
    #[arg(long, value_name = "URL")]
    pub db: Option<String>,
}

/// Kills the server until a limit is reached.
pub fn run(args: &ServerArgs) -> Report {
    let beside = || std::env::current_exe().map(|this| this.with_file_name("redrive"));
    let program = match args.program.clone().map_or_else(beside, Ok) {
        Ok(program) if program.exists() => program,
        Ok(program) => {
            return Report::failed(format!("{} is not there: cargo build -p redrive-cli", program.display()));
        }
        Err(error) => return Report::failed(error),
    };
    run_with(&args.options, &program, args.db.as_deref())
}

/// Kills a server of another program.
pub fn run_with(options: &Options, program: &Path, db: Option<&str>) -> Report {
    let mut report = Report::of("server kills", "kills", options.seed);
    if let Err(error) = try_it(options, program, db, &mut report) {
        report.failures.push(error.to_string());
    }
    report
}

/// State of publishers and consumers.
struct World {
    server: SocketAddr,
    is_over: AtomicBool,
    /// Event id of each acknowledged key.
    acknowledged: Mutex<HashMap<String, String>>,
    complaints: Mutex<Vec<String>>,
    /// Number of times that a consumer handled each event.
    handled: Mutex<HashMap<String, u64>>,
    requests: AtomicU64,
}

impl World {
    fn complain(&self, what: String) {
        self.complaints.lock().unwrap_or_else(PoisonError::into_inner).push(what);
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Acquire) || is_interrupted()
    }
}

fn try_it(options: &Options, program: &Path, db: Option<&str>, report: &mut Report) -> io::Result<()> {
    let folder = tempfile::tempdir()?;
    let mut dice = Dice::new(options.seed);
    let works = Receiver::start(Manner::Works, dice.roll())?;
    let flaky = Receiver::start(Manner::Flaky, dice.roll())?;
    let broken = Receiver::start(Manner::Broken, dice.roll())?;
    let mut server = Server::new(program, folder.path(), db)?;
    server.start()?;
    server.is_ready()?;
    let (base_delay_ms, max_delay_ms) = (Some(20), Some(200));
    let quick = Retry { max_attempts: Some(20), base_delay_ms, max_delay_ms, ..Retry::default() };
    let few = Retry { max_attempts: Some(3), ..quick.clone() };
    let works_id = make_endpoint(server.address, &works, "order.*", &quick)?;
    let flaky_id = make_endpoint(server.address, &flaky, "order.*", &quick)?;
    let broken_id = make_endpoint(server.address, &broken, BROKEN, &few)?;
    let queue =
        PutSubscription { patterns: vec!["order.*".to_owned()], lease_ms: Some(2000), retry: Some(quick) };
    expect(ask(server.address, "PUT", &format!("/v1/subscriptions/{QUEUE}"), "", &body(&queue))?, 200)?;

    let world = Arc::new(World {
        server: server.address,
        is_over: AtomicBool::new(false),
        acknowledged: Mutex::default(),
        complaints: Mutex::default(),
        handled: Mutex::default(),
        requests: AtomicU64::new(0),
    });
    let mut threads = Vec::new();
    for n in 0..PUBLISHERS {
        let (world, dice) = (Arc::clone(&world), Dice::split(options.seed, n));
        threads.push(std::thread::spawn(move || publish(&world, n, dice)));
    }
    let is_drained = Arc::new(AtomicBool::new(false));
    let mut consumers = Vec::new();
    for n in 0..CONSUMERS {
        let (world, dice) = (Arc::clone(&world), Dice::split(options.seed, 1000 + n));
        let is_drained = Arc::clone(&is_drained);
        consumers.push(std::thread::spawn(move || consume(&world, dice, &is_drained)));
    }
    let killed = kill_again_and_again(options, &mut server, &mut dice, report);
    world.is_over.store(true, Ordering::Release);
    for thread in threads {
        let _ = thread.join();
    }
    killed?;
    let drained = drain(&world);
    is_drained.store(true, Ordering::Release);
    for consumer in consumers {
        let _ = consumer.join();
    }
    drained?;
    judge(&world, report, &[(&works_id, &works), (&flaky_id, &flaky)], &broken_id)?;
    report.violations.append(&mut world.complaints.lock().unwrap_or_else(PoisonError::into_inner));
    report.detail = format!("{} requests", world.requests.load(Ordering::Relaxed));
    Ok(())
}

fn kill_again_and_again(
    options: &Options,
    server: &mut Server,
    dice: &mut Dice,
    report: &mut Report,
) -> io::Result<()> {
    let limits = options.begin();
    while limits.allow(report.rounds) {
        // Kills sometimes during the start, mostly at work.
        if dice.percent(85) {
            server.is_ready()?;
            std::thread::sleep(dice.millis(50..700));
        } else {
            std::thread::sleep(dice.millis(0..100));
        }
        server.kill()?;
        report.rounds += 1;
        server.start()?;
    }
    server.is_ready()
}

fn make_endpoint(
    server: SocketAddr,
    receiver: &Receiver,
    pattern: &str,
    retry: &Retry,
) -> io::Result<String> {
    let endpoint = CreateEndpoint {
        url: format!("http://{}/", receiver.address),
        patterns: vec![pattern.to_owned()],
        retry: Some(retry.clone()),
        ..CreateEndpoint::default()
    };
    let made = expect(ask(server, "POST", "/v1/endpoints", "", &body(&endpoint))?, 201)?;
    Ok(made["id"].as_str().unwrap_or_default().to_owned())
}

/// The body of a request.
fn body(request: &impl Serialize) -> String {
    serde_json::to_string(request).expect("a request of the API is JSON")
}

fn expect((status, body): (u16, Value), expected: u16) -> io::Result<Value> {
    if status == expected {
        return Ok(body);
    }
    Err(io::Error::other(format!("{status} instead of {expected}: {body}")))
}

/// Publishes one event after the other, each until it is answered.
fn publish(world: &World, publisher: u64, mut dice: Dice) {
    for n in 0_u64.. {
        let key = format!("{publisher}-{n}");
        let header = format!("idempotency-key: {key}\r\n");
        let event_type = if is_for_broken(&key) { BROKEN } else { "order.paid" };
        let payload = to_raw_value(&json!({ "key": key })).expect("the payload is JSON");
        let event = body(&PublishEvent::new(event_type, payload));
        let mut answers = HashSet::new();
        loop {
            if world.is_over() {
                return;
            }
            world.requests.fetch_add(1, Ordering::Relaxed);
            match ask(world.server, "POST", "/v1/events", &header, &event) {
                Ok((202 | 200, answer)) => {
                    let id = answer["id"].as_str().unwrap_or_default().to_owned();
                    answers.insert(id.clone());
                    world.acknowledged.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone(), id);
                    // A repeated request returns the same event.
                    if dice.percent(95) {
                        break;
                    }
                }
                Ok((409 | 429 | 503, _)) => std::thread::sleep(Duration::from_millis(100)),
                Ok((status, answer)) => return world.complain(format!("{key}: {status} {answer}")),
                Err(_) => std::thread::sleep(Duration::from_millis(20)), // the server is down
            }
        }
        if answers.len() > 1 {
            world.complain(format!("the key {key} refers to {answers:?}"));
        }
        std::thread::sleep(dice.millis(0..4));
    }
}

/// Fetches, handles and acknowledges; nacks some and abandons some.
fn consume(world: &World, mut dice: Dice, is_drained: &AtomicBool) {
    let path = |what: &str| format!("/v1/subscriptions/{QUEUE}/{what}");
    while !is_drained.load(Ordering::Acquire) && !is_interrupted() {
        let pull = Pull { max: Some(20), wait_ms: Some(200), lease_ms: None };
        let pulled = match ask(world.server, "POST", &path("pull"), "", &body(&pull)) {
            Ok((200, pulled)) => pulled,
            _ => {
                std::thread::sleep(Duration::from_millis(20));
                continue;
            }
        };
        for event in pulled["data"].as_array().into_iter().flatten() {
            let leases = vec![event["lease"].as_str().unwrap_or_default().to_owned()];
            // An abandoned event is redelivered.
            let said = match dice.within(0..100) {
                0..5 => continue,
                5..10 => {
                    let nack = Nack { leases, outcome: None, delay_ms: None, reason: None };
                    ask(world.server, "POST", &path("nack"), "", &body(&nack))
                }
                _ => {
                    let id = event["id"].as_str().unwrap_or_default().to_owned();
                    let mut handled = world.handled.lock().unwrap_or_else(PoisonError::into_inner);
                    *handled.entry(id).or_default() += 1;
                    drop(handled);
                    ask(world.server, "POST", &path("ack"), "", &body(&Ack { leases }))
                }
            };
            if let Ok((status, answer)) = said
                && !matches!(status, 200 | 503)
            {
                world.complain(format!("a consumer was told {status} {answer}"));
            }
        }
    }
}

/// Waits until nothing is left to do.
fn drain(world: &World) -> io::Result<()> {
    let began = Instant::now();
    loop {
        let stats = expect(ask(world.server, "GET", "/v1/stats", "", "")?, 200)?;
        let left: u64 = ["pending", "processing", "open_deliveries"]
            .iter()
            .map(|what| stats[what].as_u64().unwrap_or(u64::from(u32::MAX)))
            .sum();
        if left == 0 {
            return Ok(());
        }
        if began.elapsed() > DRAIN_TIMEOUT || is_interrupted() {
            return Err(io::Error::other(format!("it does not drain: {stats}")));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Checks that every acknowledged event has arrived or is in the dead-letter queue.
fn judge(
    world: &World,
    report: &mut Report,
    receivers: &[(&String, &Receiver)],
    broken: &str,
) -> io::Result<()> {
    let acknowledged = world.acknowledged.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let handled = world.handled.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let accepted: Vec<_> = receivers.iter().map(|(id, receiver)| (*id, receiver.accepted())).collect();
    report.acknowledged = acknowledged.len() as u64;
    let again = |counts: &HashMap<String, u64>| counts.values().filter(|count| **count > 1).count() as u64;
    report.duplicates = again(&handled) + accepted.iter().map(|(_, counts)| again(counts)).sum::<u64>();
    for (key, id) in &acknowledged {
        let (status, event) = ask(world.server, "GET", &format!("/v1/events/{id}"), "", "")?;
        if status != 200 {
            report.lost += 1;
            report.violations.push(format!("{id} ({key}) was acknowledged and is missing: {status}"));
            continue;
        }
        let status_of = |who: &str| {
            let deliveries = event["deliveries"].as_array();
            let own = deliveries.into_iter().flatten().find(|delivery| delivery["subscription"] == *who);
            own.and_then(|delivery| delivery["status"].as_str()).unwrap_or("nowhere").to_owned()
        };
        let mut missing = |who: &str, has_it: bool| match status_of(who).as_str() {
            "dlq" => {} // too many attempts ended with the server
            "done" if has_it => {}
            status => {
                report.lost += 1;
                report.violations.push(format!("{id} ({key}) is {status} for {who}, has arrived: {has_it}"));
            }
        };
        for (endpoint, counts) in &accepted {
            missing(endpoint, counts.contains_key(id));
        }
        missing(QUEUE, handled.contains_key(id));
        if is_for_broken(key) {
            missing(broken, false);
        }
    }
    Ok(())
}
