//! The same client programs against rxe-target, on a UDP socket too: no kernel takes part at either end.

use rxe_testkit::process::{Program, Streams, run};

use crate::Check;
use crate::case::Case;
use crate::client_output::{Rows, UCMATOSE, UDADDY, Wants};
use crate::pair::LIMIT;
use crate::place::{Place, expect_code};

/// Number of messages in perftest's runs.
const COUNT: u64 = 100;

/// All cases: each client has a target of its own.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |line: &str, wants: Wants| {
        let line = line.to_owned();
        cases.push(Case::new(format!("rxe-target/{line}"), move |place| served(place, &line, &wants)));
    };
    for (kind, flags, size, count) in [
        ("rc", "", 4096, 1000),
        ("rc", " -e", 4096, 1000),
        ("rc", " -s 1000001 -n 10", 1_000_001, 10),
        ("uc", "", 4096, 1000),
        ("ud", "", 1024, 1000),
        ("srq", "", 4096, 1000),
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
    ] {
        for way in ["", " -R"] {
            add(&format!("{program} -n {COUNT} -F{way} SERVER"), Wants::Rows(Rows::One(size, COUNT)));
        }
    }
    for way in ["", " -R"] {
        add(&format!("ib_send_bw -c UD -n {COUNT} -F{way} SERVER"), Wants::Rows(Rows::One(4096, COUNT)));
    }
    add(&format!("ib_write_bw -c UC -n {COUNT} -F SERVER"), Wants::Rows(Rows::One(65536, COUNT)));
    add("ib_send_bw -n 100 -b -q 4 -s 1000 -F SERVER", Wants::Rows(Rows::One(1000, 400)));
    add("rping -c -a SERVER -C 20 -v -V -S 60000", Wants::Pings(20));
    add("ucmatose -s SERVER -c 10", UCMATOSE);
    add("udaddy -s SERVER", UDADDY);
    add("cmtime -s SERVER -c 10", Wants::Steps);
    add("rdma_client -s SERVER", Wants::Texts(&["rdma_client: end 0"]));
    add("rstream -s SERVER -S 4096 -C 10 -I 10 -T v", Wants::Custom);
    add("riostream -s SERVER -S 4096 -C 10 -I 10 -T v", Wants::Custom);
    cases
}

/// Runs the client against a target. Both must end well, and the target must have lost nothing.
fn served(place: &Place, line: &str, wants: &Wants) -> Check {
    let [server, client] = [place.address(), place.address()];
    let mut command = place.installed("rxe-target", &format!("--udp {server} --idle sleep"));
    let mut target = Program::with_streams(&mut command, Streams::default())?;
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
