//! Management of the adapter's state: questions, fault rules, recorders.

use rxe_adapter::counters::WorkerCounters;
use rxe_adapter::worker::capture::{Recorders, RxRecorder};
use rxe_adapter::worker::injector::{Direction, Injector, Packet, Refusals, Room};
use rxe_adapter::worker::orders::{CaptureOrder, FaultChange, Orders};
use rxe_proto::Instant;
use rxe_proto::wire::{DropReason, RocePacket};
use rxe_service::mailbox::Questions;
use rxe_udp::host::HeldFrame;

use super::{PORT, State, file_in, route_by};
use crate::rdma_cm::{Host, Owner};

/// The number of the only engine, for rules that choose random frames.
const WORKER: usize = 0;

/// Messages from management.
pub struct Mail {
    /// About captures and fault rules.
    pub orders: Orders,
    /// About queue pairs and keys.
    pub questions: Questions,
}

/// The parts that management changes.
pub struct Managed {
    mail: Mail,
    counters: WorkerCounters,
    /// The injector for received frames, while a rule needs one.
    rx_faults: Option<Box<Injector<HeldFrame>>>,
    /// `Some` while a fault rule refuses requests.
    refusals: Option<Box<Refusals>>,
    /// Records received frames, while a capture runs.
    recorder: Option<Box<RxRecorder>>,
}

impl Managed {
    /// Nothing was changed yet.
    pub fn new(mail: Mail, counters: WorkerCounters) -> Managed {
        Managed { mail, counters, rx_faults: None, refusals: None, recorder: None }
    }

    /// The counters of the packets.
    pub fn counters(&self) -> &WorkerCounters {
        &self.counters
    }
}

/// Management on the adapter's thread.
impl State {
    /// Answers questions, and applies orders.
    pub fn serve_management(&mut self, now: Instant) {
        self.managed.mail.orders.read();
        if let Some(order) = self.managed.mail.orders.capture.take() {
            self.apply_capture_order(*order);
        }
        if self.managed.mail.orders.faults.is_some() {
            self.apply_fault_change(now);
        }
        let State { engine, cm, local, routes, descriptors, rdma_cm, managed, .. } = self;
        let (route, file_at) = (route_by(routes), file_in(descriptors));
        while let Some(question) = managed.mail.questions.take() {
            let host = Host { cm, local, routes: &route, file_at: &file_at, claim: &|_, _| Ok(None), now };
            question.answer(now, engine, &mut Owner { rdma_cm, host });
        }
    }

    /// Starts or stops recording.
    fn apply_capture_order(&mut self, order: CaptureOrder) {
        let (rx, tx) = order.recorders.map(|Recorders { rx, tx }| (rx, tx)).unzip();
        self.managed.recorder = rx;
        self.tx.set_recorders(tx.and_then(|ports| ports.into_iter().next()));
        if let Some(done) = order.done {
            // The sender of the order may have timed out.
            let _ = done.try_send(());
        }
    }

    /// Ends the recording, so that its file can be completed.
    pub fn end_capture(&mut self) {
        self.apply_capture_order(CaptureOrder::stop());
    }

    /// Applies another list of fault rules.
    fn apply_fault_change(&mut self, now: Instant) {
        let Managed { mail, counters, rx_faults, refusals, .. } = &mut self.managed;
        let Some(FaultChange { rules, reply }) = mail.orders.faults.take() else { return };
        *refusals = Refusals::new(refusals.take(), &rules, WORKER, &counters.rx_faults);
        if rx_faults.is_none() && Injector::<HeldFrame>::is_wanted(Direction::Rx, &rules) {
            let stats = counters.rx_faults.clone();
            *rx_faults = Some(Box::new(Injector::new(Direction::Rx, WORKER, PORT, Room::WIDE, stats)));
        }
        if let Some(injector) = rx_faults {
            injector.set_rules(&rules);
        }
        // One without rules holds nothing back.
        self.release_frames(now);
        self.managed.rx_faults.take_if(|injector| injector.is_off());
        let settled = self.tx.set_faults(now, &rules);
        if let Some(reply) = reply {
            // The sender of the order may have timed out.
            let _ = reply.try_send(());
        }
        if !settled {
            self.managed.mail.orders.faults = Some(FaultChange { rules, reply: None });
        }
    }

    /// Gives a received frame to the fault injector. Returns false if there is none.
    pub(super) fn inject(&mut self, now: Instant, frame: &[u8]) -> bool {
        let Managed { rx_faults: Some(injector), recorder, .. } = &mut self.managed else { return false };
        if let Some(recorder) = recorder {
            recorder.remember(frame);
        }
        if !injector.accept(now, HeldFrame::copy_of(frame)) {
            self.drops.count(DropReason::Injected);
            if let Some(recorder) = recorder {
                recorder.record_remembered(now, PORT, DropReason::Injected);
            }
        }
        true
    }

    /// Handles the received frames that are due.
    pub(super) fn release_frames(&mut self, now: Instant) {
        while let Some(frame) = self.managed.rx_faults.as_mut().and_then(|injector| injector.next(now)) {
            self.deliver(now, frame.bytes());
        }
    }

    /// Whether an injector holds frames, or is to be removed when it holds none.
    pub(super) fn holds_frames(&self) -> bool {
        self.managed.rx_faults.as_ref().is_some_and(|injector| injector.held() > 0)
            || self.tx.holds_frames()
            || self.managed.mail.orders.faults.is_some()
    }

    /// Whether a fault rule has refused a request, which was answered then.
    pub(super) fn refuse(&mut self, now: Instant, packet: &RocePacket<'_>) -> bool {
        let Some(refusals) = &mut self.managed.refusals else { return false };
        self.engine.refuse_request(now, PORT, packet, |packet| refusals.choose(packet))
    }

    /// A frame is about to be handled.
    pub(super) fn begin_record(&mut self) {
        if let Some(recorder) = &mut self.managed.recorder {
            recorder.begin();
        }
    }

    /// Records a frame that was handled.
    pub(super) fn record(&mut self, now: Instant, frame: &[u8]) {
        if let Some(recorder) = &mut self.managed.recorder {
            recorder.record(now, PORT, frame);
        }
    }
}
