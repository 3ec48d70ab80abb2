//! The kernel's client programs against the target: {net_af_packet on a tap, net_vhost} x {MTU 1500, 4200} x {IPv4, IPv6}.

use crate::Check;
use crate::client::{self, Client, RDMA_EXAMPLE, Wants};
use crate::guest::{Guest, GuestConfig, Plug, RPING_RACE};
use crate::net::Tap;
use crate::pingpong::gid_index;
use crate::report::Report;
use crate::target::{GUEST_V4, GUEST_V6, TARGET_V4, TARGET_V6, Target};
use crate::world::World;
use std::cell::OnceCell;
use std::path::PathBuf;
use std::time::Duration;

const SHORT: Duration = Duration::from_secs(60);
const LONG: Duration = Duration::from_secs(180);
const ADDRESSES: [(&str, &str); 2] = [("v4", TARGET_V4), ("v6", TARGET_V6)];
/// Length of the region `demo`.
const REGION: usize = 1 << 20;

/// The kind of DPDK port.
#[derive(Clone, Copy, PartialEq)]
pub enum Port {
    AfPacket,
    Vhost,
}

/// A target and a guest that are connected.
pub struct Bed<'w> {
    world: &'w World,
    // The order is the order of clean-up: the guest goes before what its card is plugged into.
    pub guest: Guest,
    pub target: Option<Target>,
    vdev: String,
    arguments: Vec<String>,
    region_file: PathBuf,
    settings: String,
    /// The numbers of the guest's GIDs: IPv4, IPv6.
    gids: OnceCell<[String; 2]>,
    tap: Option<Tap>,
}

/// Arguments of a target in one line, with the text of a configuration file in place of its name.
fn settings(arguments: &[String]) -> Result<String, String> {
    let mut words = Vec::new();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--config" => {
                let path = arguments.next().ok_or("--config without a file")?;
                let text = std::fs::read_to_string(path).map_err(|e| format!("{path}: {e}"))?;
                words.push(text.trim_end().replace("]\n", "] ").replace('\n', ", "));
            }
            other => words.push(other.to_owned()),
        }
    }
    Ok(if words.is_empty() { "none".to_owned() } else { words.join(" ") })
}

impl<'w> Bed<'w> {
    /// Starts a target on such a port and boots a guest there.
    pub fn new(world: &'w World, port: Port, mtu: u32) -> Result<Bed<'w>, String> {
        Bed::with(world, "", "0", port, mtu, &[])
    }

    /// The same beside others, told apart by `tag`, on these lcores and with more arguments for the target.
    pub fn with(
        world: &'w World,
        tag: &str,
        lcores: &str,
        port: Port,
        mtu: u32,
        more: &[String],
    ) -> Result<Bed<'w>, String> {
        let name = format!("{}{mtu}{tag}{}", if port == Port::Vhost { "v" } else { "p" }, world.suffix);
        let mut tap = None;
        let (vdev, plug) = match port {
            Port::AfPacket => {
                let made = tap.insert(Tap::new(&format!("rx{name}"), mtu)?);
                // A frame slot holds the frame and the socket's header; a block is a multiple of it and of the page.
                let frame = if mtu <= 1500 { 2048 } else { 8192 };
                let vdev = format!("net_af_packet0,iface={},framesz={frame},blocksz=65536,framecnt=1024", made.name);
                (vdev, Plug::Tap(made.name.clone()))
            }
            Port::Vhost => {
                let socket = world.path(&format!("{name}.vhost"));
                (format!("net_vhost0,iface={},queues=1", socket.display()), Plug::VhostUser(socket))
            }
        };
        let region_file = PathBuf::from(format!("/dev/shm/rxe-real-{}-{name}", world.token));
        let mut arguments = vec![
            "--region".to_owned(),
            format!("demo={}K,file={}", REGION >> 10, region_file.display()),
            "--region".to_owned(),
            "other=64K".to_owned(),
        ];
        if mtu > 1500 {
            arguments.extend(["--mtu".to_owned(), mtu.to_string()]);
        }
        arguments.extend_from_slice(more);
        let settings = settings(more)?;
        let target = Target::start_on(world, lcores, &vdev, &arguments)?;
        let guest = world
            .boot(GuestConfig {
                name,
                plug,
                parameters: format!("ip4={GUEST_V4}/24 ip6={GUEST_V6}/64 mtu={mtu}"),
                extra_initrd: None,
                memory: 512,
                cpus: 1,
            })
            .map_err(|e| format!("{e}\n{}", target.tail()))?;
        Ok(Bed {
            world,
            guest,
            target: Some(target),
            vdev,
            arguments,
            region_file,
            settings,
            gids: OnceCell::new(),
            tap,
        })
    }

    /// The settings of the target beside its regions and its MTU, as docs/clients.md shows them.
    pub fn settings(&self) -> &str {
        &self.settings
    }

    /// The region's bytes as another process on the host sees them.
    pub fn region_bytes(&self) -> Result<Vec<u8>, String> {
        std::fs::read(&self.region_file).map_err(|e| format!("{}: {e}", self.region_file.display()))
    }

    /// The region's file.
    pub fn region_file(&self) -> &std::path::Path {
        &self.region_file
    }

    /// A command line with addresses in place of their names.
    pub fn fill(&self, command: &str) -> Result<String, String> {
        let gids = match self.gids.get() {
            Some(gids) => gids,
            None => {
                let found = [gid_index(self, GUEST_V4)?, gid_index(self, GUEST_V6)?];
                self.gids.get_or_init(|| found)
            }
        };
        let word = |word| match word {
            "IPV4" => TARGET_V4,
            "IPV6" => TARGET_V6,
            "MYIP" => GUEST_V4,
            "GID4" => &gids[0],
            "GID6" => &gids[1],
            other => other,
        };
        Ok(command.split(' ').map(word).collect::<Vec<_>>().join(" "))
    }

    /// What a failed case's text ends with.
    pub fn context(&self) -> String {
        let target = self.target.as_ref().map_or(String::new(), |t| format!("target: {}\n{}", t.name(), t.tail()));
        // Whose fault it is when nothing arrives any more.
        let tap = self.tap.as_ref().map_or(String::new(), |tap| format!("{}\n", tap.counters()));
        format!("{target}{tap}console: {}", self.guest.console())
    }

    /// Ends the target with its checks.
    pub fn stop_target(&mut self) -> Result<String, String> {
        self.target.take().ok_or("the target does not run")?.stop()
    }
}

impl Drop for Bed<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.region_file);
    }
}

/// The groups `af_packet-1500`, `af_packet-4200`, `vhost-1500`, `vhost-4200`.
pub fn run(report: &mut Report, world: &World) {
    for port in [Port::AfPacket, Port::Vhost] {
        for mtu in [1500, 4200] {
            run_one(report, world, port, mtu);
        }
    }
}

/// One of the groups, with the world's suffix.
pub fn run_one(report: &mut Report, world: &World, port: Port, mtu: u32) {
    let name = if port == Port::Vhost { "vhost" } else { "af_packet" };
    if !report.group(&format!("{name}-{mtu}{}", world.suffix)) {
        return;
    }
    let Some(mut bed) = report.fixture("boot", || Bed::new(world, port, mtu)) else { return };
    reachability(report, &bed, mtu);
    programs(report, &bed);
    regions(report, &bed);
    many(report, &bed);
    let alive = bed.target.as_mut().is_some_and(Target::alive);
    let context = bed.context();
    report.case(
        "the target still runs",
        || context.clone(),
        || {
            if alive { Ok(()) } else { Err("it has ended".to_owned()) }
        },
    );
    ends(report, &mut bed, port);
}

fn reachability(report: &mut Report, bed: &Bed, mtu: u32) {
    let context = || bed.context();
    let whole = [("v4", TARGET_V4, mtu - 28), ("v6", TARGET_V6, mtu - 48)];
    for (name, address, size) in whole {
        for size in [56, size] {
            let command = format!("ping -c 3 -W 10 -s {size} {address}");
            report.case(&format!("{name} {command}"), context, || {
                bed.guest.expect(&command, SHORT, &["3 packets received, 0% packet loss"]).map(drop)
            });
        }
    }
}

fn programs(report: &mut Report, bed: &Bed) {
    let context = || bed.context();
    for ip in ["IPV4", "IPV6"] {
        let pings = |size| Client::new(format!("rping -c -a {ip} -C 100 -v -V -S {size}"), Wants::Pings(100));
        client::cases(report, bed, [64, 4096, 65535].map(pings));
        let small = [
            Client::new(format!("rdma_client -s {ip}"), Wants::Texts(&["rdma_client: end 0"])),
            Client::new(format!("rdma_xclient -s {ip}"), Wants::Texts(&["rdma_xclient: end 0"])),
            Client::new(format!("rdma_example_client -a {ip} -s textstring"), RDMA_EXAMPLE),
        ];
        client::cases(report, bed, small);
    }
    report.case("rping to a port without a service", context, || {
        let done = bed.guest.run(&format!("rping -c -a {TARGET_V4} -p 9999 -C 1"), SHORT)?;
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

/// The host has to find `want` at `offset` of the region's file.
fn host_sees(bed: &Bed, offset: usize, want: &[u8]) -> Check {
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

fn regions(report: &mut Report, bed: &Bed) {
    let context = || bed.context();
    for (name, address) in ADDRESSES {
        let region = |arguments: &str, texts: &[&str]| {
            bed.guest.expect(&format!("region_client -r demo {address} {arguments}"), SHORT, texts).map(drop)
        };
        let text = format!("written by the kernel over {name}");
        report.case(&format!("{name} region: WRITE, READ, and the host's file"), context, || {
            let length = text.len();
            let shown = format!("\"{text}\"");
            region(&format!("write 100 '{text}' read 100 {length}"), &["region \"demo\", ", "length 1048576", &shown])?;
            host_sees(bed, 100, text.as_bytes())
        });
        report.case(&format!("{name} region: FETCH_ADD and COMPARE_SWAP"), context, || {
            region(
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
        report.case(&format!("{name} region: patterns of many sizes, the last the whole region"), context, || {
            let sizes = [1, 3, 4, 255, 1023, 1024, 1025, 4095, 4096, 4097, 65536, REGION];
            let commands: Vec<String> =
                sizes.iter().map(|n| format!("pattern {} {n} {n}", if *n == REGION { 0 } else { 8191 })).collect();
            region(&commands.join(" "), &["pattern ok: offset 0, 1048576 bytes", "done"])?;
            host_sees(bed, 0, &pattern(REGION, REGION as u64))
        });
        for bad in ["read", "write", "key", "atomic"] {
            report.case(&format!("{name} region: bad {bad} is refused"), context, || {
                let before = bed.region_bytes()?;
                region(&format!("bad {bad}"), &["refused with a remote access error"])?;
                region("info", &["done"])?;
                if bed.region_bytes()? == before { Ok(()) } else { Err("the region has changed".to_owned()) }
            });
        }
    }
    report.case("region: an empty name is the first, a second one by its name", context, || {
        bed.guest.expect(&format!("region_client {TARGET_V4} info"), SHORT, &["region \"demo\"", "length 1048576"])?;
        let second = format!("region_client -r other {TARGET_V4} pattern 0 65536 9");
        bed.guest.expect(&second, SHORT, &["region \"other\"", "length 65536", "pattern ok"]).map(drop)
    });
    report.case("region: an unknown name is rejected with a reason", context, || {
        let done = bed.guest.run(&format!("region_client -r no-such-region {TARGET_V4} info"), SHORT)?;
        done.expect(3, &["rejected: reason 28, private data \"", "region"]).map(drop)
    });
}

fn many(report: &mut Report, bed: &Bed) {
    let context = || bed.context();
    report.case("20 clients at once", context, || {
        // rping's exit code is 0 also when the server hangs up, so the pings are counted as well.
        let script = format!(
            "one() {{ rping -c -a {TARGET_V4} -C 5 -S 4096 -v -V >/tmp/client$1 2>&1; c=$?; \
                 {{ [ $c = 0 ] || grep -q '{RPING_RACE}' /tmp/client$1; }} && [ $(grep -c '^ping data: rdma-ping-' /tmp/client$1) = 5 ] || cut -c 1-200 /tmp/client$1; }}\n\
                 for i in $(seq 20); do one $i & pids=\"$pids $!\"; done; wait $pids; echo all ended"
        );
        let text = bed.guest.expect(&script, LONG, &[])?.text;
        if text == "all ended\n" { Ok(()) } else { Err(format!("not all clients succeeded: {text}")) }
    });
    report.case("a client is killed, the next one works", context, || {
        let victims = [
            bed.guest.start(&format!("exec rping -c -a {TARGET_V4} -C 1000000 -S 4096"), LONG)?,
            bed.guest.start(&format!("exec rping -c -a {TARGET_V6} -C 1000000 -S 65535"), LONG)?,
        ];
        std::thread::sleep(Duration::from_secs(2));
        for victim in victims {
            if !victim.running() {
                return Err(format!("the client ended by itself: {}", victim.so_far()));
            }
            victim.kill(9)?;
            victim.wait()?.expect(137, &[])?;
        }
        bed.guest.expect(&format!("rping -c -a {TARGET_V4} -C 10 -S 4096 -v -V"), SHORT, &["rdma-ping-9: "]).map(drop)
    });
}

fn ends(report: &mut Report, bed: &mut Bed, port: Port) {
    let context = bed.context();
    report.case(
        "SIGTERM: exit code 0 within 3 s, the client is told",
        || context.clone(),
        || {
            let target = bed.target.take().ok_or("the target does not run")?;
            let client = bed.guest.start(&format!("region_client {TARGET_V4} hold 30"), SHORT)?;
            client.wait_for("holding", Duration::from_secs(30))?;
            target.stop()?;
            client.wait()?.expect(0, &["disconnected by the target"]).map(drop)
        },
    );
    if port == Port::AfPacket {
        report.case(
            "a restarted target serves the same guest",
            || context.clone(),
            || {
                bed.target = Some(Target::start(bed.world, &bed.vdev, &bed.arguments)?);
                let command = format!("rping -c -a {TARGET_V4} -C 10 -S 4096 -v -V");
                bed.guest.expect(&command, SHORT, &["rdma-ping-9: "])?;
                bed.stop_target().map(drop)
            },
        );
    }
}
