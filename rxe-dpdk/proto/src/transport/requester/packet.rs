//! Writes request packets.

use crate::mem::{Access, KeyTable};
use crate::time::Instant;
use crate::transport::common::{Common, Failure};
use crate::transport::context::Context;
use crate::transport::link::{Flags, Link};
use crate::transport::long_limit::{Direction, LongBudget};
use crate::transport::send_policy::Grant;
use crate::transport::seq::Seq;
use crate::transport::sge::Source;
use crate::transport::work::OpTraits;
use crate::transport::{QpErrorCause, RemoteAddr, SendFlags, SendOp, Wait, WcStatus, sge};
use crate::wire::{BthOpcode, Opcode, TxQueue};

use super::{Requester, SendWqe};

/// Outcome of writing the next packet.
pub(super) enum Sent {
    Written,
    /// Nothing to write: the work request was executed locally.
    Local,
    /// There is none, or it has to wait for a response.
    Blocked,
    /// It is of a long message, and waits for the limit of these.
    Held(Direction),
    /// The port takes no more packets now.
    Backpressure,
    /// A work request failed.
    Failed(Failure),
}

impl Requester {
    /// Writes the packet at the cursor, unless it has to wait.
    #[inline(always)]
    pub(super) fn send_one(
        &mut self,
        common: &Common,
        link: &Link,
        cx: &mut Context,
        tx: &mut impl TxQueue,
        grant: &mut Grant,
    ) -> Sent {
        if self.rnr_wait.is_some() {
            return Sent::Blocked;
        }
        let Some(wqe) = self.sq.get(self.cursor_wqe) else { return Sent::Blocked };
        if wqe.is(OpTraits::LOCAL) {
            let wqe = *wqe;
            return self.local_operation(&wqe, common, cx, grant.draining);
        }
        if let Some(stall) = self.stall(wqe, cx, grant) {
            return stall;
        }
        if let Some(budget) = grant.long
            && let Some(stall) = self.limited(wqe, budget)
        {
            return stall;
        }
        if !wqe.is(OpTraits::WANTS_RESPONSE) {
            return match wqe.op {
                SendOp::Send { imm: None } | SendOp::Write { imm: None, .. } if wqe.packets == 1 => {
                    self.send_whole_message(common, link, cx, tx, grant.now)
                }
                _ => self.send_message(common, link, cx, tx, grant),
            };
        }
        if let SendOp::Read { .. } = wqe.op {
            return self.send_read(common, link, cx, tx, grant);
        }
        let wqe = *wqe;
        match wqe.op {
            SendOp::Flush { .. } | SendOp::AtomicWrite { .. } => {
                self.send_flush_or_atomic_write(&wqe, common, link, cx, tx, grant.now)
            }
            _ => self.send_atomic(&wqe, common, link, cx, tx, grant.now),
        }
    }

    /// Counts why the packet at the cursor has to wait, if it has to.
    #[inline(always)]
    fn stall(&self, wqe: &SendWqe, cx: &Context, grant: &Grant) -> Option<Sent> {
        match self.blocked_by(wqe, grant.window, grant.draining)? {
            Wait::Window => cx.stats.window_stalls.inc(),
            Wait::Credit => cx.stats.credit_stalls.inc(),
            Wait::Fence => cx.stats.fence_stalls.inc(),
            Wait::RdAtomic => cx.stats.rd_atomic_stalls.inc(),
            _ => {}
        }
        Some(Sent::Blocked)
    }

    /// Whether the packet at the cursor has to wait, where long messages are limited. What is sent again does not, as it was
    /// within the limit before.
    #[cold]
    fn limited(&self, wqe: &SendWqe, budget: LongBudget) -> Option<Sent> {
        if self.retransmits() || wqe.packets < 2 {
            return None;
        }
        let is_read = wqe.is(OpTraits::RETURNS_DATA);
        let (left, direction) = if is_read { (budget.in_, Direction::In) } else { (budget.out, Direction::Out) };
        (left == 0).then_some(Sent::Held(direction))
    }

    /// Fails the work request at the cursor because of a bad key, but only when it is the oldest, so that earlier
    /// requests can complete.
    pub(super) fn bad_key(&self, wqe: &SendWqe) -> Sent {
        // compliance.md [RC-REQ-LOCAL-KEY]: A bad local key fails its work request when it is the oldest, after earlier
        // ones have completed.
        if self.una < wqe.first {
            return Sent::Blocked;
        }
        Sent::Failed(Failure::of(self.cursor_wqe, WcStatus::LocProtErr, QpErrorCause::LocalKey))
    }

    /// Looks up bytes `offset` to `offset + len` of the work request at the cursor; `None` when a key is bad.
    #[inline(always)]
    pub(super) fn source<'a>(
        &'a self,
        wqe: &SendWqe,
        common: &Common,
        keys: &'a KeyTable,
        offset: u32,
        len: u32,
    ) -> Option<Source<'a>> {
        let (offset, len) = (offset as usize, len as usize);
        if wqe.inline {
            return self.sq.inline_data(self.cursor_wqe).get(offset..offset + len).map(Source::Inline);
        }
        Source::find(keys, common.pd, self.sq.sges(self.cursor_wqe), offset, len).ok()
    }

    /// Writes the packet at the cursor, which is all of a SEND or WRITE without immediate data or invalidation.
    #[inline(always)]
    fn send_whole_message(
        &mut self,
        common: &Common,
        link: &Link,
        cx: &mut Context,
        tx: &mut impl TxQueue,
        now: Instant,
    ) -> Sent {
        let Some(wqe) = self.sq.get(self.cursor_wqe) else { return Sent::Blocked };
        let Some(source) = self.source(wqe, common, &cx.keys, 0, wqe.length) else { return self.bad_key(wqe) };
        let is_probe = self.lacks_credit(wqe);
        // compliance.md [RC-REQ-ACKREQ]: AckReq is set in the last packet of a message, in every n-th packet, and in
        // the packet after which sending stops.
        // compliance.md [RC-REQ-SOLICITED]: The solicited bit is set in the last packet of a message only.
        let flags = Flags { solicited: wqe.flags.contains(SendFlags::SOLICITED), ack_req: true };
        let (psn, len) = (self.cursor.psn(), wqe.length as usize);
        let mut packet = match wqe.op {
            SendOp::Write { remote, .. } => {
                let opcode = BthOpcode::rc(Opcode::WriteOnly);
                let Some(mut packet) = link.begin(tx, &cx.stats, opcode, psn, flags, len) else {
                    return Sent::Backpressure;
                };
                packet.reth(remote.addr, remote.rkey, wqe.length);
                packet
            }
            _ => {
                let opcode = BthOpcode::rc(Opcode::SendOnly);
                let Some(packet) = link.begin(tx, &cx.stats, opcode, psn, flags, len) else {
                    return Sent::Backpressure;
                };
                packet
            }
        };
        let filled = source.fill(&cx.keys, common.pd, &mut packet);
        packet.finish();
        if !filled {
            return self.bad_key(wqe);
        }
        // compliance.md [RC-REQ-CREDIT-PROBE]: Beyond the limit and with nothing outstanding, the first packet is sent
        // alone with AckReq.
        if is_probe {
            self.probed(cx);
        }
        self.written(cx, Some(now), self.cursor.add(1), true);
        Sent::Written
    }

    /// Writes the packet at the cursor, of a SEND or WRITE.
    #[inline(always)]
    fn send_message(
        &mut self,
        common: &Common,
        link: &Link,
        cx: &mut Context,
        tx: &mut impl TxQueue,
        grant: &mut Grant,
    ) -> Sent {
        let Some(wqe) = self.sq.get(self.cursor_wqe) else { return Sent::Blocked };
        let offset = wqe.offset_of(self.cursor, common.mtu);
        let len = (wqe.length - offset).min(common.mtu);
        let Some(source) = self.source(wqe, common, &cx.keys, offset, len) else { return self.bad_key(wqe) };
        let first = self.cursor == wqe.first;
        let last = self.cursor.add(1) == wqe.end();
        let wqe_packets = wqe.packets;
        let is_probe = self.lacks_credit(wqe);
        // The first packet of a retry: its ACK confirms early that the peer is reachable, and gives an RTT sample.
        let is_retry = self.cursor == self.una && self.cursor < self.sent;
        // compliance.md [RC-REQ-ACKREQ]: AckReq is set in the last packet of a message, in every n-th packet, and in the packet
        // after which sending stops: the last one of the window, of what the rate leaves, and of the limit of long messages.
        let ack_req = last
            || is_probe
            || is_retry
            || grant.packets == 1 && grant.asks_last
            || self.timer.since_asked(self.cursor) + 1 >= u64::from(grant.ack_every)
            || self.cursor.add(1).since(self.una) >= u64::from(grant.window)
            || grant.long.is_some_and(|budget| budget.out == 1);
        // compliance.md [RC-REQ-SOLICITED]: The solicited bit is set in the last packet of a message only.
        let flags = Flags { solicited: last && wqe.flags.contains(SendFlags::SOLICITED), ack_req };
        // compliance.md [RC-REQ-PACKETS]: Messages are segmented at the path MTU.
        let op = BthOpcode::rc(opcode(wqe.op, first, last));
        let psn = self.cursor.psn();
        let Some(mut packet) = link.begin(tx, &cx.stats, op, psn, flags, len as usize) else {
            return Sent::Backpressure;
        };
        match wqe.op {
            SendOp::Write { remote, .. } if first => {
                packet.reth(remote.addr, remote.rkey, wqe.length);
            }
            SendOp::SendInvalidate { rkey } if last => {
                packet.ieth(rkey);
            }
            _ => {}
        }
        if let SendOp::Send { imm: Some(imm) } | SendOp::Write { imm: Some(imm), .. } = wqe.op
            && last
        {
            packet.imm(imm);
        }
        let filled = source.fill(&cx.keys, common.pd, &mut packet);
        packet.finish();
        if !filled {
            return self.bad_key(wqe);
        }
        if let Some(budget) = &mut grant.long
            && wqe_packets > 1
            && self.cursor >= self.sent
        {
            budget.out -= 1;
        }
        if first && !last {
            self.long_end = self.long_end.max(self.cursor.add(wqe_packets));
        }
        // compliance.md [RC-REQ-CREDIT-PROBE]: Beyond the limit and with nothing outstanding, the first packet is sent
        // alone with AckReq.
        if is_probe {
            self.probed(cx);
        }
        self.written(cx, ack_req.then_some(grant.now), self.cursor.add(1), last);
        Sent::Written
    }

    /// Writes a READ request from the cursor on (in the middle of the READ when a response is missing).
    #[inline(always)]
    fn send_read(
        &mut self,
        common: &Common,
        link: &Link,
        cx: &mut Context,
        tx: &mut impl TxQueue,
        grant: &mut Grant,
    ) -> Sent {
        let Some((wqe, sges)) = self.sq.get_with_sges(self.cursor_wqe) else { return Sent::Blocked };
        let SendOp::Read { remote } = wqe.op else { return Sent::Blocked };
        let offset = if self.cursor == wqe.first { 0 } else { wqe.offset_of(self.cursor, common.mtu) };
        let wqe_end = wqe.end();
        let end = match grant.long {
            _ if self.retransmits() => self.reads.repeated_end(self.cursor, wqe_end),
            Some(budget) if wqe.packets > 1 => self.cursor.add(budget.in_).min(wqe_end),
            _ => wqe_end,
        };
        let left = if end == wqe_end { wqe.length } else { wqe.offset_of(end, common.mtu) } - offset;
        if sge::check(&cx.keys, common.pd, sges, offset as usize, left as usize, Access::LOCAL_WRITE).is_err() {
            return self.bad_key(wqe);
        }
        // compliance.md [RC-REQ-READ-REST]: A READ retried from its middle requests the rest.
        // compliance.md [RC-REQ-READ-PARTS]: A READ may be requested in parts, each with a request of its own that counts
        // for max_rd_atomic.
        let rest = RemoteAddr { addr: remote.addr.wrapping_add(u64::from(offset)), ..remote };
        if !link.write_read_request(tx, &cx.stats, self.cursor.psn(), rest, left) {
            return Sent::Backpressure;
        }
        if wqe.packets > 1 {
            self.long_end = self.long_end.max(wqe_end);
            if let Some(budget) = &mut grant.long
                && self.cursor >= self.sent
            {
                budget.in_ -= end.since(self.cursor) as u32;
            }
        }
        self.response_expected(cx, grant.now, end, end == wqe_end);
        Sent::Written
    }

    /// Writes an atomic.
    fn send_atomic(
        &mut self,
        wqe: &SendWqe,
        common: &Common,
        link: &Link,
        cx: &mut Context,
        tx: &mut impl TxQueue,
        now: Instant,
    ) -> Sent {
        let sges = self.sq.sges(self.cursor_wqe);
        if sge::check(&cx.keys, common.pd, sges, 0, wqe.length as usize, Access::LOCAL_WRITE).is_err() {
            return self.bad_key(wqe);
        }
        let is_fetch_add = matches!(wqe.op, SendOp::FetchAdd { .. });
        let op = if is_fetch_add { Opcode::FetchAdd } else { Opcode::CompareSwap };
        let flags = Flags { solicited: false, ack_req: true };
        let Some(mut packet) = link.begin(tx, &cx.stats, BthOpcode::rc(op), self.cursor.psn(), flags, 0) else {
            return Sent::Backpressure;
        };
        match wqe.op {
            SendOp::CompareSwap { remote, compare, swap } => packet.atomic_eth(remote.addr, remote.rkey, swap, compare),
            SendOp::FetchAdd { remote, add } => packet.atomic_eth(remote.addr, remote.rkey, add, 0),
            _ => &mut packet,
        };
        packet.finish();
        self.response_expected(cx, now, self.cursor.add(1), true);
        Sent::Written
    }

    /// Records a request whose responses are those up to `end`. `last`: nothing of its work request is left to be requested.
    #[inline(always)]
    pub(super) fn response_expected(&mut self, cx: &Context, now: Instant, end: Seq, last: bool) {
        self.reads.requested(end, !last && !self.retransmits());
        self.written(cx, Some(now), end, last);
    }

    /// Advances the cursor past a written packet, to `end`. `asks`: the time, if the peer answers it at once.
    #[inline(always)]
    fn written(&mut self, cx: &Context, asks: Option<Instant>, end: Seq, last: bool) {
        if self.cursor < self.sent {
            cx.stats.retransmitted_pkts.inc();
        }
        if let Some(now) = asks {
            self.timer.ask(now, self.cursor, end);
        }
        self.cursor = end;
        self.sent = self.sent.max(self.cursor);
        if last {
            self.cursor_wqe += 1;
        }
    }
}

/// The opcode of a packet of a SEND or WRITE.
#[inline(always)]
pub(super) fn opcode(op: SendOp, first: bool, last: bool) -> Opcode {
    let is_write = matches!(op, SendOp::Write { .. });
    match (is_write, first, last) {
        (false, true, false) => Opcode::SendFirst,
        (false, false, false) => Opcode::SendMiddle,
        (true, true, false) => Opcode::WriteFirst,
        (true, false, false) => Opcode::WriteMiddle,
        (_, only, true) => match (op, only) {
            (SendOp::Send { imm: Some(_) }, true) => Opcode::SendOnlyImm,
            (SendOp::Send { imm: Some(_) }, false) => Opcode::SendLastImm,
            (SendOp::SendInvalidate { .. }, true) => Opcode::SendOnlyInvalidate,
            (SendOp::SendInvalidate { .. }, false) => Opcode::SendLastInvalidate,
            (SendOp::Write { imm: Some(_), .. }, true) => Opcode::WriteOnlyImm,
            (SendOp::Write { imm: Some(_), .. }, false) => Opcode::WriteLastImm,
            (SendOp::Write { imm: None, .. }, true) => Opcode::WriteOnly,
            (SendOp::Write { imm: None, .. }, false) => Opcode::WriteLast,
            (_, true) => Opcode::SendOnly,
            (_, false) => Opcode::SendLast,
        },
    }
}
