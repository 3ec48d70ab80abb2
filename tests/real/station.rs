//! Guests that groups share: one for each type of port, MTU and kernel.
//!
//! A station is a guest with the other end of its network card. It boots for the first group that needs it; the next
//! group that needs the same one finds it running, and starts a target of its own on the same port. Between two groups the
//! guest's state must be as it was after the boot: its addresses, routes, queueing disciplines and queue pairs are compared,
//! and a guest that differs is booted again.

use crate::env::TestEnv;
use crate::guest::{Guest, GuestConfig, Plug};
use crate::net::Tap;
use rxe_testkit::process::locked;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(60);

/// Addresses of the target and of the guest in all tests.
pub const TARGET_V4: &str = "10.77.0.1";
pub const TARGET_V6: &str = "fd77::1";
pub const GUEST_V4: &str = "10.77.0.2";
pub const GUEST_V6: &str = "fd77::2";

/// The kind of DPDK port.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Port {
    AfPacket,
    Vhost,
}

impl Port {
    /// As it is called in names of groups.
    pub fn name(self) -> &'static str {
        match self {
            Port::AfPacket => "af_packet",
            Port::Vhost => "vhost",
        }
    }
}

/// The kernel that a guest boots.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kernel {
    /// That of the machine's Debian.
    Stable,
    /// Debian's backport.
    Newer,
}

impl Kernel {
    /// The suffix of names of groups and files.
    pub fn suffix(self) -> &'static str {
        match self {
            Kernel::Stable => "",
            Kernel::Newer => "-newer",
        }
    }
}

/// Port type, MTU and kernel of a station.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StationKey {
    pub port: Port,
    pub mtu: u32,
    pub kernel: Kernel,
}

impl StationKey {
    /// That with the stable kernel.
    pub fn new(port: Port, mtu: u32) -> StationKey {
        StationKey { port, mtu, kernel: Kernel::Stable }
    }

    /// Names its files.
    fn name(self) -> String {
        format!("{}{}{}", self.port.name(), self.mtu, self.kernel.suffix())
    }

    /// Where the guest's card expects a vhost-user port.
    pub fn socket(self, env: &TestEnv) -> PathBuf {
        env.path(&format!("{}.vhost", self.name()))
    }

    /// The tap interface of the guest's card.
    pub fn tap(self) -> String {
        format!("rx{}{}", self.mtu, if self.kernel == Kernel::Stable { "" } else { "n" })
    }

    /// The EAL option for a port that is connected to the guest's card.
    pub fn vdev(self, env: &TestEnv) -> String {
        match self.port {
            Port::Vhost => format!("net_vhost0,iface={},queues=1", self.socket(env).display()),
            Port::AfPacket => {
                // A frame slot holds the frame and the socket's header; a block is a multiple of it and of the page.
                let frame = if self.mtu <= 1500 { 2048 } else { 8192 };
                format!("net_af_packet0,iface={},framesz={frame},blocksz=65536,framecnt=1024", self.tap())
            }
        }
    }
}

/// A running guest with the other end of its card.
pub struct Station {
    // The order is the order of clean-up: the guest goes before its tap.
    pub guest: Guest,
    pub tap: Option<Tap>,
    /// Output of `STATE` after the boot.
    state: String,
}

/// A station while one group uses it.
pub struct Lease {
    env: Arc<TestEnv>,
    key: StationKey,
    station: Option<Station>,
}

/// Prints the state that a group may change.
const STATE: &str = "ip -o address show dev eth0 scope global; ip -o link show dev eth0 | grep -o 'mtu [0-9]*'; ip route; \
    tc qdisc show dev eth0; echo $(rdma resource show qp link rxe0 | grep -vc GSI) queue pairs";

impl Lease {
    /// The guest.
    pub fn guest(&self) -> &Guest {
        // There is one until the lease is dropped.
        &self.station.as_ref().expect("a station").guest
    }

    /// The guest's tap, if it has one.
    pub fn tap(&self) -> Option<&Tap> {
        self.station.as_ref().and_then(|station| station.tap.as_ref())
    }

    /// Ends the commands in the guest; whether its state is then that after the boot.
    fn restored(station: &Station) -> bool {
        station.guest.kill_all();
        // Queue pairs of programs that were killed take a moment to go.
        for _ in 0..50 {
            match station.guest.run(&format!("rm -rf /tmp/*; {STATE}"), LIMIT) {
                Ok(output) if output.text == station.state => return true,
                Ok(_) => std::thread::sleep(Duration::from_millis(100)),
                Err(_) => return false,
            }
        }
        false
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(station) = self.station.take() {
            self.env.give_back(self.key, station);
        }
    }
}

impl TestEnv {
    /// The guest of this kind, booted unless it runs. Where its card is plugged into a vhost-user port, that exists.
    pub fn station(self: &Arc<TestEnv>, key: StationKey) -> Result<Lease, String> {
        let kept = locked(&self.stations).remove(&key);
        let station = match kept {
            Some(station) if Lease::restored(&station) => station,
            other => {
                drop(other);
                self.boot_station(key)?
            }
        };
        Ok(Lease { env: Arc::clone(self), key, station: Some(station) })
    }

    fn boot_station(&self, key: StationKey) -> Result<Station, String> {
        let (plug, tap) = match key.port {
            Port::Vhost => (Plug::VhostUser(key.socket(self)), None),
            Port::AfPacket => {
                let tap = Tap::new(&key.tap(), key.mtu)?;
                (Plug::Tap(tap.name.clone()), Some(tap))
            }
        };
        let guest = self.boot_kernel(
            key.kernel,
            GuestConfig {
                name: key.name(),
                plug,
                parameters: format!("ip4={GUEST_V4}/24 ip6={GUEST_V6}/64 mtu={}", key.mtu),
                extra_initrd: None,
                memory: 512,
                cpus: 1,
            },
        )?;
        let state = guest.expect(STATE, LIMIT, &["0 queue pairs"])?.text;
        Ok(Station { guest, tap, state })
    }

    /// Keeps a station for the next group.
    fn give_back(&self, key: StationKey, station: Station) {
        if !locked(&self.distrusted).remove(&key) {
            locked(&self.stations).insert(key, station);
        }
    }

    /// The group that uses the station has failed: its guest is not reused.
    pub fn distrust(&self, key: StationKey) {
        locked(&self.distrusted).insert(key);
    }

    /// No group needs the station any more.
    pub fn take_down(&self, key: StationKey) {
        let station = locked(&self.stations).remove(&key);
        locked(&self.distrusted).remove(&key);
        drop(station);
    }
}
