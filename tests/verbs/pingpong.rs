//! libibverbs' ping-pong programs.

use crate::case::Case;
use crate::client_output::Wants;
use crate::pair::Pair;

/// Kind, flags, size of a message, number of messages.
const PAIRS: [(&str, &str, u64, u64); 21] = [
    ("rc", "", 4096, 1000),
    ("rc", " -e", 4096, 1000),
    ("rc", " -c -n 100", 4096, 100),
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
    ("ud", " -s 1 -n 100", 1, 100),
    ("ud", " -s 4096 -n 100", 4096, 100),
    ("srq", "", 4096, 1000),
    ("srq", " -e", 4096, 1000),
    ("srq", " -c -n 100", 4096, 100),
    ("srq", " -s 9001 -n 200 -q 3 -r 20", 9001, 200),
    ("srq", " -n 300 -q 200 -r 250", 4096, 300),
];

/// All pairs, which exchange IPv4 GIDs.
pub fn cases() -> Vec<Case> {
    let pair = |(kind, flags, size, count): &(&str, &str, u64, u64)| {
        let program = format!("ibv_{kind}_pingpong -g 1 -p PORT{flags}");
        let wants = || Wants::Messages { size: *size, count: *count };
        Pair::new(&program, format!("{program} SERVER"), wants()).server_wants(wants()).case("pingpong")
    };
    PAIRS.iter().map(pair).collect()
}
