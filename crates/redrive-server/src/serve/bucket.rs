//! So many requests in a second, and no more: a bucket that fills up again as time goes by.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Full, it holds what comes in one second.
#[derive(Debug)]
pub(crate) struct Bucket {
    /// One request costs so much time.
    cost: Duration,
    /// When the bucket is full again. In the past: it is full. A std mutex: held for an addition.
    full_at: Mutex<Instant>,
}

impl Bucket {
    pub(crate) fn new(per_second: u32) -> Self {
        Bucket { cost: Duration::from_secs(1) / per_second.max(1), full_at: Mutex::new(Instant::now()) }
    }

    /// Takes one out, or says how long to wait for it.
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
    fn what_comes_too_fast_waits() {
        let (bucket, start) = (Bucket::new(10), Instant::now());
        let taken = (0..20).filter(|_| bucket.take_at(start).is_ok()).count();
        assert_eq!(taken, 10, "a second's worth at once");
        assert_eq!(bucket.take_at(start), Err(Duration::from_millis(100)));
        let later = start + Duration::from_millis(350);
        let taken = (0..20).filter(|_| bucket.take_at(later).is_ok()).count();
        assert_eq!(taken, 3, "what has come in since");
        let much_later = start + Duration::from_secs(60);
        let taken = (0..20).filter(|_| bucket.take_at(much_later).is_ok()).count();
        assert_eq!(taken, 10, "never more than a second's worth");
    }
}
