//! REQ: asks for a connection.

use super::{Data, IP_ADDRESSING_LEN, IpAddressing, ServiceId, zero_default};
use crate::wire::bytes::{Reader, Writer};
use crate::wire::{Gid, Psn};

/// The transport that a REQ asks for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum CmTransport {
    /// Reliable connection.
    Rc = 0,
    /// Unreliable connection.
    Uc = 1,
    /// Reliable datagram.
    Rd = 2,
    /// See the extended transport type.
    Extended = 3,
}

/// A path in a REQ. On RoCE only GIDs, flow label, traffic class, hop limit and ACK timeout mean anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct CmPath {
    /// LID of the sender of the REQ; 0xFFFF on RoCE.
    pub local_lid: u16,
    /// LID of the receiver of the REQ; 0xFFFF on RoCE.
    pub remote_lid: u16,
    /// GID of the sender of the REQ.
    pub local_gid: Gid,
    /// GID of the receiver of the REQ.
    pub remote_gid: Gid,
    /// Flow label (20 bits).
    pub flow_label: u32,
    /// Reserved bits between flow label and rate (6 bits).
    pub reserved_rate: u8,
    /// Packet rate code (6 bits); 0 is that of the port.
    pub packet_rate: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Service level (4 bits).
    pub sl: u8,
    /// Both ends are on one subnet.
    pub subnet_local: bool,
    /// Reserved bits beside the service level (3 bits).
    pub reserved_sl: u8,
    /// Local ACK timeout of the sender of the REQ: 4.096 us * 2^n (5 bits).
    pub ack_timeout: u8,
    /// Reserved bits beside the timeout (3 bits).
    pub reserved_timeout: u8,
}

impl CmPath {
    fn read(r: &mut Reader<'_>) -> CmPath {
        let (local_lid, remote_lid) = (r.u16(), r.u16());
        let (local_gid, remote_gid) = (Gid(r.array()), Gid(r.array()));
        let (flow, traffic_class, hop_limit, sl, timeout) = (r.u32(), r.u8(), r.u8(), r.u8(), r.u8());
        CmPath {
            local_lid,
            remote_lid,
            local_gid,
            remote_gid,
            flow_label: flow >> 12,
            reserved_rate: (flow >> 6 & 0x3F) as u8,
            packet_rate: (flow & 0x3F) as u8,
            traffic_class,
            hop_limit,
            sl: sl >> 4,
            subnet_local: sl & 8 != 0,
            reserved_sl: sl & 7,
            ack_timeout: timeout >> 3,
            reserved_timeout: timeout & 7,
        }
    }

    fn write(&self, w: &mut Writer<'_>) {
        w.u16(self.local_lid);
        w.u16(self.remote_lid);
        w.bytes(&self.local_gid.0);
        w.bytes(&self.remote_gid.0);
        w.u32(self.flow_label << 12 | u32::from(self.reserved_rate & 0x3F) << 6 | u32::from(self.packet_rate & 0x3F));
        w.u8(self.traffic_class);
        w.u8(self.hop_limit);
        w.u8(self.sl << 4 | u8::from(self.subnet_local) << 3 | self.reserved_sl & 7);
        w.u8(self.ack_timeout << 3 | self.reserved_timeout & 7);
    }
}

/// ConnectRequest. "Local" is the sender of the message, "remote" its receiver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Req {
    /// The sender's communication id.
    pub local_comm_id: u32,
    /// Reserved byte 4.
    pub reserved_4: u8,
    /// Vendor id of enhanced connection options (24 bits).
    pub vendor_id: u32,
    /// The listener.
    pub service_id: ServiceId,
    /// GUID of the sender's channel adapter.
    pub local_ca_guid: u64,
    /// Reserved word at byte 24.
    pub reserved_24: u32,
    /// Q_Key, 0 for connected transports.
    pub local_qkey: u32,
    /// The sender's queue pair (24 bits).
    pub local_qpn: u32,
    /// READs and atomics that the sender takes at once.
    pub responder_resources: u8,
    /// End-to-end context of the sender, 0 (24 bits).
    pub local_eecn: u32,
    /// READs and atomics that the sender wants to have outstanding.
    pub initiator_depth: u8,
    /// End-to-end context of the receiver, 0 (24 bits).
    pub remote_eecn: u32,
    /// How long the receiver may take to answer: 4.096 us * 2^n (5 bits).
    pub remote_response_timeout: u8,
    /// The transport asked for.
    pub transport: CmTransport,
    /// The sender does end-to-end flow control.
    pub flow_control: bool,
    /// PSN that the *receiver's* first request carries.
    pub starting_psn: Psn,
    /// How long the sender may take to answer: 4.096 us * 2^n (5 bits).
    pub local_response_timeout: u8,
    /// Transport retries that the receiver is to make (3 bits).
    pub retry_count: u8,
    /// Partition key.
    pub pkey: u16,
    /// Path MTU code (4 bits); see [`PathMtu::from_code`](crate::wire::PathMtu::from_code).
    pub path_mtu: u8,
    /// An RD connection exists.
    pub rdc_exists: bool,
    /// Receiver-not-ready retries that the receiver is to make (3 bits); 7 is without end.
    pub rnr_retry_count: u8,
    /// Maximum number of retransmissions of a message (4 bits).
    pub max_cm_retries: u8,
    /// The sender's queue pair uses a shared receive queue.
    pub srq: bool,
    /// Extended transport type (3 bits).
    pub extended_transport: u8,
    /// The path of the connection.
    pub primary: CmPath,
    /// The path to migrate to; all zero when there is none.
    pub alternate: CmPath,
    /// Private data: for IP port spaces [`IpAddressing`], then 56 bytes of the upper layer.
    pub private_data: [u8; Req::PRIVATE_DATA_LEN],
}

zero_default!(Req);

impl Req {
    /// Length of all private data.
    pub const PRIVATE_DATA_LEN: usize = 92;
    /// Length of the upper layer's part of it.
    pub const ULP_DATA_LEN: usize = Req::PRIVATE_DATA_LEN - IP_ADDRESSING_LEN;

    /// Reads the body of a MAD.
    pub fn parse(data: &Data) -> Req {
        let mut r = Reader::new(data);
        let local_comm_id = r.u32();
        let (reserved_4, vendor_id) = (r.u8(), r.u24());
        let service_id = ServiceId(r.u64());
        let local_ca_guid = r.u64();
        let (reserved_24, local_qkey) = (r.u32(), r.u32());
        let (local_qpn, responder_resources) = (r.u24(), r.u8());
        let (local_eecn, initiator_depth) = (r.u24(), r.u8());
        let (remote_eecn, flags_43) = (r.u24(), r.u8());
        let (starting_psn, flags_47) = (r.u24(), r.u8());
        let pkey = r.u16();
        let (flags_50, flags_51) = (r.u8(), r.u8());
        Req {
            local_comm_id,
            reserved_4,
            vendor_id,
            service_id,
            local_ca_guid,
            reserved_24,
            local_qkey,
            local_qpn,
            responder_resources,
            local_eecn,
            initiator_depth,
            remote_eecn,
            remote_response_timeout: flags_43 >> 3,
            transport: match flags_43 >> 1 & 3 {
                0 => CmTransport::Rc,
                1 => CmTransport::Uc,
                2 => CmTransport::Rd,
                _ => CmTransport::Extended,
            },
            flow_control: flags_43 & 1 != 0,
            starting_psn: Psn::new(starting_psn),
            local_response_timeout: flags_47 >> 3,
            retry_count: flags_47 & 7,
            pkey,
            path_mtu: flags_50 >> 4,
            rdc_exists: flags_50 & 8 != 0,
            rnr_retry_count: flags_50 & 7,
            max_cm_retries: flags_51 >> 4,
            srq: flags_51 & 8 != 0,
            extended_transport: flags_51 & 7,
            primary: CmPath::read(&mut r),
            alternate: CmPath::read(&mut r),
            private_data: r.array(),
        }
    }

    /// Writes the body of a MAD (232 bytes).
    pub fn emit(&self, data: &mut [u8]) {
        let mut w = Writer::new(data);
        w.u32(self.local_comm_id);
        w.u8(self.reserved_4);
        w.u24(self.vendor_id);
        w.u64(self.service_id.0);
        w.u64(self.local_ca_guid);
        w.u32(self.reserved_24);
        w.u32(self.local_qkey);
        w.u24(self.local_qpn);
        w.u8(self.responder_resources);
        w.u24(self.local_eecn);
        w.u8(self.initiator_depth);
        w.u24(self.remote_eecn);
        w.u8(self.remote_response_timeout << 3 | (self.transport as u8) << 1 | u8::from(self.flow_control));
        w.u24(self.starting_psn.get());
        w.u8(self.local_response_timeout << 3 | self.retry_count & 7);
        w.u16(self.pkey);
        w.u8(self.path_mtu << 4 | u8::from(self.rdc_exists) << 3 | self.rnr_retry_count & 7);
        w.u8(self.max_cm_retries << 4 | u8::from(self.srq) << 3 | self.extended_transport & 7);
        self.primary.write(&mut w);
        self.alternate.write(&mut w);
        w.bytes(&self.private_data);
    }

    /// The IP addresses at the front of the private data.
    pub fn ip_addressing(&self) -> IpAddressing {
        IpAddressing::parse(&Reader::new(&self.private_data).array())
    }

    /// The upper layer's part of the private data.
    pub fn ulp_data(&self) -> [u8; Req::ULP_DATA_LEN] {
        let mut r = Reader::new(&self.private_data);
        let _: [u8; IP_ADDRESSING_LEN] = r.array();
        r.array()
    }

    /// Fills the private data; `false`, and nothing done, when `ulp_data` is longer than 56 bytes.
    pub fn set_private_data(&mut self, addressing: &IpAddressing, ulp_data: &[u8]) -> bool {
        if ulp_data.len() > Req::ULP_DATA_LEN {
            return false;
        }
        self.private_data = [0; Req::PRIVATE_DATA_LEN];
        let mut w = Writer::new(&mut self.private_data);
        w.bytes(&addressing.to_bytes());
        w.bytes(ulp_data);
        true
    }
}
