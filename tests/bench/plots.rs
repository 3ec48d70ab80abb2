//! The plots of docs/performance.md, as SVG.

use plotters::prelude::*;

use crate::matrix::{self, GOALS, Section, Unit, VERBS};
use crate::results::{Figure, Results};
use crate::tables;

/// Width and height.
const SIZE: (u32, u32) = (760, 440);
const COLOURS: [RGBColor; 6] = [
    RGBColor(31, 119, 180),
    RGBColor(214, 39, 40),
    RGBColor(44, 160, 44),
    RGBColor(148, 103, 189),
    RGBColor(127, 127, 127),
    RGBColor(255, 127, 14),
];

/// How an axis is divided.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Scale {
    Linear,
    /// By powers of two.
    Two,
    /// By powers of ten.
    Ten,
}

impl Scale {
    fn place(self, value: f64) -> f64 {
        match self {
            Scale::Linear => value,
            Scale::Two => value.log2(),
            Scale::Ten => value.log10(),
        }
    }

    fn value(self, place: f64) -> f64 {
        match self {
            Scale::Linear => place,
            Scale::Two => place.exp2(),
            Scale::Ten => 10f64.powf(place),
        }
    }
}

/// One line.
struct Line {
    name: String,
    points: Vec<(f64, f64)>,
}

/// A chart of lines.
struct Chart<'a> {
    title: &'a str,
    x: (&'a str, Scale),
    y: (&'a str, Scale),
    /// How numbers on the horizontal axis are written.
    x_text: fn(f64) -> String,
    lines: Vec<Line>,
    /// Whether the lines go down, so that the lower left corner is free for their names.
    falls: bool,
}

fn ends(values: impl Iterator<Item = f64> + Clone) -> Option<(f64, f64)> {
    let finite = values.filter(|value| value.is_finite());
    Some((finite.clone().reduce(f64::min)?, finite.reduce(f64::max)?))
}

impl Chart<'_> {
    /// `None` when there is nothing to show, or at one place only.
    fn draw(&self) -> Result<Option<String>, String> {
        let points = |line: &Line| -> Vec<(f64, f64)> {
            line.points.iter().map(|(x, y)| (self.x.1.place(*x), self.y.1.place(*y))).collect()
        };
        let lines: Vec<(&str, Vec<(f64, f64)>)> = self
            .lines
            .iter()
            .map(|line| (line.name.as_str(), points(line)))
            .filter(|line| !line.1.is_empty())
            .collect();
        let all = lines.iter().flat_map(|line| &line.1);
        let (Some((left, right)), Some((low, high))) = (ends(all.clone().map(|p| p.0)), ends(all.map(|p| p.1))) else {
            return Ok(None);
        };
        // One place is no axis.
        if left == right {
            return Ok(None);
        }
        let low = if self.y.1 == Scale::Linear { 0.0 } else { low.floor() };
        let high = if self.y.1 == Scale::Linear { high * 1.3 } else { high.ceil() };
        let mut svg = String::new();
        let mut drawn = || -> Result<(), Box<dyn std::error::Error + '_>> {
            let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
            area.fill(&WHITE)?;
            let mut chart = ChartBuilder::on(&area)
                .caption(self.title, ("sans-serif", 18))
                .margin(12)
                .x_label_area_size(44)
                .y_label_area_size(64)
                .build_cartesian_2d(left..right, low..high.max(low + 1e-3))?;
            chart
                .configure_mesh()
                .x_desc(self.x.0)
                .y_desc(self.y.0)
                .x_labels(12)
                .x_label_formatter(&|place| (self.x_text)(self.x.1.value(*place)))
                .y_label_formatter(&|place| short(self.y.1.value(*place)))
                .light_line_style(TRANSPARENT)
                .draw()?;
            for ((name, points), colour) in lines.iter().zip(COLOURS.into_iter().cycle()) {
                chart
                    .draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?
                    .label(*name)
                    .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
                chart.draw_series(points.iter().map(|point| Circle::new(*point, 3, colour.filled())))?;
            }
            chart
                .configure_series_labels()
                .position(if self.falls { SeriesLabelPosition::LowerLeft } else { SeriesLabelPosition::UpperLeft })
                .background_style(WHITE.mix(0.8))
                .border_style(BLACK.mix(0.3))
                .draw()?;
            area.present()?;
            Ok(())
        };
        drawn().map_err(|error| format!("{}: {error}", self.title))?;
        Ok(Some(svg))
    }
}

/// A number without zeros at its end.
fn short(value: f64) -> String {
    let text = tables::number(value);
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

fn size_text(bytes: f64) -> String {
    tables::bytes(bytes.round())
}

/// A row of figures as a line.
fn line(results: &Results, section: Section, row: &str, name: &str, y: impl Fn(&Figure) -> Option<f64>) -> Line {
    let points = results.series(section, row).into_iter().filter_map(|figure| Some((figure.x, y(figure)?))).collect();
    Line { name: name.to_owned(), points }
}

/// Each row with a goal as a share of the port's limits.
fn ratios(results: &Results) -> Chart<'static> {
    let limits =
        [(matrix::ECHO, "of echo"), (matrix::SWAP, "of testpmd 5tswap"), (matrix::ONE_WAY, "of testpmd one way")];
    let rates = || GOALS.iter().filter(|goal| goal.unit != Unit::Micros);
    let lines = limits.map(|(limit, name)| Line {
        name: name.to_owned(),
        points: (1..)
            .zip(rates())
            .filter_map(|(n, goal)| Some((f64::from(n), tables::ratio(results, goal, limit)?)))
            .collect(),
    });
    Chart {
        title: "Packets per second, of the port's frames per second",
        x: ("row of the table", Scale::Linear),
        y: ("ratio", Scale::Linear),
        x_text: |row| if row.fract() == 0.0 { row.to_string() } else { String::new() },
        lines: lines.into(),
        falls: false,
    }
}

fn by_size<'a>(results: &Results, title: &'a str, y: (&'a str, Scale), find: fn(&Figure) -> Option<f64>) -> Chart<'a> {
    let mut lines: Vec<Line> = VERBS.iter().map(|(row, _)| line(results, Section::Sizes, row, row, find)).collect();
    lines.push(line(results, Section::Sizes, matrix::ECHO, "echo, frames turned round", find));
    // Messages per second become fewer with their size, bytes more.
    let falls = y.1 == Scale::Ten;
    Chart { title, x: ("bytes of a message", Scale::Two), y, x_text: size_text, lines, falls }
}

fn latencies(results: &Results) -> Chart<'static> {
    let section = Section::Latency;
    let write = VERBS[0].0;
    Chart {
        title: "One message at a time, from posting to completion",
        x: ("bytes of a message", Scale::Two),
        y: ("microseconds", Scale::Ten),
        x_text: size_text,
        lines: vec![
            line(results, section, write, "WRITE p50", |f| f.latency(|l| l.p50)),
            line(results, section, write, "WRITE p99", |f| f.latency(|l| l.p99)),
            line(results, section, write, "WRITE p99.9", |f| f.latency(|l| l.p99_9)),
            line(results, section, VERBS[1].0, "READ p50", |f| f.latency(|l| l.p50)),
            line(results, section, matrix::ECHO_LATENCY, "echo p50", |f| f.latency(|l| l.p50)),
        ],
        falls: false,
    }
}

fn queue_pairs(results: &Results) -> Chart<'static> {
    Chart {
        title: "64 B WRITE by queue pairs",
        x: ("queue pairs", Scale::Two),
        y: ("M/s", Scale::Linear),
        x_text: |qps| format!("{}", qps.round()),
        lines: vec![line(results, Section::QueuePairs, matrix::QPS_ROW, matrix::QPS_ROW, Figure::mega)],
        falls: true,
    }
}

fn regions(results: &Results) -> Chart<'static> {
    Chart {
        title: "64 B WRITE by regions, 8 queue pairs",
        x: ("regions that messages go over in turn", Scale::Ten),
        y: ("M/s", Scale::Linear),
        x_text: |regions| format!("{}", regions.round()),
        lines: vec![line(results, Section::Regions, matrix::REGIONS_ROW, matrix::REGIONS_ROW, Figure::mega)],
        falls: true,
    }
}

fn lcores(results: &Results) -> Chart<'static> {
    let line = |row| line(results, Section::Lcores, row, row, Figure::mega);
    Chart {
        title: "64 B WRITE by lcores of the target, 64 queue pairs",
        x: ("lcores", Scale::Linear),
        y: ("M/s", Scale::Linear),
        x_text: |lcores| if lcores.fract() == 0.0 { lcores.to_string() } else { String::new() },
        lines: vec![line(matrix::HAND_OFF), line(matrix::QUEUES)],
        falls: false,
    }
}

fn loss(results: &Results) -> Chart<'static> {
    // The horizontal axis has no zero: the curve of the theory starts from that run.
    let goodput = line(results, Section::Loss, matrix::LOSS_ROW, "measured", Figure::gbps);
    let whole = goodput.points.first().filter(|point| point.0 == 0.0).map_or(f64::NAN, |point| point.1);
    let lossy = |line: Line| Line { points: line.points.into_iter().filter(|point| point.0 > 0.0).collect(), ..line };
    let theory = matrix::LOSSES.map(|percent| (percent, whole * tables::go_back_n(percent / 100.0, matrix::WINDOW)));
    let theory = Line {
        name: "go-back-N, 256 packets sent again for each lost one".to_owned(),
        points: theory.into_iter().filter(|point| point.1.is_finite()).collect(),
    };
    Chart {
        title: "64 KiB WRITE under loss",
        x: ("frames lost, %", Scale::Ten),
        y: ("Gb/s", Scale::Linear),
        x_text: short,
        lines: vec![lossy(goodput), lossy(theory)],
        falls: true,
    }
}

/// All plots that there are figures for, by name.
///
/// # Errors
/// The reason why a plot could not be drawn.
pub fn all(results: &Results) -> Result<Vec<(&'static str, String)>, String> {
    let rate = by_size(results, "Messages per second by size, 8 queue pairs", ("M/s", Scale::Ten), Figure::mega);
    let width = by_size(results, "Bandwidth by size, 8 queue pairs", ("Gb/s", Scale::Linear), Figure::gbps);
    let charts = [
        ("ratio", ratios(results)),
        ("rate", rate),
        ("bandwidth", width),
        ("latency", latencies(results)),
        ("queue-pairs", queue_pairs(results)),
        ("regions", regions(results)),
        ("lcores", lcores(results)),
        ("loss", loss(results)),
    ];
    let drawn = charts.into_iter().map(|(name, chart)| Ok(chart.draw()?.map(|svg| (name, svg))));
    drawn.filter_map(Result::transpose).collect()
}
