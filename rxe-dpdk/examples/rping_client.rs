//! The client of `rping -s`, as a service that connects out: pings every PEER in turn, compares what comes back, and ends.
//!
//! `rping_client --in-memory --no-pci --vdev=net_af_packet0,iface=veth1 -- --address 10.77.0.1/24 10.77.0.2`, with
//! `rping -s -a 10.77.0.2 -C 10 -S 64` on the other machine. For each ping we SEND the advert of a buffer, the server
//! READs it and SENDs; we SEND the advert of another one, the server WRITEs there what it has read and SENDs.

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use rxe_dpdk::prelude::*;
use rxe_dpdk::rxe_proto::cm::{ConnectFailure, DisconnectReason};
use rxe_dpdk::rxe_proto::wire::cm::RejReason;
use rxe_dpdk::worker::IdlePolicy;

const USAGE: &str = "usage: rping_client [EAL options] -- --address IP/PREFIX... [--port N] [--count N] [--size N] \
                     [--wait SECONDS] [--mtu N] PEER...";
const CAPS: QpCaps = QpCaps { max_send_wr: 4, max_recv_wr: 2, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
/// Adverts and go-aheads.
const MESSAGE: usize = 16;
/// Sizes that an rping server accepts: its buffer has room for a name, and its length fits 16 bits.
const SIZES: std::ops::RangeInclusive<usize> = 23..=65_535;
/// Between two attempts, while there is no server yet.
const AGAIN: Duration = Duration::from_millis(500);

/// The settings from the command line.
#[derive(Clone)]
struct Plan {
    peers: Vec<IpAddr>,
    addresses: Vec<Cidr>,
    port: u16,
    count: u32,
    size: usize,
    /// How long a peer without a server is tried again.
    wait: Duration,
    mtu: Option<u16>,
}

impl Plan {
    fn parse(mut words: impl Iterator<Item = String>) -> Result<Plan, String> {
        let mut plan = Plan {
            peers: Vec::new(),
            addresses: Vec::new(),
            port: 7174,
            count: 10,
            size: 64,
            wait: Duration::ZERO,
            mtu: None,
        };
        while let Some(word) = words.next() {
            if !word.starts_with("--") {
                plan.peers.push(word.parse().map_err(|_| format!("{word} is no IP address"))?);
                continue;
            }
            let value = words.next().ok_or_else(|| format!("{word} wants a value"))?;
            let bad = || format!("{word} {value}: not a value that fits");
            match word.as_str() {
                "--address" => plan.addresses.push(value.parse().map_err(|_| bad())?),
                "--port" => plan.port = value.parse().map_err(|_| bad())?,
                "--count" => plan.count = value.parse().map_err(|_| bad())?,
                "--size" => plan.size = value.parse().ok().filter(|size| SIZES.contains(size)).ok_or_else(bad)?,
                "--wait" => plan.wait = Duration::from_secs(value.parse::<u32>().map_err(|_| bad())?.into()),
                "--mtu" => plan.mtu = Some(value.parse().map_err(|_| bad())?),
                _ => return Err(format!("{word} is no option here")),
            }
        }
        if plan.peers.is_empty() || plan.addresses.is_empty() {
            return Err("a PEER and an --address are needed".to_owned());
        }
        Ok(plan)
    }
}

struct Factory {
    plan: Plan,
    stop: Arc<OnceLock<StopHandle>>,
    failed: Arc<AtomicBool>,
}

impl ServiceFactory for Factory {
    fn name(&self) -> &'static str {
        "rping-client"
    }

    fn listen(&self) -> Vec<Listen> {
        Vec::new()
    }

    fn create(&self, _worker: usize) -> Box<dyn Service> {
        Box::new(Client {
            plan: self.plan.clone(),
            stop: Arc::clone(&self.stop),
            failed: Arc::clone(&self.failed),
            memory: None,
            peer: 0,
            conn: None,
            pings: 0,
            answers: 0,
            since: Instant::ZERO,
            trouble: None,
        })
    }
}

/// The parts of our memory: what the server READs, what it WRITEs, what we SEND, what we receive.
struct Buffers {
    source: MemoryRegion,
    sink: MemoryRegion,
    sends: MemoryRegion,
    receives: MemoryRegion,
}

struct Client {
    plan: Plan,
    stop: Arc<OnceLock<StopHandle>>,
    failed: Arc<AtomicBool>,
    memory: Option<Buffers>,
    /// Index of the current peer in the plan.
    peer: usize,
    conn: Option<ConnId>,
    /// Pings done with this peer, and go-aheads of the present one.
    pings: u32,
    answers: u8,
    /// When we first asked this peer.
    since: Instant,
    /// Why the connection is to end before its time.
    trouble: Option<String>,
}

impl Client {
    /// Memory for everything, or why there is none.
    fn allocate(&self, cx: &mut Context<'_>) -> Result<Buffers, String> {
        let pd = cx.device().alloc_pd();
        let mut region = |size, access| {
            let memory = cx.alloc_memory(size).map_err(|error| error.to_string())?;
            cx.device().reg_mr(pd, memory, access).map_err(|error| error.to_string())
        };
        Ok(Buffers {
            source: region(self.plan.size, Access::REMOTE_READ)?,
            sink: region(self.plan.size, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?,
            sends: region(2 * MESSAGE, Access::empty())?,
            receives: region(2 * MESSAGE, Access::LOCAL_WRITE)?,
        })
    }

    fn connect(&mut self, cx: &mut Context<'_>) {
        let Some(memory) = &self.memory else { return };
        let rights = Access::REMOTE_READ | Access::REMOTE_WRITE;
        let attr = cx.qp_attr().with_caps(CAPS);
        let mut dev = cx.device();
        let Ok(qp) = dev.create_qp_in_init::<Rc>(memory.receives.pd().into(), attr, rights) else {
            return self.give_up("no queue pair");
        };
        let posted = (0..2).try_for_each(|slot| post_recv(&mut dev, memory, qp.into(), slot));
        if let Err(why) = posted {
            return self.give_up(&why);
        }
        (self.pings, self.answers, self.trouble) = (0, 0, None);
        // The server READs one buffer at a time; we READ nothing.
        let remote = SocketAddr::new(self.plan.peers[self.peer], self.plan.port);
        cx.connect(Connect { responder_resources: 1, initiator_depth: 1, ..Connect::new(remote, qp) });
    }

    /// The text of a ping: a name and a row of letters that begins one further on each time, and a NUL, since servers
    /// WRITE back up to that.
    fn text(&self) -> Vec<u8> {
        let name = format!("rdma-ping-{}: ", self.pings);
        let letters = (0u32..).map(|index| b'A' + ((index + self.pings) % 58) as u8);
        name.bytes().chain(letters).take(self.plan.size - 1).chain([0]).collect()
    }

    /// SENDs the advert of the source, or of the sink.
    fn advertise(&self, dev: &mut Device<'_>, qpn: Qpn, of_sink: bool) -> Result<(), String> {
        let Some(memory) = &self.memory else { return Ok(()) };
        let region = if of_sink { &memory.sink } else { &memory.source };
        let (addr, rkey) = (region.addr().to_be_bytes(), region.rkey().to_be_bytes());
        let length = (self.plan.size as u32).to_be_bytes();
        let advert = [&addr[..], &rkey, &length].concat();
        // The two take turns, and the other one has been answered.
        let at = usize::from(of_sink) * MESSAGE;
        memory.sends.memory().write(at, &advert).map_err(|error| error.to_string())?;
        let advert = [memory.sends.sge(at..at + MESSAGE).map_err(|error| error.to_string())?];
        let qp = dev.find_qp::<Rc>(qpn).map_err(|error| error.to_string())?;
        dev.post_send(qp, WorkRequest::send(&advert).signaled()).map_err(|error| error.to_string())
    }

    /// Begins a ping.
    fn ping(&mut self, cx: &mut Context<'_>, qp: Qpn) -> Result<(), String> {
        if let Some(memory) = &self.memory {
            memory.source.memory().write(0, &self.text()).map_err(|error| error.to_string())?;
            memory.sink.memory().write(0, &vec![0; self.plan.size]).map_err(|error| error.to_string())?;
        }
        self.answers = 0;
        self.advertise(&mut cx.device(), qp, false)
    }

    /// The server SENDs after its READ and after its WRITE.
    fn answered(&mut self, cx: &mut Context<'_>, wc: &WorkCompletion) -> Result<(), String> {
        let Some(memory) = &self.memory else { return Ok(()) };
        if wc.byte_len as usize != MESSAGE {
            return Err(format!("a go-ahead of {} bytes", wc.byte_len));
        }
        post_recv(&mut cx.device(), memory, wc.qp(), wc.wr_id)?;
        self.answers += 1;
        if self.answers == 1 {
            return self.advertise(&mut cx.device(), wc.qpn, true);
        }
        let mut back = vec![0; self.plan.size];
        memory.sink.memory().read(0, &mut back).map_err(|error| error.to_string())?;
        if back != self.text() {
            return Err(format!("ping {} came back changed", self.pings));
        }
        println!("ping data: {}", String::from_utf8_lossy(&back[..self.plan.size.min(64) - 1]));
        self.pings += 1;
        if self.pings < self.plan.count {
            return self.ping(cx, wc.qpn);
        }
        self.disconnect(cx);
        Ok(())
    }

    fn disconnect(&mut self, cx: &mut Context<'_>) {
        if let Some(conn) = self.conn.take() {
            cx.disconnect(conn);
        }
    }

    /// Ends everything, with exit code 1.
    fn give_up(&self, why: &str) {
        eprintln!("rping_client: {}: {why}", self.plan.peers[self.peer]);
        self.failed.store(true, Ordering::Relaxed);
        self.end();
    }

    fn end(&self) {
        if let Some(stop) = self.stop.get() {
            stop.stop();
        }
    }
}

fn post_recv(dev: &mut Device<'_>, memory: &Buffers, qp: AnyQueuePair, slot: u64) -> Result<(), String> {
    let at = slot as usize * MESSAGE;
    let sges = [memory.receives.sge(at..at + MESSAGE).map_err(|error| error.to_string())?];
    dev.post_recv(qp, RecvWr { wr_id: slot, sges: &sges }).map_err(|error| error.to_string())
}

/// Whether there may be a server later: now there is no such host, nobody listens, or the host is only just coming up. A
/// kernel whose listener is there before its addresses are says "consumer defined".
fn may_come(reason: EndReason) -> bool {
    use RejReason::{ConsumerDefined, InvalidServiceId};
    let rejected = |why| reason == EndReason::NotEstablished(ConnectFailure::PeerRejected(why));
    reason == EndReason::NoPath || rejected(InvalidServiceId) || rejected(ConsumerDefined)
}

impl Service for Client {
    fn start(&mut self, cx: &mut Context<'_>) {
        // One client in all, wherever the others are.
        if cx.worker() == 0 {
            match self.allocate(cx) {
                Ok(memory) => self.memory = Some(memory),
                Err(why) => return self.give_up(&why),
            }
            self.since = cx.now();
            self.connect(cx);
        }
    }

    fn connected(&mut self, cx: &mut Context<'_>, conn: ConnId, qp: Qpn) {
        self.conn = Some(conn);
        if let Err(why) = self.ping(cx, qp) {
            self.trouble = Some(why);
            self.disconnect(cx);
        }
    }

    fn completion(&mut self, cx: &mut Context<'_>, wc: &WorkCompletion) {
        // A failed one means that the queue pair is in error, and that the runtime ends the connection.
        if wc.status != WcStatus::Success || wc.opcode != WcOpcode::Recv || self.conn.is_none() {
            return;
        }
        if let Err(why) = self.answered(cx, wc) {
            self.trouble = Some(why);
            self.disconnect(cx);
        }
    }

    fn disconnected(&mut self, cx: &mut Context<'_>, _conn: ConnId, _qp: Qpn, reason: EndReason) {
        self.conn = None;
        if let Some(why) = self.trouble.take() {
            return self.give_up(&why);
        }
        // The server may go as soon as it has answered the last ping.
        let at_our_wish = matches!(
            reason,
            EndReason::Disconnected(
                DisconnectReason::Local | DisconnectReason::LocalUnanswered | DisconnectReason::Peer
            )
        );
        if at_our_wish && self.pings == self.plan.count {
            println!("{} pings of {} bytes to {}", self.pings, self.plan.size, self.plan.peers[self.peer]);
            self.peer += 1;
            if self.peer == self.plan.peers.len() {
                return self.end();
            }
            self.since = cx.now();
            return self.connect(cx);
        }
        if may_come(reason) && cx.now() - self.since < self.plan.wait {
            return cx.set_timer(AGAIN, 0);
        }
        self.give_up(&format!("the connection ended after {} pings: {reason:?}", self.pings));
    }

    fn timer(&mut self, cx: &mut Context<'_>, _token: u64) {
        self.connect(cx);
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let split = words.iter().position(|word| word == "--").unwrap_or(words.len());
    let plan = match Plan::parse(words.iter().skip(split + 1).cloned()) {
        Ok(plan) => plan,
        Err(why) => {
            eprintln!("rping_client: {why}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(&words[..split], plan) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("rping_client: {error}");
            ExitCode::from(2)
        }
    }
}

/// Whether all went well.
fn run(eal: &[String], plan: Plan) -> Result<bool, Box<dyn std::error::Error>> {
    let eal = Eal::init(eal)?;
    let port = PortSettings { addresses: plan.addresses.clone(), mtu: plan.mtu, ..PortSettings::default() };
    let config = RuntimeConfig {
        ports: vec![port],
        idle: IdlePolicy::Sleep(Duration::from_micros(50)),
        ..RuntimeConfig::default()
    };
    let (stop, failed) = (Arc::new(OnceLock::new()), Arc::new(AtomicBool::new(false)));
    let factory = Factory { plan, stop: Arc::clone(&stop), failed: Arc::clone(&failed) };
    let runtime = Runtime::new(eal, config, vec![Box::new(factory)])?;
    // Set once, before anything runs.
    let _ = stop.set(runtime.stop_handle());
    println!("{}", runtime.ready_line());
    let summary = runtime.run()?;
    print!("{summary}");
    Ok(!failed.load(Ordering::Relaxed) && summary.mbufs_leaked == 0)
}
