//! [`Clock`] and [`VirtualTime`]: injected time, so that tests of backoff, breakers and leases never sleep.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, SystemTime};

use pin_project_lite::pin_project;

pub use crate::timestamp::Timestamp;

/// Source of the current time and of timers. Cheap to clone.
///
/// ```
/// use redrive_retry::Clock;
/// assert!(Clock::system().now() <= Clock::system().now());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Clock(Source);

#[derive(Clone, Debug, Default)]
enum Source {
    #[default]
    System,
    /// System clock plus an offset in milliseconds.
    Offset(Arc<AtomicI64>),
    Virtual(VirtualTime),
}

impl Clock {
    /// System wall clock with tokio's timers.
    pub const fn system() -> Self {
        Clock(Source::System)
    }

    /// System clock plus an offset in milliseconds that the caller updates, to follow a remote clock such as a database's.
    pub fn with_offset(offset_ms: Arc<AtomicI64>) -> Self {
        Clock(Source::Offset(offset_ms))
    }

    /// Current time.
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Source::System => SystemTime::now().into(),
            Source::Offset(offset_ms) => {
                let own = Timestamp::from(SystemTime::now()).as_millis();
                Timestamp::from_millis(own.saturating_add(offset_ms.load(Ordering::Relaxed)))
            }
            Source::Virtual(time) => time.now(),
        }
    }

    /// Waits for `duration`. With the system clock it must be polled inside a tokio runtime with timers.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        Sleep {
            kind: match &self.0 {
                Source::System | Source::Offset(_) => {
                    SleepKind::System { sleep: tokio::time::sleep(duration) }
                }
                Source::Virtual(time) => {
                    SleepKind::Virtual { sleep: time.sleep_until(time.now() + duration) }
                }
            },
        }
    }

    /// Stops [`VirtualTime::drive`] from advancing the time while work runs on another thread. Has no effect on the system clock.
    pub fn busy(&self) -> Busy {
        match &self.0 {
            Source::System | Source::Offset(_) => Busy { time: None },
            Source::Virtual(time) => {
                time.lock().busy += 1;
                Busy { time: Some(time.clone()) }
            }
        }
    }

    /// Blocks the thread for `duration`. Advances virtual time instead of blocking.
    pub fn sleep_blocking(&self, duration: Duration) {
        match &self.0 {
            Source::System | Source::Offset(_) => std::thread::sleep(duration),
            Source::Virtual(time) => time.advance(duration),
        }
    }
}

pin_project! {
    /// Timer of a [`Clock`]. Dropping it cancels the wait.
    #[derive(Debug)]
    pub struct Sleep { #[pin] kind: SleepKind }
}

pin_project! {
    // An enum instead of a boxed future, so that waiting does not allocate.
    #[project = SleepProjection]
    #[derive(Debug)]
    enum SleepKind {
        System { #[pin] sleep: tokio::time::Sleep },
        Virtual { sleep: VirtualSleep },
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        match self.project().kind.project() {
            SleepProjection::System { sleep } => sleep.poll(cx),
            SleepProjection::Virtual { sleep } => sleep.poll(cx),
        }
    }
}

/// Manually advanced time for tests of code that takes a [`Clock`].
///
/// ```
/// # use redrive_retry::VirtualTime;
/// # use std::time::Duration;
/// let time = VirtualTime::new();
/// let clock = time.clock();
/// let before = clock.now();
/// time.advance(Duration::from_secs(3600));
/// assert_eq!(clock.now().since(before), Duration::from_secs(3600));
/// ```
#[derive(Clone, Debug)]
pub struct VirtualTime {
    // A std mutex: held for a map operation, never across an await.
    state: Arc<Mutex<VirtualState>>,
}

#[derive(Debug)]
struct VirtualState {
    now: Timestamp,
    /// Wakers by instant; the number distinguishes timers of the same instant.
    sleepers: BTreeMap<(Timestamp, u64), Waker>,
    next_sleeper: u64,
    /// Number of advances of the time.
    advances: u64,
    /// Number of [`Busy`] guards.
    busy: usize,
    /// Wakers of the futures in `drive`, woken when the last guard is dropped.
    drivers: Vec<Waker>,
}

impl VirtualTime {
    /// Starts at 2026-01-01T00:00:00Z.
    pub fn new() -> Self {
        Self::starting_at(Timestamp::from_millis(1_767_225_600_000))
    }

    /// Starts at the given instant.
    pub fn starting_at(now: Timestamp) -> Self {
        let state = VirtualState {
            now,
            sleepers: BTreeMap::new(),
            next_sleeper: 0,
            advances: 0,
            busy: 0,
            drivers: Vec::new(),
        };
        VirtualTime { state: Arc::new(Mutex::new(state)) }
    }

    /// Returns a clock that shows this time.
    pub fn clock(&self) -> Clock {
        Clock(Source::Virtual(self.clone()))
    }

    /// Current time.
    pub fn now(&self) -> Timestamp {
        self.lock().now
    }

    /// Advances the time and wakes the timers that have elapsed.
    pub fn advance(&self, duration: Duration) {
        self.advance_by(|now| now + duration);
    }

    /// Advances the time to the next timer, if there is one.
    pub fn advance_to_next(&self) -> Option<Timestamp> {
        let next = self.lock().sleepers.keys().next().map(|(at, _)| *at)?;
        self.advance_by(|now| now.max(next));
        Some(next)
    }

    /// Runs `future` to completion and advances the time to the next timer whenever all tasks wait.
    ///
    /// Other tasks of a current-thread runtime run in between. Work on other threads needs a [`Busy`] guard.
    pub async fn drive<F: Future>(&self, future: F) -> F::Output {
        // Yields to other tasks before the time advances: enough for a chain of wake-ups among them.
        const MAX_IDLE_TURNS: u32 = 32;
        let mut future = pin!(future);
        let woken =
            Arc::new(DriveWaker { woken: AtomicBool::new(true), outer: Mutex::new(Waker::noop().clone()) });
        let (mut idle_turns, mut seen_advances) = (0, 0);
        poll_fn(|cx| {
            woken.outer.lock().unwrap_or_else(PoisonError::into_inner).clone_from(cx.waker());
            if woken.woken.swap(false, Ordering::AcqRel) {
                idle_turns = 0;
                let waker = Waker::from(Arc::clone(&woken));
                if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                    return Poll::Ready(output);
                }
            }
            // Another driver may have advanced the time: the woken tasks come first.
            let advances = self.lock().advances;
            idle_turns = if advances == seen_advances { idle_turns + 1 } else { 1 };
            seen_advances = advances;
            if self.is_busy(cx.waker()) {
                idle_turns = 0;
            } else if idle_turns <= MAX_IDLE_TURNS || self.advance_to_next().is_some() {
                cx.waker().wake_by_ref();
            }
            Poll::Pending
        })
        .await
    }

    /// Whether a [`Busy`] guard exists; registers the driver's waker.
    fn is_busy(&self, driver: &Waker) -> bool {
        let mut state = self.lock();
        if !state.drivers.iter().any(|known| known.will_wake(driver)) {
            state.drivers.push(driver.clone());
        }
        state.busy > 0
    }

    fn advance_by(&self, target: impl FnOnce(Timestamp) -> Timestamp) {
        let due = {
            let mut state = self.lock();
            let now = target(state.now);
            state.now = now;
            state.advances += 1;
            let later = state.sleepers.split_off(&(now, u64::MAX));
            std::mem::replace(&mut state.sleepers, later)
        };
        for waker in due.into_values() {
            waker.wake();
        }
    }

    fn sleep_until(&self, at: Timestamp) -> VirtualSleep {
        VirtualSleep { time: self.clone(), at, registered: None }
    }

    fn lock(&self) -> MutexGuard<'_, VirtualState> {
        // The state is valid between any two statements, so a poisoned lock is still good to use.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for VirtualTime {
    fn default() -> Self {
        Self::new()
    }
}

/// Guard that stops [`VirtualTime::drive`] from advancing the time; see [`Clock::busy`].
#[derive(Debug)]
#[must_use = "the time may advance again as soon as this is dropped"]
pub struct Busy {
    time: Option<VirtualTime>,
}

impl Drop for Busy {
    fn drop(&mut self) {
        if let Some(time) = &self.time {
            let drivers = {
                let mut state = time.lock();
                state.busy -= 1;
                if state.busy == 0 { std::mem::take(&mut state.drivers) } else { Vec::new() }
            };
            drivers.into_iter().for_each(Waker::wake);
        }
    }
}

#[derive(Debug)]
struct VirtualSleep {
    time: VirtualTime,
    at: Timestamp,
    registered: Option<u64>,
}

impl VirtualSleep {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let mut state = self.time.lock();
        if state.now >= self.at {
            return Poll::Ready(());
        }
        let number = *self.registered.get_or_insert_with(|| {
            state.next_sleeper += 1;
            state.next_sleeper
        });
        state.sleepers.insert((self.at, number), cx.waker().clone());
        Poll::Pending
    }
}

impl Drop for VirtualSleep {
    fn drop(&mut self) {
        if let Some(number) = self.registered {
            self.time.lock().sleepers.remove(&(self.at, number));
        }
    }
}

/// Records that the driven future was woken and wakes the runtime's task.
struct DriveWaker {
    woken: AtomicBool,
    outer: Mutex<Waker>,
}

impl Wake for DriveWaker {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::Release);
        self.outer.lock().unwrap_or_else(PoisonError::into_inner).wake_by_ref();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_with_offset_differs_by_the_offset() {
        let ahead_by = Arc::new(AtomicI64::new(3_600_000));
        let clock = Clock::with_offset(Arc::clone(&ahead_by));
        let ahead = clock.now().as_millis() - Clock::system().now().as_millis();
        assert!((3_590_000..3_610_000).contains(&ahead), "{ahead}");
        ahead_by.store(-3_600_000, Ordering::Relaxed);
        assert!(clock.now() < Clock::system().now());
    }

    #[tokio::test]
    async fn drive_runs_timers_in_order_without_waiting() {
        let time = VirtualTime::new();
        let clock = time.clock();
        let order = Mutex::new(Vec::new());
        let nap = |name: &'static str, secs: u64| {
            let (clock, order) = (&clock, &order);
            async move {
                clock.sleep(Duration::from_secs(secs)).await;
                order.lock().unwrap().push(name);
            }
        };
        let began = time.now();
        time.drive(async { tokio::join!(nap("late", 7200), nap("early", 60), nap("now", 0)) }).await;
        assert_eq!(*order.lock().unwrap(), ["now", "early", "late"]);
        assert_eq!(time.now().since(began), Duration::from_secs(7200));
    }

    #[tokio::test]
    async fn drive_runs_other_tasks_before_the_time_advances() {
        let time = VirtualTime::new();
        let (tx, rx) = tokio::sync::oneshot::channel();
        tokio::spawn(async move {
            tokio::task::yield_now().await;
            tx.send("answer").unwrap();
        });
        let clock = time.clock();
        let answer = time
            .drive(async {
                tokio::select! {
                    answer = rx => answer.unwrap(),
                    () = clock.sleep(Duration::from_secs(1)) => "timed out",
                }
            })
            .await;
        assert_eq!(answer, "answer");
    }

    #[tokio::test]
    async fn the_time_does_not_advance_while_a_busy_guard_exists() {
        let time = VirtualTime::new();
        let clock = time.clock();
        let (tx, rx) = tokio::sync::oneshot::channel();
        let worker = {
            let busy = clock.busy();
            std::thread::spawn(move || {
                (0..100).for_each(|_| std::thread::yield_now());
                tx.send("answer").unwrap();
                drop(busy);
            })
        };
        let answer = time
            .drive(async {
                tokio::select! {
                    answer = rx => answer.unwrap(),
                    () = clock.sleep(Duration::from_secs(1)) => "timed out",
                }
            })
            .await;
        worker.join().unwrap();
        assert_eq!(answer, "answer");
    }

    #[tokio::test]
    async fn a_dropped_timer_is_removed() {
        let time = VirtualTime::new();
        let mut sleep = Box::pin(time.clock().sleep(Duration::from_secs(5)));
        assert!(poll_fn(|cx| Poll::Ready(sleep.as_mut().poll(cx))).await.is_pending());
        drop(sleep);
        assert_eq!(time.advance_to_next(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_system_clock_uses_tokios_timer() {
        let began = tokio::time::Instant::now();
        Clock::system().sleep(Duration::from_secs(30)).await;
        assert_eq!(began.elapsed(), Duration::from_secs(30));
    }
}
