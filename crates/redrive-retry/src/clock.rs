//! [`Clock`] and [`VirtualTime`]: injected time, so that tests of backoff, breakers and leases never sleep.

mod virtual_time;
pub(crate) mod wall_watch;

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime};

use pin_project_lite::pin_project;

use self::virtual_time::VirtualSleep;

pub use self::virtual_time::{Busy, VirtualTime};
pub use crate::timestamp::Timestamp;

/// Source of the current time and of timers. Cheap to clone.
///
/// Two times: *wall time* is what people read and what is stored; it jumps when the machine's clock is set. *Steady time* never
/// jumps: timers run on it. An [anchored](Self::anchored) clock tells wall time that advances with steady time.
///
/// ```
/// use redrive_retry::Clock;
/// assert!(Clock::system().now() <= Clock::system().now());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Clock {
    source: Source,
    reading: Reading,
}

/// Origin of wall time and steady time.
#[derive(Clone, Debug, Default)]
enum Source {
    #[default]
    System,
    /// The system's steady time, and a wall clock that is ahead of the system's by milliseconds.
    WallAhead(Arc<AtomicI64>),
    Virtual(VirtualTime),
}

/// Way in which the current time is read from the source.
#[derive(Clone, Debug, Default)]
enum Reading {
    /// Wall time.
    #[default]
    Wall,
    /// Steady time plus milliseconds. All clones share them.
    Anchored(Arc<AtomicI64>),
}

impl Clock {
    /// System wall clock with tokio's timers.
    pub const fn system() -> Self {
        Clock { source: Source::System, reading: Reading::Wall }
    }

    /// System clock whose wall time is ahead by milliseconds that the caller may change at any time: for tests of what happens
    /// when a machine's clock is set.
    pub fn with_offset(offset_ms: Arc<AtomicI64>) -> Self {
        Clock { source: Source::WallAhead(offset_ms), reading: Reading::Wall }
    }

    /// Returns a clock that shows the same time now and then advances with steady time. If the machine's wall clock is set, it
    /// does not follow until [`set`](Self::set) is called.
    ///
    /// ```
    /// use redrive_retry::VirtualTime;
    /// let time = VirtualTime::new();
    /// let (wall, anchored) = (time.clock(), time.clock().anchored());
    /// time.step_wall_clock(-7_200_000);
    /// assert_eq!(anchored.wall_ahead_ms(), -7_200_000);
    /// assert_eq!(anchored.set(wall.now()), -7_200_000);
    /// assert_eq!(anchored.now(), wall.now());
    /// ```
    #[must_use = "the clock itself is not changed"]
    pub fn anchored(&self) -> Self {
        let offset_ms = self.at_steady(Timestamp::EPOCH).as_millis();
        Clock { source: self.source.clone(), reading: Reading::Anchored(Arc::new(AtomicI64::new(offset_ms))) }
    }

    /// Current time.
    pub fn now(&self) -> Timestamp {
        match &self.reading {
            Reading::Wall => self.wall(),
            Reading::Anchored(offset_ms) => self.steady().shifted(offset_ms.load(Ordering::Acquire)),
        }
    }

    /// Whether the time passes only when a test advances it.
    pub fn is_virtual(&self) -> bool {
        matches!(self.source, Source::Virtual(_))
    }

    /// Time that never jumps, for timers in memory. It has no date: compare it only with itself, in one process.
    pub fn steady(&self) -> Timestamp {
        match &self.source {
            Source::System | Source::WallAhead(_) => system_steady(),
            Source::Virtual(time) => time.now(),
        }
    }

    /// Returns the time that this clock shows at an instant of [steady time](Self::steady), unless it is set until then.
    pub fn at_steady(&self, steady: Timestamp) -> Timestamp {
        let offset_ms = match &self.reading {
            Reading::Wall => self.wall().as_millis().saturating_sub(self.steady().as_millis()),
            Reading::Anchored(_) => self.offset_ms(),
        };
        steady.shifted(offset_ms)
    }

    /// Current time of the wall clock.
    fn wall(&self) -> Timestamp {
        match &self.source {
            Source::System => SystemTime::now().into(),
            Source::WallAhead(offset_ms) => {
                Timestamp::from(SystemTime::now()).shifted(offset_ms.load(Ordering::Acquire))
            }
            Source::Virtual(time) => time.wall(),
        }
    }

    /// Sets an anchored clock and all its clones. Returns by how many milliseconds it moved; 0 for any other clock.
    pub fn set(&self, now: Timestamp) -> i64 {
        let Reading::Anchored(offset_ms) = &self.reading else { return 0 };
        let to = now.as_millis().saturating_sub(self.steady().as_millis());
        to.saturating_sub(offset_ms.swap(to, Ordering::AcqRel))
    }

    /// Returns by how many milliseconds an anchored clock is ahead of steady time; only setting the clock changes that. 0 for any other
    /// clock.
    pub fn offset_ms(&self) -> i64 {
        match &self.reading {
            Reading::Wall => 0,
            Reading::Anchored(offset_ms) => offset_ms.load(Ordering::Acquire),
        }
    }

    /// Returns by how many milliseconds the machine's wall clock is ahead of this clock; negative if it is behind.
    pub fn wall_ahead_ms(&self) -> i64 {
        self.wall().as_millis().saturating_sub(self.now().as_millis())
    }

    /// Waits for `duration`. With the system clock it must be polled inside a tokio runtime with timers.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        Sleep {
            kind: match &self.source {
                Source::System | Source::WallAhead(_) => {
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
        match &self.source {
            Source::System | Source::WallAhead(_) => Busy::default(),
            Source::Virtual(time) => time.busy(),
        }
    }

    /// Blocks the thread for `duration`. Advances virtual time instead of blocking.
    pub fn sleep_blocking(&self, duration: Duration) {
        match &self.source {
            Source::System | Source::WallAhead(_) => std::thread::sleep(duration),
            Source::Virtual(time) => time.advance(duration),
        }
    }
}

/// Milliseconds of the system's monotonic clock, as the time since a date in the past.
fn system_steady() -> Timestamp {
    static ORIGIN: LazyLock<(Timestamp, Instant)> =
        LazyLock::new(|| (SystemTime::now().into(), Instant::now()));
    ORIGIN.0 + ORIGIN.1.elapsed()
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

    #[test]
    fn an_anchored_clock_does_not_jump_until_it_is_set() {
        let ahead_by = Arc::new(AtomicI64::new(0));
        let wall = Clock::with_offset(Arc::clone(&ahead_by));
        let anchored = wall.anchored();
        let (before, offset) = (anchored.now(), anchored.offset_ms());
        ahead_by.store(-7_200_000, Ordering::Relaxed);
        assert!(anchored.now() >= before, "wall time jumped, steady time did not");
        assert!((-7_210_000..-7_190_000).contains(&anchored.wall_ahead_ms()));
        let step = anchored.set(wall.now());
        assert!((-7_210_000..-7_190_000).contains(&step), "{step}");
        assert_eq!(anchored.offset_ms(), offset + step, "clones share the setting");
        assert!(anchored.wall_ahead_ms().abs() < 1000);
    }

    #[tokio::test(start_paused = true)]
    async fn the_system_clock_uses_tokios_timer() {
        let began = tokio::time::Instant::now();
        Clock::system().sleep(Duration::from_secs(30)).await;
        assert_eq!(began.elapsed(), Duration::from_secs(30));
    }
}
