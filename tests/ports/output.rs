//! Standard output and standard error without a reader: the target still serves, and ends after SIGTERM.

use std::io::{BufRead, BufReader, PipeReader, Write};
use std::os::unix::fs::FileExt;
use std::process::Stdio;

use rxe_inspect::protocol::Request;
use rxe_testkit::child;
use rxe_testkit::process::Streams;

use crate::lacking;
use crate::veth::{VethTarget, eventually, is_reached, make_pair};

/// The default capacity of a pipe on Linux.
const PIPE: usize = 64 << 10;

/// A pipe without room.
fn full_pipe() -> (PipeReader, Stdio) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(&[b'\n'; PIPE]).unwrap();
    (reader, writer.into())
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
        let streams = Streams { stderr: Some(stderr), ..Streams::default() };
        let mut target = VethTarget::start("e", streams, &["--log", "info"]);
        target.prints("ready ");
        eventually("a connection", is_reached);
        // Each makes a line of the log.
        let mut client = target.client();
        while target.counter("output", "stderr_lines_dropped") == 0 {
            (0..500).for_each(|_| client.tell(&Request::ClearFaults).unwrap());
        }
        eventually("a connection", is_reached);
        let report = "lines were dropped because standard error was not read";
        let mut lines = BufReader::new(unread).lines().map_while(Result::ok);
        assert!(lines.any(|line| line.contains(report)), "no line {report:?}");
        // It is read to its end, so that nothing blocks the target.
        let reading = std::thread::spawn(move || lines.count());
        let status = target.terminate();
        assert_eq!(status.code(), Some(0));
        target.prints("mbufs_leaked=0");
        target.prints("stderr_lines_dropped=");
        reading.join().unwrap();
    });
}

#[test]
fn sigterm_ends_a_target_whose_standard_error_is_never_read() {
    with_pair(|| {
        let (_unread, stderr) = full_pipe();
        let streams = Streams { stderr: Some(stderr), ..Streams::default() };
        let mut target = VethTarget::start("t", streams, &["--log", "debug"]);
        target.prints("ready ");
        eventually("a connection", is_reached);
        assert_eq!(target.terminate().code(), Some(0));
        target.prints("mbufs_leaked=0");
    });
}

#[test]
fn traffic_goes_on_while_lines_of_a_watched_region_are_not_read() {
    with_pair(|| {
        let (_unread, stdout) = full_pipe();
        let streams = Streams { stdout: Some(stdout), ..Streams::default() };
        let mut target = VethTarget::start("o", streams, &[]);
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
        assert_eq!(target.terminate().code(), Some(0), "{}", target.program.tail());
    });
}
