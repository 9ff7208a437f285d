//! Reference circuit breaker as a list of calls: slow, plain, and written from its description alone.

use redrive::EventId;

/// A window has this many slices; a call is forgotten together with its slice.
const SLICES: i64 = 60;

/// A caller that is refused because of a running probe may ask again after this time.
const PROBE_RETRY_MS: i64 = 1000;

/// The numbers of a circuit. It opens when more than half of the events failed, each by the latest call for it.
#[derive(Copy, Clone, Debug)]
pub(super) struct CircuitRules {
    pub(super) min_samples: u32,
    pub(super) window_ms: i64,
    pub(super) open_ms: i64,
    /// Factor of the open time after each failed probe.
    pub(super) growth: i64,
    pub(super) longest_open_ms: i64,
    pub(super) lease_ms: i64,
}

/// Permit of one call.
#[derive(Copy, Clone, Debug)]
pub(super) struct Permit {
    life: u64,
}

/// A call in the window.
#[derive(Debug)]
struct Call {
    event: EventId,
    slice: i64,
    succeeded: bool,
    /// Whether the next call for the event replaces this one. After a success at once there is none, unless another handler failed.
    comes_again: bool,
}

#[derive(Debug)]
enum State {
    Closed(Vec<Call>),
    Open {
        until: i64,
    },
    /// With the end of the probe's lease.
    Probing {
        lease_end: i64,
    },
}

/// One circuit. The time only goes forward during its life.
#[derive(Debug)]
pub(super) struct Circuit {
    rules: CircuitRules,
    state: State,
    /// A result that belongs to an earlier state of the circuit changes nothing.
    life: u64,
    openings: u32,
}

impl Circuit {
    pub(super) fn new(rules: CircuitRules) -> Self {
        Circuit { rules, state: State::Closed(Vec::new()), life: 0, openings: 0 }
    }

    /// Returns a permit, or the time until which calls are refused.
    pub(super) fn admit(&mut self, now: i64) -> Result<Permit, i64> {
        if let Some(until) = self.refuses_until(now).filter(|until| *until > now) {
            return Err(until);
        }
        if !matches!(self.state, State::Closed(_)) {
            self.life += 1;
            self.state = State::Probing { lease_end: now + self.rules.lease_ms };
        }
        Ok(Permit { life: self.life })
    }

    /// Time until which calls are refused; `None` if they go through.
    pub(super) fn refuses_until(&self, now: i64) -> Option<i64> {
        match self.state {
            State::Closed(_) => None,
            State::Open { until } => Some(until.max(now)),
            State::Probing { lease_end } if now < lease_end => Some(lease_end.min(now + PROBE_RETRY_MS)),
            State::Probing { .. } => Some(now),
        }
    }

    /// Records a call for an event, in place of the event's earlier call.
    pub(super) fn record(&mut self, permit: Permit, event: EventId, succeeded: bool, now: i64) {
        if permit.life != self.life {
            return;
        }
        match &mut self.state {
            State::Closed(calls) => {
                let slice = now / (self.rules.window_ms / SLICES);
                calls.retain(|call| slice - call.slice < SLICES);
                let before = calls.len();
                calls.retain(|call| !(call.comes_again && call.event == event));
                let comes_again = !succeeded || calls.len() < before;
                calls.push(Call { event, slice, succeeded, comes_again });
                let failed = calls.iter().filter(|call| !call.succeeded).count();
                if calls.len() >= self.rules.min_samples as usize && failed * 2 > calls.len() {
                    self.open(now);
                }
            }
            State::Probing { .. } if succeeded => {
                self.state = State::Closed(Vec::new());
                self.life += 1;
                self.openings = 0;
            }
            State::Probing { .. } => self.open(now),
            State::Open { .. } => {}
        }
    }

    /// Notes that an event whose call succeeded comes again, because another handler failed.
    pub(super) fn expect_again(&mut self, event: EventId) {
        if let State::Closed(calls) = &mut self.state
            && !calls.iter().any(|call| call.comes_again && call.event == event)
            && let Some(call) = calls.iter_mut().rev().find(|call| call.event == event)
        {
            call.comes_again = true;
        }
    }

    fn open(&mut self, now: i64) {
        let length = self.rules.open_ms.saturating_mul(self.rules.growth.saturating_pow(self.openings));
        self.state = State::Open { until: now + length.min(self.rules.longest_open_ms) };
        self.life += 1;
        self.openings += 1;
    }
}
