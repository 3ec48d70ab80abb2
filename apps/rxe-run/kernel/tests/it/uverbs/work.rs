//! Entries of work queues, as the rxe provider writes them.

use super::bytes::Bytes;

/// Opcodes and flags of work requests, as in verbs.h.
pub mod wr {
    pub const RDMA_WRITE: u32 = 0;
    pub const RDMA_WRITE_WITH_IMM: u32 = 1;
    pub const SEND: u32 = 2;
    pub const SEND_WITH_IMM: u32 = 3;
    pub const RDMA_READ: u32 = 4;
    pub const ATOMIC_CMP_AND_SWP: u32 = 5;
    pub const ATOMIC_FETCH_AND_ADD: u32 = 6;
    pub const LOCAL_INV: u32 = 7;
    pub const BIND_MW: u32 = 8;
    pub const SEND_WITH_INV: u32 = 9;
    pub const ATOMIC_WRITE: u32 = 15;
    pub const FENCE: u32 = 1;
    pub const SIGNALED: u32 = 2;
    pub const SOLICITED: u32 = 4;
    pub const INLINE: u32 = 8;
}

/// A work request: `rxe_send_wqe`.
#[derive(Clone, Debug, Default)]
pub struct Wr {
    pub wr_id: u64,
    pub opcode: u32,
    pub flags: u32,
    pub ex: [u8; 4],
    /// The union `wr`.
    pub union: Bytes,
    pub sges: Vec<(u64, u32, u32)>,
    pub inline: Option<Vec<u8>>,
}

impl Wr {
    pub fn new(wr_id: u64, opcode: u32) -> Wr {
        Wr { wr_id, opcode, flags: wr::SIGNALED, ..Wr::default() }
    }

    pub fn flags(self, flags: u32) -> Wr {
        Wr { flags, ..self }
    }

    pub fn sge(mut self, sge: (u64, u32, u32)) -> Wr {
        self.sges.push(sge);
        self
    }

    pub fn inline(self, data: &[u8]) -> Wr {
        Wr { inline: Some(data.to_vec()), flags: self.flags | wr::INLINE, ..self }
    }

    /// Immediate data, in host order.
    pub fn imm(self, imm: u32) -> Wr {
        Wr { ex: imm.to_be_bytes(), ..self }
    }

    pub fn key(self, key: u32) -> Wr {
        Wr { ex: key.to_ne_bytes(), ..self }
    }

    pub fn remote(self, addr: u64, rkey: u32) -> Wr {
        Wr { union: Bytes::new().u64(addr).u32(rkey).u32(0), ..self }
    }

    pub fn atomic(self, addr: u64, rkey: u32, compare_add: u64, swap: u64) -> Wr {
        Wr { union: Bytes::new().u64(addr).u64(compare_add).u64(swap).u32(rkey).u32(0), ..self }
    }

    pub fn to(self, qpn: u32, qkey: u32, ah_num: u32) -> Wr {
        Wr { union: Bytes::new().u32(qpn).u32(qkey).u16(0).u16(0).u32(ah_num), ..self }
    }

    pub fn bind(self, addr: u64, len: u64, mr_lkey: u32, mw_rkey: u32, rkey: u32, access: u32) -> Wr {
        Wr { union: Bytes::new().u64(addr).u64(len).u32(mr_lkey).u32(mw_rkey).u32(rkey).u32(access), ..self }
    }

    pub fn bytes(&self) -> Bytes {
        let (length, payload) = match &self.inline {
            Some(data) => (data.len() as u32, data.clone()),
            None => (self.sges.iter().map(|sge| sge.1).sum(), sge_bytes(&self.sges)),
        };
        Bytes::new()
            .u64(self.wr_id)
            .u32(0)
            .u32(self.opcode)
            .u32(self.flags)
            .bytes(&self.ex)
            .bytes(&self.union.0)
            .pad(184)
            .u32(length)
            .u32(length)
            .u32(0)
            .u32(self.sges.len() as u32)
            .u32(0)
            .u32(0)
            .bytes(&payload)
    }
}

fn sge_bytes(sges: &[(u64, u32, u32)]) -> Vec<u8> {
    sges.iter().fold(Bytes::new(), |bytes, &(addr, len, key)| bytes.u64(addr).u32(len).u32(key)).0
}

/// `rxe_recv_wqe`
pub fn recv_wqe(wr_id: u64, sges: &[(u64, u32, u32)]) -> Bytes {
    let length = sges.iter().map(|sge| sge.1).fold(0, u32::wrapping_add);
    let wqe = Bytes::new().u64(wr_id).u64(0).u32(length).u32(length).u32(0).u32(sges.len() as u32).u64(0);
    wqe.bytes(&sge_bytes(sges))
}
