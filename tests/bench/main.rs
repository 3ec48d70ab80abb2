//! `make bench`: the whole matrix of docs/performance.md, measured and written down.
//!
//! `cargo bench --bench performance [-- SECTION...]` runs rxe-target and rxe-bench, each pinned to a CPU of its own, on
//! ports that both drive in user space, and beside them the limits of the port itself: `rxe-bench echo` and
//! DPDK's testpmd, at the same frame sizes and in the same run. The figures go to `target/bench/results.json`, and from
//! there into docs/performance.md, docs/choosing-a-port.md, README.md and docs/plots. With some sections only, copies of the pages
//! are written to `target/bench/docs` instead.
//!
//! Other sections have a kernel's clients and disks in guests, and programs under rxe-run in network namespaces, beside other programs.
//!
//! [`matrix`], [`comparisons`] and [`disks`] list the measurements, [`rig`], [`testpmd`], [`fio`], [`guests`], [`guest_disks`] and [`programs`] run the
//! programs, [`carry_out`] adds the figures to [`results`], and [`pages`] writes [`tables`] and [`plots`] of them. `check.rs` tests all
//! that in a few runs.

mod carry_out;
mod comparisons;
mod disks;
mod fio;
mod guest_disks;
mod guests;
mod machine;
mod matrix;
mod namespaces;
mod pages;
mod plots;
mod programs;
mod results;
mod rig;
mod tables;
mod testpmd;

#[path = "../support/mod.rs"]
mod support;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use matrix::{Scope, Section};
use results::Results;
use rxe_testkit::process;

/// Measures rxe-target and writes docs/performance.md
#[derive(Parser, Debug)]
#[command(name = "performance")]
struct Args {
    /// Sections to measure [default: all but nvmf]
    #[arg(value_enum)]
    sections: Vec<Section>,

    /// The CPUs to use, that of rxe-bench first, and then those of the target [default: all that the process may use]
    #[arg(long, value_delimiter = ',', value_name = "CPU,CPU...")]
    cpus: Vec<u32>,

    /// How often each row with a goal is measured, and each other figure
    #[arg(long, num_args = 2, value_names = ["GOALS", "OTHERS"], default_values_t = matrix::ROUNDS)]
    rounds: Vec<usize>,

    /// Measure nothing: write the pages from these results
    #[arg(long, value_name = "results.json")]
    from: Option<PathBuf>,

    /// Print the steps, and measure nothing
    #[arg(long)]
    list: bool,

    /// Passed by cargo
    #[arg(long, hide = true)]
    bench: bool,
}

/// How long one run measures.
const SECONDS: f64 = 0.5;

/// The repository.
fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Where results go.
fn folder() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("bench")
}

fn main() -> ExitCode {
    match run(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("make bench: {why}");
            ExitCode::from(2)
        }
    }
}

/// Whether everything that was to be measured was.
fn run(args: &Args) -> Result<bool, String> {
    let folder = folder();
    std::fs::create_dir_all(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    if let Some(file) = &args.from {
        let results = Results::read(file)?;
        return write(&results, &folder).map(|()| results.complete());
    }
    let cpus = machine::cpus(&args.cpus)?;
    let [with_goals, others] = args.rounds[..] else { return Err("--rounds has two numbers".to_owned()) };
    let sections = Section::chosen(&args.sections);
    let scope = Scope { sections, targets: cpus.len() - 1, seconds: SECONDS, rounds: [with_goals, others] };
    let blocks = matrix::blocks(&scope);
    if args.list {
        for step in blocks.iter().flat_map(|block| &block.steps) {
            println!("{:?} {}: {}", step.section, step.row, step.words);
        }
    }
    println!(
        "{} runs, about {}",
        blocks.iter().map(|b| b.steps.len()).sum::<usize>(),
        minutes(matrix::seconds(&blocks, &scope))
    );
    if args.list {
        return Ok(true);
    }
    let began = Instant::now();
    let command = std::env::args().skip(1).filter(|word| word != "--bench").collect::<Vec<_>>();
    let command = if command.is_empty() {
        "make bench".to_owned()
    } else {
        format!("cargo bench --bench performance -- {}", command.join(" "))
    };
    let rig = rig::Rig::new(cpus)?;
    let mut results = Results::new(machine::describe(), command);
    ctrlc::set_handler(process::interrupt).map_err(|error| error.to_string())?;
    for block in &blocks {
        carry_out::block(&rig, block, &mut results);
        if process::interrupted() {
            return Err("stopped by a signal; nothing is written".to_owned());
        }
    }
    results.seconds = began.elapsed().as_secs_f64();
    println!("it took {}", minutes(results.seconds));
    let file = folder.join("results.json");
    results.write(&file)?;
    println!("{}", file.display());
    write(&results, &folder)?;
    Ok(results.complete())
}

/// The pages: those of the repository when all was measured, copies of them otherwise.
fn write(results: &Results, folder: &Path) -> Result<(), String> {
    let docs = root().join("docs");
    // Fewer runs are no medians that a page should show.
    let all = Section::all().iter().all(|section| results.sections().contains(section));
    let enough = |figure: &results::Figure| figure.runs.len() >= figure.section.rounds(matrix::ROUNDS);
    if all && results.figures.iter().all(|figure| enough(figure) || !figure.failures.is_empty()) {
        pages::write(results, &docs, &docs)
    } else {
        pages::write(results, &docs, &folder.join("docs"))
    }
}

fn minutes(seconds: f64) -> String {
    format!("{} min {:02} s", seconds as u64 / 60, seconds as u64 % 60)
}
