//! fio: the limit of a file, and the load of a kernel's disk.

use std::process::Command;
use std::time::Duration;

use rxe_testkit::process;
use serde_json::Value;

use crate::results::{Latency, Sample};
use crate::rig::{Rig, succeeded};

/// How long a run may take.
const RUN: Duration = Duration::from_secs(60);
/// Before it counts, and while it does.
const TIMES: [&str; 2] = ["--ramp_time=100ms", "--runtime=500ms"];

/// Options of fio for `words`: kind, bytes and depth.
///
/// # Errors
/// In words, what they are not.
pub fn options(words: &str) -> Result<Vec<String>, String> {
    let [kind, bytes, depth] = words.split(' ').collect::<Vec<_>>()[..] else {
        return Err(format!("`{words}` is not kind, bytes and depth"));
    };
    let common = ["--name=bench", "--direct=1", "--time_based", "--norandommap=1", "--output-format=json"];
    let load = [format!("--rw={kind}"), format!("--bs={bytes}"), format!("--iodepth={depth}")];
    Ok(common.map(str::to_owned).into_iter().chain(load).collect())
}

/// The depth in `words`.
pub fn depth(words: &str) -> Option<u32> {
    words.rsplit(' ').next()?.parse().ok()
}

/// Runs fio with io_uring on the file of the rig's disks, on the CPU that rxe-target has otherwise.
///
/// # Errors
/// The reason of a failure.
pub fn measure(rig: &Rig, words: &str) -> Result<Sample, String> {
    let mut command = Command::new("setpriv");
    command
        .args(["--pdeathsig", "KILL", "--", "fio", "--ioengine=io_uring", "--thread"])
        .args(options(words)?)
        .args(TIMES)
        .arg(format!("--filename={}", rig.disk()?.display()))
        .arg(format!("--cpus_allowed={}", rig.cpus[1]));
    sample(&succeeded(process::run(&mut command, RUN)?)?)
}

/// The sample in fio's JSON, which warnings may precede: of its reads, or of its writes where it has read nothing.
pub fn sample(text: &str) -> Result<Sample, String> {
    let json = text.find('{').map_or(text, |start| &text[start..]);
    let value: Value = serde_json::from_str(json).map_err(|error| format!("fio printed no JSON: {error}"))?;
    let of = |kind: &str| {
        let number = |name: &str| value.pointer(&format!("/jobs/0/{kind}/{name}")).and_then(Value::as_f64);
        let (rate, bytes) = (number("iops")?, number("bw_bytes")?);
        let micros = |name: &str| Some(number(&format!("clat_ns/{name}"))? / 1e3);
        let percentile = |percent: &str| micros(&format!("percentile/{percent}"));
        let latency = || {
            Some(Latency {
                min: micros("min")?,
                p50: percentile("50.000000")?,
                p99: percentile("99.000000")?,
                p99_9: percentile("99.900000")?,
                p99_99: percentile("99.990000"),
                max: micros("max")?,
            })
        };
        (rate > 0.0).then(|| Sample { rate, gbps: bytes * 8e-9, latency: latency(), ..Sample::default() })
    };
    of("read").or_else(|| of("write")).ok_or_else(|| format!("fio printed no result: {value}"))
}
