//! The guest: a Debian kernel with soft-RoCE under QEMU (emulated, so that no KVM is needed), and commands in it.

use super::image::Image;
use rxe_testkit::process::{Program, locked};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

// Message kinds of tests/guest/agent.c.
const RUN: u32 = 1;
const KILL: u32 = 2;
const READY: u32 = 16;
const OUTPUT: u32 = 17;
const EXIT: u32 = 18;

/// Parameters of every guest's kernel.
const PARAMETERS: &str = "console=ttyS0 loglevel=5 panic=-1 no_timer_check cryptomgr.notests";

/// The longest that a boot takes on a busy machine.
const BOOT: Duration = Duration::from_secs(120);
/// The longest that a killed command takes to end.
const KILLED: Duration = Duration::from_secs(20);

/// rping's last line, with exit code 255, when its event thread asks for the next event just after the main thread, done
/// with everything, has closed the event channel: a race of the program with itself. Seen once in 300 runs on a busy
/// machine; it depends on when the answer to the disconnect arrives. (Later versions of rping stop the thread first.)
pub const RPING_RACE: &str = "rdma_get_cm_event: Bad file descriptor";

/// The other end of the guest's network card.
pub enum Plug {
    /// No card.
    None,
    /// A tap interface.
    Tap(String),
    /// The socket of a vhost-user port. When the port is closed the guest reconnects to it.
    VhostUser(PathBuf),
    /// The listening end of a wire to another guest, which is this socket.
    WireListens(PathBuf),
    /// The other end of it.
    WireConnects(PathBuf),
    /// A wire inside QEMU to the guest's second card, an Intel 82574L behind an IOMMU, for a target in the guest.
    SecondCard,
}

/// How a guest is to be booted.
pub struct GuestConfig {
    /// Names its files.
    pub name: String,
    /// Its network card.
    pub plug: Plug,
    /// Words for the kernel's command line, see tests/guest/init.
    pub parameters: String,
    /// An initramfs to put on top of the base image.
    pub extra_initrd: Option<PathBuf>,
    /// Memory in MiB.
    pub memory: u32,
    /// Virtual CPUs.
    pub cpus: u32,
}

#[derive(Default)]
struct JobState {
    output: Vec<u8>,
    exit: Option<u32>,
}

/// Reports of the agent.
#[derive(Default)]
struct Reports {
    jobs: HashMap<u32, JobState>,
    /// Whether the agent takes commands.
    ready: bool,
    /// Whether the connection has ended, and QEMU with it.
    gone: bool,
}

/// The connection to the guest's agent.
struct Agent {
    port: Mutex<UnixStream>,
    reports: Mutex<Reports>,
    changed: Condvar,
    next_id: AtomicU32,
}

/// A running guest; dropping it ends QEMU.
pub struct Guest {
    qemu: Program,
    agent: Arc<Agent>,
    console: PathBuf,
}

/// A command that runs in the guest.
pub struct Job {
    agent: Arc<Agent>,
    id: u32,
    command: String,
    limit: Duration,
}

/// A command that has ended.
#[derive(Debug)]
pub struct Output {
    /// The command.
    pub command: String,
    /// Its exit code; 128 + signal, or 124 when it ran out of time.
    pub code: u32,
    /// Standard output and standard error.
    pub text: String,
}

impl Guest {
    /// Starts a guest, whose files go to `dir`, with all of QEMU on one CPU if one is given. It takes commands when
    /// [`ready`](Guest::ready) has returned.
    pub fn power_on(image: &Image, dir: &Path, config: GuestConfig, cpu: Option<u32>) -> Result<Guest, String> {
        let file = |what: &str| dir.join(format!("{}.{what}", config.name));
        let (socket, console) = (file("agent"), file("console"));
        let mut initrd = image.initrd();
        if let Some(extra) = &config.extra_initrd {
            initrd = file("initrd"); // the kernel unpacks concatenated archives one after the other
            let join = || std::fs::write(&initrd, [std::fs::read(image.initrd())?, std::fs::read(extra)?].concat());
            join().map_err(|e| format!("cannot write {}: {e}", initrd.display()))?;
        }
        // maxcpus: for machines that can have one processor only, QEMU before 8.1 emulates no memory barriers, although the
        // guest shares memory with QEMU's other threads; then the queue of a virtio card may stand still for ever.
        let smp = format!("{},maxcpus={}", config.cpus, config.cpus.max(2));
        // no_timer_check: on a busy machine an emulated timer may be too late for the kernel's test of it, which panics.
        // However this process ends, QEMU ends with it.
        let mut qemu = Command::new("setpriv");
        qemu.args(["--pdeathsig", "KILL", "--"]);
        if let Some(cpu) = cpu {
            qemu.args(["taskset", "--cpu-list", &cpu.to_string()]);
        }
        qemu.arg("qemu-system-x86_64");
        qemu.args(["-nodefaults", "-accel", "tcg,thread=multi", "-cpu", "max", "-display", "none", "-no-reboot"])
            .args(["-smp", &smp, "-m", &config.memory.to_string()])
            .arg("-kernel")
            .arg(image.vmlinuz())
            .arg("-initrd")
            .arg(&initrd)
            // Without the crypto layer's self-tests: under emulation they can hold a CPU for so long that the boot hangs.
            .args(["-append", &format!("{PARAMETERS} {}", config.parameters)])
            .arg("-serial")
            .arg(format!("file:{}", console.display()))
            .args(["-device", "virtio-serial", "-device", "virtserialport,chardev=agent,name=agent"])
            .arg("-chardev")
            .arg(format!("socket,path={},server=on,wait=off,id=agent", socket.display()));
        // Where a capture of its card is to go.
        let mut dump = None;
        match &config.plug {
            Plug::None | Plug::SecondCard => {}
            Plug::Tap(tap) => {
                let folder = std::env::var("RXE_REAL_PCAP").ok();
                let plain = if folder.is_some() { ",vnet_hdr=off" } else { "" }; // else the dump has that header too
                qemu.arg("-netdev").arg(format!("tap,id=net,ifname={tap},script=no,downscript=no{plain}"));
                qemu.args(["-device", "virtio-net-pci,netdev=net,mac=52:54:00:77:00:02"]);
                dump = folder;
            }
            Plug::VhostUser(path) => {
                qemu.arg("-object").arg(format!("memory-backend-memfd,id=mem,size={}M,share=on", config.memory));
                qemu.args(["-numa", "node,memdev=mem"]);
                qemu.arg("-chardev").arg(format!("socket,id=vhost,path={},reconnect=1", path.display()));
                qemu.args(["-netdev", "vhost-user,id=net,chardev=vhost"]);
                // Without vectors=0 QEMU 7.2 crashes on vhost-user's configuration interrupt under emulation.
                qemu.args(["-device", "virtio-net-pci,netdev=net,mac=52:54:00:77:00:02,vectors=0"]);
            }
            Plug::WireListens(path) | Plug::WireConnects(path) => {
                let listens = matches!(config.plug, Plug::WireListens(_));
                let (server, mac) = if listens { ("on", "01") } else { ("off", "02") };
                let path = path.display();
                qemu.args(["-netdev", &format!("stream,id=net,server={server},addr.type=unix,addr.path={path}")]);
                qemu.args(["-device", &format!("virtio-net-pci,netdev=net,mac=52:54:00:77:00:{mac}")]);
                dump = std::env::var("RXE_REAL_PCAP").ok();
            }
        }
        if let Some(folder) = dump {
            let file = format!("{folder}/{}.pcap", config.name);
            qemu.args(["-object", &format!("filter-dump,id=dump,netdev=net,maxlen=200,file={file}")]);
        }
        if let Plug::SecondCard = config.plug {
            qemu.args(["-machine", "q35", "-device", "intel-iommu"]);
            for (id, card) in [("virtio", "virtio-net-pci,mac=52:54:00:77:00:02"), ("intel", "e1000e")] {
                qemu.args(["-netdev", &format!("hubport,id={id},hubid=0"), "-device", &format!("{card},netdev={id}")]);
            }
        }
        let qemu = Program::start(&mut qemu)?;
        let deadline = Instant::now() + Duration::from_secs(10);
        let port = loop {
            match UnixStream::connect(&socket) {
                Ok(port) => break port,
                Err(_) if Instant::now() < deadline => std::thread::sleep(Duration::from_millis(20)),
                Err(e) => return Err(format!("QEMU's agent socket: {e}\n{}", qemu.tail())),
            }
        };
        let reader = port.try_clone().map_err(|e| e.to_string())?;
        let agent = Arc::new(Agent {
            port: Mutex::new(port),
            reports: Mutex::default(),
            changed: Condvar::new(),
            next_id: AtomicU32::new(1),
        });
        let read = Arc::clone(&agent);
        std::thread::spawn(move || read.read_messages(reader));
        Ok(Guest { qemu, agent, console })
    }

    /// Waits until it takes commands.
    pub fn ready(&self) -> Result<(), String> {
        self.agent
            .wait_until(BOOT, |reports| reports.ready.then_some(()))
            .map_err(|e| format!("the guest did not come up ({e})\n{}\nconsole: {}", self.qemu.tail(), self.console()))
    }

    /// Starts a shell command, killed by the guest after `limit`.
    pub fn start(&self, command: &str, limit: Duration) -> Result<Job, String> {
        let id = self.agent.next_id.fetch_add(1, Ordering::Relaxed);
        locked(&self.agent.reports).jobs.insert(id, JobState::default());
        self.agent.send([RUN, id, limit.as_millis() as u32, command.len() as u32], command.as_bytes())?;
        Ok(Job { agent: Arc::clone(&self.agent), id, command: command.to_owned(), limit })
    }

    /// Kills all commands that still run, and forgets them.
    pub fn kill_all(&self) {
        let running: Vec<u32> = {
            let reports = locked(&self.agent.reports);
            reports.jobs.iter().filter(|(_, job)| job.exit.is_none()).map(|(id, _)| *id).collect()
        };
        for id in running {
            // One that has been stopped is killed as well.
            let killed = self.agent.send([KILL, id, 9, 0], &[]);
            let ended = killed.and_then(|()| {
                self.agent.wait_until(KILLED, |reports| {
                    reports.jobs.get(&id).is_none_or(|job| job.exit.is_some()).then_some(())
                })
            });
            if ended.is_err() {
                return;
            }
        }
    }

    /// Runs a shell command to its end.
    pub fn run(&self, command: &str, limit: Duration) -> Result<Output, String> {
        self.start(command, limit)?.wait()
    }

    /// Runs a shell command that has to exit with 0 and to print all of `texts`.
    pub fn expect(&self, command: &str, limit: Duration, texts: &[&str]) -> Result<Output, String> {
        self.run(command, limit)?.expect(0, texts)
    }

    /// The last lines of the kernel's console.
    pub fn console(&self) -> String {
        let text = std::fs::read(&self.console).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(25)..].join("\n")
    }
}

impl Agent {
    fn send(&self, header: [u32; 4], bytes: &[u8]) -> Result<(), String> {
        let message = [header.map(u32::to_le_bytes).concat(), bytes.to_vec()].concat();
        locked(&self.port).write_all(&message).map_err(|e| format!("the guest's agent is gone: {e}"))
    }

    /// Waits until `found` finds something in the reports.
    fn wait_until<T>(&self, limit: Duration, mut found: impl FnMut(&mut Reports) -> Option<T>) -> Result<T, String> {
        let deadline = Instant::now() + limit;
        let mut reports = locked(&self.reports);
        loop {
            if let Some(result) = found(&mut reports) {
                return Ok(result);
            }
            if reports.gone {
                return Err("the guest is gone".to_owned());
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(format!("nothing within {} s", limit.as_secs()));
            }
            reports = self.changed.wait_timeout(reports, left).unwrap_or_else(|e| e.into_inner()).0;
        }
    }

    fn read_messages(&self, mut port: UnixStream) {
        let mut header = [0u8; 16];
        while port.read_exact(&mut header).is_ok() {
            let word = |i: usize| u32::from_le_bytes([header[i], header[i + 1], header[i + 2], header[i + 3]]);
            let mut bytes = vec![0u8; word(12) as usize];
            if port.read_exact(&mut bytes).is_err() {
                break;
            }
            let mut reports = locked(&self.reports);
            match (word(0), word(4)) {
                (READY, _) => reports.ready = true,
                (OUTPUT, id) => reports.jobs.entry(id).or_default().output.extend_from_slice(&bytes),
                (EXIT, id) => reports.jobs.entry(id).or_default().exit = Some(word(8)),
                _ => break,
            }
            drop(reports);
            self.changed.notify_all();
        }
        locked(&self.reports).gone = true;
        self.changed.notify_all();
    }
}

impl Job {
    /// Waits until the command has printed `text`.
    pub fn wait_for(&self, text: &str, limit: Duration) -> Result<(), String> {
        let (id, wanted) = (self.id, text.as_bytes());
        let found = self.agent.wait_until(limit, |reports| {
            let job = reports.jobs.get(&id)?;
            let here = job.output.windows(wanted.len()).any(|w| w == wanted);
            if here { Some(true) } else { job.exit.map(|_| false) }
        });
        if found == Ok(true) {
            return Ok(());
        }
        let why = found.err().unwrap_or_else(|| "it ended".to_owned());
        Err(format!("`{}` did not print {text:?}: {why}; so far: {}", self.command, shorten(&self.so_far())))
    }

    /// Its output so far.
    pub fn so_far(&self) -> String {
        let reports = locked(&self.agent.reports);
        reports.jobs.get(&self.id).map(|job| String::from_utf8_lossy(&job.output).into_owned()).unwrap_or_default()
    }

    /// True while it runs.
    pub fn running(&self) -> bool {
        locked(&self.agent.reports).jobs.get(&self.id).is_some_and(|job| job.exit.is_none())
    }

    /// Sends a signal to the command's process group.
    pub fn kill(&self, signal: u32) -> Result<(), String> {
        self.agent.send([KILL, self.id, signal, 0], &[])
    }

    /// Waits for its end.
    pub fn wait(self) -> Result<Output, String> {
        let id = self.id;
        // The guest kills the command at its limit; the rest is for a guest that hangs.
        let code = self.agent.wait_until(self.limit + Duration::from_secs(60), |reports| reports.jobs.get(&id)?.exit);
        let text = self.so_far();
        locked(&self.agent.reports).jobs.remove(&id);
        match code {
            Ok(code) => Ok(Output { command: self.command.clone(), code, text }),
            Err(e) => Err(format!("`{}`: {e}; so far: {}", self.command, shorten(&text))),
        }
    }
}

impl Output {
    /// Checks exit code and printed texts.
    pub fn expect(mut self, code: u32, texts: &[&str]) -> Result<Output, String> {
        if self.code == 255 && self.command.contains("rping -c ") && self.text.contains(RPING_RACE) {
            self.code = 0;
        }
        let time = if self.code == 124 { " (it ran out of time)" } else { "" };
        if self.code != code {
            return Err(format!(
                "`{}` exited with {}{time}, not {code}: {}",
                self.command,
                self.code,
                shorten(&self.text)
            ));
        }
        match texts.iter().find(|t| !self.text.contains(**t)) {
            Some(missing) => Err(format!("`{}` did not print {missing:?}: {}", self.command, shorten(&self.text))),
            None => Ok(self),
        }
    }
}

/// The end of a long output.
fn shorten(text: &str) -> String {
    let text = text.trim_end();
    let cut = text.char_indices().rev().nth(1500).map_or(0, |(at, _)| at);
    format!("{}{}", if cut > 0 { "..." } else { "" }, &text[cut..])
}
