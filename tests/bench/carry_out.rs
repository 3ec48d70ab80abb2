//! Runs the blocks of the matrix, one after the other, and prints each result.

use std::time::Duration;

use rxe_testkit::process::{self, Program};

use crate::comparisons::Peer;
use crate::fio;
use crate::matrix::{Block, Far, Step, X};
use crate::programs;
use crate::results::{Results, Sample};
use crate::rig::{Link, Rig, succeeded};
use crate::testpmd;

/// The longest that a far end may take to end after SIGTERM.
const END: Duration = Duration::from_secs(10);

/// Runs the steps of `block`. Failures are in the results too.
pub fn block(rig: &Rig, block: &Block, results: &mut Results) {
    let queues = if let Far::Target { queues, .. } = block.far { queues } else { 1 };
    if block.far == Far::Testpmd {
        for step in &block.steps {
            let sample =
                rig.link(block.port, queues).and_then(|link| testpmd::measure(rig, block.port, &link, &step.words));
            keep(results, step, sample.map(|sample| vec![(0.0, sample)]));
        }
        return;
    }
    if block.far == Far::Fio {
        for step in &block.steps {
            keep(results, step, fio::measure(rig, &step.words).map(|sample| vec![(0.0, sample)]));
        }
        return;
    }
    if let Far::Guest(server) = block.far {
        let serving = rig.guests().and_then(|guests| guests.serve(server));
        for step in block.steps.iter().take_while(|_| !process::interrupted()) {
            let sample = serving.as_ref().map_err(Clone::clone).and_then(|serving| serving.measure(&step.words));
            keep(results, step, sample.map(|sample| vec![(0.0, sample)]));
        }
        if let Err(why) = serving.map_or(Ok(()), |serving| serving.end()) {
            eprintln!("  {why}");
        }
        return;
    }
    if let Far::Program(peer) = block.far {
        return comparison(rig, peer, &block.steps, results);
    }
    let far = rig.link(block.port, queues).and_then(|link| Ok((rig.start(&block.far, &link)?, link)));
    let far: Result<(Program, Link), String> = match far {
        Ok(far) => Ok(far),
        Err(why) => {
            block.steps.iter().for_each(|step| keep(results, step, Err(why.clone())));
            return;
        }
    };
    if let Ok((mut program, link)) = far {
        for step in &block.steps {
            let samples = rig.bench(&link, &step.words);
            keep(results, step, samples);
        }
        if let Err(why) = program.stop(END).and_then(succeeded) {
            eprintln!("  {why}");
        }
    }
}

/// Runs the programs of a comparison.
fn comparison(rig: &Rig, peer: Peer, steps: &[Step], results: &mut Results) {
    let serving = match rig.namespaces().and_then(|spaces| programs::serve(spaces, peer)) {
        Ok(serving) => serving,
        Err(why) => return steps.iter().for_each(|step| keep(results, step, Err(why.clone()))),
    };
    let mut samples = Vec::new();
    for step in steps {
        match serving.measure(&step.words) {
            Ok(sample) => samples.push(sample),
            Err(why) => {
                keep(results, step, Err(why));
                break;
            }
        }
    }
    if let Err(why) = serving.end() {
        eprintln!("  {why}");
    }
    // The ratios are those of runs of one round, so all of a round count, or none.
    if samples.len() == steps.len() {
        for (step, sample) in steps.iter().zip(samples) {
            keep(results, step, Ok(vec![(0.0, sample)]));
        }
    }
}

/// Adds a step's samples to the results.
fn keep(results: &mut Results, step: &Step, samples: Result<Vec<(f64, Sample)>, String>) {
    let Step { section, row, words, .. } = step;
    let place = |size: f64| if let X::At(x) = step.x { x } else { size };
    let name = format!("{section:?}, {row}");
    match samples {
        Ok(samples) => {
            for (size, sample) in samples {
                let x = place(size);
                results.figure_mut(*section, row, x, words).runs.push(sample);
                let latency = sample.latency.map(|l| format!(", p50 {:.2} us, p99.9 {:.2} us", l.p50, l.p99_9));
                // Emulated machines are slow.
                let (rate, unit) =
                    if sample.rate < 1e5 { (sample.rate / 1e3, "k/s") } else { (sample.rate / 1e6, "M/s") };
                let cpu = sample.cpu_us.map(|cpu| format!(", {cpu:.3} us of CPU a message"));
                let (latency, cpu) = (latency.unwrap_or_default(), cpu.unwrap_or_default());
                println!("  {name} ({x}): {rate:.3} {unit}, {:.2} Gb/s{latency}{cpu}", sample.gbps);
            }
        }
        Err(why) => {
            eprintln!("  {name}: {why}");
            results.figure_mut(*section, row, place(0.0), words).failures.push(why);
        }
    }
}
