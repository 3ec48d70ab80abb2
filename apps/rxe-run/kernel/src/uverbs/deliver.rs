//! Completions go from the engine to the programs' queues.

use rxe_proto::transport::{Engine, QpState, Qpn, WcOpcode, WcStatus, WorkCompletion};

use super::abi::{Wc, wc_flag};
use super::context::Context;
use super::cq::Armed;
use super::pull::complete_sends;
use super::{PORT, Uverbs};

/// The service level of datagrams names the kind of packet, as ConnectX does and UCX expects: a UDP header, and IPv4 or IPv6
/// before it. RoCE has no service levels.
const SL_ROCE_V2_IPV4: u8 = 0b1010;
const SL_ROCE_V2_IPV6: u8 = 0b1001;

impl Uverbs {
    /// Moves the engine's completions into the programs' completion queues, and notifies programs that asked for it. A full
    /// queue keeps its completions in the engine until there is room.
    pub fn deliver(&mut self, engine: &mut Engine) {
        self.staging.flush();
        self.flush_receives(engine);
        self.cq_is_full = false;
        // Each queue once: one that is full stays ready.
        for _ in 0..engine.ready_cqs() {
            let Some(id) = engine.poll_ready() else { break };
            if let Some(&handle) = self.cq_of.get(&id) {
                self.deliver_to(engine, handle);
            }
        }
        self.complete_unsignaled(engine);
        for context in &mut self.contexts {
            context.flush_channels();
        }
    }

    /// Moves the completions of one queue.
    pub(super) fn deliver_to(&mut self, engine: &mut Engine, handle: u32) {
        let Some(cq) = self.cqs.at(handle) else { return };
        let (id, room) = (cq.id, cq.room() as usize);
        self.staging.flush();
        let mut completions = std::mem::take(&mut self.completions);
        completions.clear();
        engine.poll_cq(id, &mut completions, room);
        // The program may post again as soon as it sees a completion, so the room in the work queues comes first.
        for of_one in completions.chunk_by(|one, next| one.qpn == next.qpn) {
            self.make_room(engine, of_one);
        }
        let sl = if self.local.address.is_ipv4() { SL_ROCE_V2_IPV4 } else { SL_ROCE_V2_IPV6 };
        if let Some((owner, cq)) = self.cqs.entry_mut(handle)
            && !completions.is_empty()
        {
            for wc in &completions {
                cq.ring.store(cq.producer, &entry(wc, sl));
                cq.producer = cq.ring.after(cq.producer, 1);
            }
            cq.ring.set_producer(cq.producer);
            let notifies = |wc: &WorkCompletion| match cq.armed {
                Armed::No => false,
                Armed::Next => true,
                Armed::Solicited => wc.solicited || wc.status != WcStatus::Success,
            };
            if completions.iter().any(notifies) {
                cq.armed = Armed::No;
                self.fire(owner, handle);
            }
        }
        self.completions = completions;
        self.cq_is_full |= engine.cq_len(id).is_some_and(|left| left > 0);
    }

    /// Whether a completion queue or an event channel of a program is full: [`deliver`](Self::deliver) continues when the program has
    /// made room, which it does not tell.
    pub fn waits_for_room(&self) -> bool {
        self.cq_is_full || self.contexts.iter().any(Context::has_waiting_events)
    }

    /// Gives the program the entries of its work queues back that these completions of one queue pair were for.
    fn make_room(&mut self, engine: &Engine, completions: &[WorkCompletion]) {
        let Some((_, _, qp)) = completions.first().and_then(|wc| self.qp_by_number(wc.qpn)) else { return };
        if !completions.iter().all(is_receive) {
            complete_sends(engine, qp);
        }
        if !completions.iter().any(is_receive) {
            return;
        }
        if let Some(receives) = &mut qp.receives {
            receives.complete(engine.recv_queued(qp.qpn).unwrap_or(0));
        } else if let Some(srq) = qp.srq
            && let Some(srq) = self.srqs.at_mut(srq)
        {
            srq.complete(engine);
        }
    }

    /// Receives that were posted to queue pairs in error complete as flushed.
    fn flush_receives(&mut self, engine: &mut Engine) {
        for at in 0..self.broken.len() {
            self.pull_receives_of(engine, self.broken[at]);
        }
    }

    /// Keeps or removes a queue pair in the list of those in error, after a change of its state.
    pub(super) fn note_state(&mut self, handle: u32, state: QpState) {
        let listed = self.broken.contains(&handle);
        let has_receives = self.qps.at(handle).is_some_and(|qp| qp.receives.is_some());
        if state == QpState::Error && has_receives && !listed {
            self.broken.push(handle);
        } else if state != QpState::Error && listed {
            self.broken.retain(|&broken| broken != handle);
        }
    }
}

/// Whether a completion is one of a receive, also a failed one.
fn is_receive(wc: &WorkCompletion) -> bool {
    matches!(wc.opcode, WcOpcode::Recv | WcOpcode::RecvRdmaWithImm)
}

/// A completion as the program reads it.
#[inline]
fn entry(wc: &WorkCompletion, sl: u8) -> Wc {
    let (mut wc_flags, mut ex) = (0, [0; 4]);
    if let Some(imm) = wc.imm {
        (wc_flags, ex) = (wc_flag::WITH_IMM, imm.to_be_bytes());
    }
    if let Some(key) = wc.invalidated_rkey {
        (wc_flags, ex) = (wc_flag::WITH_INV, key.to_ne_bytes());
    }
    if wc.src_qpn.is_some() {
        wc_flags |= wc_flag::GRH;
    }
    Wc {
        wr_id: wc.wr_id,
        status: wc.status as u32,
        opcode: wc.opcode as u32,
        vendor_err: 0,
        byte_len: wc.byte_len,
        ex,
        qp_num: wc.qpn.get(),
        src_qp: wc.src_qpn.map_or(0, Qpn::get),
        wc_flags,
        pkey_index: 0,
        slid: 0,
        sl: if wc.src_qpn.is_some() { sl } else { 0 },
        dlid_path_bits: 0,
        port_num: PORT,
        reserved: 0,
    }
}
