//! Results of measurements, in the format of results.json.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::matrix::Section;

/// A whole run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Results {
    pub machine: Machine,
    /// How it was made.
    pub command: String,
    /// Duration of all measurements.
    pub seconds: f64,
    pub figures: Vec<Figure>,
}

/// Machine, date and versions.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// UTC.
    pub date: String,
    pub cpu: String,
    pub cpus: usize,
    pub memory_gib: u64,
    pub system: String,
    pub kernel: String,
    /// Versions of rxe-target and DPDK, from `rxe-target --version`.
    pub version: String,
    pub rustc: String,
    pub testpmd: String,
    /// Versions of the packages whose programs run in namespaces.
    #[serde(default)]
    pub programs: String,
}

/// One figure: runs of the same.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Figure {
    pub section: Section,
    /// Name of the row in tables.
    pub row: String,
    /// The variable: bytes, queue pairs, loss in percent.
    pub x: f64,
    /// The command.
    pub command: String,
    pub runs: Vec<Sample>,
    /// Why there are fewer.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<String>,
}

/// The result of one run.
#[derive(Clone, Copy, Default, PartialEq, Debug, Serialize, Deserialize)]
pub struct Sample {
    /// Messages, or frames, per second.
    pub rate: f64,
    /// Payload in Gb/s.
    pub gbps: f64,
    /// Path MTU.
    pub mtu: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
    /// Payload of the load beside it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bulk_gbps: Option<f64>,
    /// CPU time of the near end per message, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_us: Option<f64>,
}

/// In microseconds.
#[derive(Clone, Copy, Default, PartialEq, Debug, Serialize, Deserialize)]
pub struct Latency {
    pub min: f64,
    pub p50: f64,
    pub p99: f64,
    pub p99_9: f64,
    /// `None` for perftest, which does not print it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_99: Option<f64>,
    pub max: f64,
}

/// The median; `None` of nothing.
pub fn median(mut all: Vec<f64>) -> Option<f64> {
    all.sort_by(f64::total_cmp);
    let middle = all.len() / 2;
    match all.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(all[middle]),
        _ => Some((all[middle - 1] + all[middle]) / 2.0),
    }
}

/// The least and the most; `None` of nothing.
pub fn range(all: &[f64]) -> Option<(f64, f64)> {
    Some((all.iter().copied().reduce(f64::min)?, all.iter().copied().reduce(f64::max)?))
}

impl Sample {
    /// Packets of payload per second, for messages of `size` bytes.
    pub fn packets(&self, size: f64) -> f64 {
        self.rate * (size / f64::from(self.mtu.max(1))).ceil().max(1.0)
    }
}

impl Figure {
    /// The median of `what` over all runs; `None` where no run has it.
    pub fn median(&self, what: impl Fn(&Sample) -> Option<f64>) -> Option<f64> {
        median(self.runs.iter().filter_map(what).collect())
    }

    /// The least and the most.
    pub fn range(&self, what: impl Fn(&Sample) -> Option<f64>) -> Option<(f64, f64)> {
        range(&self.runs.iter().filter_map(what).collect::<Vec<_>>())
    }

    /// What each run has, divided by what the run of the same round in `base` has.
    pub fn ratios(&self, base: &Figure, what: impl Fn(&Sample) -> Option<f64>) -> Vec<f64> {
        let pairs = self.runs.iter().zip(&base.runs);
        pairs.filter_map(|(own, base)| Some(what(own)? / what(base)?)).collect()
    }

    /// Millions per second.
    pub fn mega(&self) -> Option<f64> {
        self.median(|sample| Some(sample.rate / 1e6))
    }

    /// Gb/s.
    pub fn gbps(&self) -> Option<f64> {
        self.median(|sample| Some(sample.gbps))
    }

    /// A percentile.
    pub fn latency(&self, which: impl Fn(&Latency) -> f64) -> Option<f64> {
        self.median(|sample| sample.latency.as_ref().map(&which))
    }
}

impl Results {
    /// Nothing measured yet.
    pub fn new(machine: Machine, command: String) -> Results {
        Results { machine, command, seconds: 0.0, figures: Vec::new() }
    }

    /// The figure of these names, made where it is not there.
    pub fn figure_mut(&mut self, section: Section, row: &str, x: f64, command: &str) -> &mut Figure {
        let same = |figure: &Figure| figure.section == section && figure.row == row && figure.x == x;
        let index = self.figures.iter().position(same).unwrap_or_else(|| {
            let (row, command) = (row.to_owned(), command.to_owned());
            self.figures.push(Figure { section, row, x, command, runs: Vec::new(), failures: Vec::new() });
            self.figures.len() - 1
        });
        &mut self.figures[index]
    }

    /// The figure of these names.
    pub fn figure(&self, section: Section, row: &str, x: f64) -> Option<&Figure> {
        self.figures.iter().find(|figure| figure.section == section && figure.row == row && figure.x == x)
    }

    /// All figures of a row, by its variable.
    pub fn series(&self, section: Section, row: &str) -> Vec<&Figure> {
        let mut all: Vec<&Figure> = self.figures.iter().filter(|f| f.section == section && f.row == row).collect();
        all.sort_by(|a, b| a.x.total_cmp(&b.x));
        all
    }

    /// The sections that there are figures of.
    pub fn sections(&self) -> Vec<Section> {
        Section::all().into_iter().filter(|section| self.figures.iter().any(|f| f.section == *section)).collect()
    }

    /// Whether no run failed.
    pub fn complete(&self) -> bool {
        self.figures.iter().all(|figure| figure.failures.is_empty() && !figure.runs.is_empty())
    }

    /// From a file.
    ///
    /// # Errors
    /// In words, why not.
    pub fn read(file: &Path) -> Result<Results, String> {
        let text = std::fs::read_to_string(file).map_err(|error| format!("{}: {error}", file.display()))?;
        serde_json::from_str(&text).map_err(|error| format!("{} holds no results: {error}", file.display()))
    }

    /// To a file.
    ///
    /// # Errors
    /// In words, why not.
    pub fn write(&self, file: &Path) -> Result<(), String> {
        let text = serde_json::to_string_pretty(self).map_err(|error| error.to_string())?;
        std::fs::write(file, text + "\n").map_err(|error| format!("{}: {error}", file.display()))
    }
}
