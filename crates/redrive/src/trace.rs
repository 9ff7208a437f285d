//! The W3C trace context in an event's metadata, so that the publisher's trace continues in the handler.

use std::fmt;
use std::str::FromStr;

use redrive_store::{EventId, Metadata};

/// The key of the trace context in the metadata.
pub(crate) const TRACEPARENT: &str = "traceparent";

tokio::task_local! {
    /// The context of the event whose handler runs. Events that the handler publishes join its trace.
    pub(crate) static CURRENT: TraceContext;
}

/// Trace id, span id and flags, as in the header `traceparent`.
///
/// ```
/// use redrive::trace::TraceContext;
/// let context: TraceContext = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01".parse()?;
/// assert_eq!(context.trace_id(), "4bf92f3577b34da6a3ce929d0e0e4736");
/// # Ok::<_, redrive::trace::InvalidTraceparent>(())
/// ```
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct TraceContext {
    trace: u128,
    span: u64,
    flags: u8,
}

/// The error for a text that is no `traceparent`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is not a traceparent: use version, trace, span and flags in hexadecimal, such as \
     00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
)]
pub struct InvalidTraceparent {
    text: String,
}

impl TraceContext {
    /// The context in an event's metadata.
    pub(crate) fn of(metadata: &Metadata) -> Option<Self> {
        metadata.get(TRACEPARENT)?.parse().ok()
    }

    /// A span of one attempt, in the trace of the event. Equal for equal attempts.
    pub(crate) fn of_attempt(self, id: EventId, subscription: &str, attempt: u32) -> Self {
        let mut hasher = siphasher::sip::SipHasher24::new();
        std::hash::Hasher::write(&mut hasher, id.as_uuid().as_bytes());
        std::hash::Hasher::write(&mut hasher, subscription.as_bytes());
        std::hash::Hasher::write_u32(&mut hasher, attempt);
        // A span of zero is invalid.
        TraceContext { span: std::hash::Hasher::finish(&hasher).max(1), ..self }
    }

    /// The trace, 32 hexadecimal digits.
    pub fn trace_id(&self) -> String {
        format!("{:032x}", self.trace)
    }

    /// The span, 16 hexadecimal digits.
    pub fn span_id(&self) -> String {
        format!("{:016x}", self.span)
    }

    /// Whether the trace is recorded.
    pub fn is_sampled(&self) -> bool {
        self.flags & 1 == 1
    }
}

impl fmt::Display for TraceContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "00-{:032x}-{:016x}-{:02x}", self.trace, self.span, self.flags)
    }
}

impl FromStr for TraceContext {
    type Err = InvalidTraceparent;

    fn from_str(text: &str) -> Result<Self, InvalidTraceparent> {
        parse(text).ok_or_else(|| InvalidTraceparent { text: text.chars().take(64).collect() })
    }
}

/// Parses as the recommendation says: lower case, nothing all zero, version ff is invalid, later versions may have more parts.
fn parse(text: &str) -> Option<TraceContext> {
    let mut parts = text.splitn(5, '-');
    let (version, trace, span, flags) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
    let is_hex = |text: &str| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    if [version, trace, span, flags].map(str::len) != [2, 32, 16, 2]
        || ![version, trace, span, flags].into_iter().all(is_hex)
        || version == "ff"
        || (version == "00" && parts.next().is_some())
    {
        return None;
    }
    let context = TraceContext {
        trace: u128::from_str_radix(trace, 16).ok()?,
        span: u64::from_str_radix(span, 16).ok()?,
        flags: u8::from_str_radix(flags, 16).ok()?,
    };
    (context.trace != 0 && context.span != 0).then_some(context)
}

#[cfg(test)]
mod tests {
    use super::*;

    const EXAMPLE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_traceparent_round_trips() {
        let context: TraceContext = EXAMPLE.parse().unwrap();
        assert_eq!(context.to_string(), EXAMPLE);
        assert_eq!((context.span_id().as_str(), context.is_sampled()), ("00f067aa0ba902b7", true));
        let later: TraceContext = format!("cc{}-future-parts", &EXAMPLE[2..]).parse().unwrap();
        assert_eq!(later, context);
    }

    #[test]
    fn invalid_traceparents_are_refused() {
        for bad in [
            "",
            "00",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-+1",
        ] {
            assert!(bad.parse::<TraceContext>().unwrap_err().to_string().contains("such as"), "{bad}");
        }
    }

    #[test]
    fn every_attempt_has_a_span_of_its_own_in_the_same_trace() {
        let context: TraceContext = EXAMPLE.parse().unwrap();
        let id = EventId::new();
        let spans = [
            context.of_attempt(id, "a", 1),
            context.of_attempt(id, "a", 2),
            context.of_attempt(id, "b", 1),
            context,
        ];
        for (n, one) in spans.iter().enumerate() {
            assert_eq!(one.trace_id(), context.trace_id());
            assert!(spans[n + 1..].iter().all(|other| other.span_id() != one.span_id()));
        }
        assert_eq!(context.of_attempt(id, "a", 1), spans[0]);
    }
}
