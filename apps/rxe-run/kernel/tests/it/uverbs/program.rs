//! A program: the part of libibverbs and the rxe provider that talks to the device.

use std::os::fd::{AsRawFd, IntoRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::socket::{MsgFlags, recv};
use nix::sys::uio::{pread, pwrite};
use rxe_proto::wire::Gid;

use super::bytes::{Bytes, cmd, extended, legacy, u32_at, u64_at};
use super::change::QpChange;
use super::work::recv_wqe;
use super::world::Side;

/// The device opened once.
pub struct Program {
    fd: OwnedFd,
    /// The handle of the context.
    pub context: u32,
    /// The channel of asynchronous events.
    pub events: EventChannel,
}

/// An event channel. Without GET_CONTEXT its descriptor is -1.
#[derive(Clone, Copy)]
pub struct EventChannel {
    pub handle: u32,
    pub fd: RawFd,
}

impl EventChannel {
    const NONE: EventChannel = EventChannel { handle: u32::MAX, fd: -1 };

    /// The channel whose descriptor a command has returned.
    fn made(side: &mut Side, fd: u32) -> EventChannel {
        let (handle, made) = side.uverbs.take_new_channel().expect("a channel was made");
        assert_eq!(made.as_raw_fd(), fd as RawFd);
        EventChannel { handle, fd: made.into_raw_fd() }
    }

    /// The program closes it.
    pub fn close(self, side: &mut Side) {
        nix::unistd::close(self.fd).unwrap();
        side.uverbs.close_channel(self.handle);
    }
}

/// Memory of a program, and its region.
pub struct Buffer {
    pub bytes: Vec<u8>,
    pub handle: u32,
    pub key: u32,
}

impl Buffer {
    pub fn addr(&self) -> u64 {
        self.bytes.as_ptr() as u64
    }

    /// `len` bytes at `at`, as a buffer of a work request.
    pub fn sge(&self, at: u64, len: u32) -> (u64, u32, u32) {
        (self.addr() + at, len, self.key)
    }
}

/// A queue as the program maps it. The same bytes are read and written through the file here.
#[derive(Clone, Copy, Debug)]
pub struct Queue {
    pub offset: u64,
    pub size: u32,
}

/// A completion, as `ibv_poll_cq` returns it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Completion {
    pub wr_id: u64,
    pub status: u32,
    pub opcode: u32,
    pub byte_len: u32,
    /// Immediate data in host order, or the invalidated key: by the flags.
    pub ex: [u8; 4],
    pub qp_num: u32,
    pub src_qp: u32,
    pub flags: u32,
}

pub struct Cq {
    pub handle: u32,
    pub cqe: u32,
    pub queue: Queue,
}

pub struct Srq {
    pub handle: u32,
    pub max_wr: u32,
    pub queue: Queue,
}

pub struct Qp {
    pub handle: u32,
    pub qpn: u32,
    pub max_send_wr: u32,
    pub max_recv_wr: u32,
    pub max_inline_data: u32,
    pub sends: Queue,
    pub receives: Queue,
}

pub const RC: u8 = 2;
pub const UC: u8 = 3;
pub const UD: u8 = 4;

/// Creation parameters of a queue pair.
#[derive(Clone, Copy)]
pub struct QpInit {
    pub qp_type: u8,
    pub pd: u32,
    pub send_cq: u32,
    pub recv_cq: u32,
    pub srq: Option<u32>,
    pub send_wr: u32,
    pub recv_wr: u32,
    pub send_sge: u32,
    pub recv_sge: u32,
    pub inline_data: u32,
    pub sq_sig_all: bool,
}

impl QpInit {
    pub fn new(qp_type: u8, pd: u32, cq: u32) -> QpInit {
        QpInit {
            qp_type,
            pd,
            send_cq: cq,
            recv_cq: cq,
            srq: None,
            send_wr: 16,
            recv_wr: 16,
            send_sge: 2,
            recv_sge: 2,
            inline_data: 64,
            sq_sig_all: false,
        }
    }

    /// From `pd_handle` to `reserved` of `ib_uverbs_create_qp`.
    fn bytes(&self) -> Bytes {
        Bytes::new()
            .u32(self.pd)
            .u32(self.send_cq)
            .u32(self.recv_cq)
            .u32(self.srq.unwrap_or(0))
            .u32(self.send_wr)
            .u32(self.recv_wr)
            .u32(self.send_sge)
            .u32(self.recv_sge)
            .u32(self.inline_data)
            .u8(self.sq_sig_all.into())
            .u8(self.qp_type)
            .u8(self.srq.is_some().into())
            .u8(0)
    }
}

impl Program {
    pub fn open(side: &mut Side) -> Program {
        let mut program = Program::open_only(side);
        let mut response = vec![0; 8];
        let command = legacy(cmd::GET_CONTEXT, Some(&mut response), &Bytes::new());
        program.write(side, &command).unwrap();
        assert!(u32_at(&response, 4) >= 1, "completion vectors");
        program.events = EventChannel::made(side, u32_at(&response, 0));
        program
    }

    /// The device opened, without GET_CONTEXT.
    pub fn open_only(side: &mut Side) -> Program {
        let (context, fd) = side.uverbs.open().unwrap();
        // A program maps the queues. This one writes to the file instead, which appends unless it is told otherwise.
        fcntl(&fd, FcntlArg::F_SETFL(OFlag::empty())).unwrap();
        Program { fd, context, events: EventChannel::NONE }
    }

    pub fn fd(&self) -> i32 {
        self.fd.as_raw_fd()
    }

    /// As libibverbs closes it.
    pub fn close(self, side: &mut Side) {
        self.events.close(side);
        side.uverbs.close(&mut side.engine, side.now, self.context);
    }

    pub fn write(&self, side: &mut Side, command: &[u8]) -> Result<(), Errno> {
        side.write(self.context, command)
    }

    /// A command with a response of `out` bytes.
    pub fn call(&self, side: &mut Side, number: u32, rest: Bytes, out: usize) -> Result<Vec<u8>, Errno> {
        let mut response = vec![0xEE; out];
        let command = legacy(number, Some(&mut response), &rest);
        self.write(side, &command).map(|()| response)
    }

    /// A command without response.
    pub fn tell(&self, side: &mut Side, number: u32, rest: Bytes) -> Result<(), Errno> {
        self.write(side, &legacy(number, None, &rest))
    }

    pub fn alloc_pd(&self, side: &mut Side) -> u32 {
        u32_at(&self.call(side, cmd::ALLOC_PD, Bytes::new(), 4).unwrap(), 0)
    }

    /// REG_MR; returns handle and key.
    pub fn reg_mr(&self, side: &mut Side, pd: u32, addr: u64, len: u64, access: u32) -> Result<(u32, u32), Errno> {
        let rest = Bytes::new().u64(addr).u64(len).u64(addr).u32(pd).u32(access);
        let reply = self.call(side, cmd::REG_MR, rest, 12)?;
        assert_eq!(u32_at(&reply, 4), u32_at(&reply, 8), "local and remote key");
        Ok((u32_at(&reply, 0), u32_at(&reply, 4)))
    }

    /// Registered memory, with all rights.
    pub fn buffer(&self, side: &mut Side, pd: u32, len: usize) -> Buffer {
        let mut bytes = vec![0; len];
        let (handle, key) = self.reg_mr(side, pd, bytes.as_mut_ptr() as u64, len as u64, 0x1F).unwrap();
        Buffer { bytes, handle, key }
    }

    pub fn create_channel(&self, side: &mut Side) -> EventChannel {
        let response = self.call(side, cmd::CREATE_COMP_CHANNEL, Bytes::new(), 4).unwrap();
        EventChannel::made(side, u32_at(&response, 0))
    }

    pub fn create_cq(&self, side: &mut Side, cqe: u32, channel: i32, user_handle: u64) -> Result<Cq, Errno> {
        let rest = Bytes::new().u64(user_handle).u32(cqe).u32(0).u32(channel as u32).u32(0);
        let reply = self.call(side, cmd::CREATE_CQ, rest, 24)?;
        Ok(Cq { handle: u32_at(&reply, 0), cqe: u32_at(&reply, 4), queue: queue_at(&reply, 8) })
    }

    /// RESIZE_CQ; `cq` has the new queue then.
    pub fn resize_cq(&self, side: &mut Side, cq: &mut Cq, cqe: u32) -> Result<(), Errno> {
        let reply = self.call(side, cmd::RESIZE_CQ, Bytes::new().u32(cq.handle).u32(cqe), 24)?;
        (cq.cqe, cq.queue) = (u32_at(&reply, 0), queue_at(&reply, 8));
        Ok(())
    }

    pub fn req_notify(&self, side: &mut Side, cq: &Cq, solicited_only: bool) {
        self.tell(side, cmd::REQ_NOTIFY_CQ, Bytes::new().u32(cq.handle).u32(solicited_only.into())).unwrap();
    }

    /// DESTROY_CQ; returns the completion and asynchronous events reported.
    pub fn destroy_cq(&self, side: &mut Side, cq: &Cq) -> Result<(u32, u32), Errno> {
        let reply = self.call(side, cmd::DESTROY_CQ, Bytes::new().u32(cq.handle).u32(0), 8)?;
        Ok((u32_at(&reply, 0), u32_at(&reply, 4)))
    }

    pub fn create_srq(&self, side: &mut Side, pd: u32, max_wr: u32, limit: u32) -> Result<Srq, Errno> {
        let rest = Bytes::new().u64(0x5E5E).u32(pd).u32(max_wr).u32(2).u32(limit);
        let reply = self.call(side, cmd::CREATE_SRQ, rest, 40)?;
        assert_eq!(u32_at(&reply, 8), 2, "max_sge");
        Ok(Srq { handle: u32_at(&reply, 0), max_wr: u32_at(&reply, 4), queue: queue_at(&reply, 16) })
    }

    pub fn create_qp(&self, side: &mut Side, init: &QpInit, user_handle: u64) -> Result<Qp, Errno> {
        let rest = Bytes::new().u64(user_handle).bytes(&init.bytes().0);
        let reply = self.call(side, cmd::CREATE_QP, rest, 64)?;
        Ok(qp_of(&reply, 32))
    }

    /// The same by EX_CREATE_QP.
    pub fn create_qp_ex(&self, side: &mut Side, init: &QpInit, user_handle: u64) -> Result<Qp, Errno> {
        let core = Bytes::new().u64(user_handle).bytes(&init.bytes().0).u32(0).u32(0).u32(0).u32(0);
        let mut response = vec![0xEE; 72];
        let command = extended(cmd::CREATE_QP, &mut response, 32, &core);
        self.write(side, &command)?;
        assert_eq!((u32_at(&response, 32), u32_at(&response, 36)), (0, 40), "comp_mask, response_length");
        Ok(qp_of(&response, 40))
    }

    /// DESTROY_QP; returns the events reported.
    pub fn destroy_qp(&self, side: &mut Side, qp: &Qp) -> Result<u32, Errno> {
        self.call(side, cmd::DESTROY_QP, Bytes::new().u32(qp.handle).u32(0), 4).map(|reply| u32_at(&reply, 0))
    }

    pub fn modify_qp(&self, side: &mut Side, qp: &Qp, change: &QpChange) -> Result<(), Errno> {
        self.tell(side, cmd::MODIFY_QP, change.bytes(qp.handle))
    }

    /// The reply of QUERY_QP.
    pub fn query_qp(&self, side: &mut Side, qp: &Qp) -> Vec<u8> {
        self.call(side, cmd::QUERY_QP, Bytes::new().u32(qp.handle).u32(0), 128).unwrap()
    }

    pub fn qp_state(&self, side: &mut Side, qp: &Qp) -> u8 {
        self.query_qp(side, qp)[108]
    }

    /// CREATE_AH; returns the handle and the provider's number.
    pub fn create_ah(&self, side: &mut Side, pd: u32, dgid: Gid, sgid_index: u8) -> Result<(u32, u32), Errno> {
        let reply = self.call(side, cmd::CREATE_AH, ah_request(pd, dgid, sgid_index, 1, 1), 12)?;
        Ok((u32_at(&reply, 0), u32_at(&reply, 4)))
    }

    /// RESET to INIT as the pingpong programs do.
    pub fn to_init(&self, side: &mut Side, qp: &Qp, qp_type: u8) {
        let change = QpChange { state: Some(1), pkey_index: Some(0), port: Some(1), ..QpChange::default() };
        let change = match qp_type {
            UD => QpChange { qkey: Some(0x1111_1111), ..change },
            _ => QpChange { access: Some(0xE), ..change },
        };
        self.modify_qp(side, qp, &change).unwrap();
    }

    /// The next event of a descriptor, of `N` bytes.
    pub fn next_event<const N: usize>(fd: i32) -> Option<[u8; N]> {
        let mut event = [0; N];
        match recv(fd, &mut event, MsgFlags::MSG_DONTWAIT) {
            Ok(len) => {
                assert_eq!(len, N);
                Some(event)
            }
            Err(Errno::EAGAIN) => None,
            Err(error) => panic!("{error}"),
        }
    }

    /// The user handle of the next completion event.
    pub fn comp_event(channel: i32) -> Option<u64> {
        Program::next_event::<8>(channel).map(u64::from_ne_bytes)
    }

    /// User handle, or port, and type of the next asynchronous event.
    pub fn async_event(&self) -> Option<(u64, u32)> {
        Program::next_event::<16>(self.events.fd).map(|event| (u64_at(&event, 0), u32_at(&event, 8)))
    }

    pub fn read_u32(&self, at: u64) -> u32 {
        let mut bytes = [0; 4];
        assert_eq!(pread(&self.fd, &mut bytes, at as i64), Ok(4));
        u32::from_ne_bytes(bytes)
    }

    pub fn write_at(&self, at: u64, bytes: &[u8]) {
        assert_eq!(pwrite(&self.fd, bytes, at as i64), Ok(bytes.len()));
    }

    /// `index_mask`
    pub fn mask(&self, queue: Queue) -> u32 {
        self.read_u32(queue.offset + 4)
    }

    pub fn producer(&self, queue: Queue) -> u32 {
        self.read_u32(queue.offset + 128)
    }

    pub fn consumer(&self, queue: Queue) -> u32 {
        self.read_u32(queue.offset + 256)
    }

    fn entry(&self, queue: Queue, index: u32) -> u64 {
        queue.offset + 384 + (u64::from(index) << self.read_u32(queue.offset))
    }

    /// Adds an entry to a work queue, as the provider does; `ENOMEM` when it is full.
    pub fn push(&self, queue: Queue, entry: &Bytes) -> Result<(), Errno> {
        let (producer, mask) = (self.producer(queue), self.mask(queue));
        if self.consumer(queue) == (producer + 1) & mask {
            return Err(Errno::ENOMEM);
        }
        assert!(entry.0.len() <= 1 << self.read_u32(queue.offset));
        self.write_at(self.entry(queue, producer), &entry.0);
        self.write_at(queue.offset + 128, &((producer + 1) & mask).to_ne_bytes());
        Ok(())
    }

    /// Posts a work request and rings the doorbell.
    pub fn post_send(&self, side: &mut Side, qp: &Qp, wqe: &Bytes) -> Result<(), Errno> {
        let pushed = self.push(qp.sends, wqe);
        self.doorbell(side, qp)?;
        pushed
    }

    /// Posts work requests and rings the doorbell once, as `ibv_post_send` does with a list.
    pub fn post_sends(&self, side: &mut Side, qp: &Qp, wqes: &[Bytes]) -> Result<(), Errno> {
        wqes.iter().try_for_each(|wqe| self.push(qp.sends, wqe))?;
        self.doorbell(side, qp)
    }

    pub fn doorbell(&self, side: &mut Side, qp: &Qp) -> Result<(), Errno> {
        let rest = Bytes::new().u32(qp.handle).u32(0).u32(0).u32(128);
        self.call(side, cmd::POST_SEND, rest, 4).map(|_| ())
    }

    pub fn post_recv(&self, queue: Queue, wr_id: u64, sges: &[(u64, u32, u32)]) -> Result<(), Errno> {
        self.push(queue, &recv_wqe(wr_id, sges))
    }

    /// The next completion.
    pub fn poll(&self, cq: &Cq) -> Option<Completion> {
        let consumer = self.consumer(cq.queue);
        if consumer == self.producer(cq.queue) {
            return None;
        }
        let mut wc = [0; 48];
        assert_eq!(pread(&self.fd, &mut wc, self.entry(cq.queue, consumer) as i64), Ok(48));
        let next = (consumer + 1) & self.mask(cq.queue);
        self.write_at(cq.queue.offset + 256, &next.to_ne_bytes());
        Some(Completion {
            wr_id: u64_at(&wc, 0),
            status: u32_at(&wc, 8),
            opcode: u32_at(&wc, 12),
            byte_len: u32_at(&wc, 20),
            ex: wc[24..28].try_into().unwrap(),
            qp_num: u32_at(&wc, 28),
            src_qp: u32_at(&wc, 32),
            flags: u32_at(&wc, 36),
        })
    }
}

fn queue_at(reply: &[u8], at: usize) -> Queue {
    Queue { offset: u64_at(reply, at), size: u32_at(reply, at + 8) }
}

fn qp_of(reply: &[u8], provider: usize) -> Qp {
    Qp {
        handle: u32_at(reply, 0),
        qpn: u32_at(reply, 4),
        max_send_wr: u32_at(reply, 8),
        max_recv_wr: u32_at(reply, 12),
        max_inline_data: u32_at(reply, 24),
        receives: queue_at(reply, provider),
        sends: queue_at(reply, provider + 16),
    }
}

/// `ib_uverbs_create_ah` after `response`.
pub fn ah_request(pd: u32, dgid: Gid, sgid_index: u8, is_global: u8, port: u8) -> Bytes {
    let grh = Bytes::new().bytes(&dgid.0).u32(0).u8(sgid_index).u8(1).u8(0).u8(0);
    let attr = grh.u16(0).u8(0).u8(0).u8(0).u8(is_global).u8(port).u8(0);
    Bytes::new().u64(0xA4).u32(pd).u32(0).bytes(&attr.0)
}
