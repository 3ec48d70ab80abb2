//! Dispatch of received frames: the steps that a frame passes between its burst and its queue pair.
//!
//! [`Dispatcher::dispatch`] takes each frame of a burst through these steps, in this order. A step that fails drops the
//! frame with the reason in parentheses; each reason has a counter.
//!
//! 1. Parse: [`classify`] checks Ethernet, VLAN, IP, UDP and BTH once, from the outside in (the reasons are listed
//!    there). Fault rules of the port's queue, if there are any, are applied to the frame as it was parsed: it is dropped
//!    (`Injected`), or enters the [`Injector`], which releases it to this step when it is due. A frame that is no RoCE packet
//!    leaves for the host stack, on worker 0.
//! 2. Destination MAC: the port's own or, for QPN 0xFFFFFF, one that maps to the group (`ForeignMac`).
//! 3. VLAN: the port's. A priority tag (VLAN 0) counts as untagged (`VlanMismatch`).
//! 4. Restrictions of the port, if it has any: source address (`PeerNotAllowed`), membership of the partition (`PkeyLimited`),
//!    source MAC of a connection (`QpWrongMac`).
//! 5. Multicast: a datagram to QPN 0xFFFFFF is copied to every worker with members of its group (`QpnUnknown` if there
//!    are none).
//! 6. Destination address: one of the port's GIDs (`ForeignAddress`).
//! 7. QP1: a MAD leaves for the connection manager, on worker 0.
//! 8. Owner: the top four bits of the QPN are the number of a worker (`QpnUnknown` if there is no such worker). A packet
//!    of another worker leaves for that worker's ring (`HandoffFull` if the ring is full).
//! 9. Fault injection: a request that a rule refuses is answered by a NAK or RNR NAK.
//! 10. [`Engine::receive`]: queue pair, peer address, P_Key, state, ICRC, PSN; then the packet is executed.
//!
//! A frame from another worker's ring passes the same steps, as the ring carries bytes and no verdict; it never enters a
//! second ring.
//!
//! Variants that differ from burst to burst are chosen once per burst and compiled in: a `FrameHook` (nothing, refuse requests,
//! record a capture), an `Admission` (all frames, those that an injector lets pass) and an [`Origin`] (a port's queue, another
//! worker's ring).

use std::ops::ControlFlow;
use std::sync::Arc;

use rxe_proto::Instant;
use rxe_proto::transport::{Engine, Qpn};
use rxe_proto::wire::{DropCounters, DropReason, Frame, PKEY_FULL_MEMBER, PortId, RocePacket, classify};
use rxe_service::Restrictions;
use rxe_service::control::Control;
use rxe_service::multicast::WorkerSet;
use rxe_service::service_host::ServiceHost;

use super::burst::{Burst, Frames};
use super::capture::RxRecorder;
use super::host::WorkerHost;
use super::identity::PortIdentity;
use super::injector::{Entry, Injector, Judged, Packet, Refusals};
use super::stats::WorkerStats;
use crate::multicast::group_macs;

/// Prefetch distance, in packets.
const PREFETCH_DISTANCE: usize = 3;

/// The parts of a worker that handle a frame, apart from the queues that frames come from.
pub struct Dispatcher<H: WorkerHost> {
    /// This worker's number.
    pub index: usize,
    /// Number of workers.
    pub workers: usize,
    /// By port number.
    pub identities: Vec<PortIdentity>,
    /// The worker's queue pairs.
    pub engine: Engine,
    /// `Some` while a fault rule refuses requests.
    pub refusals: Option<Box<Refusals>>,
    /// The worker's services.
    pub services: ServiceHost,
    /// `Some` on worker 0 only.
    pub control: Option<Control<H>>,
    /// The transmit side of the ports.
    pub tx: H::Output,
    /// `Some` while a capture runs.
    pub recorder: Option<Box<RxRecorder>>,
    /// Frames dropped here, by reason.
    pub drops: Arc<DropCounters>,
    /// The loop's counters.
    pub stats: Arc<WorkerStats>,
}

/// Destination of a frame that passed the checks.
enum Route {
    /// Executed by this worker.
    Delivered,
    /// To the queue pair, control side or host stack of another worker.
    Worker(usize),
    /// To the members of a multicast group: this worker's have it, each of these workers gets a copy.
    Group(WorkerSet),
}

/// Work around each frame of a burst.
trait FrameHook {
    /// Whether fault rules may refuse requests (step 9).
    const REFUSES: bool;

    /// Runs before the first frame of a burst.
    #[inline]
    fn before_burst<H: WorkerHost>(_: &mut Dispatcher<H>) {}

    /// Runs after this worker has delivered or dropped a frame.
    #[inline]
    fn after_frame<H: WorkerHost>(_: &mut Dispatcher<H>, _now: Instant, _: PortId, _frame: &[u8]) {}
}

/// Neither faults nor a capture.
struct Plain;

/// A fault rule refuses requests.
struct Refusing;

/// A capture runs; a fault rule may refuse requests as well.
struct Recording;

impl FrameHook for Plain {
    const REFUSES: bool = false;
}

impl FrameHook for Refusing {
    const REFUSES: bool = true;
}

impl FrameHook for Recording {
    const REFUSES: bool = true;

    fn before_burst<H: WorkerHost>(dispatcher: &mut Dispatcher<H>) {
        if let Some(recorder) = &mut dispatcher.recorder {
            recorder.begin();
        }
    }

    fn after_frame<H: WorkerHost>(dispatcher: &mut Dispatcher<H>, now: Instant, port: PortId, frame: &[u8]) {
        if let Some(recorder) = &mut dispatcher.recorder {
            recorder.record(now, port, frame);
        }
    }
}

/// Which frames of a burst are dispatched at once.
trait Admission<P> {
    /// Decides about the next frame.
    fn judge(&mut self, frame: &[u8], classified: &Result<Frame<'_>, DropReason>) -> Judged;

    /// Takes a frame that is not dispatched now.
    fn enter(&mut self, now: Instant, packet: P, entry: Entry);
}

/// All of them.
struct NoFaults;

impl<P> Admission<P> for NoFaults {
    #[inline(always)]
    fn judge(&mut self, _: &[u8], _: &Result<Frame<'_>, DropReason>) -> Judged {
        Judged::Passes
    }

    fn enter(&mut self, _: Instant, _: P, _: Entry) {}
}

impl<P: Packet> Admission<P> for Injector<P> {
    #[inline]
    fn judge(&mut self, frame: &[u8], classified: &Result<Frame<'_>, DropReason>) -> Judged {
        Injector::judge(self, frame, classified)
    }

    #[cold]
    fn enter(&mut self, now: Instant, packet: P, entry: Entry) {
        Injector::enter(self, now, packet, entry);
    }
}

/// Where a burst came from, and what happens to frames of other workers.
pub trait Origin<B> {
    /// Whether this worker is the first to see the frames: it makes and records the copies of multicast frames.
    const IS_PORT: bool;

    /// The port by which frame `index` arrived.
    fn port(&self, burst: &B, index: usize) -> PortId;

    /// Enqueues frame `index` for `worker`. On error the frame stays in the burst.
    ///
    /// # Errors
    /// Why the frame is dropped.
    fn enqueue(&mut self, burst: &mut B, index: usize, worker: usize) -> Result<(), DropReason>;

    /// Enqueues a copy of frame `index` for `worker`. Returns false if there is no buffer or no room in the ring.
    fn enqueue_copy(&mut self, burst: &B, index: usize, worker: usize) -> bool;
}

impl<H: WorkerHost> Dispatcher<H> {
    /// Delivers, enqueues or drops each frame of a burst, and empties it. Returns how many bytes were in it.
    ///
    /// Not inlined, so that `benches/dispatch.rs` and profilers find it: one call per burst.
    #[inline(never)]
    pub fn dispatch<B: Burst>(&mut self, now: Instant, origin: &mut impl Origin<B>, burst: &mut B) -> u64 {
        match (&self.recorder, &self.refusals) {
            (None, None) => self.dispatch_burst::<Plain, _, _>(now, origin, &mut NoFaults, burst),
            (None, Some(_)) => self.dispatch_burst::<Refusing, _, _>(now, origin, &mut NoFaults, burst),
            (Some(_), _) => self.dispatch_recorded(now, origin, burst),
        }
    }

    /// As [`dispatch`](Self::dispatch), for a queue with fault rules: frames that do not pass unchanged enter `injector`.
    #[inline(never)]
    pub fn dispatch_through<B: Burst>(
        &mut self,
        now: Instant,
        origin: &mut impl Origin<B>,
        injector: &mut Injector<B::Packet>,
        burst: &mut B,
    ) -> u64 {
        match (&self.recorder, &self.refusals) {
            (None, None) => self.dispatch_burst::<Plain, _, _>(now, origin, injector, burst),
            _ => self.dispatch_burst::<Recording, _, _>(now, origin, injector, burst),
        }
    }

    #[cold]
    fn dispatch_recorded<B: Burst>(&mut self, now: Instant, origin: &mut impl Origin<B>, burst: &mut B) -> u64 {
        self.dispatch_burst::<Recording, _, _>(now, origin, &mut NoFaults, burst)
    }

    #[inline]
    fn dispatch_burst<F: FrameHook, B: Burst, O: Origin<B>>(
        &mut self,
        now: Instant,
        origin: &mut O,
        admission: &mut impl Admission<B::Packet>,
        burst: &mut B,
    ) -> u64 {
        F::before_burst(self);
        let mut bytes = 0;
        let prefetches = self.engine.wants_prefetch();
        for index in 0..burst.len() {
            if prefetches {
                // An index past the end yields an empty frame, for which nothing is fetched.
                let nearest = if index == 0 { 0 } else { PREFETCH_DISTANCE };
                (nearest..=PREFETCH_DISTANCE).for_each(|ahead| self.engine.prefetch(burst.data(index + ahead)));
            }
            let (port, frame) = (origin.port(burst, index), burst.data(index));
            bytes += frame.len() as u64;
            let classified = classify(frame);
            if let ControlFlow::Break(entry) = self.admit(now, port, admission, frame, &classified) {
                if let Some(entry) = entry
                    && let Some(packet) = burst.take(index)
                {
                    admission.enter(now, packet, entry);
                }
                continue;
            }
            match self.route::<F>(now, port, frame, &classified) {
                Ok(Route::Delivered) => F::after_frame(self, now, port, frame),
                Ok(Route::Worker(worker)) => match origin.enqueue(burst, index, worker) {
                    Ok(()) => self.stats.handoff_out.inc(),
                    Err(reason) => self.drop_unrouted(now, port, burst.data(index), reason),
                },
                Ok(Route::Group(workers)) if O::IS_PORT => {
                    F::after_frame(self, now, port, frame);
                    self.enqueue_copies(origin, burst, index, workers);
                }
                // The worker that received the frame has recorded it and made the copies.
                Ok(Route::Group(_)) => {}
                Err(reason) => {
                    self.count_drop(reason);
                    F::after_frame(self, now, port, frame);
                }
            }
        }
        burst.clear();
        bytes
    }

    /// Delivers or drops each frame of a port whose adapter has one worker. Returns how many frames there were, and their
    /// bytes.
    #[inline(never)]
    pub fn dispatch_all(&mut self, now: Instant, port: PortId, frames: &mut impl Frames) -> (u64, u64) {
        let keep = |_: &[u8]| ();
        match (&self.recorder, &self.refusals) {
            (None, None) => self.dispatch_frames::<Plain, _>(now, port, &mut NoFaults, keep, frames),
            (None, Some(_)) => self.dispatch_frames::<Refusing, _>(now, port, &mut NoFaults, keep, frames),
            (Some(_), _) => self.dispatch_frames::<Recording, _>(now, port, &mut NoFaults, keep, frames),
        }
    }

    /// As [`dispatch_all`](Self::dispatch_all), for a port with fault rules: frames that do not pass unchanged enter `injector`,
    /// which is given what `keep` makes of them.
    #[inline(never)]
    pub fn dispatch_all_through<P: Packet>(
        &mut self,
        now: Instant,
        port: PortId,
        injector: &mut Injector<P>,
        keep: impl Fn(&[u8]) -> P,
        frames: &mut impl Frames,
    ) -> (u64, u64) {
        self.dispatch_frames::<Recording, _>(now, port, injector, keep, frames)
    }

    #[inline]
    fn dispatch_frames<F: FrameHook, P>(
        &mut self,
        now: Instant,
        port: PortId,
        admission: &mut impl Admission<P>,
        keep: impl Fn(&[u8]) -> P,
        frames: &mut impl Frames,
    ) -> (u64, u64) {
        F::before_burst(self);
        let (mut count, mut bytes) = (0, 0);
        while let Some(frame) = frames.next_frame() {
            count += 1;
            bytes += frame.len() as u64;
            let classified = classify(frame);
            if let ControlFlow::Break(entry) = self.admit(now, port, admission, frame, &classified) {
                if let Some(entry) = entry {
                    admission.enter(now, keep(frame), entry);
                }
                continue;
            }
            match self.route::<F>(now, port, frame, &classified) {
                Ok(Route::Delivered) => {}
                Ok(Route::Worker(_) | Route::Group(_)) => self.count_drop(DropReason::QpnUnknown),
                Err(reason) => self.count_drop(reason),
            }
            F::after_frame(self, now, port, frame);
        }
        (count, bytes)
    }

    /// Applies the fault rules of a queue. A frame that is not dispatched now has been dropped, or enters the injector.
    #[inline]
    fn admit<P>(
        &mut self,
        now: Instant,
        port: PortId,
        admission: &mut impl Admission<P>,
        frame: &[u8],
        classified: &Result<Frame<'_>, DropReason>,
    ) -> ControlFlow<Option<Entry>> {
        match admission.judge(frame, classified) {
            Judged::Passes => ControlFlow::Continue(()),
            Judged::Dropped => {
                self.drop_unrouted(now, port, frame, DropReason::Injected);
                ControlFlow::Break(None)
            }
            Judged::Enters(entry) => ControlFlow::Break(Some(entry)),
        }
    }

    /// Step 1: a frame is a RoCE packet, the host stack's, or malformed.
    #[inline]
    fn route<F: FrameHook>(
        &mut self,
        now: Instant,
        port: PortId,
        frame: &[u8],
        classified: &Result<Frame<'_>, DropReason>,
    ) -> Result<Route, DropReason> {
        match classified {
            Ok(Frame::Roce(packet)) => self.route_packet::<F>(now, port, packet),
            Ok(Frame::Host) => {
                let Some(control) = &mut self.control else { return Ok(Route::Worker(0)) };
                self.stats.host_frames.inc();
                if let Some(own) = control.host_mut(port)
                    && let Err(reason) = own.handle_frame(now, frame, &mut self.tx)
                {
                    control.drops().count(reason);
                }
                Ok(Route::Delivered)
            }
            Err(reason) => Err(*reason),
        }
    }

    /// Steps 2 to 10, for a well-formed RoCE packet.
    #[inline]
    fn route_packet<F: FrameHook>(
        &mut self,
        now: Instant,
        port: PortId,
        packet: &RocePacket<'_>,
    ) -> Result<Route, DropReason> {
        let Some(identity) = self.identities.get(usize::from(port.0)) else { return Err(DropReason::ForeignMac) };
        let qpn = Qpn::new(packet.dest_qp());
        let is_multicast = qpn == Qpn::MULTICAST;
        if packet.dst_mac() != identity.mac && !(is_multicast && is_group_mac(packet)) {
            return Err(DropReason::ForeignMac);
        }
        if vlan_id(packet) != identity.vlan {
            return Err(DropReason::VlanMismatch);
        }
        if let Some(restrictions) = &identity.restrictions {
            self.check_restrictions(restrictions, packet)?;
        }
        if is_multicast {
            return self.route_multicast(now, port, packet);
        }
        if !identity.gids.contains(&packet.dst_gid()) {
            return Err(DropReason::ForeignAddress);
        }
        if qpn == Qpn::GSI {
            let Some(control) = &mut self.control else { return Ok(Route::Worker(0)) };
            self.stats.gsi_packets.inc();
            control.handle_gsi(now, port, packet);
            return Ok(Route::Delivered);
        }
        let owner = usize::from(qpn.worker());
        if owner >= self.workers {
            return Err(DropReason::QpnUnknown);
        }
        if owner != self.index {
            return Ok(Route::Worker(owner));
        }
        self.stats.qp_packets.inc();
        if F::REFUSES && self.refuse(now, port, packet) {
            return Ok(Route::Delivered);
        }
        self.engine.receive(now, port, packet);
        Ok(Route::Delivered)
    }

    /// Step 4, on a port that does not serve everyone.
    #[cold]
    fn check_restrictions(&self, restrictions: &Restrictions, packet: &RocePacket<'_>) -> Result<(), DropReason> {
        if restrictions.peers.as_ref().is_some_and(|peers| !peers.contains(packet.src_gid())) {
            return Err(DropReason::PeerNotAllowed);
        }
        if restrictions.full_members_only && packet.bth().pkey() & PKEY_FULL_MEMBER == 0 {
            return Err(DropReason::PkeyLimited);
        }
        // The queue pair of another worker is checked there.
        let peer_mac = || self.engine.peer_mac(Qpn::new(packet.dest_qp()));
        if restrictions.pin_mac && peer_mac().is_some_and(|mac| mac != packet.src_mac()) {
            return Err(DropReason::QpWrongMac);
        }
        Ok(())
    }

    /// Step 5: delivers a datagram to this worker's members of its group, and names the other workers with members.
    #[cold]
    fn route_multicast(&mut self, now: Instant, port: PortId, packet: &RocePacket<'_>) -> Result<Route, DropReason> {
        let members = self.services.group_members(port, packet.dst_gid());
        let others = members.without(self.index);
        if members.contains(self.index) {
            self.stats.qp_packets.inc();
            self.engine.receive(now, port, packet);
            return Ok(if others == WorkerSet::EMPTY { Route::Delivered } else { Route::Group(others) });
        }
        if others == WorkerSet::EMPTY {
            return Err(DropReason::QpnUnknown);
        }
        // A single other worker gets the frame itself.
        Ok(others.only().map_or(Route::Group(others), Route::Worker))
    }

    /// Step 9: returns whether a fault rule refused the packet.
    #[cold]
    fn refuse(&mut self, now: Instant, port: PortId, packet: &RocePacket<'_>) -> bool {
        let Some(refusals) = &mut self.refusals else { return false };
        self.engine.refuse_request(now, port, packet, |packet| refusals.choose(packet))
    }

    #[cold]
    fn enqueue_copies<B: Burst>(&mut self, origin: &mut impl Origin<B>, burst: &B, index: usize, workers: WorkerSet) {
        for worker in workers.iter() {
            if origin.enqueue_copy(burst, index, worker) {
                self.stats.multicast_copies.inc();
            } else {
                self.stats.multicast_copies_lost.inc();
            }
        }
    }

    fn count_drop(&self, reason: DropReason) {
        self.drops.count(reason);
        self.stats.dropped_frames.inc();
    }

    /// Drops a frame that this worker does not handle.
    #[cold]
    pub fn drop_unrouted(&mut self, now: Instant, port: PortId, frame: &[u8], reason: DropReason) {
        self.count_drop(reason);
        if let Some(recorder) = &mut self.recorder {
            recorder.record_dropped(now, port, frame, reason);
        }
    }
}

/// The VLAN of a packet; a priority tag (VLAN 0) counts as untagged.
#[inline]
fn vlan_id(packet: &RocePacket<'_>) -> Option<u16> {
    packet.vlan().map(|tci| tci & 0x0FFF).filter(|vid| *vid != 0)
}

/// Whether the destination MAC of a packet maps to its multicast group.
#[cold]
fn is_group_mac(packet: &RocePacket<'_>) -> bool {
    group_macs(packet.dst_gid().ip()).any(|mac| mac == packet.dst_mac())
}
