//! Writes metric families in the Prometheus text format.

use std::fmt::Write;

use crate::metric_family::{Family, Kind, Labels, Times, Value};

/// The body of `GET /metrics`.
pub(crate) fn text(families: &[Family]) -> String {
    let mut text = String::new();
    for Family { name, help, kind, samples } in families {
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}"); // writing to a String cannot fail
        for sample in samples {
            match &sample.value {
                Value::Number(value) => line(&mut text, name, &sample.labels, value),
                Value::Decimal(value) => line(&mut text, name, &sample.labels, value),
                Value::Times(times) => histogram(&mut text, name, &sample.labels, times),
            }
        }
    }
    text
}

fn line(text: &mut String, name: &str, labels: &Labels, value: impl std::fmt::Display) {
    let _ = writeln!(text, "{name}{} {value}", labels_text(labels));
}

fn histogram(text: &mut String, name: &str, labels: &Labels, times: &Times) {
    let mut seen = 0;
    for (up_to_us, count) in &times.buckets {
        seen += count;
        let bound = up_to_us.map_or_else(|| "+Inf".to_owned(), seconds);
        let with_bound = labels.iter().cloned().chain([("le", bound)]).collect();
        line(text, &format!("{name}_bucket"), &with_bound, seen);
    }
    line(text, &format!("{name}_sum"), labels, seconds(times.sum_us));
    line(text, &format!("{name}_count"), labels, seen);
}

fn seconds(micros: u64) -> String {
    let text = format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn labels_text(labels: &Labels) -> String {
    if labels.is_empty() {
        return String::new();
    }
    let labels: Vec<_> =
        labels.iter().map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
    format!("{{{}}}", labels.join(","))
}

fn escaped(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_values_are_escaped() {
        let family = Family::new("x_total", "Things.", Kind::Counter);
        assert_eq!(
            text(&[family.with(vec![("type", "a\"} 1\ny_total 2\\".to_owned())], 7)]),
            "# HELP x_total Things.\n# TYPE x_total counter\nx_total{type=\"a\\\"} 1\\ny_total 2\\\\\"} 7\n"
        );
    }

    #[test]
    fn histogram_buckets_are_cumulative() {
        let times =
            Times { buckets: vec![(Some(50), 2), (Some(2_500_000), 1), (None, 1)], sum_us: 40_001_011 };
        let family = Family::new("t", "Times.", Kind::Histogram);
        assert_eq!(
            text(&[family.with_times(vec![("r", "a".to_owned())], times)]),
            "# HELP t Times.\n# TYPE t histogram\n\
             t_bucket{r=\"a\",le=\"0.00005\"} 2\nt_bucket{r=\"a\",le=\"2.5\"} 3\nt_bucket{r=\"a\",le=\"+Inf\"} 4\n\
             t_sum{r=\"a\"} 40.001011\nt_count{r=\"a\"} 4\n"
        );
    }
}
