//! Metric families, independent of a format: `GET /metrics` and the OTLP export are built from them, so both have the same metrics.

/// Metric with its samples.
#[derive(Debug)]
pub(crate) struct Family {
    pub(crate) name: &'static str,
    /// Help text, one sentence.
    pub(crate) help: &'static str,
    pub(crate) kind: Kind,
    pub(crate) samples: Vec<Sample>,
}

/// Metric type.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Counter,
    Gauge,
    /// Of durations.
    Histogram,
}

/// Label values may come from users; the formats escape them.
pub(crate) type Labels = Vec<(&'static str, String)>;

#[derive(Debug)]
pub(crate) struct Sample {
    pub(crate) labels: Labels,
    pub(crate) value: Value,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Number(u64),
    Decimal(f64),
    Times(Times),
}

/// Histogram of durations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Times {
    /// Upper bound in microseconds and count of each bucket, not cumulative; the last bucket has no bound.
    pub(crate) buckets: Vec<(Option<u64>, u64)>,
    pub(crate) sum_us: u64,
}

impl Family {
    /// Creates a family without samples.
    pub(crate) fn new(name: &'static str, help: &'static str, kind: Kind) -> Self {
        Family { name, help, kind, samples: Vec::new() }
    }

    /// Creates a counter with one sample.
    pub(crate) fn counter(name: &'static str, help: &'static str, value: u64) -> Self {
        Family::new(name, help, Kind::Counter).with(Vec::new(), value)
    }

    /// Creates a gauge with one sample.
    pub(crate) fn gauge(name: &'static str, help: &'static str, value: u64) -> Self {
        Family::new(name, help, Kind::Gauge).with(Vec::new(), value)
    }

    /// Adds a number.
    #[must_use]
    pub(crate) fn with(mut self, labels: Labels, value: u64) -> Self {
        self.samples.push(Sample { labels, value: Value::Number(value) });
        self
    }

    /// Adds a number with a fraction.
    #[must_use]
    pub(crate) fn with_decimal(mut self, labels: Labels, value: f64) -> Self {
        self.samples.push(Sample { labels, value: Value::Decimal(value) });
        self
    }

    /// Adds a histogram.
    #[must_use]
    pub(crate) fn with_times(mut self, labels: Labels, times: Times) -> Self {
        self.samples.push(Sample { labels, value: Value::Times(times) });
        self
    }
}
