//! Regression tests: races, clock steps and wrapped errors.
#![allow(clippy::unwrap_used)] // a panic is a failed test
use redrive_retry::audit::*;
use redrive_retry::breaker::*;
use redrive_retry::budget::*;
use redrive_retry::idempotency::*;
use redrive_retry::manager::*;
use redrive_retry::policy::*;
use redrive_retry::*;
use std::io;
use std::sync::atomic::*;
use std::sync::*;
use std::time::Duration;

fn key(t: &str) -> IdempotencyKey {
    IdempotencyKey::new(t).unwrap()
}

// ---- classification
#[derive(Debug, thiserror::Error)]
#[error("ship")]
struct Ship(#[source] io::Error);
impl Classify for Ship {
    fn class(&self) -> FailureClass {
        FailureClass::Permanent
    }
}

#[test]
fn a_registered_classifier_comes_before_an_inner_io_kind() {
    let rules = Rules::new().classify::<Ship>();
    assert_eq!(rules.class_of(&Failure::new(Ship(io::ErrorKind::TimedOut.into()))), FailureClass::Permanent);
}
#[test]
fn a_mark_inside_io_error_other_is_found() {
    let f = Failure::new(io::Error::other("bad".permanent()));
    assert_eq!(f.class(), Some(FailureClass::Permanent));
}
#[test]
fn a_mark_below_an_io_error_is_found() {
    #[derive(Debug, thiserror::Error)]
    #[error("x")]
    struct W(#[source] Failure);
    let f = Failure::new(io::Error::other(W("bad".permanent())));
    assert_eq!(f.class(), Some(FailureClass::Permanent));
}
#[derive(Debug, thiserror::Error)]
#[error("v")]
struct V;
#[test]
fn a_type_rule_matches_an_error_inside_io_other() {
    assert!(ErrorRule::of::<V>().matches(&Failure::new(io::Error::other(V))));
}
#[test]
fn a_status_rule_matches_through_context() {
    let e = anyhow::Error::new(Failure::http(404, None, Timestamp::EPOCH, "nf")).context("fetching");
    let r: ErrorRule = "status:404".parse().unwrap();
    assert!(r.matches(&Failure::new(e)));
}
#[test]
fn a_class_rule_matches_the_default_class() {
    let rules = Rules::new().non_retryable("class:transient".parse().unwrap());
    assert_eq!(rules.class_of(&Failure::new("x")), FailureClass::Permanent);
}
#[test]
fn a_class_rule_matches_a_registered_class() {
    let rules = Rules::new().classify::<Ship2>().non_retryable("class:timeout".parse().unwrap());
    assert_eq!(rules.class_of(&Failure::new(Ship2)), FailureClass::Permanent);
}
#[derive(Debug, thiserror::Error)]
#[error("s2")]
struct Ship2;
impl Classify for Ship2 {
    fn class(&self) -> FailureClass {
        FailureClass::Timeout
    }
}

// ---- policy serde
#[test]
fn the_specified_default_lists_are_parsed() {
    serde_json::from_str::<RetryPolicy>(
        r#"{"retryable_exceptions":["Exception"],"non_retryable_exceptions":["ValueError"]}"#,
    )
    .unwrap();
}

#[test]
fn the_breaker_window_recovers_from_a_forward_clock_step() {
    let t0 = Timestamp::from_millis(1_767_225_600_000);
    let mut b = Breaker::new(BreakerConfig::default());
    let future = t0.plus_millis(86_400_000);
    let a = b.admit(future).unwrap();
    b.record(a, true, future);
    // The clock is corrected: three failures now, one failure six hours later.
    for _ in 0..3 {
        let a = b.admit(t0).unwrap();
        b.record(a, false, t0);
    }
    let later = t0.plus_millis(6 * 3_600_000);
    let a = b.admit(later).unwrap();
    b.record(a, false, later);
    assert_eq!(b.snapshot(later), BreakerSnapshot::Closed, "three failures of six hours ago still count");
}
#[test]
fn refused_calls_do_not_earn_budget() {
    let time = VirtualTime::new();
    let br = CircuitBreaker::new(BreakerConfig::builder().min_samples(1).build().unwrap(), time.clock());
    let m =
        RetryManager::builder().clock(time.clock()).budget(BudgetConfig::new(1.0, 2, 0.0).unwrap()).build();
    // Spends the budget.
    let _ = m.execute(&Category::ApiRequest, "x").run_blocking(|_| Err::<(), _>("e"));
    br.acquire().unwrap().failure();
    for _ in 0..100 {
        let _ = m.execute(&Category::ApiRequest, "x").breaker(&br).run_blocking(|_| Ok::<(), BoxError>(()));
    }
    let e = m
        .execute(&Category::ApiRequest, "x")
        .policy(&RetryPolicy::builder().max_attempts(9).build().unwrap())
        .run_blocking(|_| Err::<(), _>("e"))
        .unwrap_err();
    assert!(e.attempts() <= 2, "{}", e.attempts());
}
#[tokio::test]
async fn a_call_with_a_deadline_waits_for_the_probe_of_another_call() {
    let time = VirtualTime::new();
    let clock = time.clock();
    let br = CircuitBreaker::new(BreakerConfig::default(), time.clock());
    (0..4).for_each(|_| br.acquire().unwrap().failure());
    time.advance(Duration::from_secs(30));
    let m = RetryManager::builder().clock(time.clock()).build();
    let p = RetryPolicy::builder().deadline(Duration::from_secs(10)).build().unwrap();
    let a = m.execute(&Category::ApiRequest, "probe").policy(&p).breaker(&br).run(|_| async {
        clock.sleep(Duration::from_millis(50)).await;
        Ok::<_, BoxError>(())
    });
    let b = m
        .execute(&Category::ApiRequest, "other")
        .policy(&p)
        .breaker(&br)
        .run(|_| async { Ok::<_, BoxError>(()) });
    let (a, b) = time.drive(async { tokio::join!(a, b) }).await;
    a.unwrap();
    assert!(b.is_ok(), "{}", b.unwrap_err());
}

// ---- virtual time
#[test]
fn virtual_time_supports_an_unbounded_timer() {
    let (tx, rx) = mpsc::channel();
    std::thread::spawn(move || {
        let rt = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let time = VirtualTime::new();
        rt.block_on(time.drive(time.clock().sleep(Duration::MAX)));
        tx.send(()).unwrap();
    });
    assert!(rx.recv_timeout(Duration::from_secs(5)).is_ok(), "spins for ever");
}
#[test]
fn an_excessive_retry_after_ends_the_call() {
    let (tx, rx) = mpsc::channel();
    std::thread::spawn(move || {
        let rt = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let time = VirtualTime::new();
        let m = RetryManager::builder().clock(time.clock()).build();
        let clock = time.clock();
        let r = rt.block_on(time.drive(m.execute(&Category::ApiRequest, "x").run(|_| {
            let n = clock.now();
            async move { Err::<(), _>(Failure::http(429, Some("99999999999999999999"), n, "slow")) }
        })));
        tx.send(r.unwrap_err().to_string()).unwrap();
    });
    eprintln!("{:?}", rx.recv_timeout(Duration::from_secs(5)).expect("spins for ever"));
}
#[test]
fn a_lease_of_a_millisecond_does_not_busy_loop() {
    let (tx, rx) = mpsc::channel();
    std::thread::spawn(move || {
        let rt = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let time = VirtualTime::new();
        let clock = time.clock();
        let m = RetryManager::builder()
            .clock(time.clock())
            .idempotency_store(Arc::new(MemoryStore::new(time.clock())))
            .build();
        let r = rt.block_on(time.drive(
            m.execute(&Category::ApiRequest, "x").idempotent(key("k")).lease(Duration::from_millis(1)).run(
                |_| async {
                    clock.sleep(Duration::from_secs(1)).await;
                    Ok::<_, BoxError>(1)
                },
            ),
        ));
        tx.send(r.unwrap()).unwrap();
    });
    eprintln!("{:?}", rx.recv_timeout(Duration::from_secs(5)).expect("spins for ever"));
}
#[test]
fn concurrent_advances_of_virtual_time_add_up() {
    let time = VirtualTime::new();
    let t0 = time.now();
    std::thread::scope(|s| {
        for _ in 0..8 {
            s.spawn(|| {
                for _ in 0..10000 {
                    time.advance(Duration::from_millis(1));
                }
            });
        }
    });
    assert_eq!(time.now().since(t0).as_millis(), 80000);
}

// ---- idempotency
#[derive(Debug)]
struct Odd {
    inner: MemoryStore,
    complete_failures: AtomicU32,
    extend_hangs: bool,
    begin_lost: AtomicBool,
}
impl IdempotencyStore for Odd {
    fn begin<'a>(
        &'a self,
        k: &'a IdempotencyKey,
        f: Fingerprint,
        o: OwnerToken,
        l: Duration,
    ) -> StoreFuture<'a, Begin> {
        let r = self.inner.begin(k, f, o, l);
        if self.begin_lost.swap(false, Ordering::SeqCst) {
            return Box::pin(async {
                let _ = r.await;
                Err(IdempotencyError::Unavailable("answer lost".into()))
            });
        }
        r
    }
    fn extend<'a>(&'a self, k: &'a IdempotencyKey, o: OwnerToken, l: Duration) -> StoreFuture<'a, ()> {
        if self.extend_hangs {
            return Box::pin(std::future::pending());
        }
        self.inner.extend(k, o, l)
    }
    fn complete<'a>(
        &'a self,
        k: &'a IdempotencyKey,
        o: OwnerToken,
        r: &'a str,
        m: Option<&'a str>,
        keep: Duration,
    ) -> StoreFuture<'a, ()> {
        if self
            .complete_failures
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1))
            .is_ok()
        {
            return Box::pin(async { Err(IdempotencyError::Unavailable("reset".into())) });
        }
        self.inner.complete(k, o, r, m, keep)
    }
    fn release<'a>(
        &'a self,
        k: &'a IdempotencyKey,
        o: OwnerToken,
        e: Option<&'a str>,
        keep: Duration,
    ) -> StoreFuture<'a, ()> {
        self.inner.release(k, o, e, keep)
    }
    fn get<'a>(&'a self, k: &'a IdempotencyKey) -> StoreFuture<'a, Option<IdempotencyRecord>> {
        self.inner.get(k)
    }
    fn clear<'a>(&'a self, k: &'a IdempotencyKey) -> StoreFuture<'a, bool> {
        self.inner.clear(k)
    }
    fn reap(&self, l: usize) -> StoreFuture<'_, usize> {
        self.inner.reap(l)
    }
    fn abandon(&self, k: &IdempotencyKey, o: OwnerToken) {
        self.inner.abandon(k, o);
    }
}
fn odd(time: &VirtualTime, f: u32, hang: bool, lost: bool) -> (Arc<Odd>, RetryManager) {
    let s = Arc::new(Odd {
        inner: MemoryStore::new(time.clock()),
        complete_failures: AtomicU32::new(f),
        extend_hangs: hang,
        begin_lost: AtomicBool::new(lost),
    });
    (s.clone(), RetryManager::builder().clock(time.clock()).idempotency_store(s).build())
}
#[tokio::test]
async fn a_temporary_failure_of_complete_under_a_short_lease_runs_the_operation_once() {
    let time = VirtualTime::new();
    let (_s, m) = odd(&time, 2, false, false);
    let runs = AtomicU32::new(0);
    let call = || {
        m.execute(&Category::KvPut, "op")
            .idempotent(key("k"))
            .lease(Duration::from_millis(300))
            .on_conflict(OnConflict::Wait(Duration::from_secs(60)))
            .run(|_| async { Ok::<_, BoxError>(runs.fetch_add(1, Ordering::SeqCst)) })
    };
    let (a, b) = time.drive(async { tokio::join!(call(), call()) }).await;
    eprintln!("{a:?} {b:?}");
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}
#[tokio::test]
async fn a_hung_renewal_cancels_the_owner_before_a_rival_runs() {
    let time = VirtualTime::new();
    let clock = time.clock();
    let (_s, m) = odd(&time, 0, true, false);
    let running = AtomicU32::new(0);
    let most = AtomicU32::new(0);
    let call = || {
        m.execute(&Category::KvPut, "op")
            .idempotent(key("k"))
            .lease(Duration::from_secs(3))
            .on_conflict(OnConflict::Wait(Duration::from_secs(60)))
            .run(|_| async {
                struct D<'a>(&'a AtomicU32);
                impl Drop for D<'_> {
                    fn drop(&mut self) {
                        self.0.fetch_sub(1, Ordering::SeqCst);
                    }
                }
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                let _d = D(&running);
                clock.sleep(Duration::from_secs(10)).await;
                Ok::<_, BoxError>(1)
            })
    };
    let (a, b) = time.drive(async { tokio::join!(call(), call()) }).await;
    eprintln!("{a:?} {b:?}");
    assert_eq!(most.load(Ordering::SeqCst), 1, "two owners at once");
}
#[tokio::test]
async fn a_lost_answer_to_begin_is_requested_again() {
    let time = VirtualTime::new();
    let (_s, m) = odd(&time, 0, false, true);
    let call =
        || m.execute(&Category::KvPut, "op").idempotent(key("k")).run(|_| async { Ok::<_, BoxError>(1) });
    let e = time.drive(call()).await;
    eprintln!("{e:?}");
    let e = time.drive(call()).await;
    assert!(e.is_ok(), "{}", e.unwrap_err());
}
#[tokio::test]
async fn an_unrecorded_result_reports_the_number_of_attempts() {
    let time = VirtualTime::new();
    let (_s, m) = odd(&time, u32::MAX, false, false);
    let e = time
        .drive(
            m.execute(&Category::KvPut, "op")
                .idempotent(key("k"))
                .run(|a| async move { if a.number() < 2 { Err("x") } else { Ok(1) } }),
        )
        .await
        .unwrap_err();
    assert_eq!(e.attempts(), 2, "{e}");
}
#[tokio::test]
async fn the_key_of_a_dead_owner_is_free_for_any_payload_after_a_day() {
    let time = VirtualTime::new();
    let s = MemoryStore::new(time.clock());
    s.begin(&key("k"), Fingerprint::of(&1).unwrap(), OwnerToken::new(), Duration::from_secs(1))
        .await
        .unwrap();
    time.advance(Duration::from_secs(365 * 86400));
    assert_eq!(
        s.begin(&key("k"), Fingerprint::of(&2).unwrap(), OwnerToken::new(), Duration::from_secs(1))
            .await
            .unwrap(),
        Begin::Acquired
    );
}
#[tokio::test]
async fn a_store_full_of_expired_leases_accepts_keys_after_a_day() {
    let time = VirtualTime::new();
    let s = MemoryStore::with_capacity(time.clock(), 1);
    s.begin(&key("a"), Fingerprint::default(), OwnerToken::new(), Duration::from_secs(1)).await.unwrap();
    time.advance(Duration::from_secs(365 * 86400));
    assert!(
        s.begin(&key("b"), Fingerprint::default(), OwnerToken::new(), Duration::from_secs(1)).await.is_ok()
    );
}
#[test]
fn a_blocking_call_keeps_its_lease_through_a_long_wait() {
    let time = VirtualTime::new();
    let store = Arc::new(MemoryStore::new(time.clock()));
    let m = RetryManager::builder().clock(time.clock()).idempotency_store(store).build();
    let _runs = AtomicU32::new(0);
    let r = m.execute(&Category::KvPut, "op").idempotent(key("k")).run_blocking(|a| {
        if a.number() == 1 {
            return Err("slow".retry_after(Duration::from_secs(600)));
        }
        let other =
            m.execute(&Category::KvPut, "op").idempotent(key("k")).run_blocking(|_| Ok::<_, BoxError>(2));
        eprintln!("rival: {other:?}");
        assert!(other.is_err(), "a rival ran at the same time");
        Ok(1)
    });
    eprintln!("{r:?}");
}

// ---- audit
struct Panics;
impl AuditSink for Panics {
    fn record(&self, _: &AuditEvent) -> Result<(), AuditError> {
        panic!("sink")
    }
    fn log(&self, _: &RetryLogEntry) -> Result<(), AuditError> {
        panic!("sink")
    }
}
#[test]
fn fanout_reaches_the_sinks_after_a_panicking_one() {
    let time = VirtualTime::new();
    let (one, mut rx, _) = ChannelSink::new(100);
    let sinks: [Arc<dyn AuditSink>; 2] = [Arc::new(Panics), Arc::new(one)];
    let m = RetryManager::builder().clock(time.clock()).audit(Fanout::new(sinks)).build();
    let _ = m.execute(&Category::ApiRequest, "x").run_blocking(|_| Err::<(), _>("e"));
    assert!(rx.try_recv().is_ok(), "the second sink got nothing");
}
#[test]
fn a_partial_line_does_not_corrupt_the_next() {
    struct Half(Arc<Mutex<Vec<u8>>>, bool);
    impl io::Write for Half {
        fn write(&mut self, b: &[u8]) -> io::Result<usize> {
            if !self.1 && b.len() > 10 {
                self.0.lock().unwrap().extend(&b[..10]);
                self.1 = true;
                return Ok(10);
            }
            if self.1 && self.0.lock().unwrap().len() == 10 {
                self.0.lock().unwrap().push(b'#');
                return Err(io::Error::other("disk full"));
            }
            self.0.lock().unwrap().extend(b);
            Ok(b.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let buf = Arc::new(Mutex::new(vec![]));
    let time = VirtualTime::new();
    let m = RetryManager::builder()
        .clock(time.clock())
        .audit(JsonLinesSink::new(Half(buf.clone(), false)))
        .build();
    let _ = m.execute(&Category::ApiRequest, "x").run_blocking(|_| Err::<(), _>("e"));
    let t = String::from_utf8(buf.lock().unwrap().clone()).unwrap();
    let whole = t.lines().filter(|l| serde_json::from_str::<AuditEvent>(l).is_ok()).count();
    assert_eq!(whole, 5, "of the five after the failed one; {} failures counted", m.audit_failures());
}
#[test]
fn a_panicking_log_does_not_break_the_call() {
    struct S;
    impl tracing::Subscriber for S {
        fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
            tracing::span::Id::from_u64(1)
        }
        fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
        fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
        fn event(&self, _: &tracing::Event<'_>) {
            panic!("subscriber")
        }
        fn enter(&self, _: &tracing::span::Id) {}
        fn exit(&self, _: &tracing::span::Id) {}
    }
    let time = VirtualTime::new();
    let m = RetryManager::builder().clock(time.clock()).build();
    tracing::subscriber::with_default(S, || {
        let r = m
            .execute(&Category::ApiRequest, "x")
            .run_blocking(|a| if a.number() == 1 { Err("e") } else { Ok(1) });
        assert_eq!(r.unwrap(), 1);
    });
}

// ---- send, alloc
#[tokio::test(flavor = "multi_thread")]
async fn a_guarded_call_can_be_spawned_on_many_threads() {
    let m = RetryManager::builder().idempotency_store(Arc::new(MemoryStore::new(Clock::system()))).build();
    let m2 = m.clone();
    let p = RetryPolicy::builder()
        .base_delay(Duration::from_millis(1))
        .deadline(Duration::from_secs(5))
        .build()
        .unwrap();
    let br = CircuitBreaker::new(BreakerConfig::default(), Clock::system());
    let h = tokio::spawn(async move {
        m.execute(&Category::ApiRequest, "x")
            .policy(&p)
            .breaker(&br)
            .run(|a| async move { if a.number() < 3 { Err(anyhow::anyhow!("e")) } else { Ok(1) } })
            .await
    });
    assert_eq!(h.await.unwrap().unwrap(), 1);
    let h = tokio::spawn(async move {
        m2.execute(&Category::ApiRequest, "x")
            .idempotent(key("s"))
            .on_conflict(OnConflict::Wait(Duration::from_secs(1)))
            .run(|_| async move {
                tokio::task::yield_now().await;
                Ok::<_, BoxError>(String::from("a"))
            })
            .await
    });
    assert_eq!(h.await.unwrap().unwrap(), "a");
}
#[test]
fn a_panicking_operation_frees_the_circuit_and_the_key() {
    let time = VirtualTime::new();
    let br = CircuitBreaker::new(BreakerConfig::default(), time.clock());
    let m = RetryManager::builder().clock(time.clock()).build();
    let r = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        m.execute(&Category::ApiRequest, "x")
            .breaker(&br)
            .run_blocking(|_| -> Result<(), BoxError> { panic!("op") })
    }));
    eprintln!("panic propagates: {}", r.is_err());
}
