//! The same client programs against rxe-target, on a UDP socket too: no kernel takes part at either end. tests/real has one run of each
//! with a kernel in `make test`, and all of their flags in the nightly run.

use std::ffi::OsStr;
use std::fs;

use rxe_testkit::process::{Program, Streams, run};

use crate::Check;
use crate::case::Case;
use crate::client_output::{Rows, UCMATOSE, UDADDY, Wants};
use crate::pair::LIMIT;
use crate::place::{Place, expect_code};

/// Number of messages in perftest's runs.
const COUNT: u64 = 100;

/// Flags of perftest's programs, by one: queue pairs, both directions, all sizes, a time, a path MTU, READs outstanding, UC, UD.
const PERFTEST: [(&str, Rows); 16] = [
    ("ib_write_bw -c UC -n 100", Rows::One(65536, 100)),
    ("ib_write_bw -c UC -n 50 -z", Rows::One(65536, 50)),
    ("ib_write_lat -c UC -n 100 -s 33", Rows::One(33, 100)),
    ("ib_send_bw -n 5 -a", Rows::All(8 << 20, 5)),
    ("ib_send_bw -n 100 -b -q 4 -s 1000", Rows::One(1000, 400)),
    ("ib_send_bw -n 50 -b -q 4 -s 4096 -R", Rows::One(4096, 200)),
    ("ib_send_bw -n 100 -m 256 -s 5000", Rows::One(5000, 100)),
    ("ib_send_bw -D 2 -z", Rows::Timed(65536)),
    ("ib_send_bw -n 50 -c UD -b -z", Rows::One(4096, 50)),
    ("ib_send_lat -D 2", Rows::Timed(2)),
    ("ib_send_lat -n 200 -c UD", Rows::One(2, 200)),
    ("ib_send_lat -n 200 -c UD -R", Rows::One(2, 200)),
    ("ib_read_bw -n 100 -s 4096 -q 4 -o 4", Rows::One(4096, 400)),
    ("ib_read_bw -n 5 -q 4 -R", Rows::One(65536, 20)),
    ("ib_atomic_bw -n 200 -A CMP_AND_SWAP -q 2", Rows::One(8, 400)),
    ("ib_atomic_lat -n 100 -A CMP_AND_SWAP -R", Rows::One(8, 100)),
];
/// A size of ib_write_lat's messages that the target has in its configuration.
const WRITE_LAT: u64 = 65536;
/// Sizes in one packet and in several, more messages than credits, more bytes than the rings hold, and each kind of call.
const RSTREAM: [&str; 9] = [
    "-S 4096 -C 10 -I 10 -T v",
    "-S 1 -C 1 -I 20 -T v",
    "-S 64 -C 2000 -I 1 -T v",
    "-S 1048576 -C 8 -I 1 -T v",
    "-S 5000 -C 50 -I 2 -T v -B 8192",
    "-S 512 -C 2 -I 10 -T b -T v",
    "-S 30000 -C 10 -I 2 -T a -T v",
    "-S 4096 -C 10 -I 5 -T r -T v",
    "-S 4096 -C 10 -I 5 -i 0 -k 5 -T v",
];
const RIOSTREAM: [&str; 4] =
    ["-S 4096 -C 10 -I 10 -T v", "-S 64 -C 1 -I 300 -T v", "-S 1000001 -C 3 -I 2 -T v", "-S 30000 -C 5 -I 2 -T a -T v"];

/// All cases: each client has a target of its own.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |line: &str, wants: Wants| {
        let line = line.to_owned();
        cases.push(Case::new(format!("rxe-target/{line}"), move |place| served(place, &[], &line, &wants)));
    };
    for (kind, flags, size, count) in [
        ("rc", "", 4096, 1000),
        ("rc", " -e", 4096, 1000),
        ("rc", " -s 1000001 -n 10", 1_000_001, 10),
        ("rc", " -s 3000 -n 20 -m 256", 3000, 20),
        ("uc", "", 4096, 1000),
        ("uc", " -s 100001 -n 5", 100_001, 5),
        ("ud", "", 1024, 1000),
        ("ud", " -s 3 -n 20 -e", 3, 20),
        ("ud", " -s 4096 -n 20", 4096, 20),
        ("srq", "", 4096, 1000),
        ("srq", " -s 9001 -n 200 -q 3 -r 20", 9001, 200),
    ] {
        add(&format!("ibv_{kind}_pingpong -g 1{flags} SERVER"), Wants::Messages { size, count });
    }
    for (program, size) in [
        ("ib_write_bw", 65536),
        ("ib_write_lat", 2),
        ("ib_read_bw", 65536),
        ("ib_read_lat", 2),
        ("ib_send_bw", 65536),
        ("ib_send_lat", 2),
        ("ib_atomic_bw", 8),
        ("ib_atomic_lat", 8),
        ("ib_send_bw -c UD", 4096),
    ] {
        for way in ["", " -z", " -R"] {
            add(&format!("{program} -n {COUNT} -F{way} SERVER"), Wants::Rows(Rows::One(size, COUNT)));
        }
    }
    for (flags, rows) in PERFTEST {
        add(&format!("{flags} -F SERVER"), Wants::Rows(rows));
    }
    add("rping -c -a SERVER -C 20 -v -V -S 60000", Wants::Pings(20));
    for flags in ["-c 10", "-C 3 -S 33333", "-C 100 -S 2000"] {
        add(&format!("ucmatose -s SERVER {flags}"), UCMATOSE);
    }
    add("ucmatose -s SERVER -C 0", Wants::Texts(&["return status 0"]));
    for flags in ["", " -C 100 -S 4096"] {
        add(&format!("udaddy -s SERVER{flags}"), UDADDY);
    }
    for count in [1, 10] {
        add(&format!("cmtime -s SERVER -c {count}"), Wants::Steps);
    }
    add("rdma_client -s SERVER", Wants::Texts(&["rdma_client: end 0"]));
    for flags in RSTREAM {
        add(&format!("rstream -s SERVER {flags}"), Wants::Custom);
    }
    for flags in RIOSTREAM {
        add(&format!("riostream -s SERVER {flags}"), Wants::Custom);
    }
    for way in ["", " -R"] {
        let line = format!("ib_write_lat -s {WRITE_LAT} -n 20 -F{way} SERVER");
        let config = format!("[service.perftest]\nwrite-lat-size = {WRITE_LAT}\nwrite-lat-after = \"1s\"\n");
        let wants = Wants::Rows(Rows::One(WRITE_LAT, 20));
        cases.push(Case::new(format!("rxe-target/{line}"), move |place| {
            let file = place.work().join(format!("write-lat{}.toml", way.trim()));
            fs::write(&file, config).map_err(|error| format!("{}: {error}", file.display()))?;
            served(place, &["--config".as_ref(), file.as_os_str()], &line, &wants)
        }));
    }
    cases
}

/// Runs the client against a target with these options. Both must end well, and the target must have lost nothing.
fn served(place: &Place, options: &[&OsStr], line: &str, wants: &Wants) -> Check {
    let [server, client] = [place.address(), place.address()];
    let mut command = place.installed("rxe-target", &format!("--udp {server} --idle sleep"));
    let mut target = Program::with_streams(command.args(options), Streams::default())?;
    target.wait_for_line("ready ", LIMIT)?;
    let line = line.replace("SERVER", &server.to_string());
    let outcome = run(&mut place.program(client, &line), LIMIT).and_then(|done| {
        expect_code(&done, 0)?;
        wants.check(&done.stdout).map_err(|why| format!("{why}\nstderr: {}", done.stderr))
    });
    let ended = target.stop(LIMIT)?;
    outcome.map_err(|why| format!("{why}\ntarget:\n{}{}", ended.stdout, ended.stderr))?;
    expect_code(&ended, 0)
}
