//! SIDR_REQ and SIDR_REP: which datagram queue pair serves a service id.

use super::{Data, IP_ADDRESSING_LEN, IpAddressing, ServiceId, zero_default};
use crate::wire::bytes::{Reader, Writer};

/// Status of a service id resolution.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum SidrStatus {
    /// QPN and Q_Key are valid.
    Valid,
    /// No listener on the service id.
    ServiceIdNotSupported,
    /// The listener refused.
    Rejected,
    /// No queue pair available.
    NoQp,
    /// Redirected to another address.
    Redirect,
    /// Version not supported.
    UnsupportedVersion,
    /// A code that is not defined.
    Unknown(u8),
}

impl SidrStatus {
    /// The meaning of a code.
    pub const fn from_code(code: u8) -> SidrStatus {
        match code {
            0 => SidrStatus::Valid,
            1 => SidrStatus::ServiceIdNotSupported,
            2 => SidrStatus::Rejected,
            3 => SidrStatus::NoQp,
            4 => SidrStatus::Redirect,
            5 => SidrStatus::UnsupportedVersion,
            other => SidrStatus::Unknown(other),
        }
    }

    /// The code on the wire.
    pub const fn code(self) -> u8 {
        match self {
            SidrStatus::Valid => 0,
            SidrStatus::ServiceIdNotSupported => 1,
            SidrStatus::Rejected => 2,
            SidrStatus::NoQp => 3,
            SidrStatus::Redirect => 4,
            SidrStatus::UnsupportedVersion => 5,
            SidrStatus::Unknown(code) => code,
        }
    }
}

/// ServiceIDResolutionRequest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SidrReq {
    /// The sender's number for this request.
    pub request_id: u32,
    /// Partition key.
    pub pkey: u16,
    /// Reserved bytes 6 and 7.
    pub reserved_6: u16,
    /// Service id of the listener.
    pub service_id: ServiceId,
    /// Private data: for IP port spaces [`IpAddressing`], then 180 bytes of the upper layer.
    pub private_data: [u8; SidrReq::PRIVATE_DATA_LEN],
}

zero_default!(SidrReq);

impl SidrReq {
    /// Length of all private data.
    pub const PRIVATE_DATA_LEN: usize = 216;
    /// Length of the upper layer's part of it.
    pub const ULP_DATA_LEN: usize = SidrReq::PRIVATE_DATA_LEN - IP_ADDRESSING_LEN;

    /// Reads the body of a MAD.
    pub fn parse(data: &Data) -> SidrReq {
        let mut r = Reader::new(data);
        SidrReq {
            request_id: r.u32(),
            pkey: r.u16(),
            reserved_6: r.u16(),
            service_id: ServiceId(r.u64()),
            private_data: r.array(),
        }
    }

    /// Writes the body of a MAD (232 bytes).
    pub fn emit(&self, data: &mut [u8]) {
        let mut w = Writer::new(data);
        w.u32(self.request_id);
        w.u16(self.pkey);
        w.u16(self.reserved_6);
        w.u64(self.service_id.0);
        w.bytes(&self.private_data);
    }

    /// The IP addresses at the front of the private data.
    pub fn ip_addressing(&self) -> IpAddressing {
        IpAddressing::parse(&Reader::new(&self.private_data).array())
    }

    /// The upper layer's part of the private data.
    pub fn ulp_data(&self) -> [u8; SidrReq::ULP_DATA_LEN] {
        let mut r = Reader::new(&self.private_data);
        let _: [u8; IP_ADDRESSING_LEN] = r.array();
        r.array()
    }
}

/// ServiceIDResolutionResponse.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SidrRep {
    /// The number of the request.
    pub request_id: u32,
    /// Result.
    pub status: SidrStatus,
    /// Length of the additional information in bytes.
    pub info_len: u8,
    /// Vendor id of enhanced connection options (24 bits, spread over two places).
    pub vendor_id: u32,
    /// The queue pair of the service (24 bits).
    pub qpn: u32,
    /// The service id of the request.
    pub service_id: ServiceId,
    /// The Q_Key of the queue pair.
    pub qkey: u32,
    /// Additional information.
    pub info: [u8; SidrRep::INFO_LEN],
    /// Private data.
    pub private_data: [u8; SidrRep::PRIVATE_DATA_LEN],
}

zero_default!(SidrRep);

impl SidrRep {
    /// Length of the field for additional information.
    pub const INFO_LEN: usize = 72;
    /// Length of the private data.
    pub const PRIVATE_DATA_LEN: usize = 136;

    /// Reads the body of a MAD.
    pub fn parse(data: &Data) -> SidrRep {
        let mut r = Reader::new(data);
        let (request_id, status, info_len, vendor_high) = (r.u32(), r.u8(), r.u8(), r.u16());
        let (qpn, vendor_low) = (r.u24(), r.u8());
        SidrRep {
            request_id,
            status: SidrStatus::from_code(status),
            info_len,
            vendor_id: u32::from(vendor_high) << 8 | u32::from(vendor_low),
            qpn,
            service_id: ServiceId(r.u64()),
            qkey: r.u32(),
            info: r.array(),
            private_data: r.array(),
        }
    }

    /// Writes the body of a MAD (232 bytes).
    pub fn emit(&self, data: &mut [u8]) {
        let mut w = Writer::new(data);
        w.u32(self.request_id);
        w.u8(self.status.code());
        w.u8(self.info_len);
        w.u16((self.vendor_id >> 8) as u16);
        w.u24(self.qpn);
        w.u8(self.vendor_id as u8);
        w.u64(self.service_id.0);
        w.u32(self.qkey);
        w.bytes(&self.info);
        w.bytes(&self.private_data);
    }
}
