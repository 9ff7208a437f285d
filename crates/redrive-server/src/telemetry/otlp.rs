//! Encodes metric families as an OTLP message, under the names of `GET /metrics`.

use std::time::SystemTime;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Gauge, Histogram, HistogramDataPoint, Metric, NumberDataPoint, ResourceMetrics,
    ScopeMetrics, Sum, number_data_point,
};
use opentelemetry_proto::tonic::resource::v1::Resource as Attributes;
use opentelemetry_sdk::Resource;

use super::SCOPE;
use crate::metric_family::{Family, Kind, Labels, Times, Value};

/// Builds the export request for values accumulated from `since` to `now`.
pub(super) fn message(
    families: &[Family],
    resource: &Resource,
    since: SystemTime,
    now: SystemTime,
) -> ExportMetricsServiceRequest {
    let period = Period { since: nanos(since), now: nanos(now) };
    let scope = InstrumentationScope {
        name: SCOPE.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        ..InstrumentationScope::default()
    };
    let metrics = ScopeMetrics {
        scope: Some(scope),
        metrics: families.iter().filter_map(|family| period.metric(family)).collect(),
        ..ScopeMetrics::default()
    };
    ExportMetricsServiceRequest {
        resource_metrics: vec![ResourceMetrics {
            resource: Some(attributes(resource)),
            scope_metrics: vec![metrics],
            ..ResourceMetrics::default()
        }],
    }
}

fn attributes(resource: &Resource) -> Attributes {
    let attributes = resource.iter().map(|(key, value)| pair(key.as_str(), value.as_str().into_owned()));
    Attributes { attributes: attributes.collect(), ..Attributes::default() }
}

/// Accumulation period, in nanoseconds since 1970.
#[derive(Copy, Clone)]
struct Period {
    since: u64,
    now: u64,
}

impl Period {
    fn metric(self, family: &Family) -> Option<Metric> {
        if family.samples.is_empty() {
            return None;
        }
        let numbers = || {
            let samples = family.samples.iter();
            samples.filter_map(|sample| match &sample.value {
                Value::Number(value) => {
                    let value = i64::try_from(*value).unwrap_or(i64::MAX);
                    Some(self.number(&sample.labels, number_data_point::Value::AsInt(value)))
                }
                Value::Decimal(value) => {
                    Some(self.number(&sample.labels, number_data_point::Value::AsDouble(*value)))
                }
                Value::Times(_) => None,
            })
        };
        let temporality = AggregationTemporality::Cumulative.into();
        let data = match family.kind {
            Kind::Gauge => Data::Gauge(Gauge { data_points: numbers().collect() }),
            Kind::Counter => Data::Sum(Sum {
                data_points: numbers().collect(),
                aggregation_temporality: temporality,
                is_monotonic: true,
            }),
            Kind::Histogram => {
                let samples = family.samples.iter();
                let times = samples.filter_map(|sample| match &sample.value {
                    Value::Times(times) => Some(self.times(&sample.labels, times)),
                    Value::Number(_) | Value::Decimal(_) => None,
                });
                Data::Histogram(Histogram {
                    data_points: times.collect(),
                    aggregation_temporality: temporality,
                })
            }
        };
        Some(Metric {
            name: family.name.to_owned(),
            description: family.help.to_owned(),
            unit: unit(family.name).to_owned(),
            data: Some(data),
            ..Metric::default()
        })
    }

    fn number(self, labels: &Labels, value: number_data_point::Value) -> NumberDataPoint {
        NumberDataPoint {
            attributes: pairs(labels),
            start_time_unix_nano: self.since,
            time_unix_nano: self.now,
            value: Some(value),
            ..NumberDataPoint::default()
        }
    }

    fn times(self, labels: &Labels, times: &Times) -> HistogramDataPoint {
        HistogramDataPoint {
            attributes: pairs(labels),
            start_time_unix_nano: self.since,
            time_unix_nano: self.now,
            count: times.buckets.iter().map(|(_, count)| count).sum(),
            sum: Some(seconds(times.sum_us)),
            bucket_counts: times.buckets.iter().map(|(_, count)| *count).collect(),
            explicit_bounds: times.buckets.iter().filter_map(|(bound, _)| bound.map(seconds)).collect(),
            ..HistogramDataPoint::default()
        }
    }
}

/// Unit by the suffix of the metric name.
fn unit(name: &str) -> &'static str {
    match name.rsplit('_').next() {
        Some("seconds") => "s",
        Some("bytes") => "By",
        _ => "1",
    }
}

#[allow(clippy::cast_precision_loss)] // a time, not a count
fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

fn nanos(time: SystemTime) -> u64 {
    let since = time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

fn pairs(labels: &Labels) -> Vec<KeyValue> {
    labels.iter().map(|(name, value)| pair(name, value.clone())).collect()
}

fn pair(key: &str, value: String) -> KeyValue {
    let value = AnyValue { value: Some(any_value::Value::StringValue(value)) };
    KeyValue { key: key.to_owned(), value: Some(value), ..KeyValue::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_kind_is_encoded() {
        let since = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(10);
        let times = Times { buckets: vec![(Some(500_000), 2), (None, 1)], sum_us: 3_250_000 };
        let families = [
            Family::counter("x_total", "Things.", 7),
            Family::gauge("y_bytes", "Size.", 9),
            Family::new("t_seconds", "Times.", Kind::Histogram)
                .with_times(vec![("r", "a".to_owned())], times),
            Family::new("nothing_total", "Nothing yet.", Kind::Counter),
        ];
        let resource = Resource::builder_empty().with_service_name("shop").build();
        let message = message(&families, &resource, since, since);
        let metrics = &message.resource_metrics[0].scope_metrics[0].metrics;
        assert_eq!(
            metrics.iter().map(|metric| (metric.name.as_str(), metric.unit.as_str())).collect::<Vec<_>>(),
            [("x_total", "1"), ("y_bytes", "By"), ("t_seconds", "s")]
        );
        let Some(Data::Sum(sum)) = &metrics[0].data else { panic!("{metrics:?}") };
        assert!(sum.is_monotonic && sum.aggregation_temporality == 2);
        assert_eq!(sum.data_points[0].value, Some(number_data_point::Value::AsInt(7)));
        assert_eq!(sum.data_points[0].start_time_unix_nano, 10_000_000_000);
        let Some(Data::Histogram(histogram)) = &metrics[2].data else { panic!("{metrics:?}") };
        let point = &histogram.data_points[0];
        assert_eq!((point.count, point.sum), (3, Some(3.25)));
        assert_eq!((&point.bucket_counts[..], &point.explicit_bounds[..]), (&[2, 1][..], &[0.5][..]));
        assert_eq!(point.attributes, [pair("r", "a".to_owned())]);
    }
}
