//! Client programs, regions and clients at once: {net_af_packet on a tap, net_vhost} x {MTU 1500, 4200} x {IPv4, IPv6}.

use crate::Check;
use crate::bed::{BedConfig, REGION, TestBed, needs};
use crate::client::{self, Client, RDMA_EXAMPLE, Wants};
use crate::guest::RPING_RACE;
use crate::station::{Kernel, Port, StationKey, TARGET_V4, TARGET_V6};
use crate::suite::{AnyGroup, Group};
use std::time::Duration;

const SHORT: Duration = Duration::from_secs(60);
const LONG: Duration = Duration::from_secs(180);
const ADDRESSES: [(&str, &str); 2] = [("v4", TARGET_V4), ("v6", TARGET_V6)];

/// The groups `af_packet-1500`, `vhost-4200` and, nightly, `af_packet-4200` and `vhost-1500`.
pub fn groups() -> Vec<AnyGroup> {
    let keys = [(Port::AfPacket, 1500), (Port::Vhost, 4200), (Port::AfPacket, 4200), (Port::Vhost, 1500)];
    keys.map(|(port, mtu)| group(StationKey::new(port, mtu))).into()
}

/// The group of a port, an MTU and a kernel.
pub fn group(key: StationKey) -> AnyGroup {
    let name = format!("{}-{}{}", key.port.name(), key.mtu, key.kernel.suffix());
    let mut group = Group::new(name, needs(key), move |env| {
        TestBed::start(env, BedConfig { key, ..BedConfig::new(key.port, key.mtu) })
    });
    // Each behaviour at one port and MTU; all of it at all of them nightly.
    let first = key == StationKey::new(Port::AfPacket, 1500);
    let jumbo = key == StationKey::new(Port::Vhost, 4200);
    let stable = key.kernel == Kernel::Stable;
    reachability(group.nightly(!first && !jumbo), key.mtu);
    programs(group.nightly(!first), first);
    regions(group.nightly(!first), jumbo);
    many(group.nightly(!first));
    ends(group.nightly(!(first || jumbo && stable)), key.port);
    group.build()
}

fn reachability(group: &mut Group<TestBed>, mtu: u32) {
    let whole = [("v4", TARGET_V4, mtu - 28), ("v6", TARGET_V6, mtu - 48)];
    for (name, address, size) in whole {
        for size in [56, size] {
            let command = format!("ping -c 2 -W 10 -s {size} {address}");
            group.case(format!("{name} {command}"), move |bed| {
                bed.guest().expect(&command, SHORT, &["2 packets received, 0% packet loss"]).map(drop)
            });
        }
    }
}

fn programs(group: &mut Group<TestBed>, first: bool) {
    for ip in ["IPV4", "IPV6"] {
        for size in [64, 4096, 65535] {
            // The largest over IPv6; group clients-af_packet has one over IPv4.
            group.nightly(!(first && ip == "IPV6" && size == 65535));
            Client::new(format!("rping -c -a {ip} -C 100 -v -V -S {size}"), Wants::Pings(100)).case(group);
        }
        group.nightly(!(first && ip == "IPV6"));
        let small = [
            Client::new(format!("rdma_client -s {ip}"), Wants::Texts(&["rdma_client: end 0"])),
            Client::new(format!("rdma_xclient -s {ip}"), Wants::Texts(&["rdma_xclient: end 0"])),
            Client::new(format!("rdma_example_client -a {ip} -s textstring"), RDMA_EXAMPLE),
        ];
        client::cases(group, small);
    }
    group.nightly(!first);
    group.case("rping to a port without a service", |bed| {
        let done = bed.guest().run(&format!("rping -c -a {TARGET_V4} -p 9999 -C 1"), SHORT)?;
        if done.code != 0 && done.text.contains("RDMA_CM_EVENT_REJECTED, error 8") {
            return Ok(());
        }
        Err(format!("exit code {}, output {}", done.code, done.text))
    });
}

/// The bytes of region_client's pattern.
pub fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let mut x = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(1);
    let mut next = || {
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        x.wrapping_mul(0x2545_F491_4F6C_DD1D).to_le_bytes()
    };
    let mut bytes: Vec<u8> = (0..length.div_ceil(8)).flat_map(|_| next()).collect();
    bytes.truncate(length);
    bytes
}

/// The region's file has to hold `want` at `offset`.
fn host_sees(bed: &TestBed, offset: usize, want: &[u8]) -> Check {
    let bytes = bed.region_bytes()?;
    match bytes.get(offset..offset + want.len()) {
        None => Err(format!("the region's file has only {} bytes", bytes.len())),
        Some(seen) => match seen.iter().zip(want).position(|(a, b)| a != b) {
            None => Ok(()),
            Some(at) => {
                Err(format!("the region's file differs at {}: {:#04x}, not {:#04x}", offset + at, seen[at], want[at]))
            }
        },
    }
}

/// region_client on the region `demo`.
fn region(bed: &TestBed, address: &str, arguments: &str, texts: &[&str]) -> Check {
    bed.guest().expect(&format!("region_client -r demo {address} {arguments}"), SHORT, texts).map(drop)
}

/// With `jumbo` the patterns, which depend on the path MTU, are not for the nightly run alone.
fn regions(group: &mut Group<TestBed>, jumbo: bool) {
    for (name, address) in ADDRESSES {
        let text = format!("written by the kernel over {name}");
        group.case(format!("{name} region: WRITE, READ, and the host's file"), move |bed| {
            let length = text.len();
            let shown = format!("\"{text}\"");
            let texts = ["region \"demo\", ", "length 1048576", &shown];
            region(bed, address, &format!("write 100 '{text}' read 100 {length}"), &texts)?;
            host_sees(bed, 100, text.as_bytes())
        });
        group.case(format!("{name} region: FETCH_ADD and COMPARE_SWAP"), move |bed| {
            region(
                bed,
                address,
                "writefile 4096 /dev/null write 4096 AAAAAAAA fadd 4096 1 fadd 4096 2 cas 4096 0 5 \
                 cas 4096 4702111234474983748 77 read 4096 8",
                &[
                    "fadd 4096: was 4702111234474983745",
                    "fadd 4096: was 4702111234474983746",
                    "cas 4096: was 4702111234474983748\ncas 4096: was 4702111234474983748",
                    "4d00000000000000",
                ],
            )?;
            host_sees(bed, 4096, &77u64.to_le_bytes())
        });
        let add = |group: &mut Group<TestBed>| {
            group.case(format!("{name} region: patterns of many sizes, the last the whole region"), move |bed| {
                let sizes = [1, 3, 4, 255, 1023, 1024, 1025, 4095, 4096, 4097, 65536, REGION];
                let commands: Vec<String> =
                    sizes.iter().map(|n| format!("pattern {} {n} {n}", if *n == REGION { 0 } else { 8191 })).collect();
                region(bed, address, &commands.join(" "), &["pattern ok: offset 0, 1048576 bytes", "done"])?;
                host_sees(bed, 0, &pattern(REGION, REGION as u64))
            });
        };
        if jumbo {
            add(group.nightly(false));
            group.nightly(true);
        } else {
            add(group);
        }
        for bad in ["read", "write", "key", "atomic"] {
            group.case(format!("{name} region: bad {bad} is refused"), move |bed| {
                let before = bed.region_bytes()?;
                region(bed, address, &format!("bad {bad}"), &["refused with a remote access error"])?;
                region(bed, address, "info", &["done"])?;
                if bed.region_bytes()? == before { Ok(()) } else { Err("the region has changed".to_owned()) }
            });
        }
    }
    group.case("region: an empty name is the first, a second one by its name", |bed| {
        let guest = bed.guest();
        guest.expect(&format!("region_client {TARGET_V4} info"), SHORT, &["region \"demo\"", "length 1048576"])?;
        let second = format!("region_client -r other {TARGET_V4} pattern 0 65536 9");
        guest.expect(&second, SHORT, &["region \"other\"", "length 65536", "pattern ok"]).map(drop)
    });
    group.case("region: an unknown name is rejected with a reason", |bed| {
        let done = bed.guest().run(&format!("region_client -r no-such-region {TARGET_V4} info"), SHORT)?;
        done.expect(3, &["rejected: reason 28, private data \"", "region"]).map(drop)
    });
}

fn many(group: &mut Group<TestBed>) {
    group.case("20 clients at once", |bed| {
        // rping's exit code is 0 also when the server hangs up, so the pings are counted as well.
        let script = format!(
            "one() {{ rping -c -a {TARGET_V4} -C 5 -S 4096 -v -V >/tmp/client$1 2>&1; c=$?; \
                 {{ [ $c = 0 ] || grep -q '{RPING_RACE}' /tmp/client$1; }} && [ $(grep -c '^ping data: rdma-ping-' /tmp/client$1) = 5 ] || cut -c 1-200 /tmp/client$1; }}\n\
                 for i in $(seq 20); do one $i & pids=\"$pids $!\"; done; wait $pids; echo all ended"
        );
        let text = bed.guest().expect(&script, LONG, &[])?.text;
        if text == "all ended\n" { Ok(()) } else { Err(format!("not all clients succeeded: {text}")) }
    });
    group.case("a client is killed, the next one works", |bed| {
        let guest = bed.guest();
        let victims = [
            guest.start(&format!("exec rping -c -a {TARGET_V4} -C 1000000 -S 4096"), LONG)?,
            guest.start(&format!("exec rping -c -a {TARGET_V6} -C 1000000 -S 65535"), LONG)?,
        ];
        std::thread::sleep(Duration::from_secs(2));
        for victim in victims {
            if !victim.running() {
                return Err(format!("the client ended by itself: {}", victim.so_far()));
            }
            victim.kill(9)?;
            victim.wait()?.expect(137, &[])?;
        }
        guest.expect(&format!("rping -c -a {TARGET_V4} -C 10 -S 4096 -v -V"), SHORT, &["rdma-ping-9: "]).map(drop)
    });
}

fn ends(group: &mut Group<TestBed>, port: Port) {
    group.case("SIGTERM: exit code 0 within 3 s, clients are disconnected", |bed| {
        let client = bed.guest().start(&format!("region_client {TARGET_V4} hold 30"), SHORT)?;
        client.wait_for("holding", Duration::from_secs(30))?;
        bed.stop_target()?;
        client.wait()?.expect(0, &["disconnected by the target"]).map(drop)
    });
    if port == Port::AfPacket {
        group.case("a restarted target serves the same guest", |bed| {
            if bed.target.is_some() {
                bed.stop_target()?;
            }
            bed.restart_target()?;
            let command = format!("rping -c -a {TARGET_V4} -C 10 -S 4096 -v -V");
            bed.guest().expect(&command, SHORT, &["rdma-ping-9: "])?;
            bed.stop_target().map(drop)
        });
    }
}
