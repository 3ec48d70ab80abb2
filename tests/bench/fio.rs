//! The limit of a file: fio with io_uring on one CPU.

use std::process::Command;
use std::time::Duration;

use rxe_testkit::process;
use serde_json::Value;

use crate::results::Sample;
use crate::rig::{Rig, succeeded};

/// How long a run may take.
const RUN: Duration = Duration::from_secs(60);
/// Before it counts, and while it does.
const TIMES: [&str; 2] = ["--ramp_time=100ms", "--runtime=500ms"];

/// Runs fio on the file of the rig's disks, on the CPU that rxe-target has otherwise. `words` are kind, bytes and depth.
///
/// # Errors
/// The reason of a failure.
pub fn measure(rig: &Rig, words: &str) -> Result<Sample, String> {
    let [kind, bytes, depth] = words.split(' ').collect::<Vec<_>>()[..] else {
        return Err(format!("`{words}` is not kind, bytes and depth"));
    };
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "--", "fio", "--name=bench", "--ioengine=io_uring", "--direct=1", "--thread"])
        .args(["--time_based", "--norandommap=1", "--output-format=json"])
        .args(TIMES)
        .arg(format!("--filename={}", rig.disk()?.display()))
        .args([format!("--rw={kind}"), format!("--bs={bytes}"), format!("--iodepth={depth}")])
        .arg(format!("--cpus_allowed={}", rig.cpus[1]));
    sample(&succeeded(process::run(&mut command, RUN)?)?)
}

/// The sample in fio's JSON, which warnings may precede.
pub fn sample(text: &str) -> Result<Sample, String> {
    let json = text.find('{').map_or(text, |start| &text[start..]);
    let value: Value = serde_json::from_str(json).map_err(|error| format!("fio printed no JSON: {error}"))?;
    let number = |name: &str| value.pointer(&format!("/jobs/0/read/{name}")).and_then(Value::as_f64);
    match (number("iops"), number("bw_bytes")) {
        (Some(rate), Some(bytes)) if rate > 0.0 => Ok(Sample { rate, gbps: bytes * 8e-9, ..Sample::default() }),
        _ => Err(format!("fio printed no result: {value}")),
    }
}
