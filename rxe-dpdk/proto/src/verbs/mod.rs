//! The interface that services and tools program against, in the terms of libibverbs.
//!
//! ```text
//! Device ── ProtectionDomain ─┬─ MemoryRegion
//!   │                         ├─ MemoryWindow, FastRegMr (keys whose bytes change)
//!   │                         ├─ AddressHandle         (destinations of datagrams)
//!   │                         ├─ SharedReceiveQueue    (receives for several queue pairs)
//!   │                         └─ QueuePair<Rc | Uc | Ud>
//!   └─ CompletionQueue ──────────┘                     (results of work requests)
//! ```
//!
//! Three rules explain the rest:
//!
//! * **A verb is a method of [`Device`]** and has libibverbs' name without the `ibv_`. What libibverbs has no verb for,
//!   such as [`QueuePair::connect`], is a method of the handle.
//! * **A handle is a number with a type.** It is `Copy`, and dropping it does nothing: what was created stays until it
//!   is destroyed. A handle whose object is gone gets a typed error. [`MemoryRegion`] is the one that owns something:
//!   it keeps its bytes alive, though not its key. A handle means nothing to another device; there it may name another
//!   object.
//! * **Nothing blocks and no packet is sent by a verb.** A verb records the request. Packets move when the owner of the
//!   [`Engine`] moves them, see [below](#who-moves-the-packets).
//!
//! The transport service of a queue pair is part of its type, so that a READ on a datagram queue pair does not compile:
//! see [`WorkRequest`]. Where the service is known at run time only, there is [`AnyQueuePair`].
//!
//! # Which device
//!
//! | your program | its device |
//! |---|---|
//! | is called by a runtime, such as a service of rxe-dpdk | [`Device`], from the runtime. The runtime owns the completion queues and delivers completions and events. |
//! | owns an [`Engine`] and moves its packets | [`Adapter`]: a [`Device`] with completion queues and events. |
//! | is a runtime | [`Device::with_hooks`], with its accounting as [`DeviceHooks`]. |
//!
//! # Names
//!
//! | libibverbs | here |
//! |---|---|
//! | `ibv_context`, `ibv_query_device` | [`Device`], [`Device::query_device`] |
//! | `ibv_alloc_pd`, `ibv_dealloc_pd` | [`Device::alloc_pd`], [`Device::dealloc_pd`] |
//! | `ibv_reg_mr`, `ibv_reg_mr_iova`, `ibv_rereg_mr`, `ibv_dereg_mr` | [`Device::reg_mr`], [`Device::reg_mr_iova`], [`Device::rereg_mr`], [`Device::dereg_mr`] |
//! | `ibv_alloc_mw`, `ibv_dealloc_mw`, `ibv_inc_rkey`, `ibv_bind_mw` | [`Device::alloc_mw`], [`Device::dealloc_mw`], [`Device::renew_mw`] or [`MemoryWindow::with_key_byte`], [`WorkRequest::bind_mw`] or [`WorkRequest::bind_mw_as`] |
//! | (kernel) `ib_alloc_mr`, `ib_map_mr_sg`, `IB_WR_REG_MR` | [`Device::alloc_fast_reg_mr`], [`Device::map_fast_reg_mr`], [`WorkRequest::fast_reg_mr`] |
//! | `ibv_create_cq`, `ibv_resize_cq`, `ibv_destroy_cq` | [`Adapter::create_cq`], [`Adapter::resize_cq`], [`Adapter::destroy_cq`] |
//! | `ibv_poll_cq`, `ibv_req_notify_cq`, `ibv_get_cq_event` | [`Adapter::poll_cq`], [`Adapter::req_notify_cq`], [`Adapter::get_cq_event`] |
//! | `ibv_create_qp`, `ibv_modify_qp`, `ibv_query_qp`, `ibv_destroy_qp` | [`Device::create_qp`], [`Device::modify_qp`] and [`Device::modify_qp_attr`], [`Device::query_qp`], [`Device::destroy_qp`] |
//! | `rdma_create_qp` | [`Device::create_qp_in_init`] |
//! | `ibv_create_srq`, `ibv_modify_srq`, `ibv_query_srq`, `ibv_destroy_srq` | [`Device::create_srq`], [`Device::modify_srq`], [`Device::query_srq`], [`Device::destroy_srq`] |
//! | `ibv_create_ah`, `ibv_destroy_ah`, `ibv_grh` | [`Device::create_ah`], [`Device::destroy_ah`], [`Grh`] |
//! | `ibv_post_send`, `ibv_post_recv`, `ibv_post_srq_recv` | [`Device::post_send`], [`Device::post_recv`], [`Device::post_srq_recv`] |
//! | `ibv_send_wr`, `ibv_recv_wr`, `ibv_sge` | [`WorkRequest`], [`RecvWr`], [`Sge`] |
//! | `ibv_wc`, `ibv_wc_status`, `ibv_wc_status_str`, `ibv_wc_opcode` | [`WorkCompletion`], [`WcStatus`], [`WcStatus::name`], [`WcOpcode`] |
//! | `ibv_attach_mcast`, `ibv_detach_mcast` | [`Device::attach_mcast`], [`Device::detach_mcast`] |
//! | `ibv_get_async_event`, `ibv_async_event` | [`Adapter::get_async_event`], [`AsyncEvent`] |
//!
//! [`SendWr`] and [`SendOp`] are the untyped forms that the [`Engine`] takes.
//!
//! # The life of a queue pair
//!
//! ```text
//!         create_qp        to_init         to_rtr          to_rts
//!   (none) ─────> RESET ─────────> INIT ─────────> RTR ─────────> RTS <────> SQD
//!                                  post_recv       receives       post_send   drains
//!          any state: to_error ──> ERROR (all work completes as flushed), to_reset ──> RESET
//! ```
//!
//! IBTA: "QP/EE context states". A queue pair that fails goes to ERROR, and [`AsyncEvent::QpError`] gives the cause; on
//! [`Uc`] and [`Ud`] a failed send takes it to SQE only, from where [`Transition::resume`] leads back.
//! [`QueuePair::connect`] goes from RESET to RTS in one call. This program connects two queue pairs of one device with each
//! other:
//!
//! ```
//! use rxe_proto::Instant;
//! use rxe_proto::verbs::{
//!     Access, Adapter, Engine, EngineConfig, Memory, QpInitAttr, QueuePair, Rc, RecvWr, RtrAttr, RtsAttr, WcStatus,
//!     WorkRequest,
//! };
//! use rxe_proto::wire::{Frame, Gid, MacAddr, Path, TxFrames, classify};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut engine = Engine::new(EngineConfig { seed: [7; 32], ..EngineConfig::default() });
//! let mut dev = Adapter::new(&mut engine, Instant::ZERO);
//! let pd = dev.alloc_pd();
//! let cq = dev.create_cq(64)?;
//! let attr = QpInitAttr::new(cq);
//! let (one, two): (QueuePair<Rc>, QueuePair<Rc>) = (dev.create_qp(pd, attr)?, dev.create_qp(pd, attr)?);
//!
//! // Both ends are at one address here, so one path leads both ways.
//! let (mac, gid) = (MacAddr([2, 0, 0, 0, 0, 1]), Gid::from(std::net::Ipv4Addr::new(10, 0, 0, 1)));
//! let path = Path { src_mac: mac, dst_mac: mac, src: gid, dst: gid, ..Path::default() };
//! for (qp, peer) in [(one, two), (two, one)] {
//!     let rtr = RtrAttr { path: path.clone(), dest_qpn: peer.qpn(), ..RtrAttr::default() };
//!     qp.connect(&mut dev, Access::empty(), rtr, RtsAttr::default())?;
//! }
//!
//! let mr = dev.reg_mr(pd, Memory::heap(4096), Access::LOCAL_WRITE)?;
//! mr.memory().write(0, b"hello")?;
//! dev.post_recv(two, RecvWr { wr_id: 2, sges: &[mr.sge(2048..)?] })?;
//! dev.post_send(one, WorkRequest::send(&[mr.sge(0..5)?]).wr_id(1).signaled())?;
//!
//! // The owner's part: write the packets that are due, and give each frame to the engine of its destination.
//! let (now, mut tx) = (Instant::ZERO, TxFrames::default());
//! while engine.transmit(now, &mut tx) > 0 {
//!     for (port, frame) in tx.frames.drain(..) {
//!         if let Ok(Frame::Roce(packet)) = classify(&frame) {
//!             engine.receive(now, port, &packet);
//!         }
//!     }
//! }
//!
//! let mut dev = Adapter::new(&mut engine, now);
//! let received = dev.poll_cq_one(cq).ok_or("nothing was received")?.success()?;
//! assert_eq!((received.wr_id, received.byte_len), (2, 5));
//! let sent = dev.poll_cq_one(cq).ok_or("nothing was sent")?;
//! assert_eq!((sent.wr_id, sent.status), (1, WcStatus::Success));
//! # Ok(())
//! # }
//! ```
//!
//! Two real ends exchange their addresses, queue pair numbers and first PSNs before they connect. The connection manager
//! ([`cm`](crate::cm)) does that for programs that use librdmacm; others use a TCP connection.
//!
//! # Who moves the packets
//!
//! The owner of the engine, as in the middle of the program above: [`Engine::receive`] for each received packet,
//! [`Engine::transmit`] after each burst and after posting, [`Engine::handle_timeout`] when [`Engine::next_timeout`]
//! has come (lost packets are retransmitted only then). In rxe-dpdk that is the worker, which calls a service with its
//! completions and events.
//!
//! # Memory
//!
//! [`Memory`] is a span of bytes that peers may change at any time, so it is read and written by copying, never
//! borrowed. [`Device::reg_mr`] gives it a key, and [`MemoryRegion::sge`] and [`MemoryRegion::remote`] name parts of
//! it, for our own work requests and for the peer's. The peer needs two permissions: of the region and of the queue pair.
//!
//! ```
//! # use rxe_proto::verbs::*;
//! # fn publish(dev: &mut Device<'_>, pd: ProtectionDomain) -> Result<RemoteAddr, Box<dyn std::error::Error>> {
//! let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
//! let mr = dev.reg_mr(pd, Memory::heap(1 << 20), access)?;
//! // Address and key for the peer, which can reach the bytes from 4096 on.
//! let there = mr.remote(4096)?;
//! # Ok(there)
//! # }
//! ```
//!
//! # Completions
//!
//! A receive completes when its message has arrived, a send queue work request when it is done and was
//! [`signaled`](WorkRequest::signaled), or failed. When [`WorkCompletion::status`] is not `Success`, only `wr_id`,
//! `qpn` and `status` are valid. A work request occupies its place in the queue until it, or a later one of the same send
//! queue, has completed; its buffers belong to the device as long.
//!
//! To avoid polling, arm a notification. In this order none is missed:
//!
//! ```
//! # use rxe_proto::verbs::*;
//! # fn serve(dev: &mut Adapter<'_>, cq: CompletionQueue, handle: fn(WorkCompletion)) -> Result<(), CqError> {
//! dev.req_notify_cq(cq, false)?;
//! while let Some(wc) = dev.poll_cq_one(cq) {
//!     handle(wc);
//! }
//! // `get_cq_event` reports the next one.
//! # Ok(())
//! # }
//! ```
//!
//! # Datagrams
//!
//! A [`Ud`] queue pair has no peer. Each message is one packet, at most the path MTU, and goes to the address of its
//! [`AddressHandle`], to a queue pair number, with the queue key that the receiver requires. It may be lost without
//! notice. A received datagram stands behind a [`Grh`], [`Grh::LEN`] bytes, in the buffers of the receive; with that and
//! [`WorkCompletion::src_qpn`] the sender can be answered:
//!
//! ```
//! # use rxe_proto::verbs::*;
//! # use rxe_proto::wire::{Gid, Path};
//! # fn answer(
//! #     dev: &mut Device<'_>, pd: ProtectionDomain, qp: QueuePair<Ud>, mr: &MemoryRegion, wc: WorkCompletion,
//! #     path_to: fn(Gid) -> Path, qkey: u32,
//! # ) -> Result<(), Box<dyn std::error::Error>> {
//! let grh = Grh::read(mr.memory(), 0)?;
//! let ah = dev.create_ah(pd, &path_to(grh.src))?;
//! let sender = wc.src_qpn.ok_or("not a datagram")?;
//! let message = mr.sge(Grh::LEN..wc.byte_len as usize)?;
//! dev.post_send(qp, WorkRequest::datagram(&[message], ah, sender, qkey).signaled())?;
//! # Ok(())
//! # }
//! ```
//!
//! Multicast: an address handle to the group and [`Qpn::MULTICAST`] to send, [`Device::attach_mcast`] to receive. That
//! is for datagrams only:
//!
//! ```
//! # use rxe_proto::verbs::*;
//! # use rxe_proto::wire::Gid;
//! fn join(dev: &mut Device<'_>, qp: QueuePair<Ud>, group: Gid) -> Result<(), MulticastError> {
//!     dev.attach_mcast(qp, group)
//! }
//! ```
//! ```compile_fail,E0308
//! # use rxe_proto::verbs::*;
//! # use rxe_proto::wire::Gid;
//! fn join(dev: &mut Device<'_>, qp: QueuePair<Rc>, group: Gid) -> Result<(), MulticastError> {
//!     dev.attach_mcast(qp, group)
//! }
//! ```
//!
//! # Shared receive queues
//!
//! Queue pairs created with [`QpInitAttr::srq`] have no receive queue of their own. They take a receive from the shared
//! one when a message needs it, so that many connections share few buffers. [`Device::modify_srq`] arms
//! [`AsyncEvent::SrqLimitReached`], which is delivered once when they run low. A queue pair in error keeps the receives that
//! it took: [`AsyncEvent::LastWqeReached`] reports that it takes no more.
//!
//! ```
//! # use rxe_proto::verbs::*;
//! # fn pool(
//! #     dev: &mut Device<'_>, pd: ProtectionDomain, cq: CompletionQueue, mr: &MemoryRegion,
//! # ) -> Result<(), Box<dyn std::error::Error>> {
//! let srq = dev.create_srq(pd, SrqInitAttr { max_wr: 64, srq_limit: 16, ..SrqInitAttr::default() })?;
//! for slot in 0..64 {
//!     dev.post_srq_recv(srq, RecvWr { wr_id: slot as u64, sges: &[mr.sge(slot * 1024..(slot + 1) * 1024)?] })?;
//! }
//! let qps: [QueuePair<Rc>; 2] = [
//!     dev.create_qp(pd, QpInitAttr { srq: Some(srq), ..QpInitAttr::new(cq) })?,
//!     dev.create_qp(pd, QpInitAttr { srq: Some(srq), ..QpInitAttr::new(cq) })?,
//! ];
//! # let _ = qps;
//! # Ok(())
//! # }
//! ```
//!
//! # Memory windows and fast registration
//!
//! A [`MemoryWindow`] opens a part of a region to peers for as long as it is bound, without another registration.
//! Binding is a work request, so the next one can already send the key to the peer:
//!
//! ```
//! # use rxe_proto::verbs::*;
//! # fn lend(
//! #     dev: &mut Device<'_>, pd: ProtectionDomain, qp: QueuePair<Rc>, mr: &MemoryRegion,
//! # ) -> Result<(), Box<dyn std::error::Error>> {
//! let mw = dev.alloc_mw(pd, WindowKind::Type2)?;
//! // `mr` was registered with MW_BIND and LOCAL_WRITE.
//! dev.post_send(qp, WorkRequest::bind_mw(mw, mr.window(4096..8192, Access::REMOTE_WRITE)?))?;
//! dev.post_send(qp, WorkRequest::send(Payload::Inline(&mw.rkey().to_be_bytes())))?;
//! // When the peer has finished, unless it invalidated the key itself by `send_with_inv`:
//! dev.post_send(qp, WorkRequest::local_inv(mw.rkey()).signaled())?;
//! # Ok(())
//! # }
//! ```
//!
//! A [`FastRegMr`] is opened and closed in the same way, but has bytes of its own, and a local key.

mod adapter;
mod completion;
mod device;
mod grh;
mod handle;
mod hooks;
mod queue_pair;
mod region;
mod service;
mod srq;
mod window;
mod work_request;

pub use crate::mem::{
    Access, AccessError, Allocator, DeallocPdError, DeregisterError, FastRegMrError, Fault, ForeignMemory,
    HeapAllocator, KeyLayout, KeyTable, Memory, MemoryRegion, OutOfBounds, Part, PdId, RegisterError, RenewError,
    ReregisterError, UnknownKey, WindowBind, WindowKind,
};
pub use crate::transport::{
    AhError, AhId, AsyncEvent, CqError, CqId, Engine, EngineConfig, KeepAlive, MulticastError, PostError, QpAttrChange,
    QpCaps, QpError, QpErrorCause, QpEventType, QpInfo, QpInit, QpState, QpTransition, QpType, Qpn, RecvWr, RemoteAddr,
    RtrAttr, RtsAttr, SendFlags, SendOp, SendWr, Sge, SrqAttr, SrqError, SrqId, SrqInfo, SrqInit, WcOpcode, WcStatus,
    WorkCompletion,
};
pub use adapter::Adapter;
pub use device::Device;
pub use grh::{Grh, GrhError};
pub use handle::{AddressHandle, AnyQueuePair, CompletionQueue, ProtectionDomain, QueuePair, SharedReceiveQueue};
pub use hooks::DeviceHooks;
pub use queue_pair::{QpInitAttr, Transition, UdAttr};
pub use service::{Any, Connected, QpService, Rc, TransportService, Uc, Ud};
pub use srq::SrqInitAttr;
pub use window::{FastRegMr, MemoryWindow};
pub use work_request::{AnyWorkRequest, FlushLevel, FlushType, Payload, WorkRequest};
