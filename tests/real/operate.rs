//! What an operator does, step by step: prepare the host, check the configuration, start what the systemd unit starts,
//! look, stop, take the preparations back.

use crate::Check;
use crate::process::{self, Daemon, Finished, must};
use crate::report::Report;
use crate::world::{World, root, target_binary};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The host's end of the veth pair, and the target's.
const ENDS: [&str; 2] = ["rxeop0", "rxeop1"];
const HOST_ADDRESS: &str = "10.77.0.2/24";
const TARGET_ADDRESS: &str = "10.77.0.1";
const LIMIT: Duration = Duration::from_secs(30);
/// In tenths: systemd's scale ends at 100, and its worst services are there.
const MOST_EXPOSED: &str = "30";

/// Verbs of rxe-ctl, and what each says of a target with one port and nobody connected.
const LOOKS: [(&str, &str); 6] = [
    ("devinfo", "PORT_ACTIVE"),
    ("link", "state ACTIVE"),
    ("resource", "qp "),
    ("stat --all", "rcvd_pkts"),
    ("qp", ""),
    ("services", "region"),
];

/// conf/rxe-target.service.
struct Unit {
    text: String,
}

impl Unit {
    fn read() -> Result<Unit, String> {
        let path = root().join("conf/rxe-target.service");
        Ok(Unit { text: std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))? })
    }

    fn value(&self, key: &str) -> Result<&str, String> {
        let mut lines = self.text.lines().filter_map(|l| l.strip_prefix(key)?.strip_prefix('='));
        lines.next().ok_or_else(|| format!("conf/rxe-target.service has no {key}="))
    }

    /// The same with the programs where they are before the package is installed.
    fn with_programs_here(&self) -> String {
        let host_setup = root().join("conf/host-setup");
        let lines = self.text.lines().filter(|l| !l.starts_with("Documentation=")); // no manual page is installed yet
        let text = lines.map(|l| format!("{l}\n")).collect::<String>();
        text.replace("/usr/sbin/rxe-host-setup", &host_setup.to_string_lossy())
            .replace("/usr/bin/rxe-target", target_binary())
    }
}

/// The group `operate`.
pub fn run(report: &mut Report, world: &World) {
    if !report.group("operate") {
        return;
    }
    let Some(unit) = report.fixture("the unit", Unit::read) else { return };
    report.case("systemd takes the unit, and finds it hardened", String::new, || judge(&unit, world));

    let Some(()) = report.fixture("host-setup makes a veth pair", || host_setup(world, &["veth", ENDS[0], ENDS[1]]))
    else {
        return;
    };
    let config = world.path("operate.toml");
    let Some(()) = report.fixture("a configuration", || configure(world, &config)) else { return };
    report.case("--check-config", String::new, || {
        let done = process::run(Command::new(target_binary()).arg("--check-config").arg(&config), LIMIT)?;
        expect(done, "--check-config", "configuration OK")
    });
    let Some(mut target) = report.fixture("the unit's ExecStart", || start(&unit, world, &config)) else { return };
    report.case(
        "ping",
        || target.tail(),
        || {
            must("ip", &["addr", "add", HOST_ADDRESS, "dev", ENDS[0]])?;
            must("busybox", &["ping", "-c", "3", "-w", "10", TARGET_ADDRESS])
        },
    );
    for (verb, text) in LOOKS {
        report.case(&format!("rxe-ctl {verb}"), || target.tail(), || look(world, verb, text));
    }
    report.case("systemctl stop", String::new, || {
        target.signal("TERM")?;
        match target.wait(Duration::from_secs(3))? {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(format!("{status}\n{}", target.tail())),
            None => Err("still running 3 s after SIGTERM".to_owned()),
        }
    });
    report.case("host-setup takes the pair back", String::new, || {
        host_setup(world, &["undo"])?;
        match ENDS.iter().find(|end| PathBuf::from(format!("/sys/class/net/{end}")).exists()) {
            Some(end) => Err(format!("{end} is still there")),
            None => Ok(()),
        }
    });
}

fn expect(done: Finished, what: &str, text: &str) -> Check {
    if done.code == 0 && done.stdout.contains(text) {
        return Ok(());
    }
    Err(format!("{what}: exit code {}, stdout {:?}, stderr {:?}", done.code, done.stdout, done.stderr))
}

fn judge(unit: &Unit, world: &World) -> Check {
    let file = world.path("rxe-target.service");
    std::fs::write(&file, unit.with_programs_here()).map_err(|e| e.to_string())?;
    let file = file.to_string_lossy();
    let verified = process::run(Command::new("systemd-analyze").args(["verify", &file]), LIMIT)?;
    // It exits with 0 where it only warns, of a misspelt key for one.
    if verified.code != 0 || !verified.stderr.is_empty() {
        return Err(format!("systemd-analyze verify: {}", verified.stderr));
    }
    let mut security = Command::new("systemd-analyze");
    security.args(["security", "--offline=true", "--no-pager", "--threshold", MOST_EXPOSED, &file]);
    expect(process::run(&mut security, LIMIT)?, "systemd-analyze security", "Overall exposure level")
}

fn host_setup(world: &World, words: &[&str]) -> Check {
    let mut command = Command::new(root().join("conf/host-setup"));
    command.args(words).env("RXE_HOST_SETUP_STATE", world.path("host-setup.state"));
    expect(process::run(&mut command, LIMIT)?, "host-setup", "")
}

fn look(world: &World, verb: &str, text: &str) -> Check {
    expect(world.ctl("operate", verb)?, verb, text)
}

/// conf/examples/af-packet.toml on our interface, with the hugepages of this run.
fn configure(world: &World, config: &PathBuf) -> Check {
    let example = std::fs::read_to_string(root().join("conf/examples/af-packet.toml")).map_err(|e| e.to_string())?;
    let own: String = world.eal_options("operate").iter().skip(2).map(|word| format!("    {word:?},\n")).collect();
    let text = example.replace("iface=veth1", &format!("iface={}", ENDS[1])).replace("    \"--no-pci\",\n", &own);
    if !text.contains(ENDS[1]) || !text.contains("--huge-dir") {
        return Err("conf/examples/af-packet.toml is not what this test knows".to_owned());
    }
    std::fs::write(config, text).map_err(|e| e.to_string())
}

/// Starts what the unit says, with its capabilities, and waits until the target says that it is ready, as systemd does.
fn start(unit: &Unit, world: &World, config: &Path) -> Result<Daemon, String> {
    if unit.value("Type")? != "notify" {
        return Err("the unit is not of the type `notify`".to_owned());
    }
    let command = unit.value("ExecStart")?.replace("/etc/rxe/target.toml", &config.to_string_lossy());
    let Some(options) = command.strip_prefix("/usr/bin/rxe-target ") else {
        return Err(format!("ExecStart={command} does not start /usr/bin/rxe-target"));
    };
    let capabilities: Vec<String> = unit
        .value("CapabilityBoundingSet")?
        .split_whitespace()
        .map(|name| name.to_lowercase().replacen("cap_", "+", 1))
        .collect();
    let socket = world.path("notify.sock");
    let notified = UnixDatagram::bind(&socket).map_err(|e| e.to_string())?;
    notified.set_read_timeout(Some(LIMIT)).map_err(|e| e.to_string())?;
    let daemon = Daemon::start(
        Command::new("setpriv")
            .args(["--no-new-privs", "--inh-caps=-all", "--bounding-set"])
            .arg(format!("-all,{}", capabilities.join(",")))
            .arg(target_binary())
            .args(options.split_whitespace())
            .env("NOTIFY_SOCKET", &socket),
    )?;
    let mut text = [0; 256];
    match notified.recv(&mut text) {
        Ok(length) if text[..length].starts_with(b"READY=1") => Ok(daemon),
        Ok(length) => Err(format!("systemd is told {:?}", String::from_utf8_lossy(&text[..length]))),
        Err(e) => Err(format!("systemd is told nothing: {e}\n{}", daemon.tail())),
    }
}
