//! A queue pair that a client tests, and the memory behind it.

use rxe_dpdk::service::{Context, QpSpec};
use rxe_dpdk::worker::QpCaps;
use rxe_proto::Instant;
use rxe_proto::mem::{Access, MemoryRegion, PdId};
use rxe_proto::transport::{PostError, Qpn, RecvWr, SendFlags, SendOp, SendWr, Sge, WorkCompletion};
use rxe_proto::wire::Psn;

use super::echo::{Echo, WINDOW};
use super::report::Meter;
use crate::services::out_of_band::{DatagramTo, Peer, QKEY};

/// Receives of a queue pair. Clients send up to 128 messages ahead, and what comes without a receive is lost on UC and UD.
const RECEIVES: u32 = 512;
/// A message of no bytes still covers a page: clients step through it.
const PAGE: usize = 4096;
/// What a datagram has in front in its receive.
pub const GRH: u32 = 40;
/// READs and atomics that a client may have outstanding.
pub const RD_ATOMIC: u32 = 128;
/// What clients may do with a sink.
pub const PEER_ACCESS: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);
/// Longest message that brings its bytes along: the answers on a control queue pair.
pub const MAX_INLINE: usize = 64;
/// Queue sizes.
pub const CAPS: QpCaps = QpCaps {
    max_send_wr: WINDOW + 8,
    max_recv_wr: RECEIVES,
    max_send_sge: 1,
    max_recv_sge: 2,
    max_inline_data: MAX_INLINE as u32,
};
const WR_RECV: u64 = 1;
const WR_ECHO: u64 = 2;

/// Memory for all that comes: nobody looks at the bytes.
pub struct Sink {
    /// Protection domain, key and bytes.
    pub region: MemoryRegion,
    /// The longest message.
    max_message: usize,
}

impl Sink {
    /// A sink for messages of up to `max_message` bytes.
    pub fn new(cx: &mut Context<'_>, pd: PdId, max_message: usize) -> Result<Sink, String> {
        let memory = cx.alloc_memory(max_message + PAGE).map_err(|error| error.to_string())?;
        let access = PEER_ACCESS | Access::LOCAL_WRITE;
        let region = cx.register(pd, memory, access).map_err(|error| error.to_string())?;
        Ok(Sink { region, max_message })
    }

    /// A piece from the start.
    fn sge(&self, length: u32) -> Sge {
        Sge { addr: self.region.addr(), length, lkey: self.region.lkey() }
    }

    /// The receive of one message, of any transport.
    fn receive(&self) -> Sge {
        self.sge(self.max_message as u32 + GRH)
    }
}

/// A queue pair of a test.
pub struct TestQp {
    /// Ours.
    pub qp: Qpn,
    /// The client it belongs to.
    pub client: u64,
    /// The client's.
    pub peer: Peer,
    /// Our first PSN.
    pub psn: Psn,
    /// What answers have done.
    pub meter: Meter,
    /// The last sign of life.
    pub heard: Instant,
    /// What the client's next PSN was when we looked last.
    seen: Psn,
    echo: Echo,
    to: Option<DatagramTo>,
}

impl TestQp {
    /// A queue pair in RTS that will be of the client's type, with receives posted.
    pub fn open(cx: &mut Context<'_>, client: u64, sink: &Sink, peer: Peer) -> Result<TestQp, String> {
        let spec = QpSpec::rc(sink.region.pd(), CAPS, PEER_ACCESS);
        let qp = cx.create_qp(&spec).map_err(|error| error.to_string())?;
        let psn = cx.random_psn();
        let (seen, heard) = (peer.psn, cx.now());
        let test =
            TestQp { qp, client, peer, psn, meter: Meter::default(), heard, seen, echo: Echo::default(), to: None };
        let opened = test.peer.open(cx, qp, psn).map_err(|error| error.to_string());
        match opened.and_then(|()| test.post_receives(cx, sink).map_err(|error| error.to_string())) {
            Ok(()) => Ok(test),
            Err(error) => {
                cx.destroy_qp(qp);
                Err(error)
            }
        }
    }

    fn post_receives(&self, cx: &mut Context<'_>, sink: &Sink) -> Result<(), PostError> {
        (0..RECEIVES).try_for_each(|_| self.post_recv(cx, sink))
    }

    fn post_recv(&self, cx: &mut Context<'_>, sink: &Sink) -> Result<(), PostError> {
        cx.post_recv(self.qp, &RecvWr { wr_id: WR_RECV, sges: &[sink.receive()] })
    }

    /// A message came: its receive is posted again, and an answer may go out.
    pub fn received(&mut self, cx: &mut Context<'_>, sink: &Sink, wc: &WorkCompletion) -> Result<(), String> {
        self.heard = cx.now();
        self.post_recv(cx, sink).map_err(|error| error.to_string())?;
        // Immediate data is never a test's.
        if wc.imm.is_some() {
            return Ok(());
        }
        if let Some(sender) = wc.src_qpn {
            if sender != self.peer.qpn {
                return Ok(());
            }
            if self.to.is_none() {
                let to = DatagramTo::new(cx, sink.region.pd(), &self.peer.path, sender, QKEY);
                self.to = Some(to.map_err(|error| error.to_string())?);
            }
        }
        let head = if wc.src_qpn.is_some() { GRH } else { 0 };
        self.echo.received(wc.byte_len.saturating_sub(head));
        self.answer(cx, sink)
    }

    /// An answer was taken: the next may go out.
    pub fn taken(&mut self, cx: &mut Context<'_>, sink: &Sink, wc: &WorkCompletion) -> Result<(), String> {
        if wc.wr_id & 0xFF == WR_ECHO {
            self.meter.count(cx.now(), (wc.wr_id >> 8) as u32);
            self.echo.taken();
        }
        self.answer(cx, sink)
    }

    fn answer(&mut self, cx: &mut Context<'_>, sink: &Sink) -> Result<(), String> {
        while let Some(length) = self.echo.next() {
            let op = self.to.as_ref().map_or(SendOp::Send { imm: None }, DatagramTo::op);
            let wr_id = u64::from(length) << 8 | WR_ECHO;
            let wr = SendWr { wr_id, op, sges: &[sink.sge(length)], flags: SendFlags::SIGNALED };
            cx.post_send(self.qp, &wr).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Whether the client has sent anything at all.
    pub fn is_untouched(&self, cx: &Context<'_>) -> bool {
        cx.query_qp(self.qp).is_some_and(|info| info.expected_psn == self.peer.psn)
    }

    /// Looks for operations of the client that complete nothing here.
    pub fn look(&mut self, cx: &Context<'_>) {
        if let Some(info) = cx.query_qp(self.qp)
            && info.expected_psn != self.seen
        {
            self.seen = info.expected_psn;
            self.heard = cx.now();
        }
    }

    /// Takes back all that it has.
    pub fn close(self, cx: &mut Context<'_>) {
        if let Some(to) = self.to {
            to.close(cx);
        }
        cx.destroy_qp(self.qp);
    }
}
