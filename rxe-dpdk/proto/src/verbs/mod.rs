//! The interface that services and tools program against, in the terms of libibverbs.
//!
//! Everything here belongs to one [`Engine`] (one lcore) and is driven by its owner; nothing blocks. The names are
//! those of libibverbs where they mean the same:
//!
//! | libibverbs | here |
//! |---|---|
//! | `ibv_alloc_pd`, `ibv_reg_mr`, `ibv_dereg_mr` | [`KeyTable::alloc_pd`], [`KeyTable::register`], [`KeyTable::deregister`] |
//! | `ibv_create_cq`, `ibv_poll_cq` | [`Engine::create_cq`], [`Engine::poll_cq`] |
//! | `ibv_create_qp`, `ibv_modify_qp`, `ibv_destroy_qp` | [`Engine::create_qp`], [`Engine::modify_qp`], [`Engine::destroy_qp`] |
//! | `ibv_post_send`, `ibv_post_recv` | [`Engine::post_send`], [`Engine::post_recv`] |
//! | `ibv_wc`, `ibv_wc_status`, `ibv_wc_opcode` | [`WorkCompletion`], [`WcStatus`], [`WcOpcode`] |

pub use crate::mem::{Access, Allocator, HeapAllocator, KeyTable, Memory, MemoryRegion, PdId};
pub use crate::transport::{
    AsyncEvent, CqId, Engine, EngineConfig, PostError, QpError, QpInit, QpTransition, Qpn, RecvWr, RemoteAddr, RtrAttr,
    RtsAttr, SendFlags, SendOp, SendWr, Sge, WcOpcode, WcStatus, WorkCompletion,
};
