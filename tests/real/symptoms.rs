//! docs/troubleshooting.md, symptom by symptom: a Linux client in trouble prints the page's text, and so does the target.

use crate::Check;
use crate::bed::{BedConfig, TestBed, needs};
use crate::env::root;
use crate::station::{Port, StationKey};
use crate::suite::{AnyGroup, Group};
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

/// The guest's command, its output, and the target's log. The page has both texts.
const SYMPTOMS: [(&str, &str, &str); 9] = [
    // Before all others, which need the small MTU.
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
         $(cd /sys/class/infiniband/rxe0/ports/1/gids && grep -l ffff:0a63:0005 *) 10.77.0.1; code=$?; \
         ip addr del 10.99.0.5/24 dev eth0; exit $code",
        "Couldn't read remote address",
        "its GID is not the address that it connects from but 10.99.0.5",
    ),
    ("ib_read_bw -s 16M -n 5 10.77.0.1", "Failed status 10", "raise max-message of [service.perftest]"),
    ("ib_send_bw -s 16M -n 5 10.77.0.1", "Failed status 9", "raise max-message of [service.perftest]"),
    (
        "ibv_rc_pingpong -g $(cd /sys/class/infiniband/rxe0/ports/1/gids && grep -l ffff:0a4d:0002 *) -s 4000000 -n 5 \
         10.77.0.1",
        "Failed status",
        "raise memory of [service.pingpong]",
    ),
    (
        "ib_write_bw --reversed -n 5 10.77.0.1",
        "Failed to exchange data between server and clients",
        "the target begins no test",
    ),
];

/// The group `symptoms`.
pub fn group() -> AnyGroup {
    let mut group = Group::new("symptoms", needs(StationKey::new(Port::AfPacket, 1500)), |env| {
        let small = ["--mtu", "1500"].map(str::to_owned);
        TestBed::start(env, BedConfig::new(Port::AfPacket, 1500).arguments(&small))
    });
    for (command, client, target) in SYMPTOMS {
        group.case(client, move |bed| symptom(bed, command, client, target));
    }
    group.build()
}

fn on_page(page: &str, text: &str) -> Check {
    if page.contains(text) { Ok(()) } else { Err(format!("docs/troubleshooting.md does not have {text:?}")) }
}

fn symptom(bed: &TestBed, command: &str, client: &str, target: &str) -> Check {
    let page = std::fs::read_to_string(root().join("docs/troubleshooting.md")).map_err(|e| e.to_string())?;
    let done = bed.guest().run(command, LIMIT)?;
    if done.code == 0 || !done.text.contains(client) {
        return Err(format!("{command} ended with {} and prints\n{}", done.code, done.text));
    }
    // The client may print its message before the target logs its own.
    let deadline = Instant::now() + Duration::from_secs(5);
    while !bed.target.as_ref().is_some_and(|process| process.tail().contains(target)) {
        if Instant::now() > deadline {
            return Err(format!("the target does not log {target:?}"));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    on_page(&page, client)?;
    // The page has addresses of its own.
    on_page(&page, target.trim_end_matches(|c: char| c.is_ascii_digit() || ".: ".contains(c)))
}
