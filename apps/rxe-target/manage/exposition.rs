//! The text exposition format of Prometheus, version 0.0.4.

use std::collections::BTreeMap;
use std::fmt::Write;

/// Type of a family.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Only increases. The name ends in `_total`.
    Counter,
    /// May decrease.
    Gauge,
}

#[derive(Debug)]
struct Family {
    kind: Kind,
    help: String,
    samples: BTreeMap<String, u64>,
}

/// Families of samples. Samples with the same name and labels are added up.
#[derive(Debug, Default)]
pub struct Exposition(BTreeMap<String, Family>);

impl Exposition {
    /// Adds `value` to a sample.
    pub fn add(&mut self, name: &str, kind: Kind, help: &str, labels: &[(&str, &str)], value: u64) {
        let family = self.0.entry(name.to_owned()).or_insert_with(|| Family {
            kind,
            help: help.replace('\\', r"\\").replace('\n', r"\n"),
            samples: BTreeMap::new(),
        });
        *family.samples.entry(written(labels)).or_default() += value;
    }

    /// The text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        for (name, Family { kind, help, samples }) in &self.0 {
            let kind = match kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
            };
            // Writing to a string cannot fail.
            let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
            for (labels, value) in samples {
                let _ = writeln!(text, "{name}{labels} {value}");
            }
        }
        text
    }
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
    use super::*;

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
