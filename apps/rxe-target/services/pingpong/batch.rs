//! Queue pairs that were created together for one client, and the memory of their messages.

use rxe_proto::verbs::{
    AnyQueuePair, AnyWorkRequest, Device, MemoryRegion, PostError, Qpn, Rc, RecvWr, Sge, SharedReceiveQueue,
    WorkCompletion, WorkRequest,
};
use rxe_proto::wire::Psn;
use rxe_proto::{Duration, Instant};
use rxe_service::{Context, Lease};

use crate::services::idle::SWEEP;
use crate::services::out_of_band::{DatagramTo, Peer, QKEY, RETRIED};

/// Receives per queue pair: the next message may arrive while one is sent back.
pub const SLOTS: usize = 2;
/// Length in bytes of the GRH in front of a received datagram.
const GRH: u32 = 40;
/// A client that acknowledges no answer for this long has ended. It does not say so, and ibv_srq_pingpong ends with answers
/// under way. Less than the time of all retransmissions, after which the queue pair would be in error.
const UNACKNOWLEDGED: Duration = Duration::from_secs(6);
// The next sweep finds it, at the latest.
const _: () = assert!(UNACKNOWLEDGED.as_nanos() + SWEEP.as_nanos() < RETRIED.as_nanos());

/// Queue pairs that were created together, and their receives: each slot is one, and its message is sent back from there.
pub struct Batch {
    pub region: MemoryRegion,
    pub lease: Lease,
    /// Bytes of each slot.
    pub slot: usize,
    /// The budget had less than the client was to get.
    pub reduced: bool,
    pub srq: Option<SharedReceiveQueue>,
    pub qps: Vec<AnyQueuePair>,
}

impl Batch {
    /// The buffer of a slot.
    pub fn sge(&self, slot: u64) -> Sge {
        let offset = slot * self.slot as u64;
        Sge { addr: self.region.addr() + offset, length: self.slot as u32, lkey: self.region.lkey() }
    }

    /// Posts the receive of a slot.
    pub fn post_recv(&self, dev: &mut Device<'_>, qp: AnyQueuePair, slot: u64) -> Result<(), PostError> {
        let wr = RecvWr { wr_id: slot, sges: &[self.sge(slot)] };
        match self.srq {
            Some(srq) => dev.post_srq_recv(srq, wr),
            None => dev.post_recv(qp, wr),
        }
    }

    /// Why a message that is longer than a slot is refused.
    pub fn too_long(&self) -> String {
        too_long(self.slot, self.reduced)
    }
}

fn too_long(slot: usize, reduced: bool) -> String {
    let setting = if reduced { ", as little of the budget was left: raise budget" } else { ": raise memory" };
    format!("its messages are longer than its receives of {slot} bytes{setting} of [service.pingpong]")
}

/// A queue pair that returns messages.
pub struct EchoQp {
    /// Number of its client.
    pub client: u64,
    /// Index of its batch.
    pub batch: usize,
    pub peer: Peer,
    /// Destination of answers, if the peer sends datagrams.
    pub to: Option<DatagramTo>,
    /// Time of the last sign of life.
    pub heard: Instant,
    /// The PSN that the client sends next and the oldest of ours that it has not acknowledged, at the last look.
    progress: (Psn, Psn),
    /// Answers that the client has not acknowledged.
    unacknowledged: u32,
}

impl EchoQp {
    /// A queue pair without messages yet.
    pub fn new(cx: &Context<'_>, client: u64, batch: usize, peer: Peer) -> EchoQp {
        EchoQp { client, batch, peer, to: None, heard: cx.now(), progress: Default::default(), unacknowledged: 0 }
    }

    /// Sends the received message of a slot back.
    pub fn send_back(&mut self, dev: &mut Device<'_>, batch: &Batch, wc: &WorkCompletion) -> Result<(), String> {
        let sge = Sge { length: wc.byte_len, ..batch.sge(wc.wr_id) };
        let (message, behind_grh);
        let wr: AnyWorkRequest<'_> = match wc.src_qpn {
            None => {
                message = [sge];
                WorkRequest::<Rc>::send(&message).into()
            }
            // A datagram of another sender is dropped.
            Some(qpn) if qpn != self.peer.qpn => {
                return batch.post_recv(dev, wc.qp(), wc.wr_id).map_err(|error| error.to_string());
            }
            Some(qpn) => {
                behind_grh = [Sge { addr: sge.addr + u64::from(GRH), length: sge.length.saturating_sub(GRH), ..sge }];
                let to = match &mut self.to {
                    Some(to) => to,
                    to => {
                        let new = DatagramTo::new(dev, wc.qp(), &self.peer.path, qpn, QKEY);
                        to.insert(new.map_err(|error| error.to_string())?)
                    }
                };
                to.send(&behind_grh)
            }
        };
        dev.post_send(wc.qp(), wr.wr_id(wc.wr_id).signaled()).map_err(|error| error.to_string())?;
        self.unacknowledged += 1;
        Ok(())
    }

    /// The client has acknowledged the answer of a slot, which receives again.
    pub fn acknowledged(&mut self, dev: &mut Device<'_>, batch: &Batch, wc: &WorkCompletion) -> Result<(), String> {
        self.unacknowledged = self.unacknowledged.saturating_sub(1);
        batch.post_recv(dev, wc.qp(), wc.wr_id).map_err(|error| error.to_string())
    }

    /// Looks for packets that have completed nothing, as those of a long message.
    pub fn look(&mut self, dev: &Device<'_>, qpn: Qpn) {
        if let Ok(info) = dev.query_qp(AnyQueuePair::from(qpn)) {
            let progress = (info.expected_psn, info.unacked_psn);
            if std::mem::replace(&mut self.progress, progress) != progress {
                self.heard = dev.now();
            }
        }
    }

    /// Whether the client has left: it has not acknowledged an answer for long.
    pub fn has_left(&self, now: Instant) -> bool {
        has_left(self.unacknowledged, self.heard, now)
    }
}

fn has_left(unacknowledged: u32, heard: Instant, now: Instant) -> bool {
    unacknowledged > 0 && now.saturating_since(heard) >= UNACKNOWLEDGED
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_refusal_of_a_long_message_names_the_setting() {
        assert_eq!(
            too_long(2 << 20, false),
            "its messages are longer than its receives of 2097152 bytes: raise memory of [service.pingpong]"
        );
        assert_eq!(
            too_long(65536, true),
            "its messages are longer than its receives of 65536 bytes, as little of the budget was left: raise budget of \
             [service.pingpong]"
        );
    }

    #[test]
    fn a_client_that_acknowledges_nothing_has_left() {
        let heard = Instant::from_nanos(7);
        assert!(!has_left(1, heard, heard + Duration::from_secs(5)));
        assert!(has_left(1, heard, heard + UNACKNOWLEDGED));
        assert!(!has_left(0, heard, heard + Duration::from_secs(60)), "it may begin late");
    }
}
