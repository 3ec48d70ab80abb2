//! Programs under rxe-run, on the guest's tap, and the kernel's rxe in the guest: each as server and as client.

use crate::Check;
use crate::bed::{gid_index, needs};
use crate::env::TestEnv;
use crate::guest::Guest;
use crate::station::{GUEST_V4, GUEST_V6, Lease, Port, StationKey};
use crate::suite::{AnyGroup, Fixture, Group};
use rxe_testkit::process::{Program, must, run};
use rxe_testkit::retry::retry;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);
/// The end of a client of perftest with -R that is faster than its server: after the connection for the parameters, both connect a second
/// time, for the test itself, and nothing tells the client that the server listens again.
const NOT_LISTENING: &str = "RDMA_CM_EVENT_REJECTED; error: 8";
/// Addresses of the programs under rxe-run.
const OWN_V4: &str = "10.77.0.30";
const OWN_V6: &str = "fd77::30";

/// Addresses of the kernel on a tap, with routes to the guest alone: other guests have the same addresses.
struct OnTap(String);

impl OnTap {
    fn new(tap: &str) -> Result<OnTap, String> {
        let on = OnTap(tap.to_owned());
        on.disable_ipv6("0")?;
        let ip = |words: &str| must("ip", &words.split(' ').collect::<Vec<_>>());
        ip(&format!("address add {OWN_V4}/32 dev {tap}"))?;
        ip(&format!("route add {GUEST_V4}/32 dev {tap} src {OWN_V4}"))?;
        ip(&format!("address add {OWN_V6}/128 dev {tap} nodad"))?;
        ip(&format!("route add {GUEST_V6}/128 dev {tap} src {OWN_V6}"))?;
        Ok(on)
    }

    fn disable_ipv6(&self, disabled: &str) -> Check {
        let file = format!("/proc/sys/net/ipv6/conf/{}/disable_ipv6", self.0);
        std::fs::write(&file, disabled).map_err(|error| format!("{file}: {error}"))
    }
}

impl Drop for OnTap {
    fn drop(&mut self) {
        let _ = must("ip", &["address", "flush", "dev", &self.0]);
        let _ = self.disable_ipv6("1");
    }
}

/// A guest, and rxe-run at the other end of its card.
struct Ends {
    // Dropped in this order.
    _addresses: OnTap,
    lease: Lease,
    rxe_run: PathBuf,
    /// The indices of the guest's GIDs: IPv4, IPv6.
    gids: [String; 2],
}

impl Fixture for Ends {
    fn context(&self) -> String {
        format!("console: {}", self.guest().console())
    }
}

/// Where the server is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Server {
    Guest,
    Own,
}

/// How a server that is ready can be told.
#[derive(Clone, Copy)]
enum Ready {
    /// It listens on this TCP port.
    Tcp(u16),
    /// It listens for connections of the connection manager.
    Manager,
}

/// Server and client, with OWN for the own address, PEER for the other one, and GID for the index of the own GID.
#[derive(Clone, Copy)]
struct Pair {
    server: &'static str,
    client: &'static str,
    ready: Ready,
    /// Texts in the client's output.
    texts: &'static [&'static str],
    /// Whether the GIDs, and the connection manager's addresses, are IPv6.
    ipv6: bool,
}

impl Pair {
    /// Whether the client is given the IPv6 address. The servers of ping-pong and perftest listen for side channels over IPv4
    /// alone; their queue pairs use the GIDs.
    fn peer_is_ipv6(&self) -> bool {
        self.ipv6 && matches!(self.ready, Ready::Manager)
    }
}

impl Ends {
    fn start(env: &Arc<TestEnv>, key: StationKey) -> Result<Ends, String> {
        let lease = env.station(key)?;
        let tap = lease.tap().ok_or("the guest has no tap")?.name.clone();
        let gids = [gid_index(lease.guest(), GUEST_V4)?, gid_index(lease.guest(), GUEST_V6)?];
        let rxe_run = install(&env.path("rxe-run")).map_err(|error| format!("rxe-run cannot be installed: {error}"))?;
        let ends = Ends { _addresses: OnTap::new(&tap)?, lease, rxe_run, gids };
        // The interface has just got IPv6; until its addresses are ready, the guest's kernel cannot resolve them.
        let reachable = format!(
            "for i in $(seq 30); do ping -c 1 -W 1 {OWN_V4} && ping -c 1 -W 1 {OWN_V6} && exit 0; done; exit 1"
        );
        ends.guest().expect(&reachable, LIMIT, &[]).map_err(|why| {
            let state =
                |words: &str| run(Command::new("ip").args(words.split(' ')), LIMIT).map_or_else(|e| e, |d| d.stdout);
            let ours = ["address", "route", "neigh", "-6 route", "rule"].map(state).join("\n");
            let guests =
                ends.guest().expect("ip address; ip route; ip neigh", LIMIT, &[]).map_or_else(|e| e, |done| done.text);
            format!("{why}\nhere: {ours}\nguest: {guests}")
        })?;
        Ok(ends)
    }

    fn guest(&self) -> &Guest {
        self.lease.guest()
    }

    fn in_guest(&self, line: &str, pair: Pair) -> String {
        let own = if pair.ipv6 { GUEST_V6 } else { GUEST_V4 };
        let peer = if pair.peer_is_ipv6() { OWN_V6 } else { OWN_V4 };
        line.replace("OWN", own).replace("PEER", peer).replace("GID", &self.gids[usize::from(pair.ipv6)])
    }

    fn own(&self, line: &str, pair: Pair) -> Command {
        let own = if pair.ipv6 { OWN_V6 } else { OWN_V4 };
        let peer = if pair.peer_is_ipv6() { GUEST_V6 } else { GUEST_V4 };
        let line = line.replace("OWN", own).replace("PEER", peer).replace("GID", "1");
        let mut command = Command::new(&self.rxe_run);
        // With log lines about the commands of the connection manager.
        command.args(["--address", own, "--log", "debug"]).args(line.split_whitespace());
        command.env_remove("XDG_RUNTIME_DIR");
        command
    }

    fn run(&self, pair: Pair, server: Server) -> Check {
        match server {
            Server::Guest => retry(
                || self.guest_serves(pair),
                |served| served.as_ref().is_err_and(|why| pair.client.contains(" -R ") && why.contains(NOT_LISTENING)),
            ),
            Server::Own => self.guest_asks(pair),
        }
    }

    fn guest_serves(&self, pair: Pair) -> Check {
        let server = self.guest().start(&format!("exec {}", self.in_guest(pair.server, pair)), LIMIT)?;
        let listens = match pair.ready {
            Ready::Tcp(port) => format!("grep -q ':{port:04X} 0*:0000 0A' /proc/net/tcp /proc/net/tcp6"),
            Ready::Manager => "rdma resource show cm_id | grep -q LISTEN".to_owned(),
        };
        let wait = format!("until {listens}; do sleep 0.05; done");
        self.guest().expect(&wait, LIMIT, &[]).map_err(|why| format!("{why}\nserver: {}", server.so_far()))?;
        let done = run(&mut self.own(pair.client, pair), LIMIT)?;
        let said = format!("{}\n{}\nserver: {}", done.stdout, done.stderr, server.so_far());
        server.kill(15)?;
        server.wait()?;
        if done.code != 0 {
            return Err(format!("exit code {}: {said}", done.code));
        }
        match pair.texts.iter().find(|text| !done.stdout.contains(**text)) {
            Some(missing) => Err(format!("no {missing:?}: {said}")),
            None => Ok(()),
        }
    }

    fn guest_asks(&self, pair: Pair) -> Check {
        let mut server = Program::start(&mut self.own(pair.server, pair))?;
        let deadline = Instant::now() + LIMIT;
        while !is_ready(&server, pair.ready) {
            if !server.is_running() || Instant::now() > deadline {
                return Err(format!("the server does not listen:\n{}", server.tail()));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let client = self.in_guest(pair.client, pair);
        let asked = self.guest().expect(&client, LIMIT, pair.texts);
        asked.map(drop).map_err(|why| format!("{why}\nserver: {}", server.tail()))
    }
}

/// Whether a server of this machine is ready.
fn is_ready(server: &Program, ready: Ready) -> bool {
    match ready {
        Ready::Tcp(port) => {
            let listens = |file: &str| {
                let port = format!(":{port:04X} ");
                let lines = std::fs::read_to_string(file).unwrap_or_default();
                lines.lines().any(|line| line.contains(&port) && line.contains(" 0A "))
            };
            listens("/proc/self/net/tcp") || listens("/proc/self/net/tcp6")
        }
        // LISTEN
        Ready::Manager => server.stderr().iter().any(|line| line.contains("rdma_cm: command 7 is done")),
    }
}

/// Puts rxe-run and its library into `folder`. Returns the path of rxe-run.
fn install(folder: &Path) -> std::io::Result<PathBuf> {
    let [bin, lib] = ["bin", "lib/rxe"].map(|name| folder.join(name));
    std::fs::create_dir_all(&bin)?;
    std::fs::create_dir_all(&lib)?;
    // Cargo builds the library as a dependency of this test.
    let library = std::env::current_exe()?.with_file_name("librxe_verbs.so");
    std::fs::copy(library, lib.join("librxe_verbs.so"))?;
    std::fs::copy(env!("CARGO_BIN_EXE_rxe-run"), bin.join("rxe-run"))?;
    Ok(bin.join("rxe-run"))
}

/// A client with the command line of its server, and PEER behind it.
macro_rules! alike {
    ($line:literal, $ready:expr, $texts:expr) => {
        Pair { server: $line, client: concat!($line, " PEER"), ready: $ready, texts: &$texts, ipv6: false }
    };
}

const PINGPONG: Ready = Ready::Tcp(18515);
const PAIRS: [Pair; 17] = [
    alike!("ibv_rc_pingpong -g GID -n 200", PINGPONG, ["200 iters in"]),
    Pair {
        server: "rping -s -a OWN -C 10 -v -V",
        client: "rping -c -a PEER -C 10 -v -V",
        ready: Ready::Manager,
        texts: &["rdma-ping-9: "],
        ipv6: false,
    },
    alike!("ib_send_bw -c UD -n 50 -x GID -F", PINGPONG, ["#bytes"]),
    alike!("ib_read_bw -n 50 -R -F", Ready::Manager, ["#bytes"]),
    // The pairs of the nightly run.
    alike!("ibv_uc_pingpong -g GID -n 200", PINGPONG, ["200 iters in"]),
    alike!("ibv_ud_pingpong -g GID -s 1024 -n 200", PINGPONG, ["200 iters in"]),
    alike!("ibv_srq_pingpong -g GID -n 200", PINGPONG, ["200 iters in"]),
    alike!("ib_write_bw -n 50 -x GID -F", PINGPONG, ["#bytes"]),
    alike!("ib_read_bw -n 50 -x GID -F", PINGPONG, ["#bytes"]),
    alike!("ib_send_bw -n 50 -x GID -F", PINGPONG, ["#bytes"]),
    alike!("ib_atomic_lat -n 50 -x GID -F", PINGPONG, ["#bytes"]),
    alike!("ib_write_lat -n 50 -x GID -F -c UC", PINGPONG, ["#bytes"]),
    alike!("ib_send_lat -n 50 -R -F", Ready::Manager, ["#bytes"]),
    Pair {
        server: "ucmatose -b OWN",
        client: "ucmatose -s PEER",
        ready: Ready::Manager,
        texts: &["data transfers complete", "return status 0"],
        ipv6: false,
    },
    Pair {
        server: "udaddy -b OWN",
        client: "udaddy -s PEER",
        ready: Ready::Manager,
        texts: &["data transfers complete", "return status 0"],
        ipv6: false,
    },
    Pair {
        server: "rstream -b OWN -S 4096 -C 100",
        client: "rstream -s PEER -S 4096 -C 100",
        ready: Ready::Manager,
        texts: &["custom "],
        ipv6: false,
    },
    Pair {
        server: "cmtime -b OWN -c 5",
        client: "cmtime -s PEER -c 5",
        ready: Ready::Manager,
        texts: &["destroy"],
        ipv6: false,
    },
];
/// The first pairs run in every run.
const ALWAYS: usize = 4;
/// Pairs that run over IPv6 too: perftest would need an option for it.
const IPV6: [usize; 6] = [0, 1, 4, 5, 6, 13];

/// The group `anywhere`.
pub fn group() -> AnyGroup {
    let key = StationKey::new(Port::AfPacket, 1500);
    let mut group = Group::new("anywhere", needs(key), move |env| Ends::start(env, key));
    for nightly in [false, true] {
        group.nightly(nightly);
        for (number, pair) in PAIRS.into_iter().enumerate().filter(|(number, _)| nightly == (*number >= ALWAYS)) {
            for ipv6 in [false, true].into_iter().filter(|ipv6| !ipv6 || IPV6.contains(&number)) {
                for server in [Server::Guest, Server::Own] {
                    let over = if ipv6 { "IPv6" } else { "IPv4" };
                    let who = if server == Server::Guest { "a kernel serves" } else { "rxe-run serves" };
                    let name = format!("{} over {over}, {who}", pair.client);
                    group.case(name, move |ends: &mut Ends| ends.run(Pair { ipv6, ..pair }, server));
                }
            }
        }
    }
    group.build()
}
