//! The text exposition format of Prometheus, version 0.0.4.

use std::collections::BTreeMap;
use std::fmt::Write;

use rxe_inspect::latency::Histogram;

/// Type of a family.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Only increases. The name ends in `_total`.
    Counter,
    /// May decrease.
    Gauge,
    /// Classic, with cumulative buckets, in seconds. The name ends in `_seconds`.
    Histogram,
}

#[derive(Debug)]
struct Family {
    kind: Kind,
    help: String,
    samples: BTreeMap<String, u64>,
    /// With their labels.
    histograms: BTreeMap<String, Histogram>,
}

/// Families of samples. Samples with the same name and labels are added up.
#[derive(Debug, Default)]
pub struct Exposition(BTreeMap<String, Family>);

impl Exposition {
    /// Adds `value` to a sample.
    pub fn add(&mut self, name: &str, kind: Kind, help: &str, labels: &[(&str, &str)], value: u64) {
        *self.family(name, kind, help).samples.entry(written(labels)).or_default() += value;
    }

    /// Adds a histogram.
    pub fn add_histogram(&mut self, name: &str, help: &str, labels: &[(&str, &str)], histogram: &Histogram) {
        let family = self.family(name, Kind::Histogram, help);
        family.histograms.entry(written(labels)).or_default().add(histogram);
    }

    fn family(&mut self, name: &str, kind: Kind, help: &str) -> &mut Family {
        self.0.entry(name.to_owned()).or_insert_with(|| Family {
            kind,
            help: help.replace('\\', r"\\").replace('\n', r"\n"),
            samples: BTreeMap::new(),
            histograms: BTreeMap::new(),
        })
    }

    /// The text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (name, Family { kind, help, samples, histograms }) in &self.0 {
            let kind = match kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
                Kind::Histogram => "histogram",
            };
            // Writing to a string cannot fail.
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for (labels, value) in samples {
                let _ = writeln!(text, "{name}{labels} {value}");
            }
            for (labels, histogram) in histograms {
                text += &lines(name, labels, histogram);
            }
        }
        text
    }
}

/// The samples of one histogram.
fn lines(name: &str, labels: &str, histogram: &Histogram) -> String {
    let mut text = String::new();
    let others = labels.trim_end_matches('}').trim_start_matches('{');
    let comma = if others.is_empty() { "" } else { "," };
    let bounds = histogram.buckets.iter().map(|bucket| (seconds(bucket.up_to_ns), bucket.count));
    for (bound, count) in bounds.chain([("+Inf".to_owned(), histogram.count)]) {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{name}_bucket{{{others}{comma}le=\"{bound}\"}} {count}");
    }
    let _ =
        writeln!(text, "{name}_sum{labels} {}\n{name}_count{labels} {}", seconds(histogram.sum_ns), histogram.count);
    text
}

/// Nanoseconds as seconds, exactly.
fn seconds(nanos: u64) -> String {
    let text = format!("{}.{:09}", nanos / 1_000_000_000, nanos % 1_000_000_000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn written(labels: &[(&str, &str)]) -> String {
    if labels.is_empty() {
        return String::new();
    }
    let label = |(name, value): &(&str, &str)| {
        format!("{name}=\"{}\"", value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n"))
    };
    format!("{{{}}}", labels.iter().map(label).collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use rxe_inspect::latency::Bucket;

    use super::*;

    #[test]
    fn a_histogram_has_cumulative_buckets_in_seconds() {
        let bucket = |(up_to_ns, count)| Bucket { up_to_ns, count };
        let buckets = [(256, 1), (1 << 30, 2)].map(bucket).into();
        let histogram = Histogram { buckets, count: 3, sum_ns: 7_000_000_050 };
        let mut exposition = Exposition::default();
        exposition.add_histogram("a_seconds", "The a.", &[("lcore", "0")], &histogram);
        exposition.add_histogram("b_seconds", "The b.", &[], &Histogram::default());
        assert_eq!(
            exposition.text(),
            "# HELP a_seconds The a.\n# TYPE a_seconds histogram\n\
             a_seconds_bucket{lcore=\"0\",le=\"0.000000256\"} 1\n\
             a_seconds_bucket{lcore=\"0\",le=\"1.073741824\"} 2\n\
             a_seconds_bucket{lcore=\"0\",le=\"+Inf\"} 3\n\
             a_seconds_sum{lcore=\"0\"} 7.00000005\na_seconds_count{lcore=\"0\"} 3\n\
             # HELP b_seconds The b.\n# TYPE b_seconds histogram\n\
             b_seconds_bucket{le=\"+Inf\"} 0\nb_seconds_sum 0\nb_seconds_count 0\n"
        );
    }

    #[test]
    fn samples_are_grouped_by_family_and_equal_ones_added() {
        let mut exposition = Exposition::default();
        exposition.add("b_total", Kind::Counter, "The b.", &[("lcore", "0")], 1);
        exposition.add("a", Kind::Gauge, "A \\ and\na line.", &[], 7);
        exposition.add("b_total", Kind::Counter, "The b.", &[("lcore", "1")], 5);
        exposition.add("b_total", Kind::Counter, "The b.", &[("lcore", "0")], 2);
        exposition.add("b_total", Kind::Counter, "The b.", &[("name", "a\"\\\n")], 0);
        assert_eq!(
            exposition.text(),
            "# HELP a A \\\\ and\\na line.\n# TYPE a gauge\na 7\n\
             # HELP b_total The b.\n# TYPE b_total counter\n\
             b_total{lcore=\"0\"} 3\nb_total{lcore=\"1\"} 5\nb_total{name=\"a\\\"\\\\\\n\"} 0\n"
        );
    }
}
