//! REP: grants a connection.

use super::{Data, zero_default};
use crate::wire::Psn;
use crate::wire::bytes::{Reader, Writer};

/// ConnectReply. "Local" is the sender of the message, "remote" its receiver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rep {
    /// The sender's communication id.
    pub local_comm_id: u32,
    /// The communication id of the REQ.
    pub remote_comm_id: u32,
    /// Q_Key, 0 for connected transports.
    pub local_qkey: u32,
    /// The sender's queue pair (24 bits).
    pub local_qpn: u32,
    /// Vendor id of enhanced connection options (24 bits, spread over three places).
    pub vendor_id: u32,
    /// End-to-end context of the sender, 0 (24 bits).
    pub local_eecn: u32,
    /// PSN that the *receiver's* first request carries.
    pub starting_psn: Psn,
    /// READs and atomics that the sender takes at once.
    pub responder_resources: u8,
    /// READs and atomics that the sender will have outstanding.
    pub initiator_depth: u8,
    /// The sender's ACK delay: 4.096 us * 2^n (5 bits).
    pub target_ack_delay: u8,
    /// Outcome for the alternate path (2 bits).
    pub failover_accepted: u8,
    /// The sender does end-to-end flow control.
    pub flow_control: bool,
    /// Receiver-not-ready retries that the receiver is to make (3 bits); 7 is without end.
    pub rnr_retry_count: u8,
    /// The sender's queue pair uses a shared receive queue.
    pub srq: bool,
    /// Reserved bits beside it (4 bits).
    pub reserved_27: u8,
    /// GUID of the sender's channel adapter.
    pub local_ca_guid: u64,
    /// Private data, all of it the upper layer's.
    pub private_data: [u8; Rep::PRIVATE_DATA_LEN],
}

zero_default!(Rep);

impl Rep {
    /// Length of the private data.
    pub const PRIVATE_DATA_LEN: usize = 196;

    /// Reads the body of a MAD.
    pub fn parse(data: &Data) -> Rep {
        let mut r = Reader::new(data);
        let (local_comm_id, remote_comm_id, local_qkey) = (r.u32(), r.u32(), r.u32());
        let (local_qpn, vendor_high) = (r.u24(), r.u8());
        let (local_eecn, vendor_middle) = (r.u24(), r.u8());
        let (starting_psn, vendor_low) = (r.u24(), r.u8());
        let (responder_resources, initiator_depth) = (r.u8(), r.u8());
        let (flags_26, flags_27) = (r.u8(), r.u8());
        Rep {
            local_comm_id,
            remote_comm_id,
            local_qkey,
            local_qpn,
            vendor_id: u32::from_be_bytes([0, vendor_high, vendor_middle, vendor_low]),
            local_eecn,
            starting_psn: Psn::new(starting_psn),
            responder_resources,
            initiator_depth,
            target_ack_delay: flags_26 >> 3,
            failover_accepted: flags_26 >> 1 & 3,
            flow_control: flags_26 & 1 != 0,
            rnr_retry_count: flags_27 >> 5,
            srq: flags_27 & 0x10 != 0,
            reserved_27: flags_27 & 0x0F,
            local_ca_guid: r.u64(),
            private_data: r.array(),
        }
    }

    /// Writes the body of a MAD (232 bytes).
    pub fn emit(&self, data: &mut [u8]) {
        let [_, vendor_high, vendor_middle, vendor_low] = self.vendor_id.to_be_bytes();
        let mut w = Writer::new(data);
        w.u32(self.local_comm_id);
        w.u32(self.remote_comm_id);
        w.u32(self.local_qkey);
        w.u24(self.local_qpn);
        w.u8(vendor_high);
        w.u24(self.local_eecn);
        w.u8(vendor_middle);
        w.u24(self.starting_psn.get());
        w.u8(vendor_low);
        w.u8(self.responder_resources);
        w.u8(self.initiator_depth);
        w.u8(self.target_ack_delay << 3 | (self.failover_accepted & 3) << 1 | u8::from(self.flow_control));
        w.u8(self.rnr_retry_count << 5 | u8::from(self.srq) << 4 | self.reserved_27 & 0x0F);
        w.u64(self.local_ca_guid);
        w.bytes(&self.private_data);
    }
}
