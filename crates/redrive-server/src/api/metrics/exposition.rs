//! The text format of Prometheus.

use std::fmt::Write;

/// The text as it grows.
#[derive(Debug, Default)]
pub(crate) struct Exposition {
    text: String,
}

impl Exposition {
    /// What the samples that follow are.
    pub(crate) fn family(&mut self, name: &str, help: &str, kind: &str) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}"); // a String takes everything
    }

    pub(crate) fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: u64) {
        let _ = writeln!(self.text, "{name}{} {value}", labels_text(labels));
    }

    pub(crate) fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.family(name, help, "counter");
        self.sample(name, &[], value);
    }

    pub(crate) fn gauge(&mut self, name: &str, help: &str, value: u64) {
        self.family(name, help, "gauge");
        self.sample(name, &[], value);
    }

    /// Buckets by their upper bound in microseconds, each with its own count; the last one has no bound.
    pub(crate) fn histogram(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
        buckets: impl Iterator<Item = (Option<u64>, u64)>,
        sum_us: u64,
    ) {
        let mut seen = 0;
        for (up_to_us, count) in buckets {
            seen += count;
            let bound = up_to_us.map_or_else(|| "+Inf".to_owned(), seconds);
            let with_bound: Vec<_> = labels.iter().copied().chain([("le", bound.as_str())]).collect();
            self.sample(&format!("{name}_bucket"), &with_bound, seen);
        }
        let _ = writeln!(self.text, "{name}_sum{} {}", labels_text(labels), seconds(sum_us));
        self.sample(&format!("{name}_count"), labels, seen);
    }

    pub(crate) fn into_text(self) -> String {
        self.text
    }
}

fn seconds(micros: u64) -> String {
    let text = format!("{}.{:06}", micros / 1_000_000, micros % 1_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn labels_text(labels: &[(&str, &str)]) -> String {
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
    fn hostile_labels_stay_labels() {
        let mut text = Exposition::default();
        text.family("x_total", "Things.", "counter");
        text.sample("x_total", &[("type", "a\"} 1\ny_total 2\\")], 7);
        assert_eq!(
            text.into_text(),
            "# HELP x_total Things.\n# TYPE x_total counter\nx_total{type=\"a\\\"} 1\\ny_total 2\\\\\"} 7\n"
        );
    }

    #[test]
    fn buckets_add_up() {
        let mut text = Exposition::default();
        text.histogram(
            "t",
            &[("r", "a")],
            [(Some(50), 2), (Some(2_500_000), 1), (None, 1)].into_iter(),
            40_001_011,
        );
        assert_eq!(
            text.into_text(),
            "t_bucket{r=\"a\",le=\"0.00005\"} 2\nt_bucket{r=\"a\",le=\"2.5\"} 3\nt_bucket{r=\"a\",le=\"+Inf\"} 4\n\
             t_sum{r=\"a\"} 40.001011\nt_count{r=\"a\"} 4\n"
        );
    }
}
