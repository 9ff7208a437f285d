//! Unit tests of the limiter, on a clock that the test sets.
use super::*;
use redrive_retry::VirtualTime;

const START: Timestamp = Timestamp::from_millis(1_767_225_600_000);

fn limiter(concurrency: usize, per_second: Option<f64>) -> Arc<Limiter> {
    let limits = Limits { concurrency, per_second };
    Arc::new(Limiter::new(limits, START, Arc::new(Backlog::new(Arc::default())), None))
}

fn limiter_of_a_pull_queue(per_second: Option<f64>) -> (Arc<Limiter>, Arc<Demand>) {
    let (limits, demand) = (Limits { concurrency: 4, per_second }, Arc::<Demand>::default());
    let backlog = Arc::new(Backlog::new(Arc::default()));
    (Arc::new(Limiter::new(limits, START, backlog, Some(Arc::clone(&demand)))), demand)
}

fn claimed(claimed: usize, may_be_more: bool) -> BacklogClaimed {
    BacklogClaimed { claimed, may_be_more }
}

fn limit(capacity: Capacity) -> usize {
    match capacity {
        Capacity::Free(request) => request.limit,
        Capacity::FreeAt(_) | Capacity::Full => 0,
    }
}

#[tokio::test]
async fn deliveries_over_both_limits_go_to_the_backlog() {
    let limiter = limiter(2, None);
    let (one, two) = (limiter.acquire(|| START).await.unwrap(), limiter.acquire(|| START).await.unwrap());
    let acquire = || {
        let limiter = Arc::clone(&limiter);
        tokio::spawn(async move { limiter.acquire(|| START).await })
    };
    let (three, four) = (acquire(), acquire());
    tokio::task::yield_now().await;
    assert!(limiter.acquire(|| START).await.is_none(), "to the backlog");
    assert_eq!(limit(limiter.capacity(START)), 0, "the memory is full");
    drop(one);
    let three = three.await.unwrap().expect("a slot is free");
    assert_eq!(limit(limiter.capacity(START)), 1);
    four.abort();
    assert!(four.await.is_err());
    assert_eq!(limit(limiter.capacity(START)), 2, "a dropped wait frees its place");
    drop((two, three));
    assert_eq!(limit(limiter.capacity(START)), 4);
}

/// Makes one request, with attempts that end at once while the disk is read.
async fn work(limiter: &Arc<Limiter>, ends_meanwhile: usize) {
    let Capacity::Free(request) = limiter.capacity(START) else { return };
    for _ in 0..ends_meanwhile {
        drop(limiter.acquire(|| START).await);
    }
    limiter.requested(request, START);
    limiter.received(request, claimed(0, true));
}

#[tokio::test]
async fn prefetch_limit_grows_where_attempts_end_faster_than_the_disk_answers() {
    let limiter = limiter(4, None);
    assert_eq!(limit(limiter.capacity(START)), 8);
    work(&limiter, 1).await;
    assert_eq!(limit(limiter.capacity(START)), 12, "it ran dry");
    for _ in 0..10 {
        work(&limiter, 1).await;
    }
    assert_eq!(limit(limiter.capacity(START)), 4 + 4 * MAX_PREFETCH_FACTOR, "and never more than that");

    let mut state = lock(&limiter.state);
    state.low_watermark = Some(40);
    state.adjust_prefetch_limit(4);
    assert_eq!(state.prefetch_limit, 56, "plenty were left");
    for _ in 0..40 {
        state.low_watermark = Some(state.prefetch_limit - state.prefetch_limit / 4);
        state.adjust_prefetch_limit(4);
    }
    assert_eq!(state.prefetch_limit, 4, "few are enough where attempts are slow");
}

#[tokio::test]
async fn prefetched_deliveries_return_to_the_backlog_after_a_stall() {
    let limiter = limiter(2, None);
    lock(&limiter.state).prefetch_limit = 8;
    let running = (limiter.acquire(|| START).await, limiter.acquire(|| START).await);
    let acquire = |_| {
        let limiter = Arc::clone(&limiter);
        tokio::spawn(async move { limiter.acquire(|| START).await })
    };
    let waiting: Vec<_> = (0..6).map(acquire).collect();
    tokio::task::yield_now().await;
    let stalled = START + STALL_AFTER;
    assert!(matches!(limiter.capacity(START), Capacity::Free(_)), "two more may come");
    let seen = limiter.backlog.may_exist().unwrap();
    limiter.backlog.drained(seen);
    assert!(
        matches!(limiter.capacity(START), Capacity::FreeAt(at) if at == stalled),
        "it is looked at again"
    );
    limiter.capacity(stalled);
    let (mut left, mut stayed) = (0, 0);
    for one in waiting {
        // Callers that stay wait for the permits of running ones.
        match tokio::time::timeout(Duration::from_millis(20), one).await {
            Ok(permit) => left += usize::from(permit.unwrap().is_none()),
            Err(_) => stayed += 1,
        }
    }
    assert_eq!((left, stayed), (4, 2));
    drop(running);
}

#[tokio::test]
async fn requested_deliveries_count_until_they_arrive_or_time_out() {
    let limiter = limiter(2, None);
    let Capacity::Free(request) = limiter.capacity(START) else {
        panic!("an earlier process may have left a backlog")
    };
    limiter.requested(request, START);
    limiter.received(request, claimed(4, true));
    assert!(matches!(limiter.capacity(START), Capacity::FreeAt(_)), "as many as fit are on their way");
    let permit = limiter.acquire(|| START).await.unwrap();
    let later = START + PREFETCH_TIMEOUT;
    assert_eq!(limit(limiter.capacity(later)), 3, "the other three have timed out");
    drop(permit);
    let Capacity::Free(request) = limiter.capacity(later) else { panic!("the limiter has capacity") };
    limiter.requested(request, later);
    limiter.received(request, claimed(0, false));
    assert!(matches!(limiter.capacity(later), Capacity::Full), "the backlog is empty");
}

#[tokio::test]
async fn a_deferral_during_a_backlog_claim_is_not_forgotten() {
    let limiter = limiter(1, None);
    let permit = limiter.acquire(|| START).await.unwrap();
    let Capacity::Free(request) = limiter.capacity(START) else { panic!("one can wait") };
    limiter.requested(request, START);
    let waiting = limiter.acquire(|| START);
    let mut waiting = std::pin::pin!(waiting);
    assert!(futures_poll(waiting.as_mut()).is_none());
    assert!(limiter.acquire(|| START).await.is_none(), "to the backlog");
    limiter.backlog.deferred();
    limiter.received(request, claimed(0, false));
    drop(permit);
    drop(waiting.await.unwrap());
    assert_eq!(limit(limiter.capacity(START)), 2, "the backlog is read again");
}

fn futures_poll<F: Future>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    match future.poll(&mut context) {
        std::task::Poll::Ready(output) => Some(output),
        std::task::Poll::Pending => None,
    }
}

#[tokio::test]
async fn rate_limit_bounds_the_attempts_started_per_second() {
    let limiter = limiter(100, Some(10.0));
    let time = VirtualTime::starting_at(START);
    let clock = time.clock();
    let mut begun = 0;
    for _ in 0..1000 {
        if limiter.acquire(|| clock.now()).await.is_some() {
            begun += 1;
        }
        time.advance(Duration::from_millis(10));
    }
    assert!((100..=103).contains(&begun), "{begun} in ten seconds");
    assert!(
        matches!(limiter.capacity(clock.now()), Capacity::FreeAt(_))
            || limit(limiter.capacity(clock.now())) <= 2
    );
}

/// No delivery may wait for the end of an attempt that never starts.
#[tokio::test]
async fn all_waiting_deliveries_return_to_the_backlog_when_the_rate_limit_refuses_the_first() {
    let limiter = limiter(1, Some(1.0));
    lock(&limiter.state).prefetch_limit = 16;
    let running = limiter.acquire(|| START).await.unwrap();
    let acquire = |_| {
        let limiter = Arc::clone(&limiter);
        tokio::spawn(async move { limiter.acquire(|| START).await })
    };
    let waiting: Vec<_> = (0..5).map(acquire).collect();
    tokio::task::yield_now().await;
    drop(running);
    for one in waiting {
        let permit = tokio::time::timeout(Duration::from_secs(10), one)
            .await
            .expect("every waiting delivery is answered");
        assert!(permit.unwrap().is_none(), "no token is left in this second");
    }
    assert_eq!(lock(&limiter.state).waiting, 0);
}

#[tokio::test]
async fn deliveries_that_arrive_before_the_claim_result_are_counted() {
    let limiter = limiter(2, None);
    let Capacity::Free(request) = limiter.capacity(START) else { panic!("the limiter has capacity") };
    limiter.requested(request, START);
    let permits = (limiter.acquire(|| START).await, limiter.acquire(|| START).await);
    limiter.received(request, claimed(2, true));
    assert_eq!(lock(&limiter.state).requested, 0);
    drop(permits);
}

#[tokio::test]
async fn a_throttled_limiter_refuses_until_the_time_has_passed() {
    let limiter = limiter(2, None);
    let (one, two) = (limiter.acquire(|| START).await, limiter.acquire(|| START).await);
    let waiting = {
        let limiter = Arc::clone(&limiter);
        tokio::spawn(async move { limiter.acquire(|| START).await })
    };
    tokio::task::yield_now().await;
    limiter.throttle_for(Duration::from_secs(5), START);
    assert!(waiting.await.unwrap().is_none(), "a prefetched delivery returns to the backlog");
    limiter.throttle_for(Duration::from_secs(1), START);
    assert_eq!(limiter.throttled_until(START), Some(START + Duration::from_secs(5)), "the longer wait holds");
    drop((one, two));
    assert!(limiter.acquire(|| START).await.is_none());
    assert!(
        matches!(limiter.capacity(START), Capacity::FreeAt(until) if until == START + Duration::from_secs(5))
    );
    let open = START + Duration::from_secs(5);
    assert_eq!(limit(limiter.capacity(open)), 4);
    assert!(limiter.acquire(|| open).await.is_some());
    limiter.throttle_for(Duration::from_secs(1 << 40), open);
    assert_eq!(limiter.throttled_until(open), Some(open + MAX_THROTTLE), "the throttling is bounded");
}

#[tokio::test]
async fn a_permit_dropped_without_an_attempt_returns_the_demand() {
    let (limiter, demand) = limiter_of_a_pull_queue(None);
    assert!(limiter.acquire(|| START).await.is_none(), "no consumer asks");
    demand.ask(1);
    drop(limiter.acquire(|| START).await.expect("a consumer asks for one"));
    assert_eq!(demand.asked(), 1, "budget or circuit refused: the consumer still waits");
    let mut permit = limiter.acquire(|| START).await.expect("it asks again");
    permit.offer_made();
    drop(permit);
    assert_eq!(demand.asked(), 0, "the consumer got its event");
}

#[tokio::test]
async fn a_delivery_without_demand_spends_no_rate_token() {
    let (limiter, demand) = limiter_of_a_pull_queue(Some(1.0));
    for _ in 0..5 {
        assert!(limiter.acquire(|| START).await.is_none());
    }
    demand.ask(1);
    assert!(limiter.acquire(|| START).await.is_some(), "the only token is left");
    demand.ask(1);
    assert!(limiter.acquire(|| START).await.is_none(), "the bucket is empty");
    assert_eq!(demand.asked(), 2, "and takes no demand");
}
