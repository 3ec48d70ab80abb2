//! rdma-core's own tests of libibverbs and librdmacm, which its package python3-pyverbs has, in one process under rxe-run.
//!
//! `pyverbs.txt` has the expected result of each: `pass`, or why not. A result that differs is a failure, also a better one.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use rxe_testkit::process::run;

use crate::Check;
use crate::case::Case;
use crate::pair::LIMIT;
use crate::place::{Place, expect_code};

/// Where the package has its tests, some of them compressed.
const TESTS: &str = "/usr/share/doc/rdma-core/tests";
const RUNNER: &str = include_str!("run_pyverbs.py");
const EXPECTED: &str = include_str!("pyverbs.txt");

/// The only case.
pub fn cases() -> Vec<Case> {
    vec![Case::new("pyverbs/rdma-core's tests end as expected", compare)]
}

fn compare(place: &Place) -> Check {
    let folder = place.work().join("pyverbs");
    install(&folder)?;
    // Tests of the connection manager have two processes at the address of the interface, which is 127.0.0.1 in a namespace. Not
    // the python of a developer's PATH, which has other modules.
    let script = format!(
        "$run --address 127.0.0.1 /usr/bin/python3 {0}/run_pyverbs.py {0} --dev rxe0 --gid 1 --port 1",
        folder.display()
    );
    let Some(done) = place.in_namespace(&script) else { return Ok(()) };
    let done = done?;
    expect_code(&done, 0)?;
    let (expected, found) = (results(EXPECTED), results(&done.stdout));
    let mut wrong: Vec<String> = Vec::new();
    for (name, (status, reason)) in &found {
        match expected.get(name) {
            Some((wanted, _)) if wanted.split('|').any(|wanted| wanted == *status) => {}
            Some((wanted, why)) => wrong.push(format!("{name}: {status} {reason}, expected {wanted} {why}")),
            None => wrong.push(format!("{name}: {status} {reason}, which pyverbs.txt does not have")),
        }
    }
    wrong.extend(expected.keys().filter(|name| !found.contains_key(*name)).map(|name| format!("{name} has not run")));
    if wrong.is_empty() { Ok(()) } else { Err(format!("{}\n{}", wrong.join("\n"), done.stderr)) }
}

/// Copies the tests and their runner to a folder that the programs can read.
fn install(folder: &Path) -> Check {
    if !Path::new(TESTS).exists() {
        return Err(format!("there is no {TESTS}: apt install python3-pyverbs"));
    }
    fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    let script = format!("cp -r {TESTS} tests && gunzip -r tests && chmod -R go+rX tests");
    expect_code(&run(Command::new("sh").args(["-c", &script]).current_dir(folder), LIMIT)?, 0)?;
    fs::write(folder.join("run_pyverbs.py"), RUNNER).map_err(|error| error.to_string())
}

/// Name, status and reason of each line that is one of a test.
fn results(text: &str) -> BTreeMap<&str, (&str, &str)> {
    text.lines().filter_map(result).collect()
}

fn result(line: &str) -> Option<(&str, (&str, &str))> {
    let (name, rest) = line.split_once(' ')?;
    let (status, reason) = rest.split_once(' ').unwrap_or((rest, ""));
    name.starts_with("tests.").then_some((name, (status, reason.trim_end())))
}
