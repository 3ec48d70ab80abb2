//! The tables of loads that other programs are compared with.

use std::fmt::Write as _;

use super::{Table, brackets, cell, number, range};
use crate::comparisons::{self, Bound, Comparison, Measure};
use crate::disks::{self, DiskGoal, Limit};
use crate::matrix::Section;
use crate::results::{self, Figure, Results, Sample};

/// A load of NVMe commands, divided by its limit.
pub fn beside_limit(results: &Results, goal: &DiskGoal) -> Option<f64> {
    let at = |row: &str| results.figure(Section::Nvmf, row, 0.0);
    let (load, limit) = (at(goal.row)?, at(&goal.limit_row())?);
    match goal.figure {
        disks::Figure::Rate => Some(load.mega()? / limit.mega()?),
        disks::Figure::Time => Some(load.latency(|l| l.p50)? / limit.latency(|l| l.p50)?),
    }
}

/// NVMe over Fabrics, beside messages and fio.
pub fn nvmf(results: &Results) -> String {
    let mut table = Table::new(&["work", "`rxe-bench nvme`", "measured", "beside", "measured", "ratio", "goal"]);
    let mut failure = None;
    for goal in &disks::GOALS {
        let figures = [goal.row, &goal.limit_row()].map(|row| results.figure(Section::Nvmf, row, 0.0));
        failure = failure.or_else(|| figures.into_iter().flatten().find_map(|figure| figure.failures.first()));
        let value = |figure: Option<&Figure>| {
            let Some(figure) = figure else { return cell(None) };
            let time = |sample: &Sample| sample.latency.map(|latency| latency.p50);
            let rate = |sample: &Sample| Some(sample.rate / 1e3);
            match goal.figure {
                disks::Figure::Time => format!("{} us{}", cell(figure.median(time)), range(figure, time)),
                disks::Figure::Rate => format!("{} k/s{}", cell(figure.median(rate)), range(figure, rate)),
            }
        };
        let [load, limit] = figures.map(value);
        let beside = match goal.limit {
            Limit::Bench(words) => format!("`{words}`"),
            Limit::Fio(words) => format!("fio, io_uring: `{words}`"),
        };
        let wanted = match goal.figure {
            disks::Figure::Rate => format!("at least {}", goal.goal),
            disks::Figure::Time => format!("at most {}", goal.goal),
        };
        let options = format!("`{}`", goal.options);
        table.row(&[goal.row, &options, &load, &beside, &limit, &cell(beside_limit(results, goal)), &wanted]);
    }
    if let Some(why) = failure {
        let _ = writeln!(table.0, "\nNot all of it was measured: {}", why.lines().next().unwrap_or_default());
    }
    table.0
}

/// The unit of a comparison, and the figure that is compared.
fn compared(comparison: &Comparison) -> (&'static str, impl Fn(&Sample) -> Option<f64> + Copy) {
    let measure = comparison.measure;
    let unit = match measure {
        Measure::Rate => "M/s",
        Measure::Bandwidth => "Gb/s",
        Measure::Cpu => "us",
    };
    let find = move |sample: &Sample| match measure {
        Measure::Rate => Some(sample.rate / 1e6),
        Measure::Bandwidth => Some(sample.gbps),
        Measure::Cpu => sample.cpu_us,
    };
    (unit, find)
}

/// The ratios of a command's figures to those of the command that it is compared with, one for each round.
pub fn ratios(results: &Results, comparison: &Comparison, command: &str) -> Vec<f64> {
    let figure = |command| results.figure(Section::Programs, &comparison.row(command), 0.0);
    let (_, find) = compared(comparison);
    match (figure(command), figure(comparison.base)) {
        (Some(own), Some(base)) => own.ratios(base, find),
        _ => Vec::new(),
    }
}

/// Programs under rxe-run, each beside another program.
pub fn programs(results: &Results) -> String {
    let mut table = Table::new(&["work", "compared with", "", "program", "", "ratio", "goal"]);
    let mut failure = None;
    for comparison in &comparisons::ALL {
        let figure = |command| results.figure(Section::Programs, &comparison.row(command), 0.0);
        failure =
            failure.or_else(|| comparison.commands().filter_map(figure).find_map(|figure| figure.failures.first()));
        let (unit, find) = compared(comparison);
        let value = |command| match figure(command).filter(|figure| !figure.runs.is_empty()) {
            Some(figure) => format!("{} {unit}{}", cell(figure.median(find)), range(figure, find)),
            None => cell(None),
        };
        for command in comparison.commands().skip(1) {
            let ratios = ratios(results, comparison, command);
            let brackets = brackets(results::range(&ratios));
            let ratio = results::median(ratios);
            let goal = if command == comparison.ours { goal(comparison.goal, ratio) } else { cell(None) };
            table.row(&[
                comparison.work.to_owned(),
                format!("`{}`", comparison.base),
                value(comparison.base),
                format!("`{command}`"),
                value(command),
                format!("{}{brackets}", cell(ratio)),
                goal,
            ]);
        }
    }
    if let Some(why) = failure {
        let _ = writeln!(table.0, "\nNot all of it was measured: {}", why.lines().next().unwrap_or_default());
    }
    let _ = writeln!(table.0, "\nPrograms: {}.", results.machine.programs);
    table.0
}

/// A goal, and whether the ratio reaches it.
fn goal(goal: Bound, ratio: Option<f64>) -> String {
    let (words, bound) = match goal {
        Bound::AtLeast(least) => ("at least", least),
        Bound::AtMost(most) => ("at most", most),
    };
    let reached = match ratio.map(|ratio| goal.holds(ratio)) {
        Some(true) => ": reached",
        Some(false) => ": **missed**",
        None => "",
    };
    format!("{words} {}{reached}", number(bound))
}
