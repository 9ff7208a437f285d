//! [`VirtualTime`]: time that a test advances by hand.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use super::{Clock, Reading, Source};
use crate::timestamp::Timestamp;

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
    /// Lead of the wall clock over `now`, in milliseconds.
    wall_ahead_ms: i64,
    /// Number of steps of the wall clock.
    wall_steps: u64,
    /// Wakers of the tasks that watch the wall clock.
    wall_watchers: Vec<Waker>,
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
            wall_ahead_ms: 0,
            wall_steps: 0,
            wall_watchers: Vec::new(),
            busy: 0,
            drivers: Vec::new(),
        };
        VirtualTime { state: Arc::new(Mutex::new(state)) }
    }

    /// Returns a clock that shows this time.
    pub fn clock(&self) -> Clock {
        Clock { source: Source::Virtual(self.clone()), reading: Reading::Wall }
    }

    /// Current time. The wall clock shows another one after [`step_wall_clock`](Self::step_wall_clock).
    pub fn now(&self) -> Timestamp {
        self.lock().now
    }

    /// The time that the wall clock shows.
    pub(super) fn wall(&self) -> Timestamp {
        let state = self.lock();
        state.now.shifted(state.wall_ahead_ms)
    }

    /// Sets the wall clock forward, or back if `millis` is negative, without time passing: timers do not move.
    pub fn step_wall_clock(&self, millis: i64) {
        let watchers = {
            let mut state = self.lock();
            state.wall_ahead_ms = state.wall_ahead_ms.saturating_add(millis);
            state.wall_steps += 1;
            std::mem::take(&mut state.wall_watchers)
        };
        watchers.into_iter().for_each(Waker::wake);
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

    /// Returns the number of steps of the wall clock.
    pub(super) fn wall_steps(&self) -> u64 {
        self.lock().wall_steps
    }

    /// Waits for a step of the wall clock after the first `seen` ones.
    pub(super) fn poll_wall_steps(&self, seen: &mut u64, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        if state.wall_steps != *seen {
            *seen = state.wall_steps;
            return Poll::Ready(());
        }
        state.wall_watchers.push(cx.waker().clone());
        Poll::Pending
    }

    /// Stops [`drive`](Self::drive) from advancing the time until the guard is dropped.
    pub(super) fn busy(&self) -> Busy {
        self.lock().busy += 1;
        Busy { time: Some(self.clone()) }
    }

    pub(super) fn sleep_until(&self, at: Timestamp) -> VirtualSleep {
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
#[derive(Debug, Default)]
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
pub(super) struct VirtualSleep {
    time: VirtualTime,
    at: Timestamp,
    registered: Option<u64>,
}

impl VirtualSleep {
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
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
    use super::super::wall_watch::WallWatch;
    use super::*;

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

    #[tokio::test]
    async fn a_step_of_the_virtual_wall_clock_moves_no_timer() {
        let time = VirtualTime::new();
        let clock = time.clock();
        let (began, mut watch) = (clock.now(), WallWatch::new(&clock));
        time.drive(async {
            time.step_wall_clock(-7_200_000);
            watch.next_check().await;
            clock.sleep(Duration::from_secs(4)).await;
        })
        .await;
        assert_eq!(clock.now(), began.shifted(4_000 - 7_200_000));
        assert_eq!(time.now(), began + Duration::from_secs(4));
    }
}
