//! Addresses that come and go, the configuration as a file, and reloads of it, while a client READs.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rxe_dpdk::rxe_proto::wire::PathMtu;
use rxe_testkit::process::Program;
use serde_json::{Value, json};

use crate::Target;
use crate::alone::alone;
use crate::initiator::Initiator;
use crate::manage::{named, read_during, refuses};
use crate::operate::{contains, ctl, json, refused, run, rxe_ctl};

/// The port of the `region` service.
const PORT: u16 = 4792;
const FIRST: [u8; 4] = [10, 77, 0, 1];
const SECOND: [u8; 4] = [10, 77, 0, 5];

/// The number of queue pairs at each of the target's addresses.
fn users(target: &Target) -> Vec<(String, u64)> {
    let list = json(target, "address list");
    let entry = |entry: &Value| (entry["address"].as_str().unwrap().to_owned(), entry["users"].as_u64().unwrap());
    // The link-local one comes last.
    let mut all: Vec<(String, u64)> = list.as_array().unwrap().iter().map(entry).collect();
    assert!(all.pop().unwrap().0.starts_with("fe80::"));
    all
}

#[test]
fn addresses_come_and_go_while_others_are_read() {
    alone("reload::addresses_come_and_go_while_others_are_read", "", &[], |initiator, target| {
        let bytes = [5; 512];
        let mut reader = initiator.connect(PORT, "demo", PathMtu::Mtu4096);
        reader.write(initiator, 0, &bytes);
        read_during(initiator, &mut reader, &bytes, || {
            ctl(&target, "address add 10.77.0.5/24");
            ctl(&target, "address add port0:fd00:77::5/64");
            let expected = [("10.77.0.1/24", 1), ("10.77.0.5/24", 0), ("fd00:77::5/64", 0)];
            assert_eq!(users(&target), expected.map(|(address, users)| (address.to_owned(), users)));
            ctl(&target, "address remove fd00:77::5");
            ctl(&target, "address remove 10.77.0.5");
        });
        assert_eq!(users(&target), [("10.77.0.1/24".to_owned(), 1)]);
        contains(&ctl(&target, "address list"), &["PORT  QPS  ADDRESS", "\n   0    1  10.77.0.1/24\n"]);

        // An address that was added is like one of the start.
        initiator.aim_at(SECOND);
        assert!(initiator.refused_connect(PORT, "demo").is_none(), "nobody is there");
        ctl(&target, "address add 10.77.0.5/24");
        let mut other = initiator.connect(PORT, "demo", PathMtu::Mtu4096);
        assert_eq!(other.read(initiator, 0, 4), [5; 4]);
        assert_eq!(users(&target)[1], ("10.77.0.5/24".to_owned(), 1));
        assert_eq!(json(&target, "devinfo")["ports"][0]["addresses"][1], "10.77.0.5");

        // In use, it stays; by force it goes, and its client is disconnected.
        let in_use = "1 queue pairs and 0 TCP streams use the address 10.77.0.5: disconnect them before, or add --force, and \
                      they are disconnected";
        refuses(&target, "address remove 10.77.0.5", in_use);
        assert_eq!(other.read(initiator, 0, 4), [5; 4]);
        std::thread::scope(|scope| {
            let removed = scope.spawn(|| ctl(&target, "address remove 10.77.0.5 --force"));
            initiator.await_any_disconnect();
            initiator.wait_for(|| removed.is_finished());
            removed.join().unwrap();
        });
        assert!(initiator.refused_connect(PORT, "demo").is_none(), "nobody is there any more");
        initiator.aim_at(FIRST);
        assert_eq!(reader.read(initiator, 0, bytes.len()), bytes);

        for (words, sentence) in [
            ("address add 10.77.0.1/24", "port0 has the address 10.77.0.1 already"),
            ("address add 10.77.0.5", "'10.77.0.5' lacks its prefix length: write 10.77.0.5/24"),
            (
                "address add port1:10.77.0.5/24",
                "there is no port1: the target has 1 port(s), of which the first is port0",
            ),
            ("address remove 10.77.0.1", "10.77.0.1 is the only address of port0: add another one before"),
            ("address remove 10.77.0.9", "no port has the address 10.77.0.9 by its configuration"),
            ("address remove here", "'here' is not an IP address"),
        ] {
            refuses(&target, words, sentence);
        }
        reader.disconnect(initiator);
        target.stop();
    });
}

/// The rest of the file that the target starts with.
const START: &str =
    "[[port]]\naddresses = [\"10.77.0.1/24\"]\nmtu = 4200\n[[region]]\nname = \"demo\"\nsize = \"4M\"\n";
/// A file that says much else.
const OTHER: &str = r#"
log = "warn"
services = ["region", "perftest", "pingpong"]
[transport]
flush = true
atomic-write = true
[limits]
connections = 100
[[port]]
addresses = ["10.77.0.1/24", "10.77.0.5/24", "fd00:77::5/64"]
gateways = ["10.77.0.254"]
peers = ["10.77.0.0/24", "fd00::/8"]
mtu = 4200
[[region]]
name = "demo"
size = "4M"
peers = ["10.77.0.0/16"]
[[region]]
name = "extra"
size = "64K"
read-only = true
[[fault.rule]]
action = "drop"
qpn = 0x7ffff
[service.region]
peers = ["10.0.0.0/8"]
"#;

fn strings(value: &Value) -> Vec<&str> {
    value.as_array().unwrap().iter().map(|text| text.as_str().unwrap()).collect()
}

fn write(target: &Target, text: &str) {
    std::fs::write(&target.config, text).unwrap();
}

#[test]
fn a_reload_changes_what_can_be_changed_while_others_are_read() {
    let name = "reload::a_reload_changes_what_can_be_changed_while_others_are_read";
    alone(name, START, &[], |initiator, target| {
        let start = std::fs::read_to_string(&target.config).unwrap();
        let bytes = [6; 512];
        let mut reader = initiator.connect(PORT, "demo", PathMtu::Mtu4096);
        reader.write(initiator, 0, &bytes);
        assert_eq!(ctl(&target, "reload"), format!("the target runs as {} says\n", target.config.display()));
        read_during(initiator, &mut reader, &bytes, || {
            write(&target, OTHER);
            let done = json(&target, "reload");
            let applied = strings(&done["applied"]);
            for part in [
                "set the log level to warn",
                "set the addresses and routes of port0",
                "set the allowed peers of port0",
                "stop the service rping",
                "set the allowed peers of the service region",
                "set watch and the allowed peers of the region demo",
                "add the region extra",
                "set the fault rules",
            ] {
                assert!(applied.contains(&part), "{part} is not in {applied:?}");
            }
            assert_eq!(done["refused"], json!([]));
            assert_eq!(strings(&done["needs_restart"]), ["[limits] connections", "[limits] connections-per-address"]);
            assert_eq!(users(&target).len(), 3);
            assert_eq!(named(&json(&target, "service list"), "rping").unwrap()["stopped"], true);
            assert_eq!(named(&json(&target, "region list"), "extra").unwrap()["read_only"], true);
            assert_eq!(json(&target, "fault list").as_array().unwrap().len(), 1);
            write(&target, &start);
            let done = json(&target, "reload");
            assert_eq!((&done["refused"], &done["needs_restart"]), (&json!([]), &json!([])));
        });
        assert_eq!(users(&target), [("10.77.0.1/24".to_owned(), 1)]);
        assert_eq!(ctl(&target, "reload"), format!("the target runs as {} says\n", target.config.display()));

        a_signal_reloads(initiator, &target);
        in_use_is_refused(initiator, &target, &start);
        write(&target, "log = \"loud\"\n");
        refuses(&target, "reload", ".toml, line 1, key 'log': 'loud' is not a log level");
        write(&target, &start);
        ctl(&target, "reload");
        reader.disconnect(initiator);
        a_dump_starts_the_same(target);
    });
}

fn a_signal_reloads(initiator: &mut Initiator, target: &Target) {
    write(target, OTHER);
    let pid = json(target, "devinfo")["pid"].to_string();
    assert!(run(Command::new("kill").args(["-HUP", &pid])).code == 0);
    // The level warn hides what was applied.
    target.log_line("needs a restart: [limits] connections");
    // An earlier reload has logged that too.
    initiator.wait_for(|| users(target).len() == 3);
}

fn in_use_is_refused(initiator: &mut Initiator, target: &Target, start: &str) {
    let mut user = initiator.connect(PORT, "extra", PathMtu::Mtu4096);
    write(target, start);
    let said = run(rxe_ctl().args(["--file-prefix", &target.prefix, "reload"]));
    let refusal = "refused: remove the region extra: 1 queue pairs can reach the region 'extra'";
    contains(&said.stdout, &[refusal, "applied: set the addresses and routes of port0\n"]);
    assert_eq!((said.code, said.stderr.as_str()), (1, "rxe-ctl: the target refused 1 of the changes\n"));
    assert_eq!(user.read(initiator, 0, 4), [0; 4]);
    user.disconnect(initiator);
    initiator.wait_for(|| named(&json(target, "region list"), "extra").unwrap()["users"] == 0);
    assert_eq!(ctl(target, "reload"), "applied: remove the region extra\n");
}

/// The dump of a changed target, given to another one, which then has the same dump.
fn a_dump_starts_the_same(target: Target) {
    for words in [
        "region add late=64K,read-only,domain=d",
        "address add fd00:77::7/64",
        "service stop rping",
        "peers set region:late 10.77.0.0/16",
        "fault add drop --qpn 0x7ffff --count 3",
        "set log debug",
    ] {
        ctl(&target, words);
    }
    let dump = ctl(&target, "config dump");
    contains(&dump, &["name = \"late\"", "\"fd00:77::7/64\"", "log = \"debug\"", "qpn = 524287", "--in-memory"]);
    assert!(!dump.contains("\"rping\""), "{dump}");
    let file = target.config.with_extension("dump.toml");
    std::fs::write(&file, &dump).unwrap();
    let prefix = target.prefix.clone();
    target.stop();
    let target = env!("CARGO_BIN_EXE_rxe-target");
    let checked = run(Command::new(target).arg("--check-config").arg(&file));
    assert_eq!(checked.code, 0, "{}", checked.stderr);
    assert_eq!(dump_of(&file, &prefix), dump);
    std::fs::remove_file(file).unwrap();
}

fn dump_of(file: &Path, prefix: &str) -> String {
    let mut program = Program::start(Command::new(env!("CARGO_BIN_EXE_rxe-target")).arg("--config").arg(file)).unwrap();
    program.wait_for_line("ready ", Duration::from_secs(90)).unwrap_or_else(|error| panic!("{error}"));
    let dump = run(rxe_ctl().args(["--file-prefix", prefix, "config", "dump"]));
    assert_eq!(dump.code, 0, "{}", dump.stderr);
    assert_eq!(program.stop(Duration::from_secs(20)).unwrap().code, 0);
    dump.stdout
}

#[test]
fn a_target_without_a_file_reloads_nothing() {
    let prefix = format!("rxe-reload-{}", std::process::id());
    let mut command = Command::new(env!("CARGO_BIN_EXE_rxe-target"));
    command.args(["-l", "0", "--no-huge", "--no-shconf", "-m", "256", "--no-pci", "--vdev=net_null0"]);
    command.arg(format!("--file-prefix={prefix}"));
    command.args(["--", "--address", "10.0.0.1/24", "--idle", "sleep"]);
    let mut program = Program::start(&mut command).unwrap();
    program.wait_for_line("ready ", Duration::from_secs(90)).unwrap_or_else(|error| panic!("{error}"));
    let sentence = "the target was started without --config, so there is no file to read: change it by rxe-ctl, or start it \
                    with --config FILE";
    refused(rxe_ctl().args(["--file-prefix", &prefix, "reload"]), sentence);
    assert_eq!(program.stop(Duration::from_secs(20)).unwrap().code, 0);
}
