//! Concurrency and rate limiter of one subscription.
//!
//! Deliveries over the limit are deferred to an on-disk backlog, so a slow or unreachable subscriber never occupies the dispatcher's
//! in-flight slots. The limiter prefetches a bounded number of backlog deliveries into memory (adaptive, at most
//! [`MAX_PREFETCH_FACTOR`] times the concurrency limit), so that a freed permit starts the next one without a disk read.

mod adaptive_rate;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use redrive_retry::Timestamp;
use redrive_store::BacklogClaimed;
use tokio::sync::Notify;

use self::adaptive_rate::AdaptiveRate;
use crate::backlog::Backlog;
use crate::handover::Demand;
use crate::lock::lock;

/// A requested delivery that has not arrived within this time no longer counts as on its way: it ended before it reached the limiter.
const PREFETCH_TIMEOUT: Duration = Duration::from_secs(2);

/// The longest time for which one `Retry-After` closes a subscription.
const MAX_THROTTLE: Duration = Duration::from_secs(3600);

/// The share of a second's attempts that may start at once; the token bucket spreads the rest.
const BURST_SECONDS: f64 = 0.25;

/// The bound of the prefetch limit, as a multiple of the concurrency limit.
const MAX_PREFETCH_FACTOR: usize = 16;

/// After this time without a started attempt, prefetched deliveries beyond the concurrency limit return to the backlog and free their
/// in-flight slots.
const STALL_AFTER: Duration = Duration::from_secs(1);

/// Concurrency and rate limit of one subscription.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Limits {
    /// Maximum number of attempts that run at once. 0 counts as 1.
    pub concurrency: usize,
    /// Maximum number of attempts that start in a second; `None` for no limit.
    pub per_second: Option<f64>,
}

/// Bounds how many attempts of one subscription run at once and how many start in a second.
#[derive(Debug)]
pub(crate) struct Limiter {
    limits: Limits,
    // A std mutex: locked for a few instructions, never across an await.
    state: Mutex<State>,
    /// Notified when an attempt ends: the next prefetched delivery starts.
    freed: Notify,
    backlog: Arc<Backlog>,
    /// Number of deliveries that the consumers of a pull queue have asked for; `None` for an ordinary handler.
    demand: Option<Arc<Demand>>,
}

#[derive(Debug)]
struct State {
    running: usize,
    /// Prefetched deliveries that wait in memory for a permit.
    waiting: usize,
    /// Maximum number of deliveries that wait in memory: the concurrency limit, and more if attempts end faster than the disk answers.
    prefetch_limit: usize,
    /// The smallest number of waiting deliveries at the end of an attempt, since the last prefetch.
    low_watermark: Option<usize>,
    /// When an attempt last started.
    started_at: Timestamp,
    /// Deliveries requested from the backlog and not arrived yet.
    requested: usize,
    requested_at: Timestamp,
    throttled_until: Option<Timestamp>,
    /// Whether this limiter admits nothing any more: it was replaced, or the bus shuts down.
    is_closed: bool,
    /// Reduces the rate while the receiver is overloaded.
    adaptive: AdaptiveRate,
    /// Tokens of the rate limit's bucket, as of `filled_at`.
    tokens: f64,
    filled_at: Timestamp,
}

/// Number of backlog deliveries to claim, with the state from which it was computed.
#[derive(Copy, Clone, Debug)]
pub(crate) struct PrefetchRequest {
    pub(crate) limit: usize,
    /// Whether no delivery runs, waits in memory or is on its way.
    is_first: bool,
    /// The deferrals counted before the request, for [`Backlog::drained`].
    pub(crate) deferrals: u64,
}

impl PrefetchRequest {
    /// A request of a subscription without limits.
    pub(crate) fn unlimited(limit: usize, deferrals: u64) -> Self {
        PrefetchRequest { limit, is_first: false, deferrals }
    }

    /// Reduces the request to a single delivery, the probe of a half-open circuit; `None` while another delivery is there.
    pub(crate) fn for_a_probe(self) -> Option<Self> {
        self.is_first.then_some(PrefetchRequest { limit: 1, ..self })
    }
}

/// Whether backlog deliveries can be claimed now.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Capacity {
    /// As many as the request says.
    Free(PrefetchRequest),
    /// None before this instant.
    FreeAt(Timestamp),
    /// None before the backlog loop is woken.
    Full,
}

impl Limiter {
    pub(crate) fn new(
        limits: Limits,
        now: Timestamp,
        backlog: Arc<Backlog>,
        demand: Option<Arc<Demand>>,
    ) -> Self {
        if let Some(demand) = &demand {
            demand.set_wakeup(Arc::clone(&backlog.wakeup));
        }
        let limits = Limits { concurrency: limits.concurrency.max(1), ..limits };
        let state = State {
            running: 0,
            waiting: 0,
            prefetch_limit: limits.concurrency,
            low_watermark: None,
            started_at: now,
            requested: 0,
            requested_at: now,
            throttled_until: None,
            is_closed: false,
            adaptive: AdaptiveRate::new(now),
            tokens: limits.per_second.map_or(0.0, bucket_size),
            filled_at: now,
        };
        Limiter { limits, state: Mutex::new(state), freed: Notify::new(), backlog, demand }
    }

    /// Takes over throttling and used tokens of the limiter that this one replaces.
    pub(crate) fn inherit(&self, before: &Limiter, now: Timestamp) {
        let before = lock(&before.state);
        let (throttled_until, tokens, filled_at) = (before.throttled_until, before.tokens, before.filled_at);
        let adaptive = before.adaptive.clone();
        drop(before);
        let mut state = lock(&self.state);
        state.throttled_until = throttled_until.filter(|until| now < *until);
        state.adaptive = adaptive;
        if self.rate(&state).is_some() {
            state.tokens = state.tokens.min(tokens);
            state.filled_at = filled_at;
        }
    }

    /// Waits in memory for a permit to make one attempt; `None` if the delivery has to go to the backlog.
    pub(crate) async fn acquire(self: &Arc<Self>, now: impl Fn() -> Timestamp) -> Option<Permit> {
        let mut waiting = {
            let mut state = lock(&self.state);
            state.requested = state.requested.saturating_sub(1);
            if self.refuses(&state, now()) || state.waiting >= state.prefetch_limit {
                return None;
            }
            // First come, first served: a new delivery does not overtake waiting ones.
            if state.waiting == 0 && state.running < self.limits.concurrency {
                return self.start(&mut state, now());
            }
            state.waiting += 1;
            Waiting { limiter: self, is_counted: true }
        };
        loop {
            let mut freed = std::pin::pin!(self.freed.notified());
            freed.as_mut().enable(); // before the check, so that no wake-up is missed in between
            {
                let mut state = lock(&self.state);
                if self.refuses(&state, now()) {
                    waiting.leave(&mut state);
                    return None;
                }
                if state.running < self.limits.concurrency {
                    waiting.leave(&mut state);
                    let permit = self.start(&mut state, now());
                    // No attempt starts, so no attempt will end and wake the next one: wake it here.
                    if permit.is_none() && state.waiting > 0 {
                        self.freed.notify_one();
                    }
                    return permit;
                }
                if state.waiting > state.prefetch_limit {
                    waiting.leave(&mut state);
                    return None;
                }
            }
            freed.await;
        }
    }

    fn start(self: &Arc<Self>, state: &mut State, now: Timestamp) -> Option<Permit> {
        let rate = self.rate(state);
        if let Some(rate) = rate {
            state.fill_bucket(rate, now);
            if state.tokens < 1.0 {
                return None;
            }
        }
        // Before the token is spent: a delivery that no consumer asked for costs none.
        if self.demand.as_ref().is_some_and(|demand| !demand.take()) {
            return None;
        }
        if rate.is_some() {
            state.tokens -= 1.0;
        }
        state.running += 1;
        state.started_at = now;
        state.adaptive.started(now);
        Some(Permit { limiter: Arc::clone(self), began: now, is_offer_made: false, has_succeeded: false })
    }

    /// The rate limit that holds now: the configured one, or a reduced one.
    fn rate(&self, state: &State) -> Option<f64> {
        let (configured, reduced) = (self.limits.per_second, state.adaptive.rate());
        configured.into_iter().chain(reduced).reduce(f64::min)
    }

    /// The rate to which throttled attempts have reduced this subscription.
    pub(crate) fn reduced_rate(&self) -> Option<f64> {
        lock(&self.state).adaptive.rate()
    }

    /// Whether the deliveries go to the consumers of a pull queue.
    pub(crate) fn is_pulled(&self) -> bool {
        self.demand.is_some()
    }

    /// Whether consumers of a pull queue have asked for events that they have not received.
    pub(crate) fn has_demand(&self) -> bool {
        self.demand.as_ref().is_some_and(|demand| demand.asked() > 0)
    }

    /// Whether the rate follows the receiver. The consumers of a pull queue decide themselves when to fetch.
    pub(crate) fn is_adaptive(&self) -> bool {
        self.demand.is_none()
    }

    /// Starts no attempt before this much time has passed, after a failure with `Retry-After`.
    pub(crate) fn throttle_for(&self, wait: Duration, now: Timestamp) {
        if self.demand.is_some() {
            return; // the consumers of a pull queue decide themselves when to fetch again
        }
        let until = now + wait.min(MAX_THROTTLE);
        let mut state = lock(&self.state);
        state.throttled_until = Some(state.throttled_until.map_or(until, |before| before.max(until)));
        drop(state);
        self.freed.notify_waiters(); // prefetched deliveries return to the backlog
        self.backlog.wakeup.notify_one();
    }

    /// Moves its times by milliseconds, after the clock was set by as many.
    pub(crate) fn shift(&self, step_ms: i64) {
        let mut state = lock(&self.state);
        state.throttled_until = state.throttled_until.map(|until| until.shifted(step_ms));
        state.started_at = state.started_at.shifted(step_ms);
        state.requested_at = state.requested_at.shifted(step_ms);
        state.filled_at = state.filled_at.shifted(step_ms);
    }

    /// Starts no further attempt: prefetched deliveries return to the backlog without a charge.
    pub(crate) fn close(&self) {
        lock(&self.state).is_closed = true;
        self.freed.notify_waiters();
    }

    /// Lets prefetched deliveries see that the subscription was paused: they return to the backlog without a charge.
    pub(crate) fn pause_changed(&self) {
        self.freed.notify_waiters();
    }

    fn refuses(&self, state: &State, now: Timestamp) -> bool {
        self.backlog.is_paused() || state.is_closed || state.throttled_until.is_some_and(|until| now < until)
    }

    /// The end of the throttling, if a failure has throttled the subscription.
    pub(crate) fn throttled_until(&self, now: Timestamp) -> Option<Timestamp> {
        lock(&self.state).throttled_until.filter(|until| now < *until)
    }

    /// Computes the number of backlog deliveries to claim now. Returns stalled prefetched deliveries to the backlog.
    pub(crate) fn capacity(&self, now: Timestamp) -> Capacity {
        let mut state = lock(&self.state);
        let capacity = self.prefetch_capacity(&mut state, now);
        if state.waiting <= self.limits.concurrency {
            return capacity;
        }
        let stalled_at = state.started_at + STALL_AFTER;
        if stalled_at <= now || now < state.started_at {
            state.prefetch_limit = self.limits.concurrency;
            drop(state);
            self.freed.notify_waiters();
            return capacity;
        }
        match capacity {
            Capacity::Free(_) => capacity,
            Capacity::FreeAt(at) => Capacity::FreeAt(at.min(stalled_at)),
            Capacity::Full => Capacity::FreeAt(stalled_at),
        }
    }

    fn prefetch_capacity(&self, state: &mut State, now: Timestamp) -> Capacity {
        let Some(deferrals) = self.backlog.may_exist() else { return Capacity::Full };
        if state.is_closed || self.backlog.is_paused() {
            return Capacity::Full;
        }
        if let Some(until) = state.throttled_until.filter(|until| now < *until) {
            return Capacity::FreeAt(until);
        }
        let requested_until = state.requested_at + PREFETCH_TIMEOUT;
        if requested_until <= now || now < state.requested_at {
            state.requested = 0;
        }
        let mut limit = if state.should_prefetch(self.limits.concurrency) {
            state.free(self.limits.concurrency)
        } else {
            0
        };
        if let Some(demand) = &self.demand {
            limit = limit.min(demand.asked().saturating_sub(state.requested));
        }
        if limit == 0 {
            return if state.requested > 0 { Capacity::FreeAt(requested_until) } else { Capacity::Full };
        }
        if let Some(rate) = self.rate(state) {
            state.fill_bucket(rate, now);
            let startable = whole(state.tokens).saturating_sub(state.waiting + state.requested);
            if startable == 0 {
                // The wait for one token, in steps that are worth a disk read.
                let wait = ((1.0 - state.tokens.fract()) / rate).clamp(0.02, 60.0);
                return Capacity::FreeAt(now + Duration::from_secs_f64(wait));
            }
            limit = limit.min(startable);
        }
        let is_first = state.running + state.waiting + state.requested == 0;
        Capacity::Free(PrefetchRequest { limit, is_first, deferrals })
    }

    /// Whether `acquire` would send every delivery to the backlog now.
    pub(crate) fn is_full(&self, now: Timestamp) -> bool {
        let state = lock(&self.state);
        state.waiting >= state.prefetch_limit || self.refuses(&state, now)
    }

    /// Counts a request before its deliveries can arrive.
    pub(crate) fn requested(&self, request: PrefetchRequest, now: Timestamp) {
        let mut state = lock(&self.state);
        state.requested += request.limit;
        state.requested_at = now;
    }

    /// Records how many deliveries the store claimed for a request.
    pub(crate) fn received(&self, request: PrefetchRequest, result: BacklogClaimed) {
        let mut state = lock(&self.state);
        state.requested = state.requested.saturating_sub(request.limit.saturating_sub(result.claimed));
        // An empty backlog is no reason to prefetch more.
        if result.may_be_more {
            state.adjust_prefetch_limit(self.limits.concurrency);
        } else {
            self.backlog.drained(request.deferrals);
        }
    }
}

fn bucket_size(rate: f64) -> f64 {
    (rate * BURST_SECONDS).max(1.0)
}

/// The number of whole tokens.
fn whole(tokens: f64) -> usize {
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // the cast saturates, as intended
    let whole = tokens as usize;
    whole
}

impl State {
    /// Returns the number of further deliveries that may run or wait in memory.
    fn free(&self, concurrency: usize) -> usize {
        (concurrency + self.prefetch_limit).saturating_sub(self.running + self.waiting + self.requested)
    }

    /// Whether a disk read pays: for several deliveries at once, or for one if none is left to start next. Early enough that the waiting
    /// ones last until the read returns.
    fn should_prefetch(&self, concurrency: usize) -> bool {
        let free = self.free(concurrency);
        free * 4 >= self.prefetch_limit || free > 0 && self.waiting + self.requested == 0
    }

    /// Raises the prefetch limit if few deliveries were left before the disk answered, lowers it if many were: slow handlers occupy no
    /// in-flight slots needlessly, fast ones never run out of work.
    fn adjust_prefetch_limit(&mut self, concurrency: usize) {
        match self.low_watermark.take() {
            Some(lowest) if lowest * 4 < self.prefetch_limit => {
                self.prefetch_limit = (self.prefetch_limit * 2).min(concurrency * MAX_PREFETCH_FACTOR);
            }
            Some(lowest) if lowest * 2 > self.prefetch_limit => {
                self.prefetch_limit =
                    (self.prefetch_limit - self.prefetch_limit.div_ceil(8)).max(concurrency);
            }
            _ => {}
        }
    }

    fn fill_bucket(&mut self, rate: f64, now: Timestamp) {
        let passed = now.since(self.filled_at).as_secs_f64(); // zero if the clock was set back
        self.tokens = (self.tokens + passed * rate).min(bucket_size(rate));
        self.filled_at = now;
    }
}

/// Counts a delivery among the waiting ones until it leaves or its future is dropped.
struct Waiting<'a> {
    limiter: &'a Limiter,
    is_counted: bool,
}

impl Waiting<'_> {
    fn leave(&mut self, state: &mut State) {
        state.waiting -= 1;
        self.is_counted = false;
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.is_counted {
            lock(&self.limiter.state).waiting -= 1;
        }
    }
}

/// Permission to make one attempt. Dropping it frees the concurrency slot and, if no consumer was offered the event, returns the demand
/// of the pull queue that it took.
#[derive(Debug)]
#[must_use = "the slot is free again as soon as this is dropped"]
pub(crate) struct Permit {
    limiter: Arc<Limiter>,
    began: Timestamp,
    is_offer_made: bool,
    has_succeeded: bool,
}

impl Permit {
    /// Records that a pull queue was offered the event: from here on it accounts for the demand itself.
    pub(crate) fn offer_made(&mut self) {
        self.is_offer_made = true;
    }

    /// Ends a successful attempt.
    pub(crate) fn succeeded(mut self) {
        self.has_succeeded = true;
    }

    /// Ends an attempt whose receiver is overloaded: reduces the rate.
    pub(crate) fn throttled(self, now: Timestamp) {
        let mut state = lock(&self.limiter.state);
        if state.adaptive.throttled(self.began, now, self.limiter.limits.per_second) {
            // The bucket of the rate before may be fuller, or of no use.
            (state.tokens, state.filled_at) = (0.0, now);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Some(demand) = self.limiter.demand.as_ref().filter(|_| !self.is_offer_made) {
            demand.ask(1); // if the consumer has left meanwhile, the next delivery takes it
        }
        let mut state = lock(&self.limiter.state);
        state.running -= 1;
        if self.has_succeeded {
            state.adaptive.succeeded();
        }
        state.low_watermark =
            Some(state.low_watermark.map_or(state.waiting, |lowest| lowest.min(state.waiting)));
        let should_prefetch = state.should_prefetch(self.limiter.limits.concurrency);
        drop(state);
        self.limiter.freed.notify_one();
        if should_prefetch && self.limiter.backlog.may_exist().is_some() {
            self.limiter.backlog.wakeup.notify_one();
        }
    }
}

#[cfg(test)]
mod tests;
