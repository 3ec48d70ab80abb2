//! Commands as bytes.
//!
//! Structures are written at the offsets of the C headers, independently of the crate's own types.

/// Numbers of commands, as in ib_user_verbs.h.
pub mod cmd {
    pub const GET_CONTEXT: u32 = 0;
    pub const QUERY_DEVICE: u32 = 1;
    pub const QUERY_PORT: u32 = 2;
    pub const ALLOC_PD: u32 = 3;
    pub const DEALLOC_PD: u32 = 4;
    pub const CREATE_AH: u32 = 5;
    pub const DESTROY_AH: u32 = 8;
    pub const REG_MR: u32 = 9;
    pub const REREG_MR: u32 = 11;
    pub const DEREG_MR: u32 = 13;
    pub const ALLOC_MW: u32 = 14;
    pub const DEALLOC_MW: u32 = 16;
    pub const CREATE_COMP_CHANNEL: u32 = 17;
    pub const CREATE_CQ: u32 = 18;
    pub const RESIZE_CQ: u32 = 19;
    pub const DESTROY_CQ: u32 = 20;
    pub const REQ_NOTIFY_CQ: u32 = 23;
    pub const CREATE_QP: u32 = 24;
    pub const QUERY_QP: u32 = 25;
    pub const MODIFY_QP: u32 = 26;
    pub const DESTROY_QP: u32 = 27;
    pub const POST_SEND: u32 = 28;
    pub const ATTACH_MCAST: u32 = 30;
    pub const DETACH_MCAST: u32 = 31;
    pub const CREATE_SRQ: u32 = 32;
    pub const MODIFY_SRQ: u32 = 33;
    pub const QUERY_SRQ: u32 = 34;
    pub const DESTROY_SRQ: u32 = 35;
    pub const OPEN_XRCD: u32 = 37;
    pub const CREATE_XSRQ: u32 = 39;
    pub const EXTENDED: u32 = 0x8000_0000;
}

/// Bytes of a structure, in the order of its members.
#[derive(Clone, Debug, Default)]
pub struct Bytes(pub Vec<u8>);

impl Bytes {
    pub fn new() -> Bytes {
        Bytes::default()
    }

    pub fn u8(mut self, value: u8) -> Bytes {
        self.0.push(value);
        self
    }

    pub fn u16(mut self, value: u16) -> Bytes {
        self.0.extend(value.to_ne_bytes());
        self
    }

    pub fn u32(mut self, value: u32) -> Bytes {
        self.0.extend(value.to_ne_bytes());
        self
    }

    pub fn u64(mut self, value: u64) -> Bytes {
        self.0.extend(value.to_ne_bytes());
        self
    }

    pub fn bytes(mut self, bytes: &[u8]) -> Bytes {
        self.0.extend(bytes);
        self
    }

    /// Zeroes up to a length of `len`.
    pub fn pad(mut self, len: usize) -> Bytes {
        assert!(self.0.len() <= len);
        self.0.resize(len, 0);
        self
    }
}

pub fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
}

pub fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap())
}

/// A legacy command: its header, the address of the response if there is one, and the rest of its structure.
pub fn legacy(number: u32, response: Option<&mut Vec<u8>>, rest: &Bytes) -> Vec<u8> {
    let out_len = response.as_ref().map_or(0, |response| response.len());
    let address = response.map(|response| response.as_mut_ptr() as u64);
    let len = 8 + address.map_or(0, |_| 8) + rest.0.len();
    assert!(len.is_multiple_of(4) && out_len.is_multiple_of(4));
    let header = Bytes::new().u32(number).u16((len / 4) as u16).u16((out_len / 4) as u16);
    let header = match address {
        Some(address) => header.u64(address),
        None => header,
    };
    header.bytes(&rest.0).0
}

/// An extended command. The last `provider_out` bytes of the response are the provider's.
pub fn extended(number: u32, response: &mut Vec<u8>, provider_out: usize, core: &Bytes) -> Vec<u8> {
    assert!(core.0.len().is_multiple_of(8) && response.len().is_multiple_of(8) && provider_out.is_multiple_of(8));
    let core_out = response.len() - provider_out;
    Bytes::new()
        .u32(number | cmd::EXTENDED)
        .u16((core.0.len() / 8) as u16)
        .u16((core_out / 8) as u16)
        .u64(response.as_mut_ptr() as u64)
        .u16(0)
        .u16((provider_out / 8) as u16)
        .u32(0)
        .bytes(&core.0)
        .0
}
