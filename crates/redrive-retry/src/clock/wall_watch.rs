//! [`WallWatch`]: when to compare a clock with the machine's wall clock.

use std::future::poll_fn;
use std::time::Duration;

use super::{Clock, Source};

/// Interval at which a clock is compared with the wall clock.
const WALL_CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// Waits for the times at which a clock is to be compared with the wall clock.
#[derive(Debug)]
pub struct WallWatch {
    clock: Clock,
    /// Steps of a virtual wall clock that were reported.
    steps: u64,
}

impl WallWatch {
    /// Begins to watch the wall clock behind this clock.
    pub fn new(clock: &Clock) -> Self {
        let steps = match &clock.source {
            Source::System | Source::WallAhead(_) => 0,
            Source::Virtual(time) => time.wall_steps(),
        };
        WallWatch { clock: clock.clone(), steps }
    }

    /// Waits for half a second; in virtual time, until the wall clock is set.
    pub async fn next_check(&mut self) {
        let Source::Virtual(time) = &self.clock.source else {
            return tokio::time::sleep(WALL_CHECK_INTERVAL).await;
        };
        poll_fn(|cx| time.poll_wall_steps(&mut self.steps, cx)).await;
    }
}
