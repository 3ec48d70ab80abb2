//! Clients that vanish, send nothing, or send garbage: the target disconnects, counts and logs each one, and the others
//! are not affected.

use crate::Check;
use crate::bed::{BedConfig, TestBed, expect_counters, needs};
use crate::capture::json;
use crate::env::TestEnv;
use crate::guest::Job;
use crate::station::{GUEST_V4, Port, StationKey, TARGET_V4};
use crate::suite::{AnyGroup, Fixture, Group};
use std::sync::Arc;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);
/// The idle timeout in seconds in the target's configuration.
const IDLE: u64 = 3;
/// That of services whose clients take a while to begin, on a busy machine.
const SLOW: u64 = 8;
const SERVICES: [&str; 11] = [
    "rping",
    "rdma-server",
    "ucmatose",
    "cmtime",
    "udaddy",
    "rdma-example",
    "rsocket",
    "rc-example",
    "mckey",
    "pingpong",
    "perftest",
];
/// Private data of an rsocket's connection: version 1, 384 credits, a list of two buffers, one of 512 KiB.
const RSOCKET: &str = "010201800000000000000000000000000000000000000002000000000000000000000000000800000000";
const KEY: StationKey = StationKey { port: Port::Vhost, mtu: 4200, kernel: crate::station::Kernel::Stable };

/// The groups `idle`, `garbage` and `short-of-memory`.
pub fn groups() -> Vec<AnyGroup> {
    vec![idle(), garbage(), short_of_memory()]
}

/// A bed with clients that run beside the cases.
struct WithClients {
    bed: TestBed,
    clients: Vec<Job>,
}

impl Fixture for WithClients {
    fn context(&self) -> String {
        self.bed.context()
    }
}

/// Waits until the log has a line about a client at the guest's address with these words.
fn logged(bed: &TestBed, words: &str) -> Check {
    let found = |line: &String| line.contains(words) && line.contains(&format!("={GUEST_V4}"));
    for _ in 0..4 * (SLOW + 4) {
        if bed.log().iter().any(found) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(250));
    }
    Err(format!("no line of the log names the guest and has \"{words}\""))
}

fn given_up(bed: &TestBed, service: &str) -> Check {
    logged(bed, &format!("{service}: client given up: nothing came from it for"))
}

/// Services, the options of silent_client that connect to them, and nothing more.
const SILENT: [(&str, &str); 7] = [
    ("ucmatose", "7471 20 retry=5"),
    ("cmtime", "7471 20 retry=2"),
    ("rdma-server", "7471 20 retry=7"),
    ("rping", "7174 20 retry=7"),
    ("rdma-example", "20886 20 retry=3"),
    ("perftest", "18515 20 retry=7"),
    // A message that does not belong to its control connection may belong to a test: it is sent back.
    ("perftest", "18515 20 retry=7 send=64"),
];

/// A target with short idle timeouts, and the silent clients, which all wait at the same time.
fn with_silent(env: &Arc<TestEnv>) -> Result<WithClients, String> {
    let idle = |name| if ["pingpong", "perftest"].contains(&name) { SLOW } else { IDLE };
    let section = |name| format!("[service.{name}]\nidle-timeout = \"{}s\"\n", idle(name));
    let text: String = SERVICES.into_iter().map(section).collect();
    let config = BedConfig::new(KEY.port, KEY.mtu).arguments(&env.config_file("impatient.toml", &text)?);
    let bed = TestBed::start(env, config)?;
    let start = |(_, options): &(&str, &str)| bed.guest().start(&format!("silent_client {TARGET_V4} {options}"), LIMIT);
    let clients = SILENT.iter().map(start).collect::<Result<_, _>>()?;
    Ok(WithClients { bed, clients })
}

fn idle() -> AnyGroup {
    let mut group = Group::new("idle", needs(KEY), with_silent);
    for (service, options) in SILENT {
        let name = format!("{service}: a client that connects to {options} and sends nothing more is disconnected");
        group.case(name, move |with| {
            if with.clients.is_empty() {
                return Err("its client did not start".to_owned());
            }
            with.clients.remove(0).wait()?.expect(0, &["connected", "given up"])?;
            given_up(&with.bed, service)
        });
    }
    group.case("udaddy: a client that has ended is forgotten", |with| {
        with.bed.guest().expect(&format!("udaddy -s {TARGET_V4}"), LIMIT, &["return status 0"])?;
        given_up(&with.bed, "udaddy")
    });
    group.case("pingpong, perftest, rsocket, rc-example: clients that are stopped are disconnected", |with| {
        stopped(&with.bed)
    });
    group.case("mckey: a group without datagrams is left", |with| {
        let script = format!(
            "ip route add 224.0.0.0/4 dev eth0; mckey -m 239.7.7.7 -b {GUEST_V4}; code=$?; \
             ip route del 224.0.0.0/4 dev eth0; exit $code"
        );
        with.bed.guest().expect(&script, LIMIT, &["return status 0"])?;
        let left = |line: &String| line.contains("mckey: left, as nothing came for 3 s") && line.contains("239.7.7.7");
        for _ in 0..40 {
            if with.bed.log().iter().any(left) {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(250));
        }
        Err("the log does not have that the group was left".to_owned())
    });
    group.case("the target still runs and counts", |with| idle_counters(&mut with.bed));
    group.build()
}

fn idle_counters(bed: &mut TestBed) -> Check {
    // Services that share a port have their own names.
    if !bed.log().iter().any(|line| line.contains("connected service=\"perftest\"")) {
        return Err("no line of the log has that a client of perftest was connected".to_owned());
    }
    let ready = bed.target()?.ready.clone();
    if !ready.ends_with(",mckey,pingpong,perftest") {
        return Err(format!("the services are not listed by their names: {ready}"));
    }
    let summary = bed.stop_target()?;
    for service in SERVICES.into_iter().chain(["port-18515"]) {
        let start = format!("service {service}: ");
        let line = summary.lines().find_map(|line| line.strip_prefix(&start)).unwrap_or_default();
        let given_up = line.split(' ').find_map(|counter| counter.strip_prefix("idle_ended="));
        if given_up.is_none() {
            return Err(format!("{service} has not counted a client that was idle: {line}"));
        }
    }
    Ok(())
}

/// Connections of clients that a service has counted.
fn connections(bed: &TestBed, service: &str) -> Result<u64, String> {
    let services = json(bed, &["services"])?;
    let of_service = services.as_array().into_iter().flatten().find(|found| found["name"] == service);
    let mut counters = of_service.and_then(|found| found["counters"].as_array()).into_iter().flatten();
    let count = counters.find(|counter| counter["name"] == "connections").and_then(|counter| counter["value"].as_u64());
    count.ok_or_else(|| format!("the report has no connections of {service}: {services}"))
}

/// Clients that are stopped in the middle, with a connection or stream that stays.
fn stopped(bed: &TestBed) -> Check {
    let gid = bed.gid4()?;
    // Those that their service counts when it knows them are stopped then. The last one says nothing, and needs no stop.
    let counted = [
        ("pingpong", format!("ibv_rc_pingpong -g {gid} -n 100000000 {TARGET_V4}")),
        ("perftest", format!("ib_send_lat -D 60 {TARGET_V4}")),
        ("rsocket", format!("rstream -s {TARGET_V4} -S 4096 -C 10 -I 1000000")),
        ("rc-example", format!("sleep 60 | nc {TARGET_V4} 19875")),
    ];
    let silent = ("port-18515", format!("sleep 60 | nc {TARGET_V4} 18515"));
    let before = bed.log().len();
    let known = counted.iter().map(|(service, _)| connections(bed, service)).collect::<Result<Vec<_>, _>>()?;
    let start = |(_, program): &(_, String)| bed.guest().start(&format!("exec {program}"), LIMIT);
    let jobs = counted.iter().chain([&silent]).map(start).collect::<Result<Vec<_>, _>>()?;
    for (((service, _), job), known) in counted.iter().zip(&jobs).zip(known) {
        let deadline = Instant::now() + LIMIT;
        while connections(bed, service)? == known {
            if !job.running() || Instant::now() > deadline {
                return Err(format!("a client does not connect to {service}: {}", job.so_far()));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        job.kill(19)?;
    }
    if let Some(job) = jobs.iter().find(|job| !job.running()) {
        return Err(format!("a client ended by itself: {}", job.so_far()));
    }
    for ((service, _), job) in counted.iter().chain([&silent]).zip(jobs) {
        let line = format!("{service}: client given up");
        let gone = (0..4 * (SLOW + 4)).any(|_| {
            std::thread::sleep(Duration::from_millis(250));
            bed.log().iter().skip(before).any(|logged| logged.contains(&line))
        });
        job.kill(9)?;
        job.wait()?;
        if !gone {
            return Err(format!("the log has no line \"{line}\""));
        }
    }
    let next = format!("ibv_rc_pingpong -g {gid} -n 10 {TARGET_V4} && ib_send_lat -n 10 {TARGET_V4}");
    bed.guest().expect(&next, LIMIT, &["10 iters in"]).map(drop)
}

/// Ends a client that runs beside others, which must not have affected it.
fn unaffected(job: Job) -> Check {
    let before = job.so_far().len();
    // Its output is buffered by the page.
    let progress = (0..80).any(|_| {
        std::thread::sleep(Duration::from_millis(250));
        job.so_far().len() > before
    });
    if !job.running() {
        return Err(format!("the client beside has ended: {}", job.so_far()));
    }
    job.kill(9)?;
    let text = job.wait()?.text;
    // The last line may be incomplete.
    let other = |line: &&str| !line.starts_with("ping data: rdma-ping-") && !"ping data: rdma-ping-".starts_with(line);
    if let Some(line) = text.lines().find(other) {
        return Err(format!("the client beside printed {line}"));
    }
    if progress { Ok(()) } else { Err("the client beside makes no progress".to_owned()) }
}

/// Connects with silent_client, which has to print the first text; the log has to have the second one.
fn silent_client(bed: &TestBed, options: &str, texts: [&str; 2]) -> Check {
    let done = bed.guest().run(&format!("silent_client {TARGET_V4} {options}"), LIMIT)?;
    if !done.text.contains(texts[0]) {
        return Err(format!("`{}` printed {}", done.command, done.text));
    }
    logged(bed, texts[1])
}

fn garbage() -> AnyGroup {
    let mut group = Group::new("garbage", needs(KEY), |env| {
        let bed = TestBed::start(env, BedConfig::new(KEY.port, KEY.mtu))?;
        // It pings all the time.
        let beside = format!("exec rping -c -a {TARGET_V4} -V -v -S 100 -C 1000000");
        let job = bed.guest().start(&beside, 10 * LIMIT)?;
        job.wait_for("ping data: rdma-ping-3", LIMIT)?;
        Ok(WithClients { bed, clients: vec![job] })
    });
    for (port, words) in [(18515, "is none we serve"), (19875, "rc-example: client turned away: it")] {
        group.case(format!("random bytes on TCP port {port}"), move |with: &mut WithClients| {
            let command = format!("garbage_client stream {TARGET_V4} {port} 30 {port}");
            with.bed.guest().expect(&command, LIMIT, &["thrown 30 streams"])?;
            logged(&with.bed, words)
        });
    }
    for (name, text) in
        [("perftest", "6.06\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0garbage!"), ("pingpong", "0000:0garbage")]
    {
        group.case(format!("a client of {name} that begins well and goes on with garbage"), move |with| {
            let script = format!("{{ printf '{text}'; head -c 500 /dev/zero; }} | nc -w 1 {TARGET_V4} 18515; true");
            with.bed.guest().expect(&script, LIMIT, &[])?;
            logged(&with.bed, &format!("{name}: client turned away"))
        });
    }
    let rsocket = format!("7471 10 retry=7 send=1 private={RSOCKET}");
    for (service, options, texts) in [
        (
            "rping",
            "7174 10 retry=7 send=5",
            ["given up", "rping: client turned away: a message of 5 bytes is no advert"],
        ),
        ("rping", "7174 10 retry=7 send=16", ["given up", "rping: client turned away: its advert makes no sense"]),
        ("rdma-server", "7471 10 retry=7 send=7", ["given up", "rdma-server: client turned away: its message is of 7"]),
        ("rdma-example", "20886 10 send=16", ["given up", "rdma-example: client turned away: its message of 16 bytes"]),
        ("rsocket", rsocket.as_str(), ["given up", "rsocket: client lost: its queue pair is in error"]),
        (
            "region",
            "4792 10 private=00ff",
            ["REJECTED, status 28", "region: a connection refused: the private data is"],
        ),
        ("region", "4792 10 private=6e6f7065", ["REJECTED, status 28", "region: a connection refused: unknown region"]),
        ("nobody", "4711 10", ["REJECTED, status 8", "no service listens there"]),
    ] {
        let options = options.to_owned();
        group.case(format!("{service}: a client that connects to {options}"), move |with| {
            silent_client(&with.bed, &options, texts)
        });
    }
    group.case("random messages to queue pair 1", |with| {
        let command = format!("garbage_client mad {TARGET_V4} {GUEST_V4} 3000 7");
        with.bed.guest().expect(&command, LIMIT, &["thrown 3000 packets"])?;
        with.bed.guest().expect(&format!("rping -c -a {TARGET_V4} -C 3 -v"), LIMIT, &["rdma-ping-2"]).map(drop)
    });
    group.case("a client that pinged all the time is not affected", |with| {
        unaffected(with.clients.pop().ok_or("it did not start")?)
    });
    group.case("all clients work afterwards", |with| {
        let gid = with.bed.gid4()?;
        let script = format!(
            "rping -c -a {TARGET_V4} -C 3 && ucmatose -s {TARGET_V4} && rc_example_client {TARGET_V4} {gid} && \
             ibv_rc_pingpong -g {gid} -n 10 {TARGET_V4} && ib_send_lat -n 10 {TARGET_V4}"
        );
        with.bed.guest().expect(&script, LIMIT, &["return status 0", "test result is 0", "10 iters in"]).map(drop)
    });
    group.case("the target still runs and counts", |with| {
        let summary = with.bed.stop_target()?;
        for reason in ["icrc_mismatch=", "mad_malformed=", "mad_unsupported=", "cm_unknown_id="] {
            if !summary.lines().any(|line| line.starts_with("drop: ") && line.contains(&format!(" {reason}"))) {
                return Err(format!("the summary counts no {reason}: {summary}"));
            }
        }
        expect_counters(&summary, "port-18515", &["malformed=30"])?;
        // Streams shorter than a hello are not malformed.
        expect_counters(&summary, "rc-example", &["connections=31", "exchanges=1", "malformed=25"])?;
        expect_counters(&summary, "perftest", &["connections=2", "exchanges=10", "malformed=1"])?;
        expect_counters(&summary, "pingpong", &["connections=2", "exchanges=10", "malformed=1"])?;
        expect_counters(&summary, "rdma-example", &["connections=1", "malformed=1"])?;
        expect_counters(&summary, "rdma-server", &["connections=1", "malformed=1"])?;
        expect_counters(&summary, "region", &["refused=2"])
    });
    group.build()
}

/// All clients of the pingpongs share so little memory that there is room for two with 250 queue pairs.
fn short_of_memory() -> AnyGroup {
    let mut group = Group::new("short-of-memory", needs(KEY), |env| {
        let text = "[service.pingpong]\nbudget = \"16M\"\nidle-timeout = \"600s\"\n";
        TestBed::start(env, BedConfig::new(KEY.port, KEY.mtu).arguments(&env.config_file("short.toml", text)?))
    });
    group.case("pingpong: clients that have ended make room for others", |bed| {
        let gid = bed.gid4()?;
        let evicted = |line: &String| line.contains("its memory is wanted for another") && line.contains(GUEST_V4);
        for _ in 0..8 {
            bed.guest().expect(&format!("ibv_rc_pingpong -g {gid} -n 10 {TARGET_V4}"), LIMIT, &["10 iters in"])?;
            std::thread::sleep(Duration::from_millis(1300));
            if bed.log().iter().any(evicted) {
                return Ok(());
            }
        }
        Err("no client had to make room".to_owned())
    });
    group.case("pingpong: where all are busy the next is refused, which is logged, and they go on", |bed| {
        let gid = bed.gid4()?;
        let client = || {
            // A message is one packet, so that those of all clients fit into the interface's queue: who loses packets is idle.
            let command = format!("exec ibv_srq_pingpong -g {gid} -s 64 -q 250 -r 300 -n 100000000 {TARGET_V4}");
            bed.guest().start(&command, 2 * LIMIT)
        };
        let refused = || {
            let why = "pingpong: a pingpong refused: clients of its address use half of the 16777216 bytes for messages: raise \
                       budget of [service.pingpong]";
            bed.log().iter().filter(|line| line.contains(why) && line.contains(&format!("={GUEST_V4}"))).count()
        };
        // A client that was refused goes on with what its memory happens to hold, but says so.
        let told = |job: &Job| job.so_far().contains("Couldn't read remote address");
        let mut working: Vec<Job> = Vec::new();
        while !working.last().is_some_and(told) {
            if working.len() == 6 {
                let said: Vec<String> = working.iter().map(Job::so_far).collect();
                return Err(format!("six clients have got their memory: {said:#?}"));
            }
            let job = client()?;
            // The next one begins when this one has an answer, or says that it has none.
            job.wait_for("remote address", LIMIT)?;
            working.push(job);
        }
        let deadline = Instant::now() + LIMIT;
        while refused() == 0 {
            if Instant::now() > deadline {
                return Err(format!("the log does not say why: {:#?}", bed.log()));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        let stay: Vec<bool> = working.iter().map(|job| job.running() && !told(job)).collect();
        for job in working {
            job.kill(9)?;
            job.wait()?;
        }
        match stay[..] {
            [true, .., false] => Ok(()),
            _ => Err(format!("of the clients these still worked: {stay:?}")),
        }
    });
    group.case("the target still runs and counts", |bed| {
        let summary = bed.stop_target()?;
        let line = summary.lines().find(|line| line.starts_with("service pingpong:"));
        match line {
            Some(line) if line.contains(" evicted=") && line.contains(" refused=1 ") => Ok(()),
            _ => Err(summary.clone()),
        }
    });
    group.build()
}
