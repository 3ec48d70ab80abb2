//! DPDK made safe: the only place that calls `dpdk-sys`.
//!
//! [`Eal::init`] starts DPDK. From it come [`Port`]s with their [`RxQueue`]s and [`TxStage`]s, [`Mempool`]s,
//! [`HugeMemory`], rings between lcores and the lcores themselves. Everything that touches a packet works on bursts:
//! an [`RxBurst`] is filled by one call into the driver and its buffers are freed together; a [`TxStage`] hands out
//! frames to write in place and sends them together.
//!
//! # Buffer ownership
//!
//! An mbuf has one owner at any time: its pool, the driver, an [`RxBurst`], a [`TxStage`], a ring, or an [`Mbuf`].
//! Ownership moves with the pointer and the reference count stays 1, so `&mut [u8]` into a buffer is unique.
//!
//! # Lifetimes
//!
//! Every object holds what it depends on: queues their port, ports their pool, all of them EAL. A single [`Mbuf`]
//! holds nothing (that would cost a reference count per packet). Instead a pool is given back, and EAL shut down,
//! only when no buffer is out; otherwise both stay until the process ends.

// Calling a C library is what this module is for. Each block below says why it is sound.
#![allow(unsafe_code)]

mod affinity;
mod args;
mod burst;
mod clock;
mod error;
mod hints;
mod huge_files;
mod huge_memory;
mod info;
mod init;
mod lcore;
mod lcore_choice;
mod log;
mod mbuf;
mod mempool;
mod monitor;
mod mtu;
mod netlink;
mod pool_ptr;
mod port;
mod port_inner;
mod reattach;
mod ring;
mod rx;
mod sockets;
mod telemetry;
mod tx;

pub use affinity::leave_lcore;
pub use args::{check_file_prefix, file_prefix};
pub use burst::{BURST, RxBurst};
pub use clock::Clock;
pub use error::{EalError, Errno};
pub use huge_memory::{HugeAllocator, HugeMemory};
pub use info::{Link, PortInfo, PortStats};
pub use init::Eal;
pub use lcore::Job;
pub use lcore_choice::with_one_lcore;
pub use mbuf::Mbuf;
pub use mempool::Mempool;
pub use monitor::PortMonitor;
pub use mtu::Fallback;
pub use netlink::{LinkEvents, Woken, interface_name, wait_for_links};
pub use port::{MulticastFilter, Port, PortConfig, PortQueues};
pub use reattach::Reattach;
pub use ring::{MbufReceiver, MbufRing, MbufSender};
pub use rx::{RxQueue, RxStats};
pub use telemetry::{Reading, Readings};
pub use tx::{MIN_FRAME, TxStage, TxStats, TxTap};
