//! A connection of the initiator to a region, and operations on it.

use std::time::{Duration, Instant};

use rxe_dpdk::rxe_proto::cm::{CmEvent, ConnId};
use rxe_dpdk::rxe_proto::mem::{Access, Memory};
use rxe_dpdk::rxe_proto::transport::{Qpn, RemoteAddr, SendFlags, SendOp, SendWr, Sge, WcStatus};

use rxe_dpdk::rxe_proto::wire::{BthFields, BthOpcode, DEFAULT_PKEY, HeaderTemplate, Opcode, Path, TxQueue};

use super::Initiator;

pub struct Connection {
    pub(super) qpn: Qpn,
    pub(super) peer_qpn: u32,
    pub(super) conn: ConnId,
    pub(super) address: u64,
    pub(super) len: u64,
    pub(super) rkey: u32,
}

/// A posted operation.
pub struct Posted {
    op: SendOp,
    memory: Memory,
    lkey: u32,
}

impl Posted {
    /// Waits for the completion of the only operation that is posted; returns its status and what the buffer holds then.
    pub fn finish(self, on: &mut Initiator) -> (WcStatus, Vec<u8>) {
        let completion = on.completion(&self.op);
        assert_eq!(completion.wr_id, 7);
        (completion.status, self.take(on))
    }

    /// Waits until all that are posted succeed; returns what the buffers hold then.
    pub fn finish_all(all: Vec<Posted>, on: &mut Initiator) -> Vec<Vec<u8>> {
        for posted in &all {
            let completion = on.completion(&posted.op);
            assert_eq!((completion.wr_id, completion.status), (7, WcStatus::Success));
        }
        all.into_iter().map(|posted| posted.take(on)).collect()
    }

    fn take(self, on: &mut Initiator) -> Vec<u8> {
        let mut result = vec![0; self.memory.len()];
        self.memory.read(0, &mut result).unwrap();
        on.engine.keys_mut().deregister(self.lkey).unwrap();
        result
    }
}

impl Connection {
    pub fn region_len(&self) -> u64 {
        self.len
    }

    /// Our queue pair.
    pub fn qpn(&self) -> u32 {
        self.qpn.get()
    }

    /// The target's queue pair.
    pub fn peer_qpn(&self) -> u32 {
        self.peer_qpn
    }

    /// Address of the region.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Key of the region.
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Carries out one operation on a buffer that holds `bytes`, and returns what the buffer holds then.
    fn run(&self, on: &mut Initiator, bytes: &[u8], op: SendOp) -> Vec<u8> {
        let (status, result) = self.try_run(on, bytes, op);
        assert_eq!(status, WcStatus::Success);
        result
    }

    /// The same, however it ends.
    fn try_run(&self, on: &mut Initiator, bytes: &[u8], op: SendOp) -> (WcStatus, Vec<u8>) {
        self.post(on, bytes, op).finish(on)
    }

    /// Posts an operation.
    fn post(&self, on: &mut Initiator, bytes: &[u8], op: SendOp) -> Posted {
        let memory = Memory::heap(bytes.len());
        memory.write(0, bytes).unwrap();
        let region = on.engine.keys_mut().register(on.pd, memory.clone(), 0x1000, Access::LOCAL_WRITE).unwrap();
        let (addr, lkey, length) = (region.addr(), region.lkey(), bytes.len() as u32);
        let wr = SendWr { wr_id: 7, op, sges: &[Sge { addr, length, lkey }], flags: SendFlags::SIGNALED };
        on.engine.post_send(self.qpn, &wr).unwrap();
        Posted { op, memory, lkey }
    }

    pub fn post_write(&self, on: &mut Initiator, offset: u64, bytes: &[u8]) -> Posted {
        self.post(on, bytes, SendOp::Write { remote: self.remote(offset), imm: None })
    }

    pub fn post_read(&self, on: &mut Initiator, offset: u64, len: usize) -> Posted {
        self.post(on, &vec![0; len], SendOp::Read { remote: self.remote(offset) })
    }

    fn remote(&self, offset: u64) -> RemoteAddr {
        RemoteAddr { addr: self.address + offset, rkey: self.rkey }
    }

    pub fn write(&mut self, on: &mut Initiator, offset: u64, bytes: &[u8]) {
        self.run(on, bytes, SendOp::Write { remote: self.remote(offset), imm: None });
    }

    /// WRITEs 4096 bytes again and again, eight times at once, for a time. Returns the number of WRITEs per second.
    pub fn write_for(&mut self, on: &mut Initiator, time: Duration) -> f64 {
        let memory = Memory::heap(4096);
        let region = on.engine.keys_mut().register(on.pd, memory, 0x1000, Access::LOCAL_WRITE).unwrap();
        let sge = Sge { addr: region.addr(), length: 4096, lkey: region.lkey() };
        let op = SendOp::Write { remote: self.remote(0), imm: None };
        let wr = SendWr { wr_id: 7, op, sges: &[sge], flags: SendFlags::SIGNALED };
        let (began, mut written, mut outstanding) = (Instant::now(), 0_u32, 0);
        while began.elapsed() < time {
            while outstanding < 8 {
                on.engine.post_send(self.qpn, &wr).unwrap();
                outstanding += 1;
            }
            on.turn();
            while let Some(completion) = on.engine.poll_cq_one(on.cq) {
                assert_eq!(completion.status, WcStatus::Success);
                (outstanding, written) = (outstanding - 1, written + 1);
            }
        }
        let rate = f64::from(written) / began.elapsed().as_secs_f64();
        for _ in 0..outstanding {
            assert_eq!(on.completion(&op).status, WcStatus::Success);
        }
        on.engine.keys_mut().deregister(region.lkey()).unwrap();
        rate
    }

    /// A WRITE that the target does not take.
    pub fn refused_write(&mut self, on: &mut Initiator, offset: u64, bytes: &[u8]) -> WcStatus {
        self.try_run(on, bytes, SendOp::Write { remote: self.remote(offset), imm: None }).0
    }

    pub fn read(&mut self, on: &mut Initiator, offset: u64, len: usize) -> Vec<u8> {
        self.run(on, &vec![0; len], SendOp::Read { remote: self.remote(offset) })
    }

    /// A READ that the target does not answer.
    pub fn refused_read(&mut self, on: &mut Initiator, offset: u64, len: usize) -> WcStatus {
        self.try_run(on, &vec![0; len], SendOp::Read { remote: self.remote(offset) }).0
    }

    /// READs from the beginning of another connection's region.
    pub fn read_at(&self, on: &mut Initiator, other: &Connection, len: usize) -> Result<Vec<u8>, WcStatus> {
        let (status, bytes) = self.try_run(on, &vec![0; len], SendOp::Read { remote: other.remote(0) });
        if status == WcStatus::Success { Ok(bytes) } else { Err(status) }
    }

    pub fn refused_fetch_add(&self, on: &mut Initiator, offset: u64, add: u64) -> WcStatus {
        self.try_run(on, &[0; 8], SendOp::FetchAdd { remote: self.remote(offset), add }).0
    }

    /// Sends the connection's next packet as another station would: a WRITE of 8 bytes at the beginning of its region, with
    /// addresses and BTH changed by `change`. The connection itself does not count it.
    pub fn forge(&self, on: &mut Initiator, bytes: [u8; 8], change: impl FnOnce(&mut Path, &mut BthFields)) {
        let info = on.engine.query_qp(self.qpn).unwrap();
        let (mut path, dest_qpn) = (info.path.unwrap(), info.dest_qpn.unwrap());
        let mut fields = BthFields {
            opcode: BthOpcode::rc(Opcode::WriteOnly),
            dest_qp: dest_qpn.get(),
            psn: info.next_psn,
            solicited: false,
            ack_req: true,
            pkey: DEFAULT_PKEY,
        };
        change(&mut path, &mut fields);
        let template = HeaderTemplate::new(&path);
        let frame = on.tx.push(path.port, template.frame_len(fields.opcode, 8)).unwrap();
        let mut packet = template.build(frame, fields, 8);
        packet.reth(self.address, self.rkey, 8);
        packet.payload_mut().copy_from_slice(&bytes);
        packet.finish();
        on.tx.0.flush();
    }

    pub fn atomic_write(&mut self, on: &mut Initiator, offset: u64, bytes: [u8; 8]) {
        self.run(on, &bytes, SendOp::AtomicWrite { remote: self.remote(offset) });
    }

    pub fn flush(&mut self, on: &mut Initiator, offset: u64, length: u32) {
        let op = SendOp::Flush { remote: self.remote(offset), length, whole_region: false, persistent: false };
        self.run(on, &[], op);
    }

    /// The value before the operation.
    pub fn fetch_add(&mut self, on: &mut Initiator, offset: u64, add: u64) -> u64 {
        let was = self.run(on, &[0; 8], SendOp::FetchAdd { remote: self.remote(offset), add });
        u64::from_ne_bytes(was.try_into().unwrap())
    }

    pub fn disconnect(self, on: &mut Initiator) {
        on.cm.disconnect(on.clock.now(), self.conn).unwrap();
        self.await_disconnect(on);
    }

    /// The end of the connection, requested by either side.
    pub fn await_disconnect(self, on: &mut Initiator) {
        let event = on.event();
        assert!(matches!(event, CmEvent::Disconnected { conn, .. } if conn == self.conn), "{event:?}");
        on.engine.destroy_qp(on.clock.now(), self.qpn).unwrap();
    }
}
