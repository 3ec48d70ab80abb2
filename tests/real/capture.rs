//! Captures of a running target, read back by tshark: a Linux client's connection from the first message of its CM to the
//! last, a dropped packet with its reason, one queue pair of several, a disk that is full.

use crate::Check;
use crate::bed::{BedConfig, TestBed, needs};
use crate::station::{GUEST_V4, Port, StationKey, TARGET_V4};
use crate::suite::{AnyGroup, Group};
use rxe_testkit::process::{self, must};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);
/// The capture that begins with the target.
const EARLY: &str = "early.pcapng";

/// The fields that tshark prints of each packet, which have the same form in several of its versions.
const FIELDS: [&str; 8] = [
    "frame.time_epoch",
    "frame.packet_flags_direction",
    "_ws.col.Info",
    "ip.src",
    "infiniband.bth.opcode",
    "infiniband.bth.destqp",
    "infiniband.mad.attributeid",
    "frame.comment",
];

/// One packet, by `FIELDS`.
struct Packet(Vec<String>);

impl Packet {
    fn get(&self, name: &str) -> &str {
        let place = FIELDS.iter().position(|field| *field == name);
        place.and_then(|place| self.0.get(place)).map_or("", String::as_str)
    }

    fn sent(&self) -> bool {
        self.get("frame.packet_flags_direction") == "0x00000002"
    }

    fn number(&self, name: &str) -> Option<u32> {
        let text = self.get(name);
        text.strip_prefix("0x").map_or_else(|| text.parse().ok(), |hex| u32::from_str_radix(hex, 16).ok())
    }
}

/// The group `capture`.
pub fn group() -> AnyGroup {
    let mut group = Group::new("capture", needs(StationKey::new(Port::AfPacket, 1500)), |env| {
        let capture = ["--capture".to_owned(), env.path(EARLY).display().to_string()];
        TestBed::start(env, BedConfig::new(Port::AfPacket, 1500).arguments(&capture))
    });
    group.case("--capture has the first packet, and rxe-ctl ends it", |bed| from_the_start(bed));
    group.case("tshark reads a connection, and why a packet was dropped", |bed| connection(bed));
    group.case("one queue pair, both ways", |bed| one_queue_pair(bed));
    group.case("a full disk ends the capture, not the target", |bed| full_disk(bed));
    group.build()
}

/// Standard output of rxe-ctl, run in `folder`.
fn ctl(bed: &TestBed, folder: &Path, words: &[&str]) -> Result<String, String> {
    let target = bed.target()?;
    let mut ctl = Command::new(env!("CARGO_BIN_EXE_rxe-ctl"));
    ctl.current_dir(folder).args(["--file-prefix", &target.prefix]).args(words);
    let done = process::run(&mut ctl, LIMIT)?;
    if done.code == 0 { Ok(done.stdout) } else { Err(format!("rxe-ctl {}: {}", words.join(" "), done.stderr)) }
}

/// The answer of rxe-ctl as JSON.
pub fn json(bed: &TestBed, words: &[&str]) -> Result<Value, String> {
    let text = ctl(bed, &bed.env.dir, &[&["--json"], words].concat())?;
    serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))
}

/// Dropped packets by reason.
fn drops(bed: &TestBed) -> Result<BTreeMap<String, u64>, String> {
    let drops = json(bed, &["drops"])?;
    let counts = drops
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|drop| Some((drop["reason"].as_str()?.to_owned(), drop["packets"].as_u64()?)));
    Ok(counts.collect())
}

fn expect(text: &str, part: &str) -> Check {
    if text.contains(part) { Ok(()) } else { Err(format!("no {part:?} in: {text}")) }
}

/// The packets of a file, read by tshark.
fn read(file: &Path) -> Result<Vec<Packet>, String> {
    let mut tshark = Command::new("tshark");
    tshark.args(["-n", "-r"]).arg(file).args(["-T", "fields", "-E", "occurrence=f"]);
    for field in FIELDS {
        tshark.args(["-e", field]);
    }
    let done = process::run(&mut tshark, LIMIT)?;
    if done.code != 0 || done.stderr.contains("cut short") {
        return Err(format!("tshark: {}", done.stderr));
    }
    Ok(done.stdout.lines().map(|line| Packet(line.split('\t').map(str::to_owned).collect())).collect())
}

fn find<'p>(packets: &'p [Packet], what: &str, right: impl Fn(&Packet) -> bool) -> Result<&'p Packet, String> {
    packets.iter().find(|packet| right(packet)).ok_or_else(|| {
        let lines: Vec<String> = packets.iter().map(|packet| packet.0.join(" | ")).collect();
        format!("no {what} among:\n{}", lines.join("\n"))
    })
}

fn from_the_start(bed: &TestBed) -> Check {
    let early = bed.env.path(EARLY);
    let here = Path::new("/");
    let name = early.display().to_string();
    expect(&ctl(bed, here, &["capture", "status"])?, &format!("capturing to {name}\n"))?;
    let second = ctl(bed, here, &["capture", "start", "/tmp/second.pcapng"]).err().unwrap_or_default();
    expect(&second, &format!("the capture {name} is running: stop it first"))?;
    bed.guest().expect(&format!("rping -c -a {TARGET_V4} -C 1 -v"), LIMIT, &["rdma-ping-0"])?;
    expect(&ctl(bed, here, &["capture", "stop"])?, "ended: it was stopped\n")?;
    let packets = read(&early)?;
    // The target's probes come before the first request.
    find(&packets[..packets.len().min(4)], "probe", |packet| packet.sent())?;
    find(&packets, "ConnectRequest", |packet| packet.get("_ws.col.Info") == "CM: ConnectRequest").map(drop)
}

fn connection(bed: &TestBed) -> Check {
    let before = drops(bed)?;
    // A name without a folder is relative to rxe-ctl's working folder.
    expect(&ctl(bed, &bed.env.dir, &["capture", "start", "rping.pcapng"])?, "/rping.pcapng\nframes ")?;
    bed.guest().expect(&format!("rping -c -a {TARGET_V4} -C 3 -v"), LIMIT, &["rdma-ping-2"])?;
    bed.guest().expect(&format!("echo garbage > /dev/udp/{TARGET_V4}/4791"), LIMIT, &[])?;
    let deadline = Instant::now() + LIMIT;
    // Too short for a packet, or with a checksum that was left for a device to finish.
    let after = loop {
        let after = drops(bed)?;
        if after != before {
            break after;
        }
        if Instant::now() > deadline {
            return Err("the malformed datagram does not arrive".to_owned());
        }
        std::thread::sleep(Duration::from_millis(50));
    };
    let status = json(bed, &["capture", "stop"])?;
    let file = bed.env.path("rping.pcapng");
    let packets = read(&file)?;
    if (status["frames"].as_u64(), status["lost"].as_u64()) != (Some(packets.len() as u64), Some(0)) {
        return Err(format!("{} packets, but {status}", packets.len()));
    }

    // Message of the CM, its attribute, and whether it is the target that sends it.
    for (name, attribute, sent) in [
        ("ConnectRequest", 0x10, false),
        ("ConnectReply", 0x13, true),
        ("ReadyToUse", 0x14, false),
        ("DisconnectRequest", 0x15, false),
        ("DisconnectReply", 0x16, true),
    ] {
        let is = |packet: &Packet| {
            packet.get("_ws.col.Info") == format!("CM: {name}")
                && packet.number("infiniband.mad.attributeid") == Some(attribute)
                && packet.number("infiniband.bth.destqp") == Some(1)
                && packet.sent() == sent
        };
        find(&packets, name, is)?;
    }
    // rping: the client SENDs its memory's address, the target READs from there, then WRITEs.
    for (name, opcode, sent) in [
        ("Send Only", 4, false),
        ("RDMA Read Request", 12, true),
        ("RDMA Read Response Only", 16, false),
        ("RDMA Write Only", 10, true),
        ("Acknowledge", 17, true),
        ("Acknowledge", 17, false),
    ] {
        let is = |packet: &Packet| {
            packet.get("_ws.col.Info").starts_with(&format!("RC {name} "))
                && packet.number("infiniband.bth.opcode") == Some(opcode)
                && packet.sent() == sent
        };
        find(&packets, name, is)?;
    }
    for (reason, count) in &after {
        let comment = format!("dropped: {reason} (");
        let dropped = packets.iter().filter(|packet| packet.get("frame.comment").contains(&comment)).count() as u64;
        if dropped != count - before.get(reason).unwrap_or(&0) {
            return Err(format!("{reason}: {dropped} in the capture; {before:?}, then {after:?}"));
        }
    }
    for packet in &packets {
        let from = if packet.sent() { TARGET_V4 } else { GUEST_V4 };
        if packet.number("infiniband.bth.destqp").is_some() && packet.get("ip.src") != from {
            return Err(format!("sent by the other side: {}", packet.0.join(" | ")));
        }
    }
    // Nine digits, which are not those of a clock of microseconds.
    find(&packets, "nanosecond", |packet| {
        packet
            .get("frame.time_epoch")
            .split_once('.')
            .is_some_and(|(_, part)| part.len() == 9 && !part.ends_with("000"))
    })?;
    // As people read it.
    let verbose = process::run(Command::new("tshark").args(["-V", "-r"]).arg(&file), LIMIT)?.stdout;
    for part in [
        "CM ConnectRequest",
        "Direction: Inbound",
        "Direction: Outbound",
        "Interface name: net_af_packet0",
        "dropped: ",
    ] {
        expect(&verbose, part)?;
    }
    Ok(())
}

fn one_queue_pair(bed: &TestBed) -> Check {
    let jobs = [0, 1].map(|_| bed.guest().start(&format!("rping -c -a {TARGET_V4} -C 1000000"), LIMIT));
    let [first, second] = jobs;
    let (first, second) = (first?, second?);
    let deadline = Instant::now() + LIMIT;
    let connected = loop {
        let qps = json(bed, &["qp"])?;
        let ready = |qp: &Value| qp["state"] == "RTS" && qp["rx_packets"].as_u64() > Some(10);
        let of = |qp: &Value| [&qp["lqpn"], &qp["rqpn"]].map(|n| n.as_u64().unwrap_or(0) as u32);
        let ready: Vec<[u32; 2]> = qps.as_array().into_iter().flatten().filter(|qp| ready(qp)).map(of).collect();
        if ready.len() == 2 {
            break ready;
        }
        if Instant::now() > deadline {
            return Err(format!("no two busy connections: {qps}"));
        }
    };
    let [local, remote] = connected[1];
    let file = bed.env.path("qp.pcapng");
    ctl(bed, &bed.env.dir, &["capture", "start", "qp.pcapng", "--qpn", &format!("{local:#x}"), "--snaplen", "96"])?;
    while json(bed, &["capture", "status"])?["frames"].as_u64() < Some(50) {
        if Instant::now() > deadline {
            return Err("the queue pair has no packets".to_owned());
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    ctl(bed, &bed.env.dir, &["capture", "stop"])?;
    for job in [&first, &second] {
        job.kill(15)?;
    }
    let (_, _) = (first.wait()?, second.wait()?);
    let packets = read(&file)?;
    // The messages that made the connection come first.
    let (head, packets) = packets.split_at_checked(2).ok_or("no two packets")?;
    for (packet, info) in head.iter().zip(["CM: ConnectRequest", "CM: ConnectReply"]) {
        expect(packet.get("_ws.col.Info"), info)?;
        expect(packet.get("frame.comment"), &format!("how queue pair {local:#x} was connected"))?;
    }
    for packet in packets {
        let wanted = if packet.sent() { remote } else { local };
        if packet.number("infiniband.bth.destqp") != Some(wanted) {
            return Err(format!("not of {local:#x} and {remote:#x}: {}", packet.0.join(" | ")));
        }
    }
    find(packets, "packet of the target", Packet::sent)?;
    find(packets, "packet of the client", |packet| !packet.sent()).map(drop)
}

fn full_disk(bed: &TestBed) -> Check {
    let folder = bed.env.path("small");
    std::fs::create_dir_all(&folder).map_err(|e| e.to_string())?;
    must("mount", &["-t", "tmpfs", "-o", "size=64k", "none", &folder.to_string_lossy()])?;
    ctl(bed, &folder, &["capture", "start", "full.pcapng"])?;
    bed.guest().expect(&format!("rping -c -a {TARGET_V4} -S 65000 -C 20"), LIMIT, &[])?;
    let deadline = Instant::now() + LIMIT;
    let why = "the file cannot be written (No space left on device)";
    while !ctl(bed, &folder, &["capture", "status"])?.contains(&format!("ended: {why}\n")) {
        if Instant::now() > deadline {
            return Err(ctl(bed, &folder, &["capture", "status"])?);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    let log = bed.log();
    let lines = log.iter().filter(|line| line.contains(why)).count();
    if lines != 1 {
        return Err(format!("{lines} lines of the log have the reason"));
    }
    bed.guest().expect(&format!("rping -c -a {TARGET_V4} -C 3 -v"), LIMIT, &["rdma-ping-2"])?;
    // The next capture works.
    ctl(bed, &bed.env.dir, &["capture", "start", "after.pcapng"])?;
    ctl(bed, &bed.env.dir, &["capture", "stop"]).map(drop)
}
