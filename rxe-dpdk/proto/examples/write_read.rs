//! RDMA WRITE into the peer's memory, then READ it back: the peer's program takes no part. Run it with
//! `cargo run -p rxe-proto --example write_read`.

pub mod common;

use common::{Failure, Link};
use rxe_proto::verbs::{
    Access, Memory, MemoryRegion, Payload, ProtectionDomain, QpCaps, QpInitAttr, QueuePair, Rc, RemoteAddr, RtrAttr,
    RtsAttr, WcOpcode, WorkRequest,
};
use rxe_proto::wire::PathMtu;

/// Bytes written and read: more than the transport has under way at once.
pub const LEN: usize = 1 << 20;
const INITIATOR: usize = 0;
const TARGET: usize = 1;

/// The peer's access to the target's memory. Region and queue pair must both allow it.
const ALLOWED: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ);

/// The target, and what it tells the initiator.
struct Target {
    qp: QueuePair<Rc>,
    mr: MemoryRegion,
    there: RemoteAddr,
}

fn target(link: &mut Link) -> Result<Target, Failure> {
    let mut dev = link.device(TARGET);
    let pd = dev.alloc_pd();
    let cq = dev.create_cq(16)?;
    let qp = dev.create_qp(pd, QpInitAttr::new(cq))?;
    let mr = dev.reg_mr(pd, Memory::heap(LEN + 8), Access::LOCAL_WRITE | ALLOWED)?;
    let there = mr.remote(0)?;
    Ok(Target { qp, mr, there })
}

fn connect(link: &mut Link, end: usize, qp: QueuePair<Rc>, peer: QueuePair<Rc>) -> Result<(), Failure> {
    // Up to 4 READs at a time, to us and from us.
    let rtr = RtrAttr {
        path: Link::path(end),
        path_mtu: PathMtu::Mtu4096,
        dest_qpn: peer.qpn(),
        max_dest_rd_atomic: 4,
        ..RtrAttr::default()
    };
    let rts = RtsAttr { max_rd_atomic: 4, ..RtsAttr::default() };
    let access = if end == TARGET { ALLOWED } else { Access::empty() };
    Ok(qp.connect(&mut link.device(end), access, rtr, rts)?)
}

/// Writes [`LEN`] bytes, reads them back, compares. `tamper` gets the target's memory in between.
pub fn run(link: &mut Link, tamper: impl FnOnce(&Memory)) -> Result<(), Failure> {
    let Target { qp: peer, mr: exported, there } = target(link)?;

    let mut dev = link.device(INITIATOR);
    let pd: ProtectionDomain = dev.alloc_pd();
    let cq = dev.create_cq(16)?;
    let caps = QpCaps { max_send_wr: 8, max_send_sge: 2, max_inline_data: 8, ..QpCaps::default() };
    let qp = dev.create_qp(pd, QpInitAttr { caps, ..QpInitAttr::new(cq) })?;
    let source = dev.reg_mr(pd, Memory::heap(LEN), Access::empty())?;
    let back = dev.reg_mr(pd, Memory::heap(LEN), Access::LOCAL_WRITE)?;
    connect(link, INITIATOR, qp, peer)?;
    connect(link, TARGET, peer, qp)?;

    let bytes: Vec<u8> = (0..LEN as u32).map(|i| (i.wrapping_mul(0x9E37_79B9) >> 24) as u8).collect();
    source.memory().write(0, &bytes)?;

    // Two WRITEs, the first one from two buffers, the second one with its bytes in the request. The later one alone is
    // signalled: it completes after the earlier one.
    let halves = [source.sge(..LEN / 2)?, source.sge(LEN / 2..)?];
    let flag = exported.remote(LEN)?;
    let mut dev = link.device(INITIATOR);
    dev.post_send(qp, WorkRequest::write(&halves, there).wr_id(1))?;
    dev.post_send(qp, WorkRequest::write(Payload::Inline(b"complete"), flag).wr_id(2).signaled())?;
    let wc = link.completion(INITIATOR, cq)?;
    if (wc.wr_id, wc.opcode) != (2, WcOpcode::RdmaWrite) {
        return Err(format!("not the completion of the second WRITE: {wc:?}").into());
    }
    tamper(exported.memory());

    link.device(INITIATOR).post_send(qp, WorkRequest::read(&[back.sge(..)?], there).wr_id(3).signaled())?;
    let wc = link.completion(INITIATOR, cq)?;
    let (mut read, mut word) = (vec![0; wc.byte_len as usize], [0; 8]);
    back.memory().read(0, &mut read)?;
    exported.memory().read(LEN, &mut word)?;
    if wc.wr_id != 3 || read != bytes || &word != b"complete" {
        return Err("what was read is not what was written".into());
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    let mut link = Link::new(None);
    run(&mut link, |_| {})?;
    println!("{LEN} bytes written and read back, the same: {} frames", link.frames());
    Ok(())
}
