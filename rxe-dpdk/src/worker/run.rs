//! The run-to-completion loop of one lcore.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use rxe_proto::transport::{Engine, Qpn};
use rxe_proto::wire::{DropCounters, DropReason, Frame, PortId, RocePacket, classify};
use rxe_proto::{Duration, Instant};
use rxe_service::control::Control;
use rxe_service::host::ServiceHost;
use rxe_service::multicast::WorkerSet;

use super::capture::{CaptureOrder, RxRecorder};
use super::faults::FaultPlaces;
use super::handoff::{HandOff, TxRingEnd};
use super::idle::Idler;
use super::injector::{FOREVER, Injector, Refusals};
use super::lane::TxLane;
use super::last::transmit_rest;
use super::orders::Orders;
use super::port_host::PortHost;
use super::ports::{PortIdentity, PortsTx, RxPort, WorkerStats};
use super::region_files::LostRegions;
use crate::eal::{Clock, Mbuf, MbufReceiver, Mempool, RxBurst};
use crate::host::group_macs;

/// How many packets before its turn what a packet needs is asked for.
const AHEAD: usize = 3;

/// How long peers have to answer our DREQs when we stop.
const STOP_PATIENCE: Duration = Duration::from_millis(1500);

/// How often mail is read and the control side has its turn, at most: what takes a message each way may wait so long, and a
/// worker that finds nothing to do is back at its port sooner.
const CHORES: Duration = Duration::from_micros(2);

/// How long a worker that leaves waits for the others and for a port to take its last frames, each.
const LAST_PATIENCE: Duration = Duration::from_millis(100);

/// Flags that all workers read once per turn.
#[derive(Debug, Default)]
pub(crate) struct StopFlags {
    /// Somebody asked us to stop: control disconnects the peers, then sets `halt`.
    pub(crate) stop: AtomicBool,
    /// Leave the loop.
    pub(crate) halt: AtomicBool,
    /// How many workers have left the loop and given away the frames that they received for others.
    pub(crate) received_all: AtomicUsize,
    /// How many of them have also given their last frames to the ports or to the worker that has the transmit queue.
    pub(crate) sent_all: AtomicUsize,
}

/// Which worker a frame belongs to.
enum Owner {
    /// This one, which has dealt with it.
    Here,
    /// Another one.
    Worker(usize),
    /// This one, which has dealt with it, and these: each gets a copy.
    Group(WorkerSet),
}

/// What it takes to give a frame to another worker, or a copy of it to several.
pub(crate) struct Others<'a> {
    pub(crate) rings: &'a mut [Option<HandOff>],
    /// Where copies come from.
    pub(crate) pool: &'a Mempool,
}

/// The parts of a worker that handle a frame, apart from the queues that frames come from.
pub(crate) struct Dispatcher {
    pub(crate) index: usize,
    pub(crate) workers: usize,
    pub(crate) identities: Vec<PortIdentity>,
    pub(crate) engine: Engine,
    /// Requests refused on purpose, where that is wanted.
    pub(crate) refusals: Option<Box<Refusals>>,
    pub(crate) services: ServiceHost,
    /// Only on worker 0.
    pub(crate) control: Option<Control<PortHost>>,
    /// What other threads want of this worker.
    pub(crate) orders: Orders,
    /// Only on worker 0, which logs for all.
    pub(crate) lost_regions: Option<LostRegions>,
    pub(crate) tx: PortsTx,
    /// Where there is a capture.
    pub(crate) capture: Option<Box<RxRecorder>>,
    pub(crate) drops: Arc<DropCounters>,
    pub(crate) stats: Arc<WorkerStats>,
}

/// One lcore's loop and all that it owns.
pub(crate) struct Worker {
    pub(crate) rx: Vec<RxPort>,
    pub(crate) burst: RxBurst,
    /// Rings towards the other workers, by worker number; `None` at our own place.
    pub(crate) outbound: Vec<Option<HandOff>>,
    /// Frames that other workers received for us; `None` when there are no others.
    pub(crate) inbound: Option<MbufReceiver>,
    /// Frames of workers without a transmit queue, for ours.
    pub(crate) tx_rings: Vec<TxRingEnd>,
    pub(crate) dispatcher: Dispatcher,
    pub(crate) faults: FaultPlaces,
    pub(crate) clock: Clock,
    pub(crate) idler: Idler,
    /// When mail and the control side are next.
    pub(crate) chores_at: Instant,
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
        // A capture that was wanted before has the first frame.
        self.dispatcher.read_mail(now);
        self.follow_orders();
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
            self.follow_orders();
            self.idler.turn(busy);
        }
        self.leave();
    }

    /// Begins or ends to capture, if that was ordered.
    #[inline]
    fn follow_orders(&mut self) {
        if let Some(order) = self.dispatcher.orders.capture.take() {
            self.dispatcher.set_capture(*order);
        }
    }

    /// Lets every frame that is still here go its way: those that injectors hold, and those in rings.
    fn leave(&mut self) {
        let Worker { rx, burst, outbound, dispatcher, .. } = self;
        let now = self.clock.now();
        // From here on what is written waits for nothing.
        dispatcher.tx.finish();
        for RxPort { port, queue, faults } in rx {
            if let Some(injector) = faults {
                let mut others = Others { rings: outbound, pool: queue.pool() };
                dispatcher.dispatch_due(now, FOREVER, *port, injector, burst, &mut others);
            }
        }
        dispatcher.hand_over(now, outbound);
        self.await_all(|flags| &flags.received_all, |_| {});

        let until = now + LAST_PATIENCE;
        while self.take_over(now) && self.clock.now() < until {}
        let Dispatcher { engine, services, tx, .. } = &mut self.dispatcher;
        services.count_left(engine);
        transmit_rest(engine, tx, LAST_PATIENCE, || self.clock.now());
        self.send_rest();
        self.await_all(
            |flags| &flags.sent_all,
            |worker| {
                worker.forward();
                worker.dispatcher.tx.finish();
            },
        );
        self.send_rest();
        self.stats.tx_frames.add(std::mem::take(&mut self.dispatcher.tx.frames));
    }

    /// Hands everything to the ports, and waits a moment for those that do not take it.
    fn send_rest(&mut self) {
        let until = self.clock.now() + LAST_PATIENCE;
        loop {
            let moved = self.forward();
            let waiting = self.dispatcher.tx.finish();
            if !(moved || waiting) || self.clock.now() >= until {
                return;
            }
            thread::yield_now();
        }
    }

    /// Says that this worker has got as far as `counter` counts, and waits until all have, doing `meanwhile` until then.
    fn await_all(&mut self, counter: impl Fn(&StopFlags) -> &AtomicUsize, meanwhile: impl Fn(&mut Worker)) {
        counter(&self.flags).fetch_add(1, Ordering::Release);
        let until = self.clock.now() + LAST_PATIENCE;
        while counter(&self.flags).load(Ordering::Acquire) < self.dispatcher.workers && self.clock.now() < until {
            meanwhile(self);
            thread::yield_now();
        }
    }

    /// Moves frames that workers without a transmit queue have written to ours. Returns whether there were some.
    fn forward(&mut self) -> bool {
        let mut forwarded = 0;
        for ring in &mut self.tx_rings {
            let lane = self.dispatcher.tx.lanes.get_mut(usize::from(ring.port.0));
            if let Some(stage) = lane.and_then(TxLane::queue) {
                forwarded += ring.drain(stage);
            }
        }
        self.stats.tx_forwarded.add(forwarded as u64);
        forwarded > 0
    }

    /// One turn: receive, execute, transmit, timers, services, control.
    fn turn(&mut self, now: Instant) -> bool {
        let chores = now >= self.chores_at || self.flags.stop.load(Ordering::Relaxed);
        if chores {
            self.chores_at = now + CHORES;
        }
        let mut busy = self.receive(now);
        busy |= self.take_over(now);
        busy |= self.forward();
        let Dispatcher { engine, tx, .. } = &mut self.dispatcher;
        if engine.next_timeout().is_some_and(|t| t <= now) {
            engine.handle_timeout(now);
        }
        // Before the services: what is owed for this burst leaves first, and a queue pair in error gets its NAK out
        // before its service and the runtime let go of it.
        if engine.transmit(now, tx) > 0 {
            tx.flush(now);
        }
        if chores {
            busy |= self.dispatcher.read_mail(now);
        }
        let Dispatcher { engine, services, control, tx, .. } = &mut self.dispatcher;
        busy |= services.poll(now, engine);
        if engine.wants_transmit() {
            engine.transmit(now, tx);
        }
        let mut waiting = tx.flush(now);
        if chores && let Some(control) = control {
            let before = tx.frames;
            control.poll(now, tx);
            if tx.frames > before {
                waiting = tx.flush(now);
            }
        }
        busy |= tx.frames > 0;
        self.stats.tx_frames.add(std::mem::take(&mut tx.frames));
        if waiting {
            self.stats.tx_stalls.inc();
        }
        if !self.dispatcher.orders.ports.is_empty() {
            self.follow_port_orders();
        }
        if self.dispatcher.orders.faults.is_some() {
            self.change_faults(now);
        }
        busy
    }

    /// Frames from our own receive queues.
    fn receive(&mut self, now: Instant) -> bool {
        let Worker { rx, burst, outbound, dispatcher, stats, .. } = self;
        let mut busy = false;
        for RxPort { port, queue, faults } in rx {
            let count = queue.burst(burst);
            if count > 0 {
                busy = true;
                stats.rx_bursts.inc();
                stats.rx_frames.add(count as u64);
            }
            let mut others = Others { rings: outbound, pool: queue.pool() };
            if let Some(injector) = faults {
                stats.rx_bytes.add(dispatcher.inject(now, *port, injector, burst));
                busy |= dispatcher.dispatch_due(now, now, *port, injector, burst, &mut others);
            } else if count > 0 {
                stats.rx_bytes.add(dispatcher.dispatch_all(now, *port, burst, &mut others));
            }
        }
        dispatcher.hand_over(now, outbound);
        busy
    }

    /// Frames that other workers received for us.
    fn take_over(&mut self, now: Instant) -> bool {
        let Some(ring) = &mut self.inbound else { return false };
        let count = ring.receive(&mut self.burst);
        self.stats.handoff_in.add(count as u64);
        if count > 0 {
            self.dispatcher.dispatch_handed_over(now, &mut self.burst);
        }
        count > 0
    }
}

impl Dispatcher {
    /// Reads messages of the control side and orders of other threads. Returns whether there were any.
    fn read_mail(&mut self, now: Instant) -> bool {
        let mut busy = self.services.read_mail(now, &mut self.engine);
        busy |= self.orders.read();
        if let Some(lost) = &mut self.lost_regions {
            self.services.stats().regions_lost.add(lost.look(self.services.regions()));
        }
        busy
    }

    /// Deals with the frames of a burst, or puts them on their way to their owners. Empties the burst and returns how
    /// many bytes were in it.
    fn dispatch_all(&mut self, now: Instant, port: PortId, burst: &mut RxBurst, others: &mut Others<'_>) -> u64 {
        match (&self.capture, &self.refusals) {
            (None, None) => self.dispatch_each(now, port, burst, others, Dispatcher::dispatch::<false>),
            (None, Some(_)) => self.dispatch_each(now, port, burst, others, Dispatcher::dispatch::<true>),
            (Some(_), _) => self.dispatch_all_recorded(now, port, burst, others),
        }
    }

    /// The same with `dispatch` for each frame.
    #[inline]
    fn dispatch_each(
        &mut self,
        now: Instant,
        port: PortId,
        burst: &mut RxBurst,
        others: &mut Others<'_>,
        dispatch: impl Fn(&mut Dispatcher, Instant, PortId, &[u8]) -> Owner,
    ) -> u64 {
        let mut bytes = 0;
        let prefetches = self.engine.wants_prefetch();
        for index in 0..burst.len() {
            if prefetches {
                // Beyond the last one there are none.
                let first = if index == 0 { 0 } else { AHEAD };
                (first..=AHEAD).for_each(|ahead| self.engine.prefetch(burst.data(index + ahead)));
            }
            let frame = burst.data(index);
            bytes += frame.len() as u64;
            match dispatch(self, now, port, frame) {
                Owner::Here => {}
                Owner::Worker(worker) => {
                    let ring = others.rings.get_mut(worker).and_then(Option::as_mut);
                    if ring.is_some_and(|ring| ring.give(burst, index)) {
                        self.stats.handoff_out.inc();
                    } else {
                        self.lose(now, port, burst.data(index), DropReason::HandoffFull);
                    }
                }
                Owner::Group(workers) => {
                    for worker in workers.iter() {
                        let copy = burst.copy(index, others.pool);
                        let ring = others.rings.get_mut(worker).and_then(Option::as_mut);
                        if let (Some(copy), Some(ring)) = (copy, ring)
                            && ring.give_mbuf(copy)
                        {
                            self.stats.multicast_copies.inc();
                        } else {
                            self.stats.multicast_copies_lost.inc();
                        }
                    }
                }
            }
        }
        burst.clear();
        bytes
    }

    /// Sends the frames that are on their way to other workers.
    pub(crate) fn hand_over(&mut self, now: Instant, outbound: &mut [Option<HandOff>]) {
        for ring in outbound.iter_mut().flatten() {
            ring.flush(|port, frame| self.lose(now, port, frame, DropReason::HandoffFull));
        }
    }

    /// Deals with frames that other workers received for us. Empties the burst.
    fn dispatch_handed_over(&mut self, now: Instant, burst: &mut RxBurst) {
        if self.capture.is_some() {
            self.dispatch_handed_over_recorded(now, burst);
        } else if self.refusals.is_some() {
            self.take_in_all::<true>(now, burst);
        } else {
            self.take_in_all::<false>(now, burst);
        }
        burst.clear();
    }

    fn take_in_all<const REFUSING: bool>(&mut self, now: Instant, burst: &RxBurst) {
        for index in 0..burst.len() {
            self.take_in::<REFUSING>(now, PortId(burst.port(index)), burst.data(index));
        }
    }

    /// Deals with a frame that another worker received for us. Returns whether it is the only one of its kind: else the
    /// others have copies, and whoever gave us ours has seen the frame itself.
    #[inline]
    fn take_in<const REFUSING: bool>(&mut self, now: Instant, port: PortId, frame: &[u8]) -> bool {
        match self.dispatch::<REFUSING>(now, port, frame) {
            Owner::Here => true,
            Owner::Group(_) => false,
            // Whoever gave it to us read the same queue pair number: it cannot belong elsewhere. Or we have left its
            // group meanwhile.
            Owner::Worker(_) => {
                self.drop(DropReason::QpnUnknown);
                true
            }
        }
    }

    /// Gives a burst to the injector. Returns how many bytes were in it.
    fn inject(&mut self, now: Instant, port: PortId, injector: &mut Injector<Mbuf>, burst: &mut RxBurst) -> u64 {
        let mut bytes = 0;
        for index in 0..burst.len() {
            let Some(mbuf) = burst.take(index) else { continue };
            bytes += mbuf.data().len() as u64;
            if let Some(recorder) = &mut self.capture {
                recorder.remember(mbuf.data());
            }
            if !injector.accept(now, mbuf) {
                self.drop(DropReason::Injected);
                if let Some(recorder) = &mut self.capture {
                    recorder.record_remembered(now, port, DropReason::Injected);
                }
            }
        }
        burst.clear();
        bytes
    }

    /// Deals with what the injector lets go by `due`. Returns whether there was something.
    pub(crate) fn dispatch_due(
        &mut self,
        now: Instant,
        due: Instant,
        port: PortId,
        injector: &mut Injector<Mbuf>,
        burst: &mut RxBurst,
        others: &mut Others<'_>,
    ) -> bool {
        let mut any = false;
        loop {
            while !burst.is_full()
                && let Some(mbuf) = injector.next(due)
            {
                // It is not full.
                let _ = burst.push(mbuf);
            }
            if burst.is_empty() {
                return any;
            }
            any = true;
            self.dispatch_all(now, port, burst, others);
        }
    }

    /// Deals with one frame, or says whose it is. `REFUSING` says that requests may have to be refused on purpose.
    fn dispatch<const REFUSING: bool>(&mut self, now: Instant, port: PortId, frame: &[u8]) -> Owner {
        match classify(frame) {
            Ok(Frame::Roce(packet)) => self.dispatch_roce::<REFUSING>(now, port, &packet),
            Ok(Frame::Host) => {
                let Some(control) = &mut self.control else { return Owner::Worker(0) };
                self.stats.host_frames.inc();
                if let Some(own) = control.host_mut(port)
                    && let Err(reason) = own.host.handle_frame(now, frame, &mut self.tx)
                {
                    control.drops().count(reason);
                }
                Owner::Here
            }
            Err(reason) => self.drop(reason),
        }
    }

    fn dispatch_roce<const REFUSING: bool>(&mut self, now: Instant, port: PortId, packet: &RocePacket<'_>) -> Owner {
        let Some(identity) = self.identities.get(usize::from(port.0)) else {
            return self.drop(DropReason::ForeignMac);
        };
        let qpn = Qpn::new(packet.dest_qp());
        let for_group = qpn == Qpn::MULTICAST;
        if packet.dst_mac() != identity.mac && !(for_group && is_mac_of_group(packet)) {
            return self.drop(DropReason::ForeignMac);
        }
        // Priority tags (VLAN 0) count as untagged.
        let vlan = packet.vlan().map(|tci| tci & 0x0FFF).filter(|vid| *vid != 0);
        if vlan != identity.vlan {
            return self.drop(DropReason::VlanMismatch);
        }
        if for_group {
            return self.dispatch_to_group(now, port, packet);
        }
        if !identity.gids.contains(&packet.dst_gid()) {
            return self.drop(DropReason::ForeignAddress);
        }
        if qpn == Qpn::GSI {
            let Some(control) = &mut self.control else { return Owner::Worker(0) };
            self.stats.gsi_packets.inc();
            control.handle_gsi(now, port, packet);
            return Owner::Here;
        }
        let worker = usize::from(qpn.worker());
        if worker == self.index {
            self.stats.qp_packets.inc();
            if !(REFUSING && self.refuse(now, port, packet)) {
                self.engine.receive(now, port, packet);
            }
            Owner::Here
        } else if worker < self.workers {
            Owner::Worker(worker)
        } else {
            self.drop(DropReason::QpnUnknown)
        }
    }

    /// Whether a packet was a request that is refused on purpose.
    #[cold]
    fn refuse(&mut self, now: Instant, port: PortId, packet: &RocePacket<'_>) -> bool {
        let Some(refusals) = &mut self.refusals else { return false };
        self.engine.refuse_request(now, port, packet, |packet| refusals.choose(packet))
    }

    /// A datagram to a multicast group: ours, others', or both.
    #[cold]
    fn dispatch_to_group(&mut self, now: Instant, port: PortId, packet: &RocePacket<'_>) -> Owner {
        let members = self.services.group_members(port, packet.dst_gid());
        let others = members.without(self.index);
        if members.contains(self.index) {
            self.stats.qp_packets.inc();
            self.engine.receive(now, port, packet);
        } else if let Some(worker) = others.only() {
            return Owner::Worker(worker);
        } else if others == WorkerSet::EMPTY {
            return self.drop(DropReason::QpnUnknown);
        }
        if others == WorkerSet::EMPTY { Owner::Here } else { Owner::Group(others) }
    }

    fn drop(&self, reason: DropReason) -> Owner {
        self.drops.count(reason);
        self.stats.dropped_frames.inc();
        Owner::Here
    }

    /// Drops a frame that was on its way to another worker.
    #[cold]
    fn lose(&mut self, now: Instant, port: PortId, frame: &[u8], reason: DropReason) {
        self.drop(reason);
        if let Some(recorder) = &mut self.capture {
            recorder.record_dropped(now, port, frame, reason);
        }
    }
}

/// What differs where there is a capture.
impl Dispatcher {
    fn set_capture(&mut self, order: CaptureOrder) {
        let (rx, tx) = order.recorders.map(|recorders| (recorders.rx, recorders.tx)).unzip();
        self.capture = rx;
        let mut tx = tx.unwrap_or_default().into_iter();
        self.tx.recorders = self.tx.lanes.iter_mut().map(|lane| lane.set_capture(tx.next())).collect();
        if let Some(done) = order.done {
            // Who asked may have given up.
            let _ = done.try_send(());
        }
    }

    #[cold]
    fn dispatch_all_recorded(
        &mut self,
        now: Instant,
        port: PortId,
        burst: &mut RxBurst,
        others: &mut Others<'_>,
    ) -> u64 {
        self.begin_recording();
        self.dispatch_each(now, port, burst, others, |this, now, port, frame| {
            let owner = this.dispatch::<true>(now, port, frame);
            // What another worker gets, that one records.
            if !matches!(owner, Owner::Worker(_)) {
                this.record(now, port, frame);
            }
            owner
        })
    }

    #[cold]
    fn dispatch_handed_over_recorded(&mut self, now: Instant, burst: &mut RxBurst) {
        self.begin_recording();
        for index in 0..burst.len() {
            let (port, frame) = (PortId(burst.port(index)), burst.data(index));
            if self.take_in::<true>(now, port, frame) {
                self.record(now, port, frame);
            }
        }
    }

    fn begin_recording(&mut self) {
        if let Some(recorder) = &mut self.capture {
            recorder.begin();
        }
    }

    fn record(&mut self, now: Instant, port: PortId, frame: &[u8]) {
        if let Some(recorder) = &mut self.capture {
            recorder.record(now, port, frame);
        }
    }
}

/// Whether a frame to a multicast group has a MAC that goes with it.
#[cold]
fn is_mac_of_group(packet: &RocePacket<'_>) -> bool {
    group_macs(packet.dst_gid().ip()).any(|mac| mac == packet.dst_mac())
}
