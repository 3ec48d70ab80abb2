//! LAP and APR: path migration, which RoCE peers neither send nor honour.

use super::{Data, zero_default};
use crate::wire::Gid;
use crate::wire::bytes::{Reader, Writer};

/// LoadAlternatePath.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Lap {
    /// The sender's communication id.
    pub local_comm_id: u32,
    /// The receiver's communication id.
    pub remote_comm_id: u32,
    /// Reserved word at byte 8.
    pub reserved_8: u32,
    /// The receiver's queue pair (24 bits).
    pub remote_qpn: u32,
    /// How long the receiver may take to answer: 4.096 us * 2^n (5 bits).
    pub remote_response_timeout: u8,
    /// Reserved bits beside it (3 bits).
    pub reserved_15: u8,
    /// Reserved word at byte 16.
    pub reserved_16: u32,
    /// Alternate LID of the sender.
    pub local_lid: u16,
    /// Alternate LID of the receiver.
    pub remote_lid: u16,
    /// Alternate GID of the sender.
    pub local_gid: Gid,
    /// Alternate GID of the receiver.
    pub remote_gid: Gid,
    /// Flow label (20 bits).
    pub flow_label: u32,
    /// Reserved bits beside it (4 bits).
    pub reserved_58: u8,
    /// Traffic class.
    pub traffic_class: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Reserved bits beside the rate (2 bits).
    pub reserved_61: u8,
    /// Packet rate code (6 bits).
    pub packet_rate: u8,
    /// Service level (4 bits).
    pub sl: u8,
    /// Both ends are on one subnet.
    pub subnet_local: bool,
    /// Reserved bits beside it (3 bits).
    pub reserved_62: u8,
    /// Local ACK timeout: 4.096 us * 2^n (5 bits).
    pub ack_timeout: u8,
    /// Reserved bits beside it (3 bits).
    pub reserved_63: u8,
    /// Private data.
    pub private_data: [u8; Lap::PRIVATE_DATA_LEN],
}

zero_default!(Lap);

impl Lap {
    /// Length of the private data.
    pub const PRIVATE_DATA_LEN: usize = 168;

    /// Reads the body of a MAD.
    pub fn parse(data: &Data) -> Lap {
        let mut r = Reader::new(data);
        let (local_comm_id, remote_comm_id, reserved_8) = (r.u32(), r.u32(), r.u32());
        let (remote_qpn, byte_15, reserved_16) = (r.u24(), r.u8(), r.u32());
        let (local_lid, remote_lid) = (r.u16(), r.u16());
        let (local_gid, remote_gid) = (Gid(r.array()), Gid(r.array()));
        let (flow, traffic_class, hop_limit) = (r.u24(), r.u8(), r.u8());
        let (byte_61, byte_62, byte_63) = (r.u8(), r.u8(), r.u8());
        Lap {
            local_comm_id,
            remote_comm_id,
            reserved_8,
            remote_qpn,
            remote_response_timeout: byte_15 >> 3,
            reserved_15: byte_15 & 7,
            reserved_16,
            local_lid,
            remote_lid,
            local_gid,
            remote_gid,
            flow_label: flow >> 4,
            reserved_58: (flow & 0x0F) as u8,
            traffic_class,
            hop_limit,
            reserved_61: byte_61 >> 6,
            packet_rate: byte_61 & 0x3F,
            sl: byte_62 >> 4,
            subnet_local: byte_62 & 8 != 0,
            reserved_62: byte_62 & 7,
            ack_timeout: byte_63 >> 3,
            reserved_63: byte_63 & 7,
            private_data: r.array(),
        }
    }

    /// Writes the body of a MAD (232 bytes).
    pub fn emit(&self, data: &mut [u8]) {
        let mut w = Writer::new(data);
        w.u32(self.local_comm_id);
        w.u32(self.remote_comm_id);
        w.u32(self.reserved_8);
        w.u24(self.remote_qpn);
        w.u8(self.remote_response_timeout << 3 | self.reserved_15 & 7);
        w.u32(self.reserved_16);
        w.u16(self.local_lid);
        w.u16(self.remote_lid);
        w.bytes(&self.local_gid.0);
        w.bytes(&self.remote_gid.0);
        w.u24(self.flow_label << 4 | u32::from(self.reserved_58 & 0x0F));
        w.u8(self.traffic_class);
        w.u8(self.hop_limit);
        w.u8(self.reserved_61 << 6 | self.packet_rate & 0x3F);
        w.u8(self.sl << 4 | u8::from(self.subnet_local) << 3 | self.reserved_62 & 7);
        w.u8(self.ack_timeout << 3 | self.reserved_63 & 7);
        w.bytes(&self.private_data);
    }
}

/// AlternatePathResponse.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Apr {
    /// The sender's communication id.
    pub local_comm_id: u32,
    /// The receiver's communication id.
    pub remote_comm_id: u32,
    /// Number of valid bytes of the additional information.
    pub info_len: u8,
    /// 0 when the path was loaded, else why not.
    pub status: u8,
    /// Reserved bytes 10 and 11.
    pub reserved_10: u16,
    /// Additional information.
    pub info: [u8; Apr::INFO_LEN],
    /// Private data.
    pub private_data: [u8; Apr::PRIVATE_DATA_LEN],
}

zero_default!(Apr);

impl Apr {
    /// Length of the field for additional information.
    pub const INFO_LEN: usize = 72;
    /// Length of the private data.
    pub const PRIVATE_DATA_LEN: usize = 148;

    /// Reads the body of a MAD.
    pub fn parse(data: &Data) -> Apr {
        let mut r = Reader::new(data);
        Apr {
            local_comm_id: r.u32(),
            remote_comm_id: r.u32(),
            info_len: r.u8(),
            status: r.u8(),
            reserved_10: r.u16(),
            info: r.array(),
            private_data: r.array(),
        }
    }

    /// Writes the body of a MAD (232 bytes).
    pub fn emit(&self, data: &mut [u8]) {
        let mut w = Writer::new(data);
        w.u32(self.local_comm_id);
        w.u32(self.remote_comm_id);
        w.u8(self.info_len);
        w.u8(self.status);
        w.u16(self.reserved_10);
        w.bytes(&self.info);
        w.bytes(&self.private_data);
    }
}
