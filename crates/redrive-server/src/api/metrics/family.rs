//! What was counted, in a form that knows no format: a page for Prometheus and a message for a collector are both made of it, so the
//! two cannot differ.

/// Samples that belong together.
#[derive(Debug)]
pub(crate) struct Family {
    pub(crate) name: &'static str,
    /// One sentence.
    pub(crate) help: &'static str,
    pub(crate) kind: Kind,
    pub(crate) samples: Vec<Sample>,
}

/// What the samples of a family are.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Only grows.
    Counter,
    /// How things stand.
    Gauge,
    /// How long things took.
    Histogram,
}

/// Names of labels are ours, their values may be anybody's.
pub(crate) type Labels = Vec<(&'static str, String)>;

#[derive(Debug)]
pub(crate) struct Sample {
    pub(crate) labels: Labels,
    pub(crate) value: Value,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Number(u64),
    Times(Times),
}

/// How many took how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Times {
    /// By their upper bound in microseconds, each with its own count; the last one has no bound.
    pub(crate) buckets: Vec<(Option<u64>, u64)>,
    pub(crate) sum_us: u64,
}

impl Family {
    /// One without samples.
    pub(crate) fn new(name: &'static str, help: &'static str, kind: Kind) -> Self {
        Family { name, help, kind, samples: Vec::new() }
    }

    /// One number that only grows.
    pub(crate) fn counter(name: &'static str, help: &'static str, value: u64) -> Self {
        Family::new(name, help, Kind::Counter).with(Vec::new(), value)
    }

    /// One number.
    pub(crate) fn gauge(name: &'static str, help: &'static str, value: u64) -> Self {
        Family::new(name, help, Kind::Gauge).with(Vec::new(), value)
    }

    /// And this number.
    #[must_use]
    pub(crate) fn with(mut self, labels: Labels, value: u64) -> Self {
        self.samples.push(Sample { labels, value: Value::Number(value) });
        self
    }

    /// And these times.
    #[must_use]
    pub(crate) fn with_times(mut self, labels: Labels, times: Times) -> Self {
        self.samples.push(Sample { labels, value: Value::Times(times) });
        self
    }
}
