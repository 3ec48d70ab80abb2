//! The messages that made the connections, for captures that begin later.

use super::connection::{Connection, Mad};
use super::{Cm, GSI_UDP_SRC_PORT, MadPath, write_mad};
use crate::transport::Qpn;
use crate::wire::{Psn, TxFrames};

/// REQ and REP of a connection. Protocol analysers know from them what the packets of its queue pairs are.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Handshake {
    /// Our communication id.
    pub comm_id: u32,
    /// Our queue pair.
    pub local_qpn: Qpn,
    /// The path of our messages.
    pub path: MadPath,
    /// Whether the REQ is ours; else the REP is.
    pub is_active: bool,
    req: Mad,
    rep: Mad,
}

impl Handshake {
    fn of(conn: &Connection) -> Option<Handshake> {
        Some(Handshake {
            comm_id: conn.id.comm_id(),
            local_qpn: conn.local_qpn?,
            path: conn.path.clone(),
            is_active: conn.is_active(),
            req: conn.req.clone()?,
            rep: conn.rep.clone()?,
        })
    }

    /// REQ and REP as frames, each with whether it is ours.
    #[must_use]
    pub fn frames(&self) -> [(bool, Vec<u8>); 2] {
        [
            (self.is_active, self.frame(self.is_active, &self.req)),
            (!self.is_active, self.frame(!self.is_active, &self.rep)),
        ]
    }

    fn frame(&self, is_ours: bool, mad: &Mad) -> Vec<u8> {
        let ours = self.path.clone();
        let (local, peer) = ((ours.local_mac, ours.local), (ours.peer_mac, ours.peer));
        let (from, to) = if is_ours { (local, peer) } else { (peer, local) };
        let path = MadPath { local_mac: from.0, peer_mac: to.0, local: from.1, peer: to.1, ..ours };
        let mut frames = TxFrames::default();
        // There is room without limit.
        let _ = write_mad(&mut frames, &path, GSI_UDP_SRC_PORT, Psn::new(0), mad);
        frames.frames.pop().map(|(_, frame)| frame).unwrap_or_default()
    }
}

impl Cm {
    /// The messages of the connections that have not ended and for which there are both, in the order of our communication ids,
    /// from `comm_id` on.
    pub fn handshakes(&self, comm_id: u32) -> impl Iterator<Item = Handshake> + '_ {
        self.connections.iter_from(comm_id).filter_map(Handshake::of)
    }
}
