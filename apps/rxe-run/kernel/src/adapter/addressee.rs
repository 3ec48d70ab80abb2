//! Frames to queue pair 1 of an address that several processes share: which of them a frame is for.

use rxe_proto::cm::read_mad;
use rxe_proto::wire::cm::CmMessage;
use rxe_proto::wire::{Frame, PortId, classify};

/// Which of the processes that share an address a frame to queue pair 1 is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Addressee {
    /// The one with this worker number.
    Worker(u8),
    /// The one that listens for the request.
    Listener,
}

impl Addressee {
    /// The addressee of a frame; `None` when it does not say.
    pub fn of(frame: &[u8]) -> Option<Addressee> {
        let id = match message(frame)? {
            CmMessage::Req(_) | CmMessage::SidrReq(_) => return Some(Addressee::Listener),
            CmMessage::Mra(mra) => mra.remote_comm_id,
            CmMessage::Rej(rej) => rej.remote_comm_id,
            CmMessage::Rep(rep) => rep.remote_comm_id,
            CmMessage::Rtu(rtu) => rtu.remote_comm_id,
            CmMessage::Dreq(dreq) => dreq.remote_comm_id,
            CmMessage::Drep(drep) => drep.remote_comm_id,
            CmMessage::SidrRep(rep) => rep.request_id,
            CmMessage::Lap(lap) => lap.remote_comm_id,
            CmMessage::Apr(apr) => apr.remote_comm_id,
        };
        Some(Addressee::Worker((id >> 28) as u8))
    }
}

/// The message of the connection manager in a frame.
pub fn message(frame: &[u8]) -> Option<CmMessage> {
    let Ok(Frame::Roce(packet)) = classify(frame) else { return None };
    let (_, mad) = read_mad(PortId(0), &packet).ok()?;
    Some(CmMessage::parse(mad).ok()?.1)
}
