//! Queue pairs that clients test, and the memory behind them.

use std::net::IpAddr;

use rxe_proto::Instant;
use rxe_proto::verbs::{
    Access, AnyQueuePair, AnyWorkRequest, Device, Grh, MemoryRegion, PostError, ProtectionDomain, QpCaps, QpType, Rc,
    RecvWr, Sge, WorkCompletion, WorkRequest,
};
use rxe_proto::wire::Psn;
use rxe_service::{Charge, Context, Lease, Refusal, Standing};

use super::NAME;
use super::account::Account;
use super::echo::{Echo, WINDOW};
use super::refusals::no_queue_pair;
use super::report::Meter;
use crate::services::out_of_band::{DatagramTo, Peer, QKEY};

/// Receives of a queue pair. Clients send up to 128 messages ahead; UC and UD lose messages that find no receive.
const RECEIVES: u32 = 512;
/// Receives of each queue pair of a client that has many, as the completion queue has an entry for each of them.
const FEW_RECEIVES: u32 = 128;
/// Queue pairs of a client from which on others have fewer receives.
const MANY: usize = 256;
/// Even for empty messages a sink has one page: clients step through it.
pub const PAGE: usize = 4096;
/// Length in bytes of the GRH in front of a received datagram.
pub const GRH: u32 = Grh::LEN as u32;
/// READs and atomics that a client may have outstanding.
pub const RD_ATOMIC: u32 = 128;
/// Clients' access to a sink.
pub const PEER_ACCESS: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE).union(Access::REMOTE_ATOMIC);
/// Longest inline message: an answer on a control queue pair.
pub const MAX_INLINE: usize = 64;
/// Queue sizes.
pub const CAPS: QpCaps = QpCaps {
    max_send_wr: WINDOW + 8,
    max_recv_wr: RECEIVES,
    max_send_sge: 2,
    max_recv_sge: 2,
    max_inline_data: MAX_INLINE as u32,
};
const WR_RECV: u64 = 1;
const WR_ECHO: u64 = 2;

/// Memory for all messages. Their content is not read.
pub struct Sink {
    pub pd: ProtectionDomain,
    /// Key and bytes.
    pub region: MemoryRegion,
    lease: Lease,
    /// The longest message.
    pub max_message: usize,
}

impl Sink {
    /// A sink of a client for messages of up to `max_message` bytes.
    pub fn take(
        cx: &mut Context<'_>,
        account: &Account,
        pd: ProtectionDomain,
        (client, standing): (IpAddr, Standing),
        max_message: usize,
    ) -> Result<Sink, String> {
        let lease = account.lend(cx, client, max_message + PAGE, standing)?;
        let access = PEER_ACCESS | Access::LOCAL_WRITE;
        match cx.device().reg_mr(pd, lease.memory().clone(), access) {
            Ok(region) => Ok(Sink { pd, region, lease, max_message }),
            Err(error) => {
                cx.take_back(lease);
                Err(error.to_string())
            }
        }
    }

    /// Its client has proved its address.
    pub fn prove(&mut self, cx: &mut Context<'_>) -> Result<(), Refusal> {
        cx.prove(&mut self.lease)
    }

    /// Gives its memory back. Returns its protection domain.
    pub fn close(self, cx: &mut Context<'_>) -> ProtectionDomain {
        let _ = cx.device().dereg_mr(&self.region);
        cx.take_back(self.lease);
        self.pd
    }

    /// The first `length` bytes.
    fn sge(&self, length: u32) -> Sge {
        Sge { addr: self.region.addr(), length, lkey: self.region.lkey() }
    }

    /// Receive buffer of one message, of any transport.
    pub fn receive(&self) -> Sge {
        self.sge(self.max_message as u32 + GRH)
    }
}

/// The common part of the queue pairs of a test: receives messages and sends them back.
pub struct Answerer {
    /// Our queue pair. The client's messages show its type.
    pub qp: AnyQueuePair,
    /// Rate of the answers.
    pub meter: Meter,
    /// Time of the last activity.
    pub heard: Instant,
    /// Destination of answers, on a datagram queue pair.
    pub to: Option<DatagramTo>,
    /// The expected PSN at the last check.
    seen: Psn,
    /// Buffers of received messages, and of the answers.
    receive: Vec<Sge>,
    echo: Echo,
}

impl Answerer {
    /// Posts receives into `receive` on `qp`, whose client begins with PSN `first`. The last buffer is the sink's.
    pub fn new(cx: &mut Context<'_>, qp: AnyQueuePair, first: Psn, receive: &[Sge]) -> Result<Answerer, String> {
        Answerer::with_receives(cx, qp, first, receive, RECEIVES)
    }

    /// The same with this number of receives.
    fn with_receives(
        cx: &mut Context<'_>,
        qp: AnyQueuePair,
        first: Psn,
        receive: &[Sge],
        receives: u32,
    ) -> Result<Answerer, String> {
        let answerer = Answerer {
            qp,
            meter: Meter::default(),
            heard: cx.now(),
            to: None,
            seen: first,
            receive: receive.to_vec(),
            echo: Echo::default(),
        };
        (0..receives).try_for_each(|_| answerer.post_recv(cx)).map_err(|error| error.to_string())?;
        Ok(answerer)
    }

    /// Posts a receive.
    pub fn post_recv(&self, cx: &mut Context<'_>) -> Result<(), PostError> {
        cx.device().post_recv(self.qp, RecvWr { wr_id: WR_RECV, sges: &self.receive })
    }

    /// Handles a message: posts its receive again, and schedules an answer.
    pub fn received(&mut self, cx: &mut Context<'_>, wc: &WorkCompletion) -> Result<(), String> {
        self.heard = cx.now();
        let head = if wc.src_qpn.is_some() { GRH } else { 0 };
        // Messages with immediate data are not answered: no test expects it.
        if wc.imm.is_none() {
            self.echo.received(wc.byte_len.saturating_sub(head));
        }
        self.post_recv(cx).map_err(|error| error.to_string())
    }

    /// Handles the completion of an answer, and sends the next ones.
    pub fn taken(&mut self, cx: &mut Context<'_>, wc: &WorkCompletion) -> Result<(), String> {
        if wc.wr_id & 0xFF == WR_ECHO {
            self.meter.count(cx.now(), (wc.wr_id >> 8) as u32);
            self.echo.taken();
        }
        self.answer(cx)
    }

    /// Sends the answers that the window allows.
    pub fn answer(&mut self, cx: &mut Context<'_>) -> Result<(), String> {
        while let Some(length) = self.echo.next() {
            let (pieces, count) = pieces(&self.receive, length);
            let message = &pieces[..count];
            let wr: AnyWorkRequest<'_> = match &self.to {
                None => WorkRequest::<Rc>::send(message).into(),
                Some(to) => to.send(message),
            };
            let wr_id = u64::from(length) << 8 | WR_ECHO;
            cx.device().post_send(self.qp, wr.wr_id(wr_id).signaled()).map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    /// Checks the PSN for operations of the client that complete no work request here, as WRITEs and READs.
    pub fn look(&mut self, dev: &Device<'_>) {
        if let Ok(info) = dev.query_qp(self.qp)
            && info.expected_psn != self.seen
        {
            self.seen = info.expected_psn;
            self.heard = dev.now();
        }
    }

    /// Destroys the address handle.
    pub fn close(self, dev: &mut Device<'_>) {
        if let Some(to) = self.to {
            to.close(dev);
        }
    }
}

/// The first `length` bytes of `buffers`, and their number of pieces: at least one, also for an empty message.
fn pieces(buffers: &[Sge], length: u32) -> ([Sge; 2], usize) {
    let (mut pieces, mut count, mut left) = ([Sge::default(); 2], 0, length);
    for (piece, buffer) in pieces.iter_mut().zip(buffers) {
        if left > 0 || count == 0 {
            *piece = Sge { length: left.min(buffer.length), ..*buffer };
            left -= piece.length;
            count += 1;
        }
    }
    (pieces, count)
}

/// A queue pair whose peer is known from a record.
pub struct TestQp {
    /// Number of its client.
    pub client: u64,
    /// The client's queue pair.
    pub peer: Peer,
    /// Our first PSN.
    pub psn: Psn,
    /// Our queue pair.
    pub answers: Answerer,
    charge: Charge,
}

impl TestQp {
    /// Creates a queue pair in RTS that detects the client's type, with receives posted. The client, whose number and address
    /// are `client`, has `others`.
    pub fn open(
        cx: &mut Context<'_>,
        account: &Account,
        (client, address): (u64, IpAddr),
        sink: &Sink,
        peer: Peer,
        others: usize,
    ) -> Result<TestQp, String> {
        let receives = if others < MANY { RECEIVES } else { FEW_RECEIVES };
        let caps = QpCaps { max_recv_wr: receives, ..CAPS };
        let charge = account.charge_qp(cx, address, caps, Standing::Proven)?;
        let attr = cx.qp_attr().with_caps(caps);
        let qp = match cx.device().create_qp_in_init::<Rc>(sink.pd, attr, PEER_ACCESS) {
            Ok(qp) => qp,
            Err(error) => {
                cx.ledger().release(charge);
                return Err(no_queue_pair(error));
            }
        };
        cx.set_name(qp, NAME);
        let psn = cx.random_psn();
        let opened = peer.open(&mut cx.device(), qp, psn).map_err(|error| error.to_string());
        let receive = [sink.receive()];
        match opened.and_then(|qp| Answerer::with_receives(cx, qp, peer.psn, &receive, receives)) {
            Ok(answers) => Ok(TestQp { client, peer, psn, answers, charge }),
            Err(error) => {
                cx.ledger().release(charge);
                let _ = cx.device().destroy_qp(qp);
                Err(error)
            }
        }
    }

    /// Handles a message.
    pub fn received(&mut self, cx: &mut Context<'_>, wc: &WorkCompletion) -> Result<(), String> {
        if let Some(sender) = wc.src_qpn {
            if sender != self.peer.qpn {
                return self.answers.post_recv(cx).map_err(|error| error.to_string());
            }
            if self.answers.to.is_none() {
                let to = DatagramTo::new(&mut cx.device(), self.answers.qp, &self.peer.path, sender, QKEY);
                self.answers.to = Some(to.map_err(|error| error.to_string())?);
            }
        }
        self.answers.received(cx, wc)?;
        self.answers.answer(cx)
    }

    /// Whether the client has sent nothing yet.
    pub fn is_untouched(&self, dev: &Device<'_>) -> bool {
        is_untouched(dev, self.answers.qp, self.peer.psn)
    }

    /// Releases all its resources.
    pub fn close(self, cx: &mut Context<'_>) {
        let qp = self.answers.qp;
        self.answers.close(&mut cx.device());
        let _ = cx.device().destroy_qp(qp);
        cx.ledger().release(self.charge);
    }
}

/// Whether a queue pair whose client begins with PSN `first` has received nothing. If its type is no longer RC, it has
/// detected the type from a packet; datagrams do not change the expected PSN.
pub fn is_untouched(dev: &Device<'_>, qp: AnyQueuePair, first: Psn) -> bool {
    dev.query_qp(qp).is_ok_and(|info| info.qp_type == QpType::Rc && info.expected_psn == first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_what_came() {
        let (head, sink) = (Sge { addr: 0x1000, length: 64, lkey: 1 }, Sge { addr: 0x8000, length: 9000, lkey: 2 });
        let of = |buffers: &[Sge], length| {
            let (pieces, count) = pieces(buffers, length);
            pieces[..count].iter().map(|piece| (piece.addr, piece.length)).collect::<Vec<_>>()
        };
        assert_eq!(of(&[head, sink], 0), [(0x1000, 0)]);
        assert_eq!(of(&[head, sink], 64), [(0x1000, 64)]);
        assert_eq!(of(&[head, sink], 100), [(0x1000, 64), (0x8000, 36)]);
        assert_eq!(of(&[sink], 100), [(0x8000, 100)]);
    }
}
