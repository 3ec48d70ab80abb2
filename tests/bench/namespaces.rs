//! Two network namespaces with a wire between them: a veth pair. Processes hold the namespaces, and these are gone with them,
//! however this one ends. The names of the interfaces are known in the namespaces only.

use std::fs;
use std::net::Ipv4Addr;
use std::process::Command;
use std::time::Duration;

use rxe_testkit::process::{self, Program};

/// The longest that a set-up may take.
const LIMIT: Duration = Duration::from_secs(20);
/// MTU of the wire: larger than path MTU 4096 needs, as TCP has no such limit.
const MTU: &str = "9000";
/// Holds a namespace. /sys shows the interfaces of the namespace in which it was mounted. Without IPv6 only the two programs speak
/// on the wire.
const HOLD: &str = "mount -t sysfs sysfs /sys && ip link set lo up && \
    echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6 && echo ready && exec sleep infinity";
/// State LISTEN in /proc/net/tcp.
const LISTEN: &str = "0A";

/// The two ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    Near,
    Far,
}

impl End {
    /// The interface.
    pub fn interface(self) -> &'static str {
        match self {
            End::Near => "near",
            End::Far => "far",
        }
    }

    /// Its address.
    pub fn address(self) -> Ipv4Addr {
        match self {
            End::Near => Ipv4Addr::new(10, 97, 0, 2),
            End::Far => Ipv4Addr::new(10, 97, 0, 1),
        }
    }
}

/// Both namespaces.
pub struct Namespaces {
    near: Program,
    far: Program,
}

impl Namespaces {
    /// Makes them.
    ///
    /// # Errors
    /// In words, why not.
    pub fn new() -> Result<Namespaces, String> {
        let hold = || {
            let mut command = bound("unshare");
            let holder = Program::start(command.args(["--net", "--mount", "sh", "-c", HOLD]))?;
            holder.wait_for_line("ready", LIMIT)?;
            Ok::<_, String>(holder)
        };
        let spaces = Namespaces { near: hold()?, far: hold()? };
        let (near, far) = (End::Near.interface(), End::Far.interface());
        let other = spaces.far.id().to_string();
        spaces.ip(End::Near, &["link", "add", near, "type", "veth", "peer", "name", far, "netns", &other])?;
        for end in [End::Near, End::Far] {
            spaces.ip(end, &["address", "add", &format!("{}/24", end.address()), "dev", end.interface()])?;
            spaces.ip(end, &["link", "set", end.interface(), "mtu", MTU, "up"])?;
        }
        Ok(spaces)
    }

    fn holder(&self, end: End) -> &Program {
        match end {
            End::Near => &self.near,
            End::Far => &self.far,
        }
    }

    /// A program in the namespace of an end, which ends with this process.
    pub fn command(&self, end: End, program: &str) -> Command {
        let mut command = bound("nsenter");
        command.args(["--target", &self.holder(end).id().to_string(), "--net", "--mount", "--", program]);
        command
    }

    fn ip(&self, end: End, arguments: &[&str]) -> Result<(), String> {
        let done = process::run(self.command(end, "ip").args(arguments), LIMIT)?;
        match done.code {
            0 => Ok(()),
            code => Err(format!("`ip {}` failed ({code}): {}", arguments.join(" "), done.stderr.trim())),
        }
    }

    /// Whether something listens on this TCP port in the namespace of an end.
    pub fn listens(&self, end: End, port: u16) -> bool {
        let id = self.holder(end).id();
        ["tcp", "tcp6"].iter().any(|table| {
            fs::read_to_string(format!("/proc/{id}/net/{table}")).is_ok_and(|table| listening(&table, port))
        })
    }
}

/// A program that ends with this process.
fn bound(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--", program]);
    command
}

/// Whether a table as /proc/net/tcp has a listening socket of this port.
pub fn listening(table: &str, port: u16) -> bool {
    let port = format!(":{port:04X}");
    table.lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        matches!(words[..], [_, local, _, state, ..] if local.ends_with(&port) && state == LISTEN)
    })
}
