//! Two emulated machines of the same kind, on a wire: perftest's clients run in one, on the kernel's soft-RoCE; in the
//! other serve perftest's own programs on the same, or rxe-target. Disks are as in [`guest_disks`]. Emulation slows everything
//! down, but both alike.

use std::cell::Cell;
use std::path::Path;
use std::time::{Duration, Instant};

use rxe_testkit::retry::retry;

use crate::guest_disks;
use crate::matrix::Server;
use crate::results::{Latency, Sample};
use crate::support::guest::{Guest, GuestConfig, Job, Plug};
use crate::support::image::{self, Image};
use crate::support::perftest;

/// How long something may take, and how long rxe-target may run.
const LIMIT: Duration = Duration::from_secs(60);
const SERVE: Duration = Duration::from_secs(600);
/// Addresses of the guests.
const SERVER: &str = "10.98.0.1";
const CLIENT: &str = "10.98.0.2";
/// Memory of each, in MiB.
const MEMORY: u32 = 1024;
/// Set-up of the machine where the servers run. The service recognizes ib_write_lat's client by its silence; the others begin
/// sooner than that here.
const PREPARE: &str = "set -e; /root/rxe-dpdk/conf/host-setup hugepages 256; \
    printf '[service.perftest]\\nwrite-lat-after = \"2s\"\\n' >/tmp/target.toml";
/// Gives the card to the kernel's soft-RoCE, and takes it back: rxe-target's interface has no address of the kernel.
const KERNEL_SERVES: &str = "rdma link add rxe0 type rxe netdev eth0";
const KERNEL_ENDS: &str = "set -e; rdma link delete rxe0; ip address flush dev eth0";
/// Returns when a server of perftest listens: at TCP port 18515.
const LISTENS: &str = "until grep -q ':4853 [0-9A-F]*:[0-9A-F]* 0A ' /proc/net/tcp; do sleep 0.02; done";

/// Both machines.
pub struct Guests {
    client: Guest,
    server: Guest,
}

/// A server that runs.
pub struct Serving<'g> {
    guests: &'g Guests,
    /// If it is rxe-target.
    target: Option<Job>,
    /// Whether the kernel serves a disk.
    has_disk: Cell<bool>,
}

impl Guests {
    /// Boots both, each on a CPU of its own, with rxe-target of this path in the second.
    ///
    /// # Errors
    /// In words, why not.
    pub fn boot(dir: &Path, cpus: &[u32], target: &str) -> Result<Guests, String> {
        let image = Image::build(None)?;
        let packed = dir.join("target.initrd");
        image::pack_target(target, &packed)?;
        let wire = dir.join("wire");
        let power_on = |name: &str, plug, parameters: String, cpu| {
            let extra_initrd = Some(packed.clone());
            let name = name.to_owned();
            let config = GuestConfig { name, plug, parameters, extra_initrd, memory: MEMORY, cpus: 1 };
            Guest::power_on(&image, dir, config, Some(cpu))
        };
        let plug = Plug::WireListens(wire.clone());
        let server = power_on("server", plug, "rxe=none ipv6.disable=1".to_owned(), cpus[1])?;
        // The other end of the wire can only be plugged in when this one is there.
        let began = Instant::now();
        while !wire.exists() && began.elapsed() < LIMIT {
            std::thread::sleep(Duration::from_millis(20));
        }
        let plug = Plug::WireConnects(wire);
        let client = power_on("client", plug, format!("ip4={CLIENT}/24 ipv6.disable=1"), cpus[0])?;
        server.ready()?;
        client.ready()?;
        server.expect(&format!("{PREPARE}; printf '{}' >>/tmp/target.toml", guest_disks::config()), LIMIT, &[])?;
        Ok(Guests { client, server })
    }

    /// Starts a server.
    ///
    /// # Errors
    /// In words, why not.
    pub fn serve(&self, server: Server) -> Result<Serving<'_>, String> {
        let target = match server {
            Server::Kernel => {
                let command = format!("set -e; ip address add {SERVER}/24 dev eth0; {KERNEL_SERVES}");
                self.server.expect(&command, LIMIT, &[])?;
                None
            }
            Server::Target => {
                // There is one CPU, and it has to receive the packets too.
                let command = format!(
                    "RXE_LOG=error exec rxe-target -l 0 --no-pci --vdev=net_af_packet0,iface=eth0,qdisc_bypass=1 -- \
                     --address {SERVER}/24 --mtu 1500 --idle sleep:20 --service perftest --service nvmf --config /tmp/target.toml"
                );
                let target = self.server.start(&command, SERVE)?;
                target.wait_for("ready ", LIMIT)?;
                Some(target)
            }
        };
        let serving = Serving { guests: self, target, has_disk: Cell::new(false) };
        match self.client.expect(&format!("ping -c 1 -w 30 {SERVER}"), LIMIT, &["1 packets received"]) {
            Ok(_) => Ok(serving),
            Err(why) => {
                serving.end()?;
                Err(why)
            }
        }
    }
}

impl Serving<'_> {
    /// One run of a client of perftest, or of fio on a disk.
    ///
    /// # Errors
    /// The reason of a failure.
    pub fn measure(&self, words: &str) -> Result<Sample, String> {
        let Guests { client, server } = self.guests;
        if let Some(words) = words.strip_prefix("fio ") {
            if self.target.is_none() && !self.has_disk.replace(true) {
                guest_disks::start_kernel(server, SERVER)?;
            }
            return guest_disks::measure(client, SERVER, words);
        }
        let output = retry(|| self.perftest(words), |output| output.as_ref().is_ok_and(|output| is_void(output)))?;
        sample(&output).ok_or_else(|| format!("`{words}` printed no result: {output}"))
    }

    /// The output of a client of perftest.
    fn perftest(&self, words: &str) -> Result<String, String> {
        let Guests { client, server } = self.guests;
        let run = || client.expect(&format!("{words} -F {SERVER}"), LIMIT, &[]);
        let output = if self.target.is_some() {
            run()?
        } else {
            let program = server.start(&format!("exec {words} -F"), LIMIT)?;
            let output = server.expect(LISTENS, LIMIT, &[]).and_then(|_| run());
            if output.is_err() {
                program.kill(9)?;
            }
            let end = program.wait()?;
            let output = output?;
            end.expect(0, &[])?;
            output
        };
        Ok(output.text)
    }

    /// Ends the server.
    ///
    /// # Errors
    /// It did not end well.
    pub fn end(self) -> Result<(), String> {
        match self.target {
            Some(target) => {
                target.kill(15)?;
                target.wait()?.expect(0, &["mbufs_leaked=0"]).map(drop)
            }
            None => {
                if self.has_disk.get() {
                    guest_disks::end_kernel(&self.guests.server)?;
                }
                self.guests.server.expect(KERNEL_ENDS, LIMIT, &[]).map(drop)
            }
        }
    }
}

/// Whether a run of perftest, which printed this on both streams, says nothing and is to be made again.
pub fn is_void(text: &str) -> bool {
    sample(text).is_none() && text.contains(perftest::NO_CLOCK)
}

/// The results that perftest printed of one run. Its latencies of SENDs and WRITEs are half of the way there and back.
pub fn sample(text: &str) -> Option<Sample> {
    let [row] = &perftest::rows(text)[..] else { return None };
    let mtu = perftest::path_mtu(text)?;
    let (rate, latency) = match row.figures[..] {
        [_peak, _average, mega] => (mega * 1e6, None),
        [min, max, p50, average, _deviation, p99, p99_9] => {
            (1e6 / average, Some(Latency { min, p50, p99, p99_9, p99_99: None, max }))
        }
        _ => return None,
    };
    // A run in which nothing happened is no figure.
    let sample = Sample { rate, gbps: rate * row.size as f64 * 8e-9, mtu, latency, ..Sample::default() };
    (rate > 0.0 && rate.is_finite()).then_some(sample)
}
