//! Readers of standard output and standard error that take nothing: the adapter goes on, and ends when told to.

use std::io::{BufRead, BufReader, PipeReader, Write};
use std::os::unix::fs::FileExt;
use std::process::Stdio;
use std::sync::{Arc, Mutex};

use rxe_inspect::protocol::Request;
use rxe_testkit::child;

use crate::lacking;
use crate::veth::{VethTarget, eventually, is_reached, make_pair};

/// What a pipe holds on Linux unless somebody changed it.
const PIPE: usize = 64 << 10;

/// A pipe without room.
fn full_pipe() -> (PipeReader, Stdio) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(&[b'\n'; PIPE]).unwrap();
    (reader, writer.into())
}

/// All lines that come, as they come.
pub fn collect(reader: impl std::io::Read + Send + 'static) -> Arc<Mutex<Vec<String>>> {
    let lines = Arc::<Mutex<Vec<String>>>::default();
    let collected = Arc::clone(&lines);
    std::thread::spawn(move || {
        for line in BufReader::new(reader).lines().map_while(Result::ok) {
            collected.lock().unwrap().push(line);
        }
    });
    lines
}

pub fn has(lines: &Mutex<Vec<String>>, words: &str) -> bool {
    lines.lock().unwrap().iter().any(|line| line.contains(words))
}

/// Runs `inside` in a namespace with a veth pair, where that is possible.
pub fn with_pair(inside: impl FnOnce()) {
    if let Some(why) = lacking() {
        assert!(std::env::var_os("CI").is_none_or(|ci| ci.is_empty()), "CI must not skip: {why}");
        eprintln!("SKIPPED: {why}");
        return;
    }
    child::in_namespace(|| {
        make_pair();
        inside();
    });
}

#[test]
fn traffic_goes_on_while_standard_error_is_not_read() {
    with_pair(|| {
        let (unread, stderr) = full_pipe();
        let mut target = VethTarget::start("e", (Stdio::piped(), stderr), &["--log", "info"]);
        let stdout = collect(target.child.stdout.take().unwrap());
        eventually("the ready line", || has(&stdout, "ready "));
        eventually("a connection", is_reached);
        // Each makes a line of the log.
        let mut client = target.client();
        while target.counter("output", "stderr_lines_dropped") == 0 {
            (0..500).for_each(|_| client.tell(&Request::ClearFaults).unwrap());
        }
        eventually("a connection", is_reached);
        let lines = collect(unread);
        eventually("the report", || has(&lines, "lines were dropped because standard error was not read"));
        let status = target.terminate();
        assert_eq!(status.code(), Some(0));
        eventually("the summary", || has(&stdout, "mbufs_leaked=0"));
        assert!(has(&stdout, "stderr_lines_dropped="), "{stdout:?}");
    });
}

#[test]
fn sigterm_ends_a_target_whose_standard_error_is_never_read() {
    with_pair(|| {
        let (_unread, stderr) = full_pipe();
        let mut target = VethTarget::start("t", (Stdio::piped(), stderr), &["--log", "debug"]);
        let stdout = collect(target.child.stdout.take().unwrap());
        eventually("the ready line", || has(&stdout, "ready "));
        eventually("a connection", is_reached);
        assert_eq!(target.terminate().code(), Some(0));
        eventually("the summary", || has(&stdout, "mbufs_leaked=0"));
    });
}

#[test]
fn traffic_goes_on_while_lines_of_a_watched_region_are_not_read() {
    with_pair(|| {
        let (_unread, stdout) = full_pipe();
        let mut target = VethTarget::start("o", (stdout, Stdio::piped()), &[]);
        let stderr = collect(target.child.stderr.take().unwrap());
        eventually("a connection", is_reached);
        let region = std::fs::File::options().write(true).open(&target.region).unwrap();
        let shown = |target: &VethTarget| {
            let services: Vec<rxe_inspect::report::Service> = target.client().ask(&Request::Services).unwrap();
            let region = services.iter().find(|service| service.name == "region").unwrap();
            region.counters.iter().find(|counter| counter.name == "texts_shown").unwrap().value
        };
        let mut byte = b'a';
        eventually("lines of the region", || {
            byte = if byte == b'a' { b'b' } else { b'a' };
            region.write_all_at(&[byte], 0).unwrap();
            shown(&target) >= 5
        });
        eventually("a connection", is_reached);
        assert_eq!(target.terminate().code(), Some(0), "{stderr:?}");
    });
}
