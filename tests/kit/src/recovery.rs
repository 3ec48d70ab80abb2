//! The table "Faults and recovery" in docs/security.md: each row is a fault that a test injects, and the time that the recovery
//! took there.
//!
//! A test calls [`recovered`] at the end of its fault. With RXE_WRITE_DOCS=1 that writes the time into the table.

use std::fmt::Write;
use std::fs::{self, File};
use std::time::Duration;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/security.md");
const BEGIN: &str = "<!-- generated: faults -->\n";
const END: &str = "<!-- end of faults -->\n";
const HEAD: &str = "| fault | how a test injects it | what is seen | recovery after |\n|---|---|---|---|\n";

/// A fault.
pub struct Fault {
    /// What fails.
    pub name: &'static str,
    /// How a test injects it.
    pub how: &'static str,
    /// What the test sees.
    pub seen: &'static str,
    /// File and function of the test.
    pub test: (&'static str, &'static str),
}

/// All faults, in the order of the table.
pub const FAULTS: [&Fault; 10] = [
    &PEER_RESTART,
    &POWER_CUT,
    &TARGET_KILLED,
    &PROCESS_STOPPED,
    &WORKER_STALLED,
    &INTERFACE_DOWN,
    &INTERFACE_DELETED,
    &UNREAD_RING,
    &BUFFERS_HELD,
    &POOL_EMPTY,
];

/// A guest that reboots.
pub const PEER_RESTART: Fault = Fault {
    name: "the peer of a vhost port restarts",
    how: "SIGKILL for the client's process on net_virtio_user; another one with the same addresses and queue pair number connects at \
          once",
    seen: "the target probes the old queue pair, gets no answer, destroys it, and accepts the new connection; all bytes of the old \
           one are there",
    test: ("tests/ports/faults/peer.rs", "clients_that_are_killed_lose_nothing_and_hold_nothing"),
};

/// A client that ends without a word.
pub const POWER_CUT: Fault = Fault {
    name: "a client loses its power",
    how: "SIGKILL for the client's process, with `keep-alive = 1`",
    seen: "the probes are not answered (`peer_silent`); queue pair and connection are freed",
    test: ("tests/ports/faults/peer.rs", "clients_that_are_killed_lose_nothing_and_hold_nothing"),
};

/// A target that is killed.
pub const TARGET_KILLED: Fault = Fault {
    name: "the target is killed",
    how: "SIGKILL for the target, which is started again at once; its client requests a new connection all the time",
    seen: "the client connects as soon as the target runs; the region's file has all bytes",
    test: ("tests/ports/faults/veth.rs", "faults_of_the_interface_and_of_the_target_lose_no_byte"),
};

/// A process that does not run for a time, as in a suspended virtual machine.
pub const PROCESS_STOPPED: Fault = Fault {
    name: "the target's process or its machine is stopped, or its clock jumps",
    how: "SIGSTOP for 4 s during a WRITE, then SIGCONT",
    seen: "the WRITE completes; the watchdog reports nothing",
    test: ("tests/ports/faults/veth.rs", "faults_of_the_interface_and_of_the_target_lose_no_byte"),
};

/// A worker that does not turn.
pub const WORKER_STALLED: Fault = Fault {
    name: "a worker stalls",
    how: "a service's callback that blocks for more than 2 s",
    seen: "one WARN with lcore, step and service, one INFO at the end; `stalls` and `stalled_ms`; other lcores go on",
    test: ("rxe-dpdk/tests/it/runtime/watchdog.rs", "a_stalled_worker_is_named_with_its_step_and_counted"),
};

/// An interface that goes down and up.
pub const INTERFACE_DOWN: Fault = Fault {
    name: "the interface below net_af_packet goes down",
    how: "`ip link set down` for 1 s during a WRITE, then `up`",
    seen: "the port is DOWN, then ACTIVE; the WRITE completes by retransmission",
    test: ("tests/ports/faults/veth.rs", "faults_of_the_interface_and_of_the_target_lose_no_byte"),
};

/// An interface that is deleted.
pub const INTERFACE_DELETED: Fault = Fault {
    name: "the interface below net_af_packet is deleted",
    how: "`ip link del`, then another one of that name",
    seen: "the port is DOWN, is re-created with the old MAC address, and is ACTIVE",
    test: ("tests/ports/link.rs", "a_port_goes_on_when_its_deleted_interface_is_back"),
};

/// A peer that does not read its ring.
pub const UNREAD_RING: Fault = Fault {
    name: "a port takes no frames for seconds",
    how: "the client does not read its net_memif ring for 3 s, with 16 MiB of READs outstanding",
    seen: "back-pressure (`tx_stalls`) and no stalled worker; management answers; all READs complete, with the right bytes",
    test: ("tests/ports/faults/buffers.rs", "a_port_without_room_and_held_buffers_lose_nothing"),
};

/// All places that may hold packet buffers.
pub const BUFFERS_HELD: Fault = Fault {
    name: "everything that may hold packet buffers is full",
    how: "injectors that delay the frames of both directions by 10 s, more frames than they hold",
    seen: "a part of the pool is still free, as it is sized for that: `rx_no_mbuf` stays 0; the oldest frames leave early \
           (`released_early`); all requests complete",
    test: ("tests/ports/faults/buffers.rs", "a_port_without_room_and_held_buffers_lose_nothing"),
};

/// A pool without buffers.
pub const POOL_EMPTY: Fault = Fault {
    name: "the pool of a port is empty",
    how: "a test program takes every buffer of a net_memif port",
    seen: "nothing is received; the frames wait in the ring, and none is lost",
    test: ("rxe-dpdk/tests/it/eal/default_rings.rs", "frames_wait_for_a_port_without_free_buffers"),
};

/// Reports that the recovery from a fault took this long, measured from the end of the fault.
pub fn recovered(fault: &Fault, took: Duration) {
    println!("{}: recovery after {}", fault.name, rounded(took));
    if is_writing() {
        rewrite(|name| (name == fault.name).then(|| rounded(took)));
    }
}

/// Whether the table is that of [`FAULTS`], with a time in each row. With RXE_WRITE_DOCS=1 writes the rest of the table first.
///
/// # Errors
///
/// What is wrong.
pub fn check() -> Result<(), String> {
    if is_writing() {
        rewrite(|_| None);
    }
    let page = fs::read_to_string(PAGE).map_err(|error| format!("{PAGE}: {error}"))?;
    let (_, present, _) = parts(&page);
    let times = |name: &str| time_in(present, name);
    if present != table(&times) {
        let expected = table(&times);
        return Err(format!(
            "RXE_WRITE_DOCS=1 cargo test --test docs writes the table of faults: {present}\n{expected}"
        ));
    }
    match FAULTS.iter().find(|fault| !times(fault.name).is_some_and(|time| time.ends_with(" s"))) {
        Some(Fault { name, test: (file, function), .. }) => {
            Err(format!("nobody has measured '{name}': run {function} of {file} with RXE_WRITE_DOCS=1"))
        }
        None => Ok(()),
    }
}

fn is_writing() -> bool {
    std::env::var_os("RXE_WRITE_DOCS").is_some_and(|value| !value.is_empty())
}

/// Two digits below a second, one above.
fn rounded(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    match seconds {
        ..0.005 => "< 0.01 s".to_owned(),
        ..1.0 => format!("{seconds:.2} s"),
        _ => format!("{seconds:.1} s"),
    }
}

/// The page before, in and behind the table.
fn parts(page: &str) -> (&str, &str, &str) {
    let (front, rest) = page.split_once(BEGIN).expect("docs/security.md: a place for the table of faults");
    let (present, behind) = rest.split_once(END).expect("docs/security.md: the end of the table of faults");
    (front, present, behind)
}

/// The time in the row of the fault of this name.
fn time_in(table: &str, name: &str) -> Option<String> {
    let row = table.lines().find_map(|line| line.strip_prefix(&format!("| {name} | ")))?;
    row.rsplit("| ").next()?.strip_suffix(" |").map(str::to_owned)
}

fn table(time: &dyn Fn(&str) -> Option<String>) -> String {
    let mut text = HEAD.to_owned();
    for Fault { name, how, seen, .. } in FAULTS {
        let time = time(name).unwrap_or_else(|| "not measured".to_owned());
        writeln!(text, "| {name} | {how} | {seen} | {time} |").expect("a string");
    }
    text
}

/// Writes the table with these times; a fault without one keeps that of the page.
fn rewrite(time: impl Fn(&str) -> Option<String>) {
    // Tests of several processes write the page at the same time.
    let lock = File::create(std::env::temp_dir().join("rxe-faults.lock")).expect("a lock");
    lock.lock().expect("the lock");
    let page = fs::read_to_string(PAGE).expect("docs/security.md");
    let (front, present, behind) = parts(&page);
    let table = table(&|name| time(name).or_else(|| time_in(present, name)));
    fs::write(PAGE, [front, BEGIN, &table, END, behind].concat()).expect("docs/security.md");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_found_in_the_table_and_rounded() {
        let time = |name: &str| (name == POWER_CUT.name).then(|| rounded(Duration::from_millis(2345)));
        let table = table(&time);
        assert_eq!(time_in(&table, POWER_CUT.name).as_deref(), Some("2.3 s"));
        assert_eq!(time_in(&table, TARGET_KILLED.name).as_deref(), Some("not measured"));
        assert_eq!(time_in(&table, "no such fault"), None);
        assert_eq!(rounded(Duration::from_micros(76_400)), "0.08 s");
        assert_eq!(rounded(Duration::from_micros(400)), "< 0.01 s");
    }
}
