//! Measures two ports on the loopback interface, each driven by a thread: packets one way, round trips, and RDMA WRITEs between
//! two engines, with and without offloads. Run it on two idle CPUs with `cargo run --release -p rxe-udp --example pingpong`. The
//! CPU time of both threads per packet or operation is right on busy CPUs, too.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::time::{ClockId, clock_gettime};
use rxe_proto::counters::Counter;
use rxe_proto::verbs::{
    Access, Adapter, CompletionQueue, Engine, EngineConfig, Memory, MemoryRegion, ProtectionDomain, QpCaps, QpInitAttr,
    QueuePair, Rc, RtrAttr, RtsAttr, WorkRequest,
};
use rxe_proto::wire::{
    BthFields, BthOpcode, DEFAULT_PKEY, Frame, HeaderTemplate, Opcode, Path, PathMtu, PortId, Psn, ROCE_UDP_PORT,
    TxQueue, classify,
};
use rxe_udp::{UdpConfig, UdpPort};

type Failure = Box<dyn Error + Send + Sync>;

const PORT: PortId = PortId(0);
const LENS: [usize; 3] = [64, 1024, 4096];

/// Rates are measured so often; the median and the best are printed, as other programs may disturb some rounds.
const ROUNDS: usize = 15;
const ROUND: Duration = Duration::from_millis(100);

/// WRITEs that are outstanding at a time.
const DEPTH: u32 = 128;

/// Results.
struct Measured {
    /// Operations per second, of each round.
    rates: Vec<f64>,
    /// CPU time per operation of both threads.
    cpu: [Duration; 2],
}

fn main() -> Result<(), Failure> {
    println!("{:<28} offload   median/s     best/s     Gb/s     best  CPU time, us", "");
    for offload in [true, false] {
        for len in LENS {
            report(&format!("packets one way, {len} B"), offload, len, one_way(len, offload)?);
        }
    }
    for offload in [true, false] {
        for len in [64, 1024, 4096, 65_536, 1 << 20] {
            report(&format!("RC WRITE, {len} B"), offload, len, writes(len, offload)?);
        }
    }
    for sleep in [false, true] {
        let name = if sleep { "round trips, 64 B, sleeping" } else { "round trips, 64 B, polling" };
        report(name, true, 64, round_trips(sleep)?);
    }
    Ok(())
}

fn report(name: &str, offload: bool, len: usize, mut measured: Measured) {
    measured.rates.sort_by(f64::total_cmp);
    let (median, best) = (measured.rates[ROUNDS / 2], measured.rates[ROUNDS - 1]);
    let gigabits = |rate: f64| rate * len as f64 * 8.0 / 1e9;
    let (bits, best_bits) = (gigabits(median), gigabits(best));
    let [one, two] = measured.cpu.map(|time| time.as_secs_f64() * 1e6);
    println!("{name:<28} {offload:>7} {median:>10.0} {best:>10.0} {bits:>8.2} {best_bits:>8.2}  {one:.2} + {two:.2}");
}

/// Runs two loops in threads until all rounds are over. `count` is the number of operations until now.
fn measure(
    count: impl Fn() -> u64,
    stop: &AtomicBool,
    one: impl FnOnce() -> Result<(), Failure> + Send,
    two: impl FnOnce() -> Result<(), Failure> + Send,
) -> Result<Measured, Failure> {
    thread::scope(|scope| {
        let threads = [scope.spawn(|| timed(one)), scope.spawn(|| timed(two))];
        let mut rates = Vec::new();
        while rates.len() < ROUNDS {
            let (begin, before) = (Instant::now(), count());
            thread::sleep(ROUND);
            rates.push((count() - before) as f64 / begin.elapsed().as_secs_f64());
        }
        stop.store(true, Ordering::Relaxed);
        let [one, two] = threads.map(|thread| thread.join().map_err(|_| Failure::from("a thread has panicked"))?);
        let operations = u32::try_from(count())?.max(1);
        Ok(Measured { rates, cpu: [one? / operations, two? / operations] })
    })
}

/// Runs a loop; returns its CPU time.
fn timed(run: impl FnOnce() -> Result<(), Failure>) -> Result<Duration, Failure> {
    let clock = || clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from);
    let begin = clock()?;
    run()?;
    Ok(clock()? - begin)
}

fn ports(offload: bool) -> Result<[UdpPort; 2], Failure> {
    let process = std::process::id();
    let open = |last| {
        let address = Ipv4Addr::new(127, 64 + (process >> 8) as u8 % 128, process as u8, last);
        UdpPort::open(UdpConfig { offload, ..UdpConfig::new(IpAddr::V4(address)) })
    };
    Ok([open(1)?, open(2)?])
}

fn path(from: &UdpPort, to: &UdpPort) -> Path {
    Path { src: from.address().into(), dst: to.address().into(), udp_src_port: ROCE_UDP_PORT, ..Path::default() }
}

/// Stages a SEND of `len` bytes; false when there is no room.
fn stage(port: &mut UdpPort, template: &HeaderTemplate, len: usize, psn: u32) -> bool {
    let fields = BthFields {
        opcode: BthOpcode::rc(Opcode::SendOnly),
        dest_qp: 0x11,
        psn: Psn::new(psn),
        solicited: false,
        ack_req: false,
        pkey: DEFAULT_PKEY,
    };
    let frame_len = template.frame_len(fields.opcode, len);
    let Some(frame) = port.tx().push(PORT, frame_len) else { return false };
    template.build(frame, fields, len).finish();
    true
}

/// Receives a burst; returns how many of its packets are intact.
fn drain(port: &mut UdpPort) -> u32 {
    let mut intact = 0;
    let mut burst = port.receive();
    while let Some(frame) = burst.next_frame() {
        if let Ok(Frame::Roce(packet)) = classify(frame) {
            intact += u32::from(packet.icrc_ok());
        }
    }
    intact
}

fn one_way(len: usize, offload: bool) -> Result<Measured, Failure> {
    let [mut sender, mut receiver] = ports(offload)?;
    let template = HeaderTemplate::new(&path(&sender, &receiver));
    let (stop, received) = (AtomicBool::new(false), Counter::default());
    let send = || {
        let mut psn = 0;
        while !stop.load(Ordering::Relaxed) {
            for _ in 0..64 {
                if !stage(&mut sender, &template, len, psn) {
                    break;
                }
                psn = (psn + 1) & 0xFF_FFFF;
            }
            sender.tx().flush();
        }
        Ok(())
    };
    let receive = || {
        while !stop.load(Ordering::Relaxed) {
            receiver.wait(Some(Duration::from_millis(1)))?;
            received.add(drain(&mut receiver).into());
        }
        Ok(())
    };
    measure(|| received.get(), &stop, send, receive)
}

fn round_trips(sleep: bool) -> Result<Measured, Failure> {
    let [one, two] = ports(true)?;
    let (there, back) = (HeaderTemplate::new(&path(&one, &two)), HeaderTemplate::new(&path(&two, &one)));
    let (stop, trips) = (AtomicBool::new(false), Counter::default());
    // An end answers each packet; the first one begins.
    let end = |mut port: UdpPort, template: HeaderTemplate, begins: bool| {
        let (stop, trips) = (&stop, &trips);
        move || {
            let mut due = u32::from(begins);
            while !stop.load(Ordering::Relaxed) {
                for _ in 0..due {
                    stage(&mut port, &template, 64, 0);
                }
                if due > 0 {
                    port.tx().flush();
                }
                if sleep {
                    port.wait(Some(Duration::from_millis(10)))?;
                }
                due = drain(&mut port);
                if begins {
                    trips.add(due.into());
                }
            }
            Ok(())
        }
    };
    measure(|| trips.get(), &stop, end(one, there, true), end(two, back, false))
}

/// A port with an engine.
struct End {
    port: UdpPort,
    engine: Engine,
    begin: Instant,
    pd: ProtectionDomain,
    cq: CompletionQueue,
    mr: MemoryRegion,
}

impl End {
    fn new(port: UdpPort, begin: Instant, len: usize) -> Result<End, Failure> {
        let mut engine = Engine::new(EngineConfig { udp_src_port: Some(ROCE_UDP_PORT), ..EngineConfig::default() });
        let mut dev = Adapter::new(&mut engine, rxe_proto::Instant::ZERO);
        let pd = dev.alloc_pd();
        let cq = dev.create_cq(4 * DEPTH as usize)?;
        let mr = dev.reg_mr(pd, Memory::heap(len), Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
        Ok(End { port, engine, begin, pd, cq, mr })
    }

    fn now(&self) -> rxe_proto::Instant {
        rxe_proto::Instant::from_nanos(self.begin.elapsed().as_nanos() as u64)
    }

    fn device(&mut self) -> Adapter<'_> {
        let now = self.now();
        Adapter::new(&mut self.engine, now)
    }

    fn create_qp(&mut self) -> Result<QueuePair<Rc>, Failure> {
        let caps = QpCaps { max_send_wr: DEPTH, max_send_sge: 1, ..QpCaps::default() };
        let (pd, attr) = (self.pd, QpInitAttr { caps, ..QpInitAttr::new(self.cq) });
        Ok(self.device().create_qp(pd, attr)?)
    }

    /// One turn; sleeps when there is nothing to do.
    fn turn(&mut self) -> Result<(), Failure> {
        if !self.engine.wants_transmit() {
            let now = self.now();
            let due = self.engine.next_timeout().map_or(ROUND, |at| at - now);
            self.port.wait(Some(due.min(ROUND)))?;
        }
        let now = self.now();
        let mut burst = self.port.receive();
        while let Some(frame) = burst.next_frame() {
            if let Ok(Frame::Roce(packet)) = classify(frame) {
                self.engine.receive(now, PORT, &packet);
            }
        }
        self.engine.handle_timeout(now);
        self.engine.transmit(now, self.port.tx());
        self.port.tx().flush();
        Ok(())
    }
}

fn writes(len: usize, offload: bool) -> Result<Measured, Failure> {
    let begin = Instant::now();
    let [one, two] = ports(offload)?;
    let paths = [path(&one, &two), path(&two, &one)];
    let mut ends = [End::new(one, begin, len)?, End::new(two, begin, len)?];
    let qps = [ends[0].create_qp()?, ends[1].create_qp()?];
    for (at, path) in paths.into_iter().enumerate() {
        let rtr = RtrAttr { path, path_mtu: PathMtu::Mtu4096, dest_qpn: qps[1 - at].qpn(), ..RtrAttr::default() };
        qps[at].connect(&mut ends[at].device(), Access::REMOTE_WRITE, rtr, RtsAttr::default())?;
    }
    let there = ends[1].mr.remote(0)?;
    let [mut initiator, mut target] = ends;
    let (stop, done) = (AtomicBool::new(false), Counter::default());
    let stats = Arc::clone(initiator.engine.stats());
    let measured = measure(
        || done.get(),
        &stop,
        || {
            let local = [initiator.mr.sge(..)?];
            let (cq, mut outstanding) = (initiator.cq, 0);
            while !stop.load(Ordering::Relaxed) {
                while outstanding < DEPTH {
                    initiator.device().post_send(qps[0], WorkRequest::write(&local, there).signaled())?;
                    outstanding += 1;
                }
                initiator.turn()?;
                while let Some(wc) = initiator.device().poll_cq_one(cq) {
                    wc.success()?;
                    outstanding -= 1;
                    done.inc();
                }
            }
            Ok(())
        },
        || {
            while !stop.load(Ordering::Relaxed) {
                target.turn()?;
            }
            Ok(())
        },
    )?;
    let retransmitted = stats.iter().filter(|(name, value)| name.contains("retr") && *value > 0);
    for (name, value) in retransmitted {
        println!("  {name}: {value}");
    }
    Ok(measured)
}
