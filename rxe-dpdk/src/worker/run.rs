//! The run-to-completion loop of one lcore.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rxe_proto::transport::{Engine, Qpn};
use rxe_proto::wire::{DropCounters, DropReason, Frame, PortId, RocePacket, classify};
use rxe_proto::{Duration, Instant};

use super::control::Control;
use super::handoff::{HandOff, TxRingEnd};
use super::idle::Idler;
use super::ports::{PortIdentity, PortsTx, WorkerStats};
use super::services::ServiceHost;
use crate::eal::{Clock, MbufReceiver, RxBurst, RxQueue};

/// How long peers have to answer our DREQs when we stop.
const STOP_PATIENCE: Duration = Duration::from_millis(1500);

/// Flags that all workers read once per turn.
#[derive(Debug, Default)]
pub(crate) struct StopFlags {
    /// Somebody asked us to stop: control disconnects the peers, then sets `halt`.
    pub(crate) stop: AtomicBool,
    /// Leave the loop.
    pub(crate) halt: AtomicBool,
}

/// Which worker a frame belongs to.
enum Owner {
    /// This one, which has dealt with it.
    Here,
    /// Another one.
    Worker(usize),
}

/// The parts of a worker that handle a frame, apart from the queues that frames come from.
pub(crate) struct Dispatcher {
    pub(crate) index: usize,
    pub(crate) workers: usize,
    pub(crate) identities: Vec<PortIdentity>,
    pub(crate) engine: Engine,
    pub(crate) services: ServiceHost,
    /// Only on worker 0.
    pub(crate) control: Option<Control>,
    pub(crate) tx: PortsTx,
    pub(crate) drops: Arc<DropCounters>,
    pub(crate) stats: Arc<WorkerStats>,
}

/// One lcore's loop and all that it owns.
pub(crate) struct Worker {
    pub(crate) rx: Vec<(PortId, RxQueue)>,
    pub(crate) burst: RxBurst,
    /// Rings towards the other workers, by worker number; `None` at our own place.
    pub(crate) outbound: Vec<Option<HandOff>>,
    /// Frames that other workers received for us; `None` when there are no others.
    pub(crate) inbound: Option<MbufReceiver>,
    /// Frames of workers without a transmit queue, for ours.
    pub(crate) tx_rings: Vec<TxRingEnd>,
    pub(crate) dispatcher: Dispatcher,
    pub(crate) clock: Clock,
    pub(crate) idler: Idler,
    pub(crate) flags: Arc<StopFlags>,
    pub(crate) stats: Arc<WorkerStats>,
}

/// Ends the other workers when this one leaves, however it does.
struct HaltOnDrop(Arc<StopFlags>);

impl Drop for HaltOnDrop {
    fn drop(&mut self) {
        self.0.halt.store(true, Ordering::Relaxed);
    }
}

impl Worker {
    /// Runs until told to halt.
    pub(crate) fn run(mut self) {
        let _halt = HaltOnDrop(self.flags.clone());
        let now = self.clock.now();
        self.dispatcher.services.start(now, &mut self.dispatcher.engine);
        while !self.flags.halt.load(Ordering::Relaxed) {
            let now = self.clock.now();
            let busy = self.turn(now);
            self.stats.turns.inc();
            if !busy {
                self.stats.idle_turns.inc();
            }
            if let Some(control) = &mut self.dispatcher.control
                && self.flags.stop.load(Ordering::Relaxed)
            {
                control.begin_stop(now);
                if control.is_stopped(now, STOP_PATIENCE) {
                    self.flags.halt.store(true, Ordering::Relaxed);
                }
            }
            self.idler.turn(busy);
        }
        self.dispatcher.tx.flush();
    }

    /// One turn: receive, execute, transmit, timers, services, control.
    fn turn(&mut self, now: Instant) -> bool {
        let mut busy = self.receive(now);
        busy |= self.take_over(now);
        let Dispatcher { engine, services, control, tx, .. } = &mut self.dispatcher;
        for ring in &mut self.tx_rings {
            if let Some(lane) = tx.lanes.get_mut(usize::from(ring.port.0)) {
                let moved = ring.drain(lane);
                busy |= moved > 0;
                self.stats.tx_forwarded.add(moved as u64);
            }
        }
        if engine.next_timeout().is_some_and(|t| t <= now) {
            engine.handle_timeout(now);
        }
        // Before the services: what is owed for this burst leaves first, and a queue pair in error gets its NAK out
        // before its service and the runtime let go of it.
        engine.transmit(now, tx);
        busy |= services.poll(now, engine);
        if let Some(control) = control {
            control.poll(now, tx);
        }
        if engine.wants_transmit() {
            engine.transmit(now, tx);
        }
        busy |= tx.frames > 0;
        self.stats.tx_frames.add(std::mem::take(&mut tx.frames));
        if tx.flush() {
            self.stats.tx_stalls.inc();
        }
        busy
    }

    /// Frames from our own receive queues.
    fn receive(&mut self, now: Instant) -> bool {
        let mut busy = false;
        for (port, queue) in &mut self.rx {
            let count = queue.burst(&mut self.burst);
            if count == 0 {
                continue;
            }
            busy = true;
            self.stats.rx_bursts.inc();
            self.stats.rx_frames.add(count as u64);
            let mut bytes = 0;
            for index in 0..count {
                let frame = self.burst.data(index);
                bytes += frame.len() as u64;
                match self.dispatcher.dispatch(now, *port, frame, self.burst.headroom(index)) {
                    Owner::Here => {}
                    Owner::Worker(worker) => {
                        let ring = self.outbound.get_mut(worker).and_then(Option::as_mut);
                        if ring.is_some_and(|ring| ring.give(&mut self.burst, index)) {
                            self.stats.handoff_out.inc();
                        } else {
                            self.dispatcher.drop(DropReason::HandoffFull);
                        }
                    }
                }
            }
            self.stats.rx_bytes.add(bytes);
            self.burst.clear();
        }
        for ring in self.outbound.iter_mut().flatten() {
            for _ in 0..ring.flush() {
                self.dispatcher.drop(DropReason::HandoffFull);
            }
        }
        busy
    }

    /// Frames that other workers received for us.
    fn take_over(&mut self, now: Instant) -> bool {
        let Some(ring) = &mut self.inbound else { return false };
        let count = ring.receive(&mut self.burst);
        self.stats.handoff_in.add(count as u64);
        for index in 0..count {
            let port = PortId(self.burst.port(index));
            let frame = self.burst.data(index);
            if let Owner::Worker(_) = self.dispatcher.dispatch(now, port, frame, self.burst.headroom(index)) {
                // Whoever gave it to us read the same queue pair number: it cannot belong elsewhere.
                self.dispatcher.drop(DropReason::QpnUnknown);
            }
        }
        self.burst.clear();
        count > 0
    }
}

impl Dispatcher {
    /// Deals with one frame, or says whose it is.
    fn dispatch(&mut self, now: Instant, port: PortId, frame: &[u8], headroom: usize) -> Owner {
        match classify(frame) {
            Ok(Frame::Roce(packet)) => self.dispatch_roce(now, port, &packet, headroom),
            Ok(Frame::Host) => {
                let Some(control) = &mut self.control else { return Owner::Worker(0) };
                self.stats.host_frames.inc();
                control.handle_host_frame(now, port, frame, &mut self.tx);
                Owner::Here
            }
            Err(reason) => self.drop(reason),
        }
    }

    fn dispatch_roce(&mut self, now: Instant, port: PortId, packet: &RocePacket<'_>, headroom: usize) -> Owner {
        let Some(identity) = self.identities.get(usize::from(port.0)) else {
            return self.drop(DropReason::ForeignMac);
        };
        if packet.dst_mac() != identity.mac {
            return self.drop(DropReason::ForeignMac);
        }
        // Priority tags (VLAN 0) count as untagged.
        let vlan = packet.vlan().map(|tci| tci & 0x0FFF).filter(|vid| *vid != 0);
        if vlan != identity.vlan {
            return self.drop(DropReason::VlanMismatch);
        }
        let qpn = Qpn::new(packet.dest_qp());
        if qpn == Qpn::GSI {
            let Some(control) = &mut self.control else { return Owner::Worker(0) };
            self.stats.gsi_packets.inc();
            control.handle_gsi(now, port, packet, headroom);
            return Owner::Here;
        }
        let worker = usize::from(qpn.worker());
        if worker == self.index {
            self.stats.qp_packets.inc();
            self.engine.receive(now, port, packet, headroom);
            Owner::Here
        } else if worker < self.workers {
            Owner::Worker(worker)
        } else {
            self.drop(DropReason::QpnUnknown)
        }
    }

    fn drop(&self, reason: DropReason) -> Owner {
        self.drops.count(reason);
        self.stats.dropped_frames.inc();
        Owner::Here
    }
}
