//! libibverbs' ping-pong programs.

use crate::case::Case;
use crate::client_output::Wants;
use crate::pair::Pair;

/// Kind, flags, size of a message, number of messages.
static PAIRS: [(&str, &str, u64, u64); 23] = [
    ("rc", "", 4096, 1000),
    ("rc", " -e", 4096, 1000),
    ("rc", " -c -n 100", 4096, 100),
    ("rc", " -g 0 -n 100", 4096, 100),
    ("rc", " -s 1 -n 100", 1, 100),
    ("rc", " -s 1000001 -n 10", 1_000_001, 10),
    ("rc", " -s 20000 -m 4096 -n 100", 20_000, 100),
    ("uc", "", 4096, 1000),
    ("uc", " -e", 4096, 1000),
    ("uc", " -c -n 100", 4096, 100),
    ("uc", " -s 1 -n 100", 1, 100),
    ("uc", " -s 20000 -m 4096 -n 100", 20_000, 100),
    ("ud", "", 1024, 1000),
    ("ud", " -e", 1024, 1000),
    ("ud", " -c -n 100", 1024, 100),
    ("ud", " -g 0 -n 100", 1024, 100),
    ("ud", " -s 1 -n 100", 1, 100),
    ("ud", " -s 4096 -n 100", 4096, 100),
    ("srq", "", 4096, 1000),
    ("srq", " -e", 4096, 1000),
    ("srq", " -c -n 100", 4096, 100),
    ("srq", " -s 9001 -n 200 -q 3 -r 20", 9001, 200),
    ("srq", " -n 300 -q 200 -r 250", 4096, 300),
];

/// Runs of each program in a row in the nightly run.
const RUNS: u32 = 50;

/// Invalid reads and writes, and branches on values that were not set, fail the program.
const VALGRIND: &str = "valgrind --quiet --fair-sched=yes --error-exitcode=99 --leak-check=no";

/// All pairs, those without flags many times in a row, and under valgrind.
pub fn cases() -> Vec<Case> {
    let once = PAIRS.iter().map(|(kind, flags, size, count)| pair(kind, flags, *size, *count).case("pingpong"));
    let often = PAIRS.iter().filter(|(_, flags, ..)| flags.is_empty()).map(|(kind, flags, size, count)| {
        Case::nightly(format!("pingpong/{RUNS} runs of ibv_{kind}_pingpong"), move |place| {
            for run in 1..=RUNS {
                pair(kind, flags, *size, *count).run(place).map_err(|why| format!("run {run}: {why}"))?;
            }
            Ok(())
        })
    });
    let checked = PAIRS.iter().filter(|(_, flags, ..)| flags.is_empty()).map(|(kind, _, size, _)| {
        // Far fewer, as it is slow.
        let (size, count) = (*size, 50);
        Case::nightly(format!("pingpong/ibv_{kind}_pingpong under valgrind"), move |place| {
            let wants = || Wants::Messages { size, count };
            let program = format!("{VALGRIND} ibv_{kind}_pingpong -g 1 -p PORT -n {count}");
            Pair::new(&program, format!("{program} SERVER"), wants()).server_wants(wants()).run(place)
        })
    });
    once.chain(often).chain(checked).collect()
}

/// A server and client that exchange IPv4 GIDs.
fn pair(kind: &str, flags: &str, size: u64, count: u64) -> Pair {
    let program = format!("ibv_{kind}_pingpong -g 1 -p PORT{flags}");
    let wants = || Wants::Messages { size, count };
    Pair::new(&program, format!("{program} SERVER"), wants()).server_wants(wants())
}
