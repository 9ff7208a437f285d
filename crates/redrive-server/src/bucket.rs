//! Token bucket that limits requests per second.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Token bucket with a burst of one second.
#[derive(Debug)]
pub(crate) struct Bucket {
    /// Time that refills the token of one request.
    cost: Duration,
    /// When the bucket is full again; in the past if it is full now. A std mutex, locked for an addition only.
    full_at: Mutex<Instant>,
}

impl Bucket {
    pub(crate) fn new(per_second: u32) -> Self {
        Bucket { cost: Duration::from_secs(1) / per_second.max(1), full_at: Mutex::new(Instant::now()) }
    }

    /// Takes one token, or returns the time until one is free.
    pub(crate) fn take(&self) -> Result<(), Duration> {
        self.take_at(Instant::now())
    }

    fn take_at(&self, now: Instant) -> Result<(), Duration> {
        let mut full_at = self.full_at.lock().unwrap_or_else(PoisonError::into_inner);
        let next = (*full_at).max(now) + self.cost;
        let empty_until = (next - now).saturating_sub(Duration::from_secs(1));
        if !empty_until.is_zero() {
            return Err(empty_until);
        }
        *full_at = next;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_over_the_rate_wait() {
        let (bucket, start) = (Bucket::new(10), Instant::now());
        let taken = (0..20).filter(|_| bucket.take_at(start).is_ok()).count();
        assert_eq!(taken, 10, "a burst of one second");
        assert_eq!(bucket.take_at(start), Err(Duration::from_millis(100)));
        let later = start + Duration::from_millis(350);
        let taken = (0..20).filter(|_| bucket.take_at(later).is_ok()).count();
        assert_eq!(taken, 3, "tokens refilled since");
        let much_later = start + Duration::from_secs(60);
        let taken = (0..20).filter(|_| bucket.take_at(much_later).is_ok()).count();
        assert_eq!(taken, 10, "never more than one second of tokens");
    }
}
