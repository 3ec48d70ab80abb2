//! docs/troubleshooting.md, symptom by symptom: a Linux client in trouble says what the page says, and so does the target.

use crate::Check;
use crate::matrix::{Bed, Port};
use crate::report::Report;
use crate::world::{World, root};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

/// What the guest does, what its program then says, and what the target says of it. The page has both texts.
const SYMPTOMS: [(&str, &str, &str); 7] = [
    // In front of all others, which want the larger MTU gone.
    (
        "ip link set eth0 mtu 4200; sleep 1; rping -c -a 10.77.0.1 -C 1; code=$?; ip link set eth0 mtu 1500; exit $code",
        "RDMA_CM_EVENT_REJECTED, error 26",
        "",
    ),
    ("rping -c -a 10.77.0.9 -C 1", "RDMA_CM_EVENT_ADDR_ERROR, error -110", ""),
    ("rping -c -a 10.77.0.1 -p 9999 -C 1", "RDMA_CM_EVENT_REJECTED, error 8", "no service listens there"),
    (
        "ibv_rc_pingpong 10.77.0.1",
        "Couldn't read/write remote address",
        "its GID is not the address that it connects from but ::",
    ),
    (
        "ip addr add 10.99.0.5/24 dev eth0; sleep 1; ib_write_bw -n 5 -x \
         $(cd /sys/class/infiniband/rxe0/ports/1/gids && grep -l ffff:0a63:0005 *) 10.77.0.1",
        "Couldn't read remote address",
        "its GID is not the address that it connects from but 10.99.0.5",
    ),
    ("ib_read_bw -s 16M -n 5 10.77.0.1", "Failed status 10", ""),
    ("ib_send_bw -s 16M -n 5 10.77.0.1", "Failed status 9", ""),
];

/// The group `symptoms`.
pub fn run(report: &mut Report, world: &World) {
    if !report.group("symptoms") {
        return;
    }
    let read = || std::fs::read_to_string(root().join("docs/troubleshooting.md")).map_err(|e| e.to_string());
    let Some(page) = report.fixture("the page", read) else { return };
    let small = ["--mtu".to_owned(), "1500".to_owned()];
    let boot = || Bed::with(world, "sy", "0", Port::AfPacket, 1500, &small);
    let Some(bed) = report.fixture("boot", boot) else { return };
    for (command, client, target) in SYMPTOMS {
        report.case(client, || bed.context(), || symptom(&bed, &page, command, client, target));
    }
}

fn on_page(page: &str, text: &str) -> Check {
    if page.contains(text) { Ok(()) } else { Err(format!("docs/troubleshooting.md does not have {text:?}")) }
}

fn symptom(bed: &Bed, page: &str, command: &str, client: &str, target: &str) -> Check {
    let done = bed.guest.run(command, LIMIT)?;
    if done.code == 0 || !done.text.contains(client) {
        return Err(format!("{command} ended with {} and says\n{}", done.code, done.text));
    }
    // The client may be told first.
    let deadline = Instant::now() + Duration::from_secs(5);
    while !bed.target.as_ref().is_some_and(|process| process.tail().contains(target)) {
        if Instant::now() > deadline {
            return Err(format!("the target does not say {target:?}"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    on_page(page, client)?;
    // Addresses are the page's own.
    on_page(page, target.trim_end_matches(|c: char| c.is_ascii_digit() || ".: ".contains(c)))
}
