//! A wire that loses, reorders, repeats and damages frames in both directions: netem in the guest for what the kernel
//! sends, the target's own fault injection for what the target sends. Everything has to end with the right bytes.
//!
//! The times are printed. In the nightly run the same transfers also go between two guests, from kernel to kernel, with
//! netem at both ends, and those times are printed beside ours.

use crate::Check;
use crate::guest::{Guest, GuestConfig, Plug};
use crate::matrix::pattern;
use crate::report::Report;
use crate::target::{GUEST_V4, TARGET_V4, Target};
use crate::world::World;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const SHORT: Duration = Duration::from_secs(60);
const LONG: Duration = Duration::from_secs(150);

/// Path MTU 4096: with 1024, an emulated guest would need four times as long and lose four times as many frames.
const MTU: u32 = 4200;

/// Length of the region.
const REGION: usize = 64 << 20;

/// How the transfers are cut: 64 KiB per work request are 16 packets, so that most of them meet no loss at 1 %, and one
/// lost READ response costs the kernel a replay of 16 packets rather than of the whole transfer. Four outstanding keep
/// the wire busy.
const CUT: &str = "-w 65536 -q 4";

/// What the wire does to frames.
struct Weather {
    name: &'static str,
    /// To what a kernel sends.
    netem: &'static str,
    /// What the target does to its frames to have the same, and sometimes to ours.
    fault: &'static str,
    /// Bytes to READ and to WRITE.
    bytes: usize,
    /// Counters of the target that must have counted.
    happened: &'static [&'static str],
    /// Whether rping runs too.
    rping: bool,
    /// Whether two kernels can have the same with netem alone.
    for_kernels: bool,
}

const WEATHERS: [Weather; 6] = [
    Weather {
        name: "1 % lost",
        netem: "loss 1%",
        fault: "seed=1,tx.drop=0.01",
        bytes: REGION,
        happened: &["tx_fault dropped", "transport out_of_seq_request", "transport sequence_naks_sent"],
        rping: true,
        for_kernels: true,
    },
    Weather {
        name: "5 % lost",
        netem: "loss 5%",
        fault: "seed=2,tx.drop=0.05",
        bytes: 4 << 20,
        happened: &["tx_fault dropped", "transport out_of_seq_request", "transport sequence_naks_sent"],
        rping: false,
        for_kernels: true,
    },
    Weather {
        name: "5 % reordered",
        // Those that netem does not let pass at once are late by a millisecond.
        netem: "delay 1ms reorder 95%",
        fault: "seed=3,tx.reorder=0.05",
        bytes: 4 << 20,
        happened: &["tx_fault reordered", "transport out_of_seq_request"],
        rping: false,
        for_kernels: true,
    },
    Weather {
        name: "5 % repeated",
        netem: "duplicate 5%",
        fault: "seed=4,tx.duplicate=0.05",
        bytes: 4 << 20,
        happened: &["tx_fault duplicated", "transport duplicate_request"],
        rping: false,
        for_kernels: true,
    },
    Weather {
        name: "1 % damaged",
        netem: "corrupt 1%",
        fault: "seed=5,tx.corrupt=0.01",
        bytes: 4 << 20,
        happened: &["tx_fault corrupted", "drop icrc_mismatch"],
        rping: false,
        for_kernels: true,
    },
    Weather {
        name: "all of it",
        netem: "delay 1ms reorder 98% loss 1% duplicate 1% corrupt 0.5%",
        fault: "seed=6,tx.drop=0.01,tx.duplicate=0.01,tx.reorder=0.02,tx.corrupt=0.005,tx.delay=1ms,tx.jitter=1ms,\
                tx.delayed=0.02,rx.drop=0.005,rx.duplicate=0.005,rx.reorder=0.01,rx.corrupt=0.005",
        bytes: 4 << 20,
        happened: &["tx_fault dropped", "tx_fault delayed", "rx_fault dropped", "drop injected", "rx_fault corrupted"],
        rping: false,
        for_kernels: false,
    },
];

/// What is done under a weather.
struct Work {
    /// As the report calls it.
    name: String,
    command: String,
    /// What it has to print.
    texts: Vec<String>,
    /// What the region's first bytes are afterwards, as length and seed of a pattern.
    leaves: Option<(usize, u64)>,
}

impl Weather {
    fn works(&self, seed: u64) -> Vec<Work> {
        let (bytes, size) = (self.bytes, self.bytes >> 20);
        let client = format!("region_client {CUT} -r demo {TARGET_V4}");
        let done = |what: &str| vec![format!("{what} of {bytes} bytes took "), "done".to_owned()];
        let mut works = vec![
            Work {
                name: format!("{}: WRITE of {size} MiB", self.name),
                command: format!("{client} fill 0 {bytes} {seed}"),
                texts: done("WRITE"),
                leaves: Some((bytes, seed)),
            },
            Work {
                name: format!("{}: READ of {size} MiB", self.name),
                command: format!("{client} verify 0 {bytes} {seed}"),
                texts: [done("READ"), vec![format!("verify ok: offset 0, {bytes} bytes, seed {seed}")]].concat(),
                leaves: None,
            },
        ];
        if self.rping {
            works.push(Work {
                name: format!("{}: rping -C 20 -V -S 65535", self.name),
                command: format!(
                    "rping -c -a {TARGET_V4} -C 20 -V -v -S 65535 2>/tmp/errors >/tmp/out; c=$?; \
                     echo $(grep -c '^ping data: rdma-ping-' /tmp/out) pings; cut -c 1-200 /tmp/errors; exit $c"
                ),
                texts: vec!["20 pings\n".to_owned()],
                leaves: None,
            });
        }
        works
    }
}

/// The time that a command says it took.
fn took(text: &str) -> Option<Duration> {
    let (_, rest) = text.split_once(" bytes took ")?;
    rest.split(' ').next()?.parse().ok().map(Duration::from_millis)
}

/// What was done and how long it took, if it worked.
type Times = Vec<(String, Option<Duration>)>;

/// Puts the weather onto what a guest sends.
fn set(guest: &Guest, netem: &str) -> Check {
    // The queue must not overflow: that would be another loss, and one that the kernel's RoCE notices at once.
    let command = format!("tc qdisc replace dev eth0 root netem limit 100000 {netem} && tc qdisc show dev eth0");
    guest.expect(&command, SHORT, &["qdisc netem"]).map(drop)
}

/// Returns how long it took: the transfer alone where the command says that.
fn run_work(guest: &Guest, work: &Work) -> Result<Duration, String> {
    let texts: Vec<&str> = work.texts.iter().map(String::as_str).collect();
    let began = Instant::now();
    let text = guest.expect(&work.command, LONG, &texts)?.text;
    Ok(took(&text).unwrap_or(began.elapsed()))
}

/// The guest that is the client in both halves.
fn client(world: &World, name: &str, plug: Plug) -> Result<Guest, String> {
    guest(world, name, plug, GUEST_V4)
}

fn guest(world: &World, name: &str, plug: Plug, address: &str) -> Result<Guest, String> {
    let config = GuestConfig {
        name: name.to_owned(),
        plug,
        parameters: format!("ip4={address}/24 mtu={MTU}"),
        extra_initrd: None,
        memory: 512,
        cpus: 1,
    };
    world.boot(config)
}

/// The target's end: it starts anew for every weather, since that is said on its command line.
struct Ours<'w> {
    world: &'w World,
    socket: PathBuf,
    region: PathBuf,
}

impl Ours<'_> {
    fn start(&self, fault: &str) -> Result<Target, String> {
        let arguments = [
            "--mtu".to_owned(),
            MTU.to_string(),
            "--region".to_owned(),
            format!("demo={REGION},file={}", self.region.display()),
            "--fault".to_owned(),
            fault.to_owned(),
        ];
        Target::start(self.world, &format!("net_vhost0,iface={},queues=1", self.socket.display()), &arguments)
    }
}

impl Drop for Ours<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.region);
    }
}

/// The region's file has to begin with this pattern.
fn file_holds(file: &Path, (length, seed): (usize, u64)) -> Check {
    let bytes = std::fs::read(file).map_err(|e| format!("{}: {e}", file.display()))?;
    match bytes.get(..length) {
        Some(seen) if seen == pattern(length, seed) => Ok(()),
        Some(_) => Err("the region's file does not hold what was written".to_owned()),
        None => Err(format!("the region's file has only {} bytes", bytes.len())),
    }
}

/// Whether the summary says that it happened: `GROUP NAME` has a number that is not 0.
fn counted(summary: &str, counter: &str) -> bool {
    let Some((group, name)) = counter.split_once(' ') else { return false };
    let line = summary.lines().find_map(|line| line.strip_prefix(group)?.strip_prefix(": "));
    line.is_some_and(|line| line.split(' ').any(|word| word.split_once('=').is_some_and(|(n, _)| n == name)))
}

/// The group `loss`.
pub fn run(report: &mut Report, world: &World) {
    if !report.group("loss") {
        return;
    }
    let mut times = Times::new();
    ours(report, world, &mut times);
    let nightly = std::env::var_os("RXE_NIGHTLY").is_some_and(|v| !v.is_empty());
    let kernels = if nightly { kernels(report, world) } else { Times::new() };
    let say = |time: Option<Duration>| time.map_or("-".to_owned(), |time| format!("{:.1} s", time.as_secs_f32()));
    for (name, ours) in times {
        let same = kernels.iter().find(|(other, _)| *other == name);
        let beside = same.map_or(String::new(), |(_, time)| format!(", from kernel to kernel {}", say(*time)));
        println!("    {name}: {}{beside}", say(ours));
    }
}

/// The guest against the target.
fn ours(report: &mut Report, world: &World, times: &mut Times) {
    let ours = Ours {
        world,
        socket: world.path("loss.vhost"),
        region: PathBuf::from(format!("/dev/shm/rxe-real-{}-loss", world.token)),
    };
    let boot = || {
        let target = ours.start(WEATHERS[0].fault)?;
        let guest = client(world, "loss", Plug::VhostUser(ours.socket.clone()))?;
        Ok((Some(target), guest))
    };
    let Some((mut first, guest)) = report.fixture("boot", boot) else { return };
    for (seed, weather) in (1..).zip(&WEATHERS) {
        let target = report.fixture(&format!("{}: begins", weather.name), || {
            let target = match first.take() {
                Some(target) => target,
                None => ours.start(weather.fault)?,
            };
            // The guest's card looks once a second whether the target is there again; what is sent until then is lost.
            let command = format!(
                "tc qdisc del dev eth0 root 2>/dev/null; \
                 for i in $(seq 30); do ping -c 1 -W 1 {TARGET_V4} && exit; done; ip -s link; exit 1"
            );
            guest.expect(&command, SHORT, &["1 packets received"])?;
            set(&guest, weather.netem)?;
            Ok(target)
        });
        let Some(target) = target else { continue };
        let context = format!("target: {}", target.name());
        for work in weather.works(seed) {
            let mut time = None;
            let tail = || format!("{context}\n{}console: {}", target.tail(), guest.console());
            report.case(&work.name, tail, || {
                time = Some(run_work(&guest, &work)?);
                work.leaves.map_or(Ok(()), |leaves| file_holds(&ours.region, leaves))
            });
            times.push((work.name, time));
        }
        report.case(
            &format!("{}: it happened, and the target ends well", weather.name),
            || context.clone(),
            || {
                let netem = guest.expect("tc -s qdisc show dev eth0", SHORT, &["netem"])?.text;
                let summary = target.stop()?;
                if let Some(missing) = weather.happened.iter().find(|counter| !counted(&summary, counter)) {
                    return Err(format!("the target counted no {missing}; {netem}\n{summary}"));
                }
                if !summary.contains("mbufs_leaked=0") {
                    return Err(format!("buffers leaked\n{summary}"));
                }
                Ok(())
            },
        );
    }
}

/// The guest against another guest.
fn kernels(report: &mut Report, world: &World) -> Times {
    let boot = || {
        let wire = world.path("loss.wire");
        let server = guest(world, "loss-server", Plug::WireListens(wire.clone()), TARGET_V4)?;
        let client = client(world, "loss-client", Plug::WireConnects(wire))?;
        client.expect(&format!("ping -c 1 -w 30 {TARGET_V4}"), SHORT, &["1 packets received"])?;
        Ok((server, client))
    };
    let mut times = Times::new();
    let Some((server, client)) = report.fixture("two kernels boot", boot) else { return times };
    let hour = Duration::from_secs(3600);
    let serve = || {
        let region = server.start(&format!("exec region_client -r demo {TARGET_V4} serve {REGION}"), hour)?;
        region.wait_for("serving", SHORT)?;
        let rping = server.start(&format!("exec rping -s -a {TARGET_V4} -P -S 65535"), hour)?;
        Ok((region, rping))
    };
    let Some(_servers) = report.fixture("two kernels: the server serves", serve) else { return times };
    let context = || format!("client's console: {}\nserver's console: {}", client.console(), server.console());
    for (seed, weather) in (1..).zip(&WEATHERS).filter(|(_, weather)| weather.for_kernels) {
        report.fixture(&format!("two kernels: {}: begins", weather.name), || {
            set(&server, weather.netem)?;
            set(&client, weather.netem)
        });
        for work in weather.works(seed) {
            let mut time = None;
            report.case(&format!("two kernels: {}", work.name), context, || {
                time = Some(run_work(&client, &work)?);
                Ok(())
            });
            times.push((work.name, time));
        }
    }
    times
}
