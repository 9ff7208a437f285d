//! Where the time comes from. One [`Clock`] is handed to everything that waits or looks at the time, so that
//! tests drive backoff, breakers and leases by [`VirtualTime`] and never sleep.

use std::collections::BTreeMap;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, SystemTime};

use pin_project_lite::pin_project;

use crate::timestamp::Timestamp;

/// The time, and a way to wait for it. Cheap to clone.
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
    /// The machine's clock and how far another one is ahead of it, in milliseconds.
    Following(Arc<AtomicI64>),
    Virtual(VirtualTime),
}

impl Clock {
    /// The machine's wall clock; waits on tokio's timer.
    pub const fn system() -> Self {
        Clock(Source::System)
    }

    /// A clock elsewhere, such as a database's: the machine's own, and how far the other one is ahead of it in milliseconds,
    /// which somebody else keeps up to date. Waits on tokio's timer.
    pub fn following(ahead_by: Arc<AtomicI64>) -> Self {
        Clock(Source::Following(ahead_by))
    }

    /// The time now.
    pub fn now(&self) -> Timestamp {
        match &self.0 {
            Source::System => SystemTime::now().into(),
            Source::Following(ahead_by) => {
                let own = Timestamp::from(SystemTime::now()).as_millis();
                Timestamp::from_millis(own.saturating_add(ahead_by.load(Ordering::Relaxed)))
            }
            Source::Virtual(time) => time.now(),
        }
    }

    /// Waits for `duration`. On the system clock this must be polled inside a tokio runtime with timers.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        Sleep {
            kind: match &self.0 {
                Source::System | Source::Following(_) => {
                    SleepKind::System { sleep: tokio::time::sleep(duration) }
                }
                Source::Virtual(time) => {
                    SleepKind::Virtual { sleep: time.sleep_until(time.now() + duration) }
                }
            },
        }
    }

    /// Keeps virtual time from moving by itself while work goes on where [`VirtualTime::drive`] cannot see it, such as on
    /// another thread. Costs nothing on the system clock.
    pub fn busy(&self) -> Busy {
        match &self.0 {
            Source::System | Source::Following(_) => Busy { time: None },
            Source::Virtual(time) => {
                time.lock().busy += 1;
                Busy { time: Some(time.clone()) }
            }
        }
    }

    /// Blocks the thread for `duration`. Virtual time is simply moved on: a blocking caller is its only driver.
    pub fn sleep_blocking(&self, duration: Duration) {
        match &self.0 {
            Source::System | Source::Following(_) => std::thread::sleep(duration),
            Source::Virtual(time) => time.advance(duration),
        }
    }
}

pin_project! {
    /// A wait on a [`Clock`]. Dropping it cancels the wait.
    #[derive(Debug)]
    pub struct Sleep { #[pin] kind: SleepKind }
}

pin_project! {
    // An enum and not a boxed future: waiting should not allocate.
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

/// Time that moves only when it is told to, for tests of anything that takes a [`Clock`].
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
    /// Who waits for which instant. The number makes two waits for one instant two entries.
    sleepers: BTreeMap<(Timestamp, u64), Waker>,
    next_sleeper: u64,
    /// How much work goes on elsewhere; the time does not move by itself meanwhile.
    busy: usize,
    /// Who drives, to be woken when that work is done.
    driver: Option<Waker>,
}

impl VirtualTime {
    /// Begins at 2026-01-01T00:00:00Z, always the same instant.
    pub fn new() -> Self {
        Self::starting_at(Timestamp::from_millis(1_767_225_600_000))
    }

    /// Begins at an instant of your choice.
    pub fn starting_at(now: Timestamp) -> Self {
        let state = VirtualState { now, sleepers: BTreeMap::new(), next_sleeper: 0, busy: 0, driver: None };
        VirtualTime { state: Arc::new(Mutex::new(state)) }
    }

    /// A clock that shows this time.
    pub fn clock(&self) -> Clock {
        Clock(Source::Virtual(self.clone()))
    }

    /// The time now.
    pub fn now(&self) -> Timestamp {
        self.lock().now
    }

    /// Moves the time on and wakes everything that was waiting for an instant on the way.
    pub fn advance(&self, duration: Duration) {
        self.advance_by(|now| now + duration);
    }

    /// Moves the time to the next instant somebody waits for, if anybody does.
    pub fn advance_to_next(&self) -> Option<Timestamp> {
        let next = self.lock().sleepers.keys().next().map(|(at, _)| *at)?;
        self.advance_by(|now| now.max(next));
        Some(next)
    }

    /// Runs `future` to its end, moving the time on whenever everything that can run has run and is waiting.
    ///
    /// Other tasks of the same runtime get their turns in between. Made for a current-thread runtime; work on
    /// other threads is not waited for before the time moves.
    pub async fn drive<F: Future>(&self, future: F) -> F::Output {
        // Turns given to other tasks before the time moves: enough for a chain of wake-ups among them.
        const TURNS: u32 = 32;
        let mut future = pin!(future);
        let woken =
            Arc::new(DriveWaker { woken: AtomicBool::new(true), outer: Mutex::new(Waker::noop().clone()) });
        let mut idle_turns = 0;
        poll_fn(|cx| {
            woken.outer.lock().unwrap_or_else(PoisonError::into_inner).clone_from(cx.waker());
            if woken.woken.swap(false, Ordering::AcqRel) {
                idle_turns = 0;
                let waker = Waker::from(Arc::clone(&woken));
                if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                    return Poll::Ready(output);
                }
            }
            idle_turns += 1;
            if self.is_busy(cx.waker()) {
                idle_turns = 0;
            } else if idle_turns <= TURNS || self.advance_to_next().is_some() {
                cx.waker().wake_by_ref();
            }
            Poll::Pending
        })
        .await
    }

    /// Whether work goes on elsewhere; if so, the driver is woken when it is done.
    fn is_busy(&self, driver: &Waker) -> bool {
        let mut state = self.lock();
        state.driver = Some(driver.clone());
        state.busy > 0
    }

    fn advance_by(&self, target: impl FnOnce(Timestamp) -> Timestamp) {
        let due = {
            let mut state = self.lock();
            let now = target(state.now);
            state.now = now;
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

/// While it lives, virtual time does not move by itself; see [`Clock::busy`].
#[derive(Debug)]
#[must_use = "the time may move again as soon as this is dropped"]
pub struct Busy {
    time: Option<VirtualTime>,
}

impl Drop for Busy {
    fn drop(&mut self) {
        if let Some(time) = &self.time {
            let driver = {
                let mut state = time.lock();
                state.busy -= 1;
                if state.busy == 0 { state.driver.take() } else { None }
            };
            if let Some(driver) = driver {
                driver.wake();
            }
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
            if let Some(number) = self.registered.take() {
                state.sleepers.remove(&(self.at, number));
            }
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

/// Remembers that the driven future was woken, and passes the wake-up on to the runtime.
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
    fn a_clock_that_follows_another_one_is_ahead_by_as_much() {
        let ahead_by = Arc::new(AtomicI64::new(3_600_000));
        let clock = Clock::following(Arc::clone(&ahead_by));
        let ahead = clock.now().as_millis() - Clock::system().now().as_millis();
        assert!((3_590_000..3_610_000).contains(&ahead), "{ahead}");
        ahead_by.store(-3_600_000, Ordering::Relaxed);
        assert!(clock.now() < Clock::system().now());
    }

    #[tokio::test]
    async fn driving_runs_sleeps_in_order_of_their_time_without_waiting() {
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
    async fn driving_lets_other_tasks_work_before_the_time_moves() {
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
    async fn the_time_stands_still_while_work_goes_on_elsewhere() {
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
    async fn a_dropped_sleep_is_forgotten() {
        let time = VirtualTime::new();
        let mut sleep = Box::pin(time.clock().sleep(Duration::from_secs(5)));
        assert!(poll_fn(|cx| Poll::Ready(sleep.as_mut().poll(cx))).await.is_pending());
        drop(sleep);
        assert_eq!(time.advance_to_next(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_system_clock_waits_on_tokios_timer() {
        let began = tokio::time::Instant::now();
        Clock::system().sleep(Duration::from_secs(30)).await;
        assert_eq!(began.elapsed(), Duration::from_secs(30));
    }
}
