//! perftest's programs: parameters over TCP, over the connection manager (`-z`), and its connections too (`-R`).

use crate::case::Case;
use crate::client_output::{Rows, Wants};
use crate::pair::{Command, Pair, Ready};

/// The programs with the size of their messages when none is given.
const PROGRAMS: [(&str, u64); 8] = [
    ("ib_write_bw", 65536),
    ("ib_write_lat", 2),
    ("ib_read_bw", 65536),
    ("ib_read_lat", 2),
    ("ib_send_bw", 65536),
    ("ib_send_lat", 2),
    ("ib_atomic_bw", 8),
    ("ib_atomic_lat", 8),
];
/// Datagrams are cut to the path MTU of the loopback interface.
const DATAGRAM: u64 = 4096;
/// Number of messages in most cases.
const COUNT: u64 = 100;

/// All pairs.
pub fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    let mut add = |command: String, rows: Rows| cases.push(pair(&command, rows).case("perftest"));
    for (program, size) in PROGRAMS {
        for way in ["", " -z", " -R"] {
            add(format!("{program} -n {COUNT}{way}"), Rows::One(size, COUNT));
        }
    }
    // UC has no connections of the connection manager; perftest refuses it with -R.
    for (program, size) in [("ib_write_bw", 65536), ("ib_write_lat", 2), ("ib_send_bw", 65536), ("ib_send_lat", 2)] {
        for way in ["", " -z"] {
            add(format!("{program} -n {COUNT} -c UC{way}"), Rows::One(size, COUNT));
        }
    }
    for (program, size) in [("ib_send_bw", DATAGRAM), ("ib_send_lat", 2)] {
        for way in ["", " -z", " -R"] {
            add(format!("{program} -n {COUNT} -c UD{way}"), Rows::One(size, COUNT));
        }
    }
    for (command, rows) in [
        ("ib_send_lat -n 100 -e", Rows::One(2, 100)),
        ("ib_send_bw -n 100 -e", Rows::One(65536, 100)),
        ("ib_write_bw -n 5 -a", Rows::All(8 << 20, 5)),
        ("ib_read_bw -n 5 -a", Rows::All(8 << 20, 5)),
        ("ib_send_bw -n 5 -a", Rows::All(8 << 20, 5)),
        ("ib_send_bw -n 100 -b -q 4 -s 1000", Rows::One(1000, 400)),
        ("ib_write_bw -n 100 -b -q 4 -s 1000", Rows::One(1000, 400)),
        ("ib_read_bw -n 50 -s 4096 -q 4 -o 4", Rows::One(4096, 200)),
        ("ib_atomic_bw -n 100 -A CMP_AND_SWAP -q 2", Rows::One(8, 200)),
        ("ib_send_bw -n 100 -s 5000 -m 256", Rows::One(5000, 100)),
        ("ib_send_bw -n 100 -s 1000 -r 50 --use-srq", Rows::One(1000, 100)),
        ("ib_send_lat -n 100 -s 1000 -I 200", Rows::One(1000, 100)),
        ("ib_send_bw -n 50 -q 4 -s 4096 -b -R", Rows::One(4096, 200)),
    ] {
        add(command.to_owned(), rows);
    }
    cases
}

fn pair(command: &str, rows: Rows) -> Pair {
    // -F: nothing is said of the processor's clock.
    let program = format!("{command} -F -p PORT");
    let managed = command.ends_with(" -z") || command.ends_with(" -R");
    let ready = if managed { Ready::Command(Command::Listen) } else { Ready::Tcp };
    Pair::new(&program, format!("{program} SERVER"), Wants::Rows(rows)).ready(ready)
}
