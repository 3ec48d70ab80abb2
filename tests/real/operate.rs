//! An operator's work, step by step: prepare the host, check the configuration, start the command of the systemd unit,
//! inspect the target, stop it, and undo the preparations.

use crate::Check;
use crate::env::{TestEnv, root, target_binary};
use crate::suite::{AnyGroup, Fixture, Group, Needs};
use rxe_testkit::process::{self, Finished, Program, must};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

/// The host's end of the veth pair, and the target's.
const ENDS: [&str; 2] = ["rxeop0", "rxeop1"];
const HOST_ADDRESS: &str = "10.77.0.2/24";
const TARGET_ADDRESS: &str = "10.77.0.1";
const LIMIT: Duration = Duration::from_secs(30);
/// In tenths: systemd's scale ends at 100, and its worst services are there.
const MOST_EXPOSED: &str = "30";

/// Commands of rxe-ctl, and a text that each prints of a target with one port and no connection.
const INSPECTED: [(&str, &str); 6] = [
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

/// A veth pair, and the target on it while it runs.
struct Operated {
    env: Arc<TestEnv>,
    unit: Unit,
    config: PathBuf,
    target: Option<Program>,
}

impl Fixture for Operated {
    fn context(&self) -> String {
        self.target.as_ref().map(Program::tail).unwrap_or_default()
    }
}

impl Drop for Operated {
    fn drop(&mut self) {
        self.target = None;
        // The kernel's address is that of the guests, whose packets it would take for its own.
        let _ = must("ip", &["link", "delete", ENDS[0]]);
    }
}

impl Operated {
    fn prepare(env: &Arc<TestEnv>) -> Result<Operated, String> {
        let unit = Unit::read()?;
        host_setup(env, &["veth", ENDS[0], ENDS[1]])?;
        let config = env.path("operate.toml");
        configure(env, &config)?;
        Ok(Operated { env: Arc::clone(env), unit, config, target: None })
    }
}

/// The group `operate`.
pub fn group() -> AnyGroup {
    let mut group = Group::new("operate", Needs::default(), Operated::prepare);
    group.stop_at_failure();
    group.case("systemd accepts the unit, and rates it as hardened", |o: &mut Operated| judge(&o.unit, &o.env));
    group.case("--check-config", |o| {
        let done = process::run(Command::new(target_binary()).arg("--check-config").arg(&o.config), LIMIT)?;
        expect(done, "--check-config", "configuration OK")
    });
    group.case("the unit's ExecStart reports that it is ready", |o| {
        o.target = Some(start(&o.unit, &o.env, &o.config)?);
        Ok(())
    });
    group.case("ping", |_| {
        must("ip", &["addr", "add", HOST_ADDRESS, "dev", ENDS[0]])?;
        must("busybox", &["ping", "-c", "2", "-w", "10", TARGET_ADDRESS])
    });
    for (verb, text) in INSPECTED {
        group.case(format!("rxe-ctl {verb}"), move |o| inspect(&o.env, verb, text));
    }
    group.case("systemctl stop", |o| {
        let mut target = o.target.take().ok_or("the target does not run")?;
        target.signal("TERM")?;
        match target.wait(Duration::from_secs(3))? {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(format!("{status}\n{}", target.tail())),
            None => Err("still running 3 s after SIGTERM".to_owned()),
        }
    });
    group.case("host-setup removes the pair", |o| {
        host_setup(&o.env, &["undo"])?;
        match ENDS.iter().find(|end| PathBuf::from(format!("/sys/class/net/{end}")).exists()) {
            Some(end) => Err(format!("{end} is still there")),
            None => Ok(()),
        }
    });
    group.build()
}

fn expect(done: Finished, what: &str, text: &str) -> Check {
    if done.code == 0 && done.stdout.contains(text) {
        return Ok(());
    }
    Err(format!("{what}: exit code {}, stdout {:?}, stderr {:?}", done.code, done.stdout, done.stderr))
}

fn judge(unit: &Unit, env: &TestEnv) -> Check {
    let file = env.path("rxe-target.service");
    std::fs::write(&file, unit.with_programs_here()).map_err(|e| e.to_string())?;
    let file = file.to_string_lossy();
    let verified = process::run(Command::new("systemd-analyze").args(["verify", &file]), LIMIT)?;
    // It exits with 0 where it only warns, about a misspelt key for example.
    if verified.code != 0 || !verified.stderr.is_empty() {
        return Err(format!("systemd-analyze verify: {}", verified.stderr));
    }
    let mut security = Command::new("systemd-analyze");
    security.args(["security", "--offline=true", "--no-pager", "--threshold", MOST_EXPOSED, &file]);
    expect(process::run(&mut security, LIMIT)?, "systemd-analyze security", "Overall exposure level")
}

fn host_setup(env: &TestEnv, words: &[&str]) -> Check {
    let mut command = Command::new(root().join("conf/host-setup"));
    command.args(words).env("RXE_HOST_SETUP_STATE", env.path("host-setup.state"));
    expect(process::run(&mut command, LIMIT)?, "host-setup", "")
}

fn inspect(env: &TestEnv, verb: &str, text: &str) -> Check {
    let mut ctl = Command::new(env!("CARGO_BIN_EXE_rxe-ctl"));
    ctl.args(["--file-prefix", &env.prefix("operate")]).args(verb.split(' '));
    expect(process::run(&mut ctl, LIMIT)?, verb, text)
}

/// conf/examples/af-packet.toml on our interface, with the hugepages of this run.
fn configure(env: &TestEnv, config: &PathBuf) -> Check {
    let example = std::fs::read_to_string(root().join("conf/examples/af-packet.toml")).map_err(|e| e.to_string())?;
    let own: String = env.eal_options("operate").iter().skip(2).map(|word| format!("    {word:?},\n")).collect();
    let text = example.replace("iface=veth1", &format!("iface={}", ENDS[1])).replace("    \"--no-pci\",\n", &own);
    if !text.contains(ENDS[1]) || !text.contains("--huge-dir") {
        return Err(
            "conf/examples/af-packet.toml has no interface veth1 or no --no-pci, which this test replaces".to_owned()
        );
    }
    std::fs::write(config, text).map_err(|e| e.to_string())
}

/// Starts the unit's command with its capabilities, and waits until the target reports that it is ready, as systemd does.
fn start(unit: &Unit, env: &TestEnv, config: &Path) -> Result<Program, String> {
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
    let socket = env.path("notify.sock");
    let notified = UnixDatagram::bind(&socket).map_err(|e| e.to_string())?;
    notified.set_read_timeout(Some(LIMIT)).map_err(|e| e.to_string())?;
    let program = Program::start(
        Command::new("setpriv")
            .args(["--no-new-privs", "--inh-caps=-all", "--bounding-set"])
            .arg(format!("-all,{}", capabilities.join(",")))
            .arg(target_binary())
            .args(options.split_whitespace())
            .env("NOTIFY_SOCKET", &socket),
    )?;
    let mut text = [0; 256];
    match notified.recv(&mut text) {
        Ok(length) if text[..length].starts_with(b"READY=1") => Ok(program),
        Ok(length) => Err(format!("systemd receives {:?}", String::from_utf8_lossy(&text[..length]))),
        Err(e) => Err(format!("systemd receives nothing: {e}\n{}", program.tail())),
    }
}
