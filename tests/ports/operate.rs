//! A running target and its operator: every command of rxe-ctl, a scrape parsed by Prometheus' own parser, DPDK's telemetry
//! socket, the log.

use std::process::Command;
use std::time::{Duration, Instant};

use rxe_dpdk::rxe_proto::transport::WcStatus;
use rxe_dpdk::rxe_proto::wire::PathMtu;
use rxe_testkit::process::{self, Finished, Program};
use serde_json::Value;

use crate::Target;
use crate::initiator::Initiator;
use crate::scrape;

/// Longer than any command takes.
const LIMIT: Duration = Duration::from_secs(90);

pub fn run(command: &mut Command) -> Finished {
    process::run(command, LIMIT).unwrap_or_else(|error| panic!("{error}"))
}

pub fn rxe_ctl() -> Command {
    Command::new(env!("CARGO_BIN_EXE_rxe-ctl"))
}

/// Standard output of rxe-ctl for `words`.
pub fn ctl(target: &Target, words: &str) -> String {
    let said = run(rxe_ctl().args(["--file-prefix", &target.prefix]).args(words.split(' ')));
    assert_eq!((said.code, said.stderr.as_str()), (0, ""), "{words}: {}", said.stdout);
    said.stdout
}

/// The same as JSON.
pub fn json(target: &Target, words: &str) -> Value {
    let text = ctl(target, &format!("--json {words}"));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{words}: {error}: {text}"))
}

#[track_caller]
pub fn contains(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "no {part:?} in:\n{text}");
    }
}

#[track_caller]
pub fn refused(command: &mut Command, sentence: &str) {
    let said = run(command);
    assert_eq!((said.code, said.stdout.as_str()), (2, ""), "{}", said.stderr);
    // clap adds usage and where to find help; every other error is one line.
    let shape = said.stderr.lines().count() == 1 || said.stderr.contains("--help");
    assert!(said.stderr.contains(sentence) && shape, "{}", said.stderr);
}

/// Looks at a target from all sides while a connection of `initiator` is up, and ends two of its connections.
pub fn look_after(initiator: &mut Initiator, target: &Target, metrics: &str) {
    mistakes(target);
    let mut connection = initiator.connect(4792, "demo", PathMtu::Mtu4096);
    let bytes: Vec<u8> = (0..1 << 20).map(|at: u32| (at.wrapping_mul(0x9E37_79B9) >> 24) as u8).collect();
    connection.write(initiator, 0, &bytes);
    digests(target, &bytes);
    let local = wait_for_qp(target);
    let peer_qpn = connection.qpn();

    device(target);
    let qps = json(target, "qp");
    let qp = &qps[0];
    assert_eq!((qps.as_array().unwrap().len(), &qp["lqpn"], &qp["rqpn"]), (1, &local.into(), &peer_qpn.into()));
    for (key, value) in
        [("type", "RC"), ("state", "RTS"), ("service", "region"), ("peer", "10.77.0.2"), ("waits", "nothing")]
    {
        assert_eq!(qp[key], value, "{qp}");
    }
    assert_eq!((&qp["path_mtu"], &qp["outstanding"]), (&4096.into(), &0.into()));
    assert_eq!(qp["connection"]["state"], "established");
    let list = ctl(target, "qp");
    assert!(list.starts_with("LQPN ") && list.lines().count() == 2, "{list}");
    contains(&list, &[&format!("{local:#x}"), "RC", "RTS", "region", "10.77.0.2", "nothing"]);
    let one = ctl(target, &format!("qp {local:#x}"));
    contains(
        &one,
        &["state         RTS\n", "waits         nothing: Nothing is posted", "service       region\n", "\nrq-psn"],
    );
    contains(&one, &["10.77.0.1 > 10.77.0.2 (52:54:00:00:00:22)", "retries       0 so far; left: 7 of 7"]);
    assert_eq!(json(target, &format!("qp {local}"))["lqpn"], local);

    contains(&ctl(target, "connections"), &["established", "region", "10.77.0.2:40000", &format!("{peer_qpn:#x}")]);
    assert_eq!(json(target, "connections")[0]["connection"]["peer"], "10.77.0.2:40000");
    let resources = ctl(target, "resource");
    assert!(resources.starts_with(&format!("0: rxe_{}: pd ", target.prefix)), "{resources}");
    // Its only neighbour is the initiator.
    contains(&resources, &[" qp 1 ", " mr 1 ", " srq 0 ", " conn 1 sidr 0 tcp 0 neigh 1 timer "]);
    let counts = json(target, "resource");
    assert_eq!((&counts[0]["qp"], &counts[0]["conn"]), (&1.into(), &1.into()));
    contains(&ctl(target, "resource --details"), &["    lcore 0: pd "]);
    let mrs = json(target, "mr");
    assert_eq!(
        (&mrs[0]["name"], &mrs[0]["mrlen"], mrs.as_array().unwrap().len()),
        (&"demo".into(), &(4 << 20).into(), 1)
    );
    contains(&ctl(target, "mr"), &["region", "demo", "4194304", "remote_read"]);

    // 256 packets of the WRITE. They are complete, so the counters are, too. On a busy machine the initiator may have
    // sent some of them twice.
    let stat = json(target, "stat");
    let counter = |name: &str| stat["hw_counters"][name].as_u64().unwrap();
    let received = counter("rcvd_pkts");
    let again = counter("duplicate_request") + counter("out_of_seq_request");
    assert!(received >= 256 && received <= 256 + again, "{stat}");
    assert!(stat["transport"]["acks_sent"].as_u64() > Some(0) && stat["cm"]["rx_req"] == 1, "{stat}");
    contains(&ctl(target, "stat"), &["hw_counters\n    sent_pkts", &format!("    rcvd_pkts {received:>21}\n"), "cm\n"]);
    contains(&ctl(target, "stat --all"), &["    flushes                     0\n"]);
    let cm = ctl(target, "stat cm");
    assert!(cm.starts_with("cm\n") && cm.contains("    rx_req ") && !cm.contains("hw_counters"), "{cm}");
    contains(&ctl(target, "stat hw_counters"), &["hw_counters\n    sent_pkts"]);
    // Within an interval without packets of a connection, the loop turns.
    let delta = json(target, "stat worker --delta 0.2");
    assert!(delta["worker"]["turns"].as_u64() > Some(0) && delta.get("cm").is_none(), "{delta}");
    contains(
        &ctl(target, "stat latency"),
        &["latency\n    OF ", "\n    turns of lcore 0 ", "\n    region responder write "],
    );
    let latency = json(target, "stat latency");
    assert!(latency["latency"]["turns"][0]["count"].as_u64() > Some(0) && latency.get("cm").is_none(), "{latency}");
    contains(&ctl(target, "drops --all"), &["icrc_mismatch", "ICRC wrong: damaged or modified in transit."]);
    let drops = json(target, "drops");
    assert!(drops.as_array().unwrap().iter().any(|drop| drop["reason"] == "icrc_mismatch" && drop["packets"] == 0));
    contains(&ctl(target, "services"), &["region", "tcp:4792", "connections=1", "stream:18515"]);
    assert!(json(target, "services").as_array().unwrap().iter().any(|service| service["name"] == "perftest"));

    scrape::scrape(metrics, received as f64);
    telemetry(target, local, received);
    top(initiator, &mut connection, target, local);

    // An error caused by the peer is reported to it, and logged with the packet.
    let status = connection.refused_write(initiator, 4 << 20, b"beyond");
    assert_eq!(status, WcStatus::RemAccessErr);
    connection.await_disconnect(initiator);
    let line = target.log_line("queue pair in error");
    contains(
        &line,
        &["WARN", "remote_key", "As responder: the peer's key, range or rights are not good", "RC WRITE_ONLY"],
    );
    contains(&line, &["10.77.0.2 > 10.77.0.1", "reth(va ", "len 6)", "region", "10.77.0.2:40000"]);
    contains(&target.log_line("connected"), &["INFO", "region", "10.77.0.2:40000", &format!("{local:#x}")]);

    // The operator ends a connection.
    let connection = initiator.connect(4792, "demo", PathMtu::Mtu4096);
    let second = wait_for_qp(target);
    assert_ne!(second, local);
    assert_eq!(ctl(target, &format!("disconnect {second}")), "");
    connection.await_disconnect(initiator);
    contains(&target.log_line("rxe-ctl disconnected queue pair"), &[&format!("{second:#x}")]);
    contains(&target.log_line("disconnected: we disconnected"), &["region", "10.77.0.2:40000"]);
    assert_eq!(json(target, "qp"), Value::Array(Vec::new()));

    // The log's level: from here on connections are not worth a line.
    assert_eq!(ctl(target, "set log warn"), "");
    let lines = target.log_len();
    let connection = initiator.connect(4792, "demo", PathMtu::Mtu4096);
    wait_for_qp(target);
    connection.disconnect(initiator);
    assert_eq!(target.log_len(), lines);
    assert_eq!(ctl(target, "set log info"), "");
}

/// The number of the only queue pair, once its connection is up.
pub fn wait_for_qp(target: &Target) -> u32 {
    let began = Instant::now();
    loop {
        let qps = json(target, "qp");
        if qps[0]["connection"]["state"] == "established" {
            return u32::try_from(qps[0]["lqpn"].as_u64().unwrap()).unwrap();
        }
        assert!(began.elapsed() < Duration::from_secs(10), "{qps}");
    }
}

fn device(target: &Target) {
    let name = format!("rxe_{}", target.prefix);
    let mac = &target.mac;
    contains(&ctl(target, "devices"), &["    device          \t   node GUID\n", &format!("    {name:<16}\t")]);
    let text = ctl(target, "devinfo");
    contains(&text, &[&format!("hca_id:\t{name}\n"), "\tphys_port_cnt:\t\t\t1\n", "\t\t\tactive_mtu:\t\t\t4096 (5)\n"]);
    contains(&text, &["\t\t\tstate:\t\t\t\tPORT_ACTIVE (4)\n", "\t\t\tlink_layer:\t\t\tEthernet\n"]);
    contains(&ctl(target, "devinfo -v"), &["GID[  0]:\t\t\t::ffff:10.77.0.1, RoCE v2\n", "\tmax_qp:\t\t\t\t16384\n"]);
    let device = json(target, "devinfo");
    assert_eq!((&device["ports"][0]["mac"], &device["lcores"][0]), (&mac.as_str().into(), &0.into()));
    assert_eq!(device["file_prefix"], target.prefix.as_str());
    let link = ctl(target, "link");
    assert_eq!(link, format!("link {name}/0 state ACTIVE physical_state LINK_UP netdev net_memif0\n"));
    contains(
        &ctl(target, "link --details"),
        &[mac, "driver net_memif", "mtu 4200", "path_mtu 4096", " mbufs ", "rx_frames "],
    );
}

/// The target's digests of the region `demo`, which begins with `bytes`.
fn digests(target: &Target, bytes: &[u8]) {
    let whole = json(target, &format!("mr --digest demo --length {}", bytes.len()));
    assert_eq!((&whole["crc32c"], &whole["mrlen"]), (&crc32c(bytes).into(), &(4 << 20).into()), "{whole}");
    assert_eq!(
        ctl(target, "mr --digest demo --offset 70001 --length 100"),
        format!("crc32c {:#010x} region demo offset 70001 length 100\n", crc32c(&bytes[70_001..70_101]))
    );
    assert_eq!(json(target, "mr --digest demo --offset 1")["length"], (4 << 20) - 1);
    let with_prefix = || {
        let mut command = rxe_ctl();
        command.args(["--file-prefix", &target.prefix, "mr"]);
        command
    };
    refused(with_prefix().args(["--digest", "dem"]), "there is no region 'dem': rxe-ctl mr lists the regions");
    refused(with_prefix().args(["--digest", "demo", "--offset", "4194305"]), "the region 'demo' has 4194304 bytes");
    refused(with_prefix().args(["--length", "5"]), "--digest <NAME>");
}

/// CRC-32C bit by bit: reflected polynomial 0x82F63B78, all ones before and inverted after.
fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, _| crc >> 1 ^ if crc & 1 == 1 { 0x82F6_3B78 } else { 0 };
    !bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), step))
}

fn mistakes(target: &Target) {
    refused(
        rxe_ctl().args(["--file-prefix", "nobody-has-this", "qp"]),
        "no target with --file-prefix nobody-has-this is running",
    );
    // The other targets of this test run too.
    refused(rxe_ctl().arg("qp"), "choose one with --file-prefix");
    let by_environment = run(rxe_ctl().env("RXE_FILE_PREFIX", &target.prefix).arg("devices"));
    assert_eq!((by_environment.code, by_environment.stderr.as_str()), (0, ""));
    refused(&mut rxe_ctl(), "Usage: rxe-ctl [OPTIONS] <COMMAND>");
    refused(rxe_ctl().arg("dance"), "unrecognized subcommand 'dance'");
    refused(rxe_ctl().args(["qp", "0x1000000"]), "queue pair numbers go from 0 to 0xffffff");
    let with_prefix = || {
        let mut command = rxe_ctl();
        command.args(["--file-prefix", &target.prefix]);
        command
    };
    let groups = "hw_counters, worker, rx_fault, tx_fault, transport, service, capture, drop, control, cm, output, host, port, management, latency";
    refused(
        with_prefix().args(["stat", "packets"]),
        &format!("there is no group 'packets' of counters: they are {groups}\n"),
    );
    // The completions offer the same.
    let help = run(rxe_ctl().args(["stat", "--help"])).stdout.split_whitespace().collect::<Vec<_>>().join(" ");
    contains(&help, &[&format!("[possible values: {groups}]")]);
    // A user other than root is told which user's targets are searched.
    let program = std::env::temp_dir().join(format!("rxe-ctl-{}", std::process::id()));
    std::fs::copy(env!("CARGO_BIN_EXE_rxe-ctl"), &program).unwrap();
    let mut nobody = Command::new("setpriv");
    nobody.args(["--reuid=65534", "--clear-groups"]).arg(&program).args(["--file-prefix", &target.prefix, "link"]);
    refused(
        &mut nobody,
        "permission to see those of user root is denied: run rxe-ctl as that user (sudo -u root rxe-ctl ...)",
    );
    std::fs::remove_file(program).unwrap();
    refused(with_prefix().args(["qp", "0x77"]), "there is no queue pair 0x77");
    refused(with_prefix().args(["disconnect", "0xE00000"]), "there is no queue pair 0xe00000");
    refused(with_prefix().args(["set", "log", "loud"]), "'loud' is not a log level");
    refused(with_prefix().arg("top"), "top needs a terminal on standard output: use --once to print one interval");
}

/// Rates, under load.
fn top(initiator: &mut Initiator, connection: &mut crate::initiator::Connection, target: &Target, qpn: u32) {
    let start = |options: &[&str]| {
        let mut command = rxe_ctl();
        command.args(["--file-prefix", &target.prefix, "top", "--once", "--interval", "0.5"]).args(options);
        Program::start(&mut command).unwrap()
    };
    let mut programs = [start(&["--json"]), start(&[])];
    while programs.iter_mut().any(Program::is_running) {
        connection.write(initiator, 0, &[1; 64 << 10]);
    }
    let [json, text] = programs.map(|mut program| program.finish(LIMIT).unwrap().stdout);
    let rates: Value = serde_json::from_str(&json).unwrap();
    let qp = &rates["qps"][0];
    assert_eq!((&qp["lqpn"], &qp["service"]), (&qpn.into(), &"region".into()));
    let rate = |value: &Value| value.as_f64().unwrap();
    assert!(rate(&qp["rx_pps"]) > 10.0 && rate(&rates["lcores"][0]["rx_bps"]) > 1e5, "{rates}");
    let service = rates["services"].as_array().unwrap().iter().find(|service| service["service"] == "region").unwrap();
    assert!(rate(&service["packets"]) > 10.0 && service["connections"] == 1, "{service}");
    contains(&text, &["lcores\nLCORE  BUSY%", "services\nSERVICE", "queue pairs\nLQPN", "region", "10.77.0.2"]);
    screen(initiator, connection, target, qpn);
}

/// A terminal of tmux, ended when dropped.
struct Terminal(String);

impl Terminal {
    fn tmux(&self, words: &[&str]) -> String {
        let said = run(Command::new("tmux").args(["-L", &self.0]).args(words).env("TERM", "xterm"));
        assert_eq!(said.code, 0, "{words:?}: {}", said.stderr);
        said.stdout
    }

    fn screen(&self) -> String {
        self.tmux(&["capture-pane", "-p"])
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        run(Command::new("tmux").args(["-L", &self.0, "kill-server"]));
    }
}

/// The live view on a terminal, as its user sees it.
fn screen(initiator: &mut Initiator, connection: &mut crate::initiator::Connection, target: &Target, qpn: u32) {
    let terminal = Terminal(format!("rxe-{}", target.prefix));
    let program = env!("CARGO_BIN_EXE_rxe-ctl");
    let command = format!("{program} --file-prefix {} top --interval 0.2; echo ended with $?; sleep 60", target.prefix);
    terminal.tmux(&["new-session", "-d", "-x", "130", "-y", "30", &command]);
    let began = Instant::now();
    let busy = loop {
        connection.write(initiator, 0, &[1; 64 << 10]);
        let screen = terminal.screen();
        let row = screen.lines().find(|line| line.contains(&format!("{qpn:#x}")));
        // Bits per second of the lcore are beyond a million: the rates are there.
        if row.is_some() && screen.lines().any(|line| line.contains(" 0  ") && line.contains('M')) {
            break screen;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "{screen}");
    };
    println!("{busy}");
    contains(
        &busy,
        &[&format!("rxe_{}  up 0:00:", target.prefix), " lcores ", " services ", " queue pairs ", "10.77.0.2"],
    );
    contains(&busy, &["sorted by packets", "LCORE  BUSY%", "LQPN", "region", "RTS"]);
    terminal.tmux(&["send-keys", "r"]);
    wait_for_screen(&terminal, "sorted by retries");
    terminal.tmux(&["send-keys", "q"]);
    wait_for_screen(&terminal, "ended with 0");
}

fn wait_for_screen(terminal: &Terminal, words: &str) {
    let began = Instant::now();
    while !terminal.screen().contains(words) {
        assert!(began.elapsed() < Duration::from_secs(10), "no {words:?} in\n{}", terminal.screen());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Debian's, which has Debian's modules; another one may come first in the path.
pub const PYTHON: &str = "/usr/bin/python3";

/// Works as dpdk-telemetry.py does: connects, reads the greeting, sends requests.
const ASK: &str = "
import json, socket, sys
s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
s.connect(sys.argv[1])
limit = json.loads(s.recv(1024))['max_output_len']
for command in sys.argv[2:]:
    s.send(command.encode())
    print(s.recv(limit).decode())
";

const SERVICES: &str = "/rxe/services";

fn telemetry(target: &Target, qpn: u32, received: u64) {
    let socket = format!("/var/run/dpdk/{}/dpdk_telemetry.v2", target.prefix);
    let commands = [
        "/rxe/qp",
        "/rxe/link",
        "/rxe/resource",
        "/rxe/stat",
        "/rxe/stat,cm",
        "/rxe/qp,64",
        "/rxe/stat,x",
        "/",
        SERVICES,
    ];
    let said = run(Command::new(PYTHON).args(["-c", ASK, &socket]).args(commands));
    assert_eq!(said.code, 0, "{}", said.stderr);
    let answers: Vec<Value> = said.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let qp = &answers[0]["/rxe/qp"][format!("{qpn:#x}")];
    assert_eq!(
        (&qp["state"], &qp["service"], &qp["waits"]),
        (&"RTS".into(), &"region".into(), &"nothing".into()),
        "{answers:?}"
    );
    assert_eq!(answers[1]["/rxe/link"]["0"]["state"], "ACTIVE");
    assert_eq!(answers[2]["/rxe/resource"]["qp"], 1);
    assert_eq!(answers[3]["/rxe/stat"]["rcvd_pkts"], received);
    assert_eq!(answers[4]["/rxe/stat"]["rx_req"], 1);
    assert_eq!(answers[5]["/rxe/qp"].as_object().map(|page| page.len()), Some(0));
    assert_eq!(answers[6]["/rxe/stat"], Value::Null);
    // DPDK knows no `-` in names.
    for service in json(target, "services").as_array().unwrap() {
        let name = service["name"].as_str().unwrap().replace('-', "_");
        assert!(answers[8][SERVICES][&name].is_string(), "no {name}: {}", answers[8]);
    }
    let all = answers[7]["/"].as_array().unwrap();
    assert_eq!(all.iter().filter(|command| command.as_str().is_some_and(|c| c.starts_with("/rxe/"))).count(), 7);
}

/// Manual pages and completions of both programs, without a target.
#[test]
fn manual_pages_and_completions_are_generated() {
    let folder = std::env::temp_dir().join(format!("rxe-generate-{}", std::process::id()));
    let generated = run(rxe_ctl().arg("generate").arg(&folder));
    assert_eq!((generated.code, generated.stderr.as_str()), (0, ""));
    for program in [env!("CARGO_BIN_EXE_rxe-target"), env!("CARGO_BIN_EXE_rxe-bench")] {
        let generated = run(Command::new(program).arg("--generate").arg(&folder));
        assert_eq!((generated.code, generated.stderr.as_str()), (0, ""));
    }
    let read =
        |name: &str| std::fs::read_to_string(folder.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
    contains(&read("rxe-ctl.1"), &[".TH rxe-ctl 1", "\\-\\-file\\-prefix", ".SH FILES"]);
    contains(&read("rxe-ctl-top.1"), &["once"]);
    contains(&read("rxe-target.1"), &["\\-\\-address"]);
    assert!(!read("rxe-target.1").contains("generate"));
    contains(&read("_rxe-ctl"), &["#compdef rxe-ctl"]);
    contains(&read("rxe-ctl.fish"), &["devinfo"]);
    contains(
        &read("rxe-ctl.bash"),
        &["hw_counters", "error warn info debug trace", "corrupt-payload", "remote-operational"],
    );
    contains(&read("rxe-target.bash"), &["rdma-server", "mckey"]);
    // Every page has examples, or names one that has.
    let own = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("package/man");
    let pages = [&folder, &own].into_iter().flat_map(|folder| std::fs::read_dir(folder).unwrap());
    let pages = pages.map(|entry| entry.unwrap().path()).filter(|path| {
        let path = path.to_string_lossy();
        !path.contains("rxe-ctl-") && !path.contains("rxe-bench-")
    });
    let pages: Vec<_> =
        pages.filter(|path| [".1", ".8", ".5.in"].iter().any(|end| path.to_string_lossy().ends_with(end))).collect();
    assert_eq!(pages.len(), 4 + 1, "{pages:?}");
    for path in pages {
        let page = std::fs::read_to_string(&path).unwrap();
        println!("{}", path.display());
        contains(&page, &[".SH NAME\n", ".SH EXAMPLES\n", ".SH SEE ALSO\n"]);
    }
    contains(&read("rxe-ctl-top.1"), &[".SH SEE ALSO\n\\fBrxe\\-ctl\\fR(1)\n"]);
    contains(&read("rxe-bench-nvme.1"), &["\\-\\-nqn", "randwrite", ".SH SEE ALSO\n\\fBrxe\\-bench\\fR(1)\n"]);
    contains(&read("rxe-bench.bash"), &["randread randwrite rw randrw"]);
    for program in ["rxe-ctl", "rxe-target", "rxe-bench"] {
        let syntax = run(Command::new("bash").arg("-n").arg(folder.join(format!("{program}.bash"))));
        assert_eq!((syntax.code, syntax.stderr.as_str()), (0, ""));
    }
    std::fs::remove_dir_all(folder).unwrap();
}
