//! Code that the tests of the verbs share: the link of the examples, and an end with one of everything.

#[path = "../../../examples/common/mod.rs"]
mod common;

pub use common::Link;
use rxe_proto::verbs::{
    Access, CompletionQueue, Connected, Memory, MemoryRegion, ProtectionDomain, QpCaps, QpInitAttr, QueuePair, RtrAttr,
    RtsAttr, Sge, TransportService, WcOpcode, WcStatus, WorkCompletion,
};

/// Access of peers.
pub const REMOTE: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

/// One end: everything that a queue pair needs.
pub struct End {
    pub end: usize,
    pub pd: ProtectionDomain,
    pub cq: CompletionQueue,
    /// 4 KiB that the owner and peers may read and write.
    pub mr: MemoryRegion,
}

impl End {
    pub fn new(link: &mut Link, end: usize) -> End {
        let mut dev = link.device(end);
        let pd = dev.alloc_pd();
        let cq = dev.create_cq(64).unwrap();
        let mr = dev.reg_mr(pd, Memory::heap(4096), Access::LOCAL_WRITE | Access::MW_BIND | REMOTE).unwrap();
        End { end, pd, cq, mr }
    }

    /// Queues of 8 with room for 2 buffers and 64 bytes inline.
    pub fn attr(&self) -> QpInitAttr {
        let caps = QpCaps { max_send_wr: 8, max_recv_wr: 8, max_send_sge: 2, max_recv_sge: 2, max_inline_data: 64 };
        QpInitAttr { caps, ..QpInitAttr::new(self.cq) }
    }

    pub fn qp<T: TransportService>(&self, link: &mut Link) -> QueuePair<T> {
        link.device(self.end).create_qp(self.pd, self.attr()).unwrap()
    }

    /// The buffer of `len` bytes at `offset`.
    pub fn sge(&self, offset: usize, len: usize) -> Sge {
        self.mr.sge(offset..offset + len).unwrap()
    }

    pub fn write(&self, offset: usize, bytes: &[u8]) {
        self.mr.memory().write(offset, bytes).unwrap();
    }

    pub fn read(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.mr.memory().read(offset, &mut bytes).unwrap();
        bytes
    }

    /// Everything that has completed.
    pub fn completions(&self, link: &mut Link) -> Vec<WorkCompletion> {
        let mut out = Vec::new();
        let n = link.device(self.end).poll_cq(self.cq, &mut out, usize::MAX);
        assert_eq!(n, out.len());
        out
    }

    /// Everything that has completed: number, what, how.
    pub fn outcomes(&self, link: &mut Link) -> Vec<(u64, WcOpcode, WcStatus)> {
        self.completions(link).iter().map(|wc| (wc.wr_id, wc.opcode, wc.status)).collect()
    }
}

/// Takes both queue pairs, of ends 0 and 1, to RTS.
pub fn connect<T: Connected>(link: &mut Link, qps: [QueuePair<T>; 2]) {
    for end in 0..2 {
        let rtr = RtrAttr {
            path: Link::path(end),
            dest_qpn: qps[1 - end].qpn(),
            max_dest_rd_atomic: 4,
            ..Default::default()
        };
        let rts = RtsAttr { max_rd_atomic: 4, ..RtsAttr::default() };
        qps[end].connect(&mut link.device(end), REMOTE, rtr, rts).unwrap();
    }
}

/// Two ends with one connected queue pair each.
pub fn pair<T: Connected>(link: &mut Link) -> ([End; 2], [QueuePair<T>; 2]) {
    let ends = [End::new(link, 0), End::new(link, 1)];
    let qps = [ends[0].qp(link), ends[1].qp(link)];
    connect(link, qps);
    (ends, qps)
}

/// Turns until nothing is left to happen.
pub fn settle(link: &mut Link) {
    for _ in 0..100_000 {
        if !link.turn() {
            return;
        }
    }
    panic!("never comes to rest");
}
