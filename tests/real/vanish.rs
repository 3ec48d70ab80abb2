//! Clients that vanish, say nothing, or make no sense: each is given up, counted and named in the log, and the others do
//! not notice.

use crate::Check;
use crate::guest::Job;
use crate::matrix::{Bed, Port};
use crate::pingpong::gid_index;
use crate::process::must;
use crate::rdmacm::counted;
use crate::report::Report;
use crate::target::{GUEST_V4, TARGET_V4, Target};
use crate::world::World;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);
/// What the target is told: services give clients up after this many seconds.
const IDLE: u64 = 3;
/// But two of them after these.
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
/// How an rsocket connects: version 1, 384 credits, a list of two buffers, one of 512 KiB.
const RSOCKET: &str = "010201800000000000000000000000000000000000000002000000000000000000000000000800000000";

/// The groups `idle`, `garbage` and `short-of-memory`.
pub fn run(report: &mut Report, world: &World) {
    if report.group("idle") {
        idle(report, world);
    }
    if report.group("garbage") {
        garbage(report, world);
    }
    if report.group("short-of-memory") {
        short_of_memory(report, world);
    }
}

/// A target whose services are impatient.
fn impatient(world: &World) -> Result<(Bed<'_>, String), String> {
    // Clients of these take a while to begin, on a machine with much to do.
    let idle = |name| if ["pingpong", "perftest"].contains(&name) { SLOW } else { IDLE };
    let section = |name| format!("[service.{name}]\nidle-timeout = \"{}s\"\n", idle(name));
    let text: String = SERVICES.into_iter().map(section).collect();
    let bed = Bed::with(world, "id", "0", Port::Vhost, 1500, &world.config_file("impatient.toml", &text)?)?;
    let index = gid_index(&bed, GUEST_V4)?;
    Ok((bed, index))
}

/// The log has a line about a client at the guest's address with these words, before some seconds have passed.
fn logged(bed: &Bed, words: &str) -> Check {
    let target = bed.target.as_ref().ok_or("no target")?;
    let found = |line: &String| line.contains(words) && line.contains(&format!("={GUEST_V4}"));
    for _ in 0..4 * (SLOW + 4) {
        if target.log().iter().any(found) {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(250));
    }
    Err(format!("no line of the log names the guest and says \"{words}\""))
}

fn given_up(bed: &Bed, service: &str) -> Check {
    logged(bed, &format!("{service}: client given up: nothing came from it for"))
}

fn idle(report: &mut Report, world: &World) {
    let Some((mut bed, gid)) = report.fixture("boot", || impatient(world)) else { return };
    let context = || bed.context();
    let silent = [
        ("ucmatose", "7471 20 retry=5"),
        ("cmtime", "7471 20 retry=2"),
        ("rdma-server", "7471 20 retry=7"),
        ("rping", "7174 20 retry=7"),
        ("rdma-example", "20886 20 retry=3"),
        ("perftest", "18515 20 retry=7"),
        // What is no message of its control connection may be a test's: it is sent back.
        ("perftest", "18515 20 retry=7 send=64"),
    ];
    // All wait at the same time.
    let started = || -> Result<Vec<Job<'_>>, String> {
        silent.iter().map(|(_, o)| bed.guest.start(&format!("silent_client {TARGET_V4} {o}"), LIMIT)).collect()
    };
    let Some(jobs) = report.fixture("clients that connect and say nothing more", started) else { return };
    for ((service, options), job) in silent.into_iter().zip(jobs) {
        let name = format!("{service}: a client that connects to {options} and says nothing more is given up");
        report.case(&name, context, || {
            job.wait()?.expect(0, &["connected", "given up"])?;
            given_up(&bed, service)
        });
    }
    report.case("udaddy: a client that has ended is forgotten", context, || {
        bed.guest.expect(&format!("udaddy -s {TARGET_V4}"), LIMIT, &["return status 0"])?;
        given_up(&bed, "udaddy")
    });
    stopped(report, &bed, &gid);
    report.case("mckey: a group from which nothing comes is left", context, || {
        let script = format!("ip route add 224.0.0.0/4 dev eth0; mckey -m 239.7.7.7 -b {GUEST_V4}");
        bed.guest.expect(&script, LIMIT, &["return status 0"])?;
        for _ in 0..40 {
            let log = bed.target.as_ref().map(Target::log).unwrap_or_default();
            if log
                .iter()
                .any(|line| line.contains("mckey: left, as nothing came for 3 s") && line.contains("239.7.7.7"))
            {
                return Ok(());
            }
            std::thread::sleep(Duration::from_millis(250));
        }
        Err("the log does not say that the group was left".to_owned())
    });
    let alive = bed.target.as_mut().is_some_and(Target::alive);
    report.case("the target still runs and counts", String::new, || {
        if !alive {
            return Err(format!("it has ended\n{}", bed.context()));
        }
        // Services that share a port have their own names.
        let log = bed.target.as_ref().map(Target::log).unwrap_or_default();
        if !log.iter().any(|line| line.contains("connected service=\"perftest\"")) {
            return Err("no line of the log says that a client of perftest was connected".to_owned());
        }
        let ready = bed.target.as_ref().map(|target| target.ready.clone()).unwrap_or_default();
        if !ready.ends_with(",mckey,pingpong,perftest") {
            return Err(format!("the services are not listed by their names: {ready}"));
        }
        let summary = bed.stop_target()?;
        for service in SERVICES.into_iter().chain(["port-18515"]) {
            let start = format!("service {service}: ");
            let line = summary.lines().find_map(|line| line.strip_prefix(&start)).unwrap_or_default();
            let given_up = line.split(' ').find_map(|counter| counter.strip_prefix("idle_ended="));
            if given_up.is_none() {
                return Err(format!("{service} has given nobody up: {line}"));
            }
        }
        Ok(())
    });
}

/// Clients that are stopped in the middle, with a connection or stream that stays.
fn stopped(report: &mut Report, bed: &Bed, gid: &str) {
    let programs = [
        ("pingpong", format!("ibv_rc_pingpong -g {gid} -n 100000000 {TARGET_V4}")),
        ("perftest", format!("ib_send_lat -D 60 {TARGET_V4}")),
        ("rsocket", format!("rstream -s {TARGET_V4} -S 4096 -C 10 -I 1000000")),
        ("rc-example", format!("sleep 60 | nc {TARGET_V4} 19875")),
        ("port-18515", format!("sleep 60 | nc {TARGET_V4} 18515")),
    ];
    let log = || bed.target.as_ref().map(Target::log).unwrap_or_default();
    let before = log().len();
    let started = || -> Result<Vec<Job<'_>>, String> {
        let jobs = programs.iter().map(|(_, program)| bed.guest.start(&format!("exec {program}"), LIMIT));
        let jobs = jobs.collect::<Result<Vec<_>, _>>()?;
        std::thread::sleep(Duration::from_secs(4));
        for job in &jobs {
            if !job.running() {
                return Err(format!("a client ended by itself: {}", job.so_far()));
            }
            job.kill(19)?;
        }
        Ok(jobs)
    };
    let Some(jobs) = report.fixture("clients that are stopped", started) else { return };
    for ((service, _), job) in programs.iter().zip(jobs) {
        report.case(
            &format!("{service}: a client that is stopped is given up, and the next one works"),
            || bed.context(),
            || {
                let gone = (0..4 * (SLOW + 4)).any(|_| {
                    std::thread::sleep(Duration::from_millis(250));
                    log().iter().skip(before).any(|line| line.contains(&format!("{service}: client given up")))
                });
                job.kill(9)?;
                job.wait()?;
                if !gone {
                    return Err("it was not given up".to_owned());
                }
                let next = format!("ibv_rc_pingpong -g {gid} -n 10 {TARGET_V4} && ib_send_lat -n 10 {TARGET_V4}");
                bed.guest.expect(&next, LIMIT, &["10 iters in"]).map(drop)
            },
        );
    }
}

/// A client that goes on while others make no sense.
struct Witness<'g> {
    job: Job<'g>,
}

impl<'g> Witness<'g> {
    fn start(bed: &'g Bed) -> Result<Witness<'g>, String> {
        let job = bed.guest.start(&format!("exec rping -c -a {TARGET_V4} -V -v -S 100 -C 1000000"), 2 * LIMIT)?;
        job.wait_for("ping data: rdma-ping-3", LIMIT)?;
        Ok(Witness { job })
    }

    /// It still goes on.
    fn end(self) -> Check {
        let before = self.job.so_far().len();
        // What it prints comes by the page.
        let gets_on = (0..80).any(|_| {
            std::thread::sleep(Duration::from_millis(250));
            self.job.so_far().len() > before
        });
        if !self.job.running() {
            return Err(format!("the client beside has ended: {}", self.job.so_far()));
        }
        self.job.kill(9)?;
        let text = self.job.wait()?.text;
        // The last line may not be whole.
        let strange =
            |line: &&str| !line.starts_with("ping data: rdma-ping-") && !"ping data: rdma-ping-".starts_with(line);
        if let Some(line) = text.lines().find(strange) {
            return Err(format!("the client beside said {line}"));
        }
        if gets_on { Ok(()) } else { Err("the client beside does not get on".to_owned()) }
    }
}

fn garbage(report: &mut Report, world: &World) {
    let boot = || {
        let bed = Bed::with(world, "ga", "0", Port::Vhost, 1500, &[])?;
        let index = gid_index(&bed, GUEST_V4)?;
        Ok((bed, index))
    };
    let Some((mut bed, gid)) = report.fixture("boot", boot) else { return };
    let context = || bed.context();
    let beside = |body: &dyn Fn() -> Check| {
        let witness = Witness::start(&bed)?;
        body()?;
        witness.end()
    };
    for (port, words) in [(18515, "is none we serve"), (19875, "rc-example: client turned away: it")] {
        report.case(&format!("random bytes on TCP port {port}"), context, || {
            beside(&|| {
                let command = format!("garbage_client stream {TARGET_V4} {port} 30 {port}");
                bed.guest.expect(&command, LIMIT, &["thrown 30 streams"])?;
                logged(&bed, words)
            })
        });
    }
    for (name, text) in
        [("perftest", "6.06\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0\\0garbage!"), ("pingpong", "0000:0garbage")]
    {
        report.case(&format!("a client of {name} that begins well and goes on with nonsense"), context, || {
            beside(&|| {
                let script = format!("{{ printf '{text}'; head -c 500 /dev/zero; }} | nc -w 3 {TARGET_V4} 18515; true");
                bed.guest.expect(&script, LIMIT, &[])?;
                logged(&bed, &format!("{name}: client turned away"))
            })
        });
    }
    for (service, options, texts) in [
        (
            "rping",
            "7174 10 retry=7 send=5",
            ["given up", "rping: client turned away: a message of 5 bytes is no advert"],
        ),
        ("rping", "7174 10 retry=7 send=16", ["given up", "rping: client turned away: its advert makes no sense"]),
        ("rdma-server", "7471 10 retry=7 send=7", ["given up", "rdma-server: client turned away: its message is of 7"]),
        ("rdma-example", "20886 10 send=16", ["given up", "rdma-example: client turned away: its message of 16 bytes"]),
        (
            "rsocket",
            &format!("7471 10 retry=7 send=1 private={RSOCKET}"),
            ["given up", "rsocket: client lost: its queue pair is in error"],
        ),
        (
            "region",
            "4792 10 private=00ff",
            ["REJECTED, status 28", "region: a connection refused: the private data is"],
        ),
        ("region", "4792 10 private=6e6f7065", ["REJECTED, status 28", "region: a connection refused: unknown region"]),
        ("nobody", "4711 10", ["REJECTED, status 8", "no service listens there"]),
    ] {
        report.case(&format!("{service}: a client that connects to {options}"), context, || {
            beside(&|| {
                let done = bed.guest.run(&format!("silent_client {TARGET_V4} {options}"), LIMIT)?;
                if !done.text.contains(texts[0]) {
                    return Err(format!("`{}` printed {}", done.command, done.text));
                }
                logged(&bed, texts[1])
            })
        });
    }
    report.case("random messages to queue pair 1", context, || {
        beside(&|| {
            let command = format!("garbage_client mad {TARGET_V4} {GUEST_V4} 3000 7");
            bed.guest.expect(&command, LIMIT, &["thrown 3000 packets"])?;
            bed.guest.expect(&format!("rping -c -a {TARGET_V4} -C 3 -v"), LIMIT, &["rdma-ping-2"]).map(drop)
        })
    });
    report.case("all clients work afterwards", context, || {
        let script = format!(
            "rping -c -a {TARGET_V4} -C 3 && ucmatose -s {TARGET_V4} && rc_example_client {TARGET_V4} {gid} && \
             ibv_rc_pingpong -g {gid} -n 10 {TARGET_V4} && ib_send_lat -n 10 {TARGET_V4}"
        );
        bed.guest.expect(&script, LIMIT, &["return status 0", "test result is 0", "10 iters in"]).map(drop)
    });
    let alive = bed.target.as_mut().is_some_and(Target::alive);
    report.case("the target still runs and counts", String::new, || {
        if !alive {
            return Err(format!("it has ended\n{}", bed.context()));
        }
        let summary = bed.stop_target()?;
        for reason in ["icrc_mismatch=", "mad_malformed=", "mad_unsupported=", "cm_unknown_id="] {
            if !summary.lines().any(|line| line.starts_with("drop: ") && line.contains(&format!(" {reason}"))) {
                return Err(format!("the summary counts no {reason}: {summary}"));
            }
        }
        counted(&summary, "port-18515", &["malformed=30"])?;
        // Streams of less than a hello say nothing.
        counted(&summary, "rc-example", &["connections=31", "exchanges=1", "malformed=25"])?;
        counted(&summary, "perftest", &["connections=2", "exchanges=10", "malformed=1"])?;
        counted(&summary, "pingpong", &["connections=2", "exchanges=10", "malformed=1"])?;
        counted(&summary, "rdma-example", &["connections=1", "malformed=1"])?;
        counted(&summary, "rdma-server", &["connections=1", "malformed=1"])?;
        counted(&summary, "region", &["refused=2"])
    });
}

/// Surroundings with little memory for a target.
fn little_memory(world: &World) -> Result<World, String> {
    let dir = world.path("little");
    let huge = dir.join("huge");
    std::fs::create_dir_all(&huge).map_err(|e| e.to_string())?;
    must("mount", &["-t", "hugetlbfs", "-o", "pagesize=2M,size=256M", "none", &huge.to_string_lossy()])?;
    Ok(World { dir, token: world.token.clone(), image: world.image.clone(), suffix: world.suffix.clone() })
}

/// Clients of the pingpongs take so much memory that there is room for two or three.
fn short_of_memory(report: &mut Report, world: &World) {
    let Some(little) = report.fixture("little memory", || little_memory(world)) else { return };
    let boot = || {
        let text = "[service.pingpong]\nmemory = \"64M\"\nidle-timeout = \"600s\"\n";
        let bed = Bed::with(&little, "sm", "0", Port::Vhost, 1500, &little.config_file("large.toml", text)?)?;
        let index = gid_index(&bed, GUEST_V4)?;
        Ok((bed, index))
    };
    let Some((mut bed, gid)) = report.fixture("boot", boot) else { return };
    let context = || bed.context();
    let log = || bed.target.as_ref().map(Target::log).unwrap_or_default();
    report.case("pingpong: clients that have ended make room for others", context, || {
        let evicted = |line: &String| line.contains("its memory is wanted for another") && line.contains(GUEST_V4);
        for _ in 0..8 {
            bed.guest.expect(&format!("ibv_rc_pingpong -g {gid} -n 10 {TARGET_V4}"), LIMIT, &["10 iters in"])?;
            std::thread::sleep(Duration::from_millis(1300));
            if log().iter().any(evicted) {
                return Ok(());
            }
        }
        Err("no client had to make room".to_owned())
    });
    report.case(
        "pingpong: where all are at work the next is refused, which is logged, and they go on",
        context,
        || {
            let client =
                || bed.guest.start(&format!("exec ibv_rc_pingpong -g {gid} -n 100000000 {TARGET_V4}"), 2 * LIMIT);
            let refused = || {
                let why = "pingpong: a pingpong refused: ";
                log().iter().filter(|line| line.contains(why) && line.contains(&format!("={GUEST_V4}"))).count()
            };
            let mut working = Vec::new();
            while refused() == 0 {
                if working.len() == 6 {
                    return Err("six clients have got their memory".to_owned());
                }
                working.push(client()?);
                std::thread::sleep(Duration::from_millis(2500));
            }
            let stay: Vec<bool> = working.iter().map(Job::running).collect();
            for job in working {
                job.kill(9)?;
                job.wait()?;
            }
            match stay[..] {
                [true, .., false] => Ok(()),
                _ => Err(format!("of the clients these still ran: {stay:?}")),
            }
        },
    );
    let alive = bed.target.as_mut().is_some_and(Target::alive);
    report.case("the target still runs and counts", String::new, || {
        if !alive {
            return Err(format!("it has ended\n{}", bed.context()));
        }
        let summary = bed.stop_target()?;
        let line = summary.lines().find(|line| line.starts_with("service pingpong:"));
        match line {
            Some(line) if line.contains(" evicted=") && line.contains(" refused=1 ") => Ok(()),
            _ => Err(summary.clone()),
        }
    });
}
