//! A wire that loses, reorders, repeats and damages frames in both directions: netem in the guest for frames
//! of the kernel, the target's own fault injection for frames of the target. Every transfer has to end with the right bytes.
//!
//! The run's notes have the times. In the nightly run the same transfers also go between two guests, from kernel to
//! kernel, with netem at both ends, and those times are noted as well.

use crate::Check;
use crate::bed::needs;
use crate::env::TestEnv;
use crate::guest::{Guest, GuestConfig, Job, Plug};
use crate::matrix::pattern;
use crate::station::{GUEST_V4, Lease, Port, StationKey, TARGET_V4};
use crate::suite::{AnyGroup, Fixture, Group, Needs};
use crate::target::Target;
use std::path::{Path, PathBuf};
use std::sync::Arc;
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

/// An impairment of frames in both directions.
struct Impairment {
    name: &'static str,
    /// tc-netem's options for frames of a kernel.
    netem: &'static str,
    /// The target's `--fault`, with the same effect on frames that it sends, and sometimes on those that it receives.
    fault: &'static str,
    /// Bytes to WRITE and to READ in `make test`, if it is part of that, and in the nightly run.
    bytes: (Option<usize>, usize),
    /// Counters of the target that must have counted.
    happened: &'static [&'static str],
    /// Whether rping runs too.
    rping: bool,
    /// Whether netem alone has the same effect between two kernels.
    for_kernels: bool,
}

const IMPAIRMENTS: [Impairment; 6] = [
    Impairment {
        name: "1 % lost",
        netem: "loss 1%",
        fault: "seed=1,tx.drop=0.01",
        bytes: (Some(16 << 20), REGION),
        happened: &["tx_fault dropped", "transport out_of_seq_request", "transport sequence_naks_sent"],
        rping: true,
        for_kernels: true,
    },
    Impairment {
        name: "5 % lost",
        netem: "loss 5%",
        fault: "seed=2,tx.drop=0.05",
        bytes: (None, 4 << 20),
        happened: &["tx_fault dropped", "transport out_of_seq_request", "transport sequence_naks_sent"],
        rping: false,
        for_kernels: true,
    },
    Impairment {
        name: "5 % reordered",
        // Frames that netem does not pass at once are a millisecond late.
        netem: "delay 1ms reorder 95%",
        fault: "seed=3,tx.reorder=0.05",
        bytes: (None, 4 << 20),
        happened: &["tx_fault reordered", "transport out_of_seq_request"],
        rping: false,
        for_kernels: true,
    },
    Impairment {
        name: "5 % repeated",
        netem: "duplicate 5%",
        fault: "seed=4,tx.duplicate=0.05",
        bytes: (None, 4 << 20),
        happened: &["tx_fault duplicated", "transport duplicate_request"],
        rping: false,
        for_kernels: true,
    },
    Impairment {
        name: "1 % damaged",
        netem: "corrupt 1%",
        fault: "seed=5,tx.corrupt=0.01",
        bytes: (None, 4 << 20),
        happened: &["tx_fault corrupted", "drop icrc_mismatch"],
        rping: false,
        for_kernels: true,
    },
    Impairment {
        name: "all of it",
        netem: "delay 1ms reorder 98% loss 1% duplicate 1% corrupt 0.5%",
        fault: "seed=6,tx.drop=0.01,tx.duplicate=0.01,tx.reorder=0.02,tx.corrupt=0.005,tx.delay=1ms,tx.jitter=1ms,\
                tx.delayed=0.02,rx.drop=0.005,rx.duplicate=0.005,rx.reorder=0.01,rx.corrupt=0.005",
        bytes: (Some(4 << 20), 4 << 20),
        happened: &["tx_fault dropped", "tx_fault delayed", "rx_fault dropped", "drop injected", "rx_fault corrupted"],
        rping: false,
        for_kernels: false,
    },
];

/// A transfer under an impairment.
struct Transfer {
    /// The name of its case.
    name: String,
    command: String,
    /// Texts that it has to print.
    texts: Vec<String>,
    /// The pattern in the region afterwards, as length and seed.
    leaves: Option<(usize, u64)>,
}

impl Impairment {
    fn transfers(&self, seed: u64, bytes: usize) -> Vec<Transfer> {
        let size = bytes >> 20;
        let client = format!("region_client {CUT} -r demo {TARGET_V4}");
        let done = |what: &str| vec![format!("{what} of {bytes} bytes took "), "done".to_owned()];
        let mut transfers = vec![
            Transfer {
                name: format!("{}: WRITE of {size} MiB", self.name),
                command: format!("{client} fill 0 {bytes} {seed}"),
                texts: done("WRITE"),
                leaves: Some((bytes, seed)),
            },
            Transfer {
                name: format!("{}: READ of {size} MiB", self.name),
                command: format!("{client} verify 0 {bytes} {seed}"),
                texts: [done("READ"), vec![format!("verify ok: offset 0, {bytes} bytes, seed {seed}")]].concat(),
                leaves: None,
            },
        ];
        if self.rping {
            transfers.push(Transfer {
                name: format!("{}: rping -C 20 -V -S 65535", self.name),
                command: format!(
                    "rping -c -a {TARGET_V4} -C 20 -V -v -S 65535 2>/tmp/errors >/tmp/out; c=$?; \
                     echo $(grep -c '^ping data: rdma-ping-' /tmp/out) pings; cut -c 1-200 /tmp/errors; exit $c"
                ),
                texts: vec!["20 pings\n".to_owned()],
                leaves: None,
            });
        }
        transfers
    }
}

/// The time that a command prints.
fn took(text: &str) -> Option<Duration> {
    let (_, rest) = text.split_once(" bytes took ")?;
    rest.split(' ').next()?.parse().ok().map(Duration::from_millis)
}

/// Applies netem to a guest's frames.
fn set(guest: &Guest, netem: &str) -> Check {
    // The queue must not overflow: that would be another loss, and one that the kernel's RoCE notices at once.
    let command = format!("tc qdisc replace dev eth0 root netem limit 100000 {netem} && tc qdisc show dev eth0");
    guest.expect(&command, SHORT, &["qdisc netem"]).map(drop)
}

/// Runs a transfer, and notes how long it took: the transfer alone where the command prints that.
fn run_transfer(env: &TestEnv, guest: &Guest, group: &str, transfer: &Transfer) -> Check {
    let texts: Vec<&str> = transfer.texts.iter().map(String::as_str).collect();
    let began = Instant::now();
    let text = guest.expect(&transfer.command, LONG, &texts)?.text;
    let time = took(&text).unwrap_or(began.elapsed());
    env.note(format!("{group}: {}: {:.1} s", transfer.name, time.as_secs_f32()));
    Ok(())
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

/// Whether the summary's line `GROUP` has a number for `NAME` in `GROUP NAME`: zeros are not printed.
fn counted(summary: &str, counter: &str) -> bool {
    let Some((group, name)) = counter.split_once(' ') else { return false };
    let line = summary.lines().find_map(|line| line.strip_prefix(group)?.strip_prefix(": "));
    line.is_some_and(|line| line.split(' ').any(|word| word.split_once('=').is_some_and(|(n, _)| n == name)))
}

/// The groups `loss`, `loss-console` and, nightly, `loss-full` and `loss-kernels`.
pub fn groups() -> Vec<AnyGroup> {
    vec![against_target("loss", false), against_target("loss-full", true), between_kernels(), consoles()]
}

/// A guest and the target, which starts again for every impairment: its command line has the faults.
struct Impaired {
    env: Arc<TestEnv>,
    lease: Option<Lease>,
    target: Option<Target>,
    region: PathBuf,
}

impl Fixture for Impaired {
    fn context(&self) -> String {
        let target = self.target.as_ref().map_or(String::new(), |t| format!("target: {}\n{}", t.name(), t.tail()));
        let console = self.lease.as_ref().map(|lease| lease.guest().console());
        format!("{target}console: {}", console.unwrap_or_default())
    }
}

const KEY: StationKey = StationKey { port: Port::Vhost, mtu: MTU, kernel: crate::station::Kernel::Stable };

impl Impaired {
    fn begin(&mut self, impairment: &Impairment) -> Check {
        let arguments = [
            "--mtu".to_owned(),
            MTU.to_string(),
            "--region".to_owned(),
            format!("demo={REGION},file={}", self.region.display()),
            "--fault".to_owned(),
            impairment.fault.to_owned(),
        ];
        self.target = None;
        self.target = Some(Target::start(&self.env, &KEY.vdev(&self.env), &arguments)?);
        if self.lease.is_none() {
            self.lease = Some(self.env.station(KEY)?);
        }
        // The guest's card reconnects within a second; frames until then are lost.
        let command = format!(
            "tc qdisc del dev eth0 root 2>/dev/null; \
             for i in $(seq 30); do ping -c 1 -W 1 {TARGET_V4} && exit; done; ip -s link; exit 1"
        );
        self.guest()?.expect(&command, SHORT, &["1 packets received"])?;
        set(self.guest()?, impairment.netem)
    }

    fn guest(&self) -> Result<&Guest, String> {
        self.lease.as_ref().map(Lease::guest).ok_or_else(|| "no guest".to_owned())
    }

    fn end(&mut self, impairment: &Impairment) -> Check {
        let show = "tc -s qdisc show dev eth0; tc qdisc del dev eth0 root";
        let netem = self.guest()?.expect(show, SHORT, &["netem"])?.text;
        let summary = self.target.take().ok_or("the target does not run")?.stop()?;
        if let Some(missing) = impairment.happened.iter().find(|counter| !counted(&summary, counter)) {
            return Err(format!("the target counted no {missing}; {netem}\n{summary}"));
        }
        if !summary.contains("mbufs_leaked=0") {
            return Err(format!("buffers leaked\n{summary}"));
        }
        Ok(())
    }
}

impl Drop for Impaired {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.region);
    }
}

fn against_target(name: &'static str, full: bool) -> AnyGroup {
    let mut group = Group::new(name, needs(KEY), move |env| {
        let region = PathBuf::from(format!("/dev/shm/rxe-real-{}-{name}", env.token));
        Ok(Impaired { env: Arc::clone(env), lease: None, target: None, region })
    });
    group.nightly(full);
    for (seed, impairment) in (1..).zip(&IMPAIRMENTS) {
        let bytes = if full { Some(impairment.bytes.1) } else { impairment.bytes.0 };
        let Some(bytes) = bytes else { continue };
        group.case(format!("{}: the guest reaches the target", impairment.name), move |wire: &mut Impaired| {
            wire.begin(impairment)
        });
        for transfer in impairment.transfers(seed, bytes) {
            group.case(transfer.name.clone(), move |wire| {
                run_transfer(&wire.env, wire.guest()?, name, &transfer)?;
                transfer.leaves.map_or(Ok(()), |leaves| file_holds(&wire.region, leaves))
            });
        }
        group.case(format!("{}: faults were counted, and the target ends well", impairment.name), move |wire| {
            wire.end(impairment)
        });
    }
    group.build()
}

/// Two guests, of which one serves a region and rping.
struct Pair {
    // The client goes first.
    client: Guest,
    server: Guest,
    _serving: [Job; 2],
}

impl Pair {
    fn boot(env: &Arc<TestEnv>) -> Result<Pair, String> {
        let guest = |name: &str, plug: Plug, address: &str| {
            let parameters = format!("ip4={address}/24 mtu={MTU}");
            env.boot(GuestConfig { name: name.to_owned(), plug, parameters, extra_initrd: None, memory: 512, cpus: 1 })
        };
        let wire = env.path("loss.wire");
        let server = guest("loss-server", Plug::WireListens(wire.clone()), TARGET_V4)?;
        let client = guest("loss-client", Plug::WireConnects(wire), GUEST_V4)?;
        client.expect(&format!("ping -c 1 -w 30 {TARGET_V4}"), SHORT, &["1 packets received"])?;
        let hour = Duration::from_secs(3600);
        let region = server.start(&format!("exec region_client -r demo {TARGET_V4} serve {REGION}"), hour)?;
        region.wait_for("serving", SHORT)?;
        let rping = server.start(&format!("exec rping -s -a {TARGET_V4} -P -S 65535"), hour)?;
        Ok(Pair { client, server, _serving: [region, rping] })
    }

    /// Both ends lose, reorder, repeat or damage what they send.
    fn impair(&self, impairment: &Impairment) -> Check {
        set(&self.server, impairment.netem)?;
        set(&self.client, impairment.netem)
    }

    fn consoles(&self) -> String {
        format!("client's console: {}\nserver's console: {}", self.client.console(), self.server.console())
    }

    /// Whether one of the kernels has crashed.
    fn has_crashed(&self) -> bool {
        crashed(&self.consoles())
    }
}

/// What a kernel prints when it kills a program of its own or stops. A warning has none of these, though both may end with
/// `---[ end trace`.
const CRASHES: [&str; 6] = [
    "BUG: kernel NULL pointer dereference",
    "BUG: unable to handle ",
    "kernel BUG at ",
    "Oops: ",
    "general protection fault",
    "Kernel panic - not syncing",
];

/// Whether the console of a kernel shows that it has crashed.
fn crashed(console: &str) -> bool {
    console.lines().any(|line| CRASHES.iter().any(|crash| line.contains(crash)))
}

/// The consoles of kernels, and whether these have crashed.
const CONSOLES: [(&str, bool, &str); 5] = [
    (
        "a warning",
        false,
        "[   61.204711] ------------[ cut here ]------------
[   61.204790] WARNING: CPU: 0 PID: 214 at drivers/infiniband/sw/rxe/rxe_comp.c:158 rxe_completer+0x1a1/0xe10 [rdma_rxe]
[   61.205102] Modules linked in: rdma_rxe ib_uverbs ip6_udp_tunnel udp_tunnel ib_core sch_netem virtio_net
[   61.205377] CPU: 0 PID: 214 Comm: region_client Tainted: G        W          6.1.0-40-amd64 #1  Debian 6.1.153-1
[   61.207811] ---[ end trace 0000000000000000 ]---",
    ),
    ("a call that takes long", false, "[  242.660311] INFO: task rping:219 blocked for more than 120 seconds."),
    (
        "a null pointer",
        true,
        "[   73.918204] BUG: kernel NULL pointer dereference, address: 0000000000000008
[   73.918411] #PF: supervisor read access in kernel mode
[   73.918733] Oops: 0000 [#1] PREEMPT SMP PTI
[   73.921116] ---[ end trace 0000000000000000 ]---",
    ),
    (
        "an assertion",
        true,
        "[   73.918204] kernel BUG at net/core/skbuff.c:118!
[   73.918733] invalid opcode: 0000 [#1] PREEMPT SMP PTI",
    ),
    (
        "a panic",
        true,
        "[   73.930115] Kernel panic - not syncing: Fatal exception in interrupt
[   73.930702] ---[ end Kernel panic - not syncing: Fatal exception in interrupt ]---",
    ),
];

/// The group `loss-console`: what counts as a crash.
fn consoles() -> AnyGroup {
    let mut group = Group::new("loss-console", Needs { bare: true, ..Needs::default() }, |_| Ok(()));
    for (what, expected, console) in CONSOLES {
        let name = format!("{what} is {}", if expected { "a crash" } else { "no crash" });
        group.case(name, move |()| if crashed(console) == expected { Ok(()) } else { Err(console.to_owned()) });
    }
    group.build()
}

/// The guests; `None` while they boot again.
struct Kernels {
    env: Arc<TestEnv>,
    pair: Option<Pair>,
}

impl Fixture for Kernels {
    fn context(&self) -> String {
        self.pair.as_ref().map_or(String::new(), Pair::consoles)
    }
}

impl Kernels {
    fn pair(&self) -> Result<&Pair, String> {
        self.pair.as_ref().ok_or_else(|| "the guests did not boot again".to_owned())
    }

    /// The last of `transfers`, which the others came before. Linux' rxe may crash under losses, and no program of ours takes
    /// part: a kernel that does is noted, and everything is done again with new guests, once.
    fn run(&mut self, impairment: &Impairment, transfers: &[Transfer]) -> Check {
        let Some((transfer, earlier)) = transfers.split_last() else { return Ok(()) };
        let run =
            |kernels: &Kernels, transfer| run_transfer(&kernels.env, &kernels.pair()?.client, "loss-kernels", transfer);
        if earlier.is_empty() {
            self.pair()?.impair(impairment)?;
        }
        let done = run(self, transfer);
        if done.is_ok() || !self.pair()?.has_crashed() {
            return done;
        }
        self.env.note(format!("loss-kernels: {}: a kernel crashed, and the guests booted again", transfer.name));
        // The new ones have the same files.
        self.pair = None;
        self.pair = Some(Pair::boot(&self.env)?);
        self.pair()?.impair(impairment)?;
        transfers.iter().try_for_each(|transfer| run(self, transfer))
    }
}

fn between_kernels() -> AnyGroup {
    let mut group = Group::new("loss-kernels", Needs::default(), |env: &Arc<TestEnv>| {
        Ok(Kernels { env: Arc::clone(env), pair: Some(Pair::boot(env)?) })
    });
    group.nightly(true);
    for (seed, impairment) in (1..).zip(&IMPAIRMENTS).filter(|(_, impairment)| impairment.for_kernels) {
        let transfers: Arc<[Transfer]> = impairment.transfers(seed, impairment.bytes.1).into();
        for (index, transfer) in transfers.iter().enumerate() {
            let transfers = Arc::clone(&transfers);
            group.case(transfer.name.clone(), move |kernels: &mut Kernels| {
                kernels.run(impairment, &transfers[..=index])
            });
        }
    }
    group.build()
}
