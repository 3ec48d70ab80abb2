//! The imports of an author of services: the verbs with their types, and the service traits.
//!
//! A program that also builds an adapter imports its host's prelude, which contains this one.

pub use rxe_proto::cm::{ConnId, ConnectReply, ConnectRequest, SidrRequest};
pub use rxe_proto::verbs::{
    Access, AddressHandle, AnyQueuePair, AnyWorkRequest, AsyncEvent, CompletionQueue, Device, FastRegMr, Grh, Memory,
    MemoryRegion, MemoryWindow, Payload, PostError, ProtectionDomain, QpCaps, QpError, QpInitAttr, Qpn, QueuePair, Rc,
    RecvWr, RemoteAddr, RtrAttr, RtsAttr, Sge, SharedReceiveQueue, SrqInitAttr, Transition, Uc, Ud, UdAttr, WcOpcode,
    WcStatus, WorkCompletion, WorkRequest,
};
pub use rxe_proto::wire::PortId;
pub use rxe_proto::{Duration, Instant};

pub use crate::{
    Accept, Connect, Context, DatagramDecision, DatagramPeer, Decision, EndReason, Listen, Outstanding, PeerPath,
    QpMap, ResolveError, Service, ServiceFactory, StreamId, service_factory,
};
