//! Wire format: parsing and writing packets.
//!
//! [`classify`] checks every length in a received frame once; the resulting [`RocePacket`] is read without further
//! checks. A packet to send starts from the [`HeaderTemplate`] of its [`Path`], is written in place by a
//! [`PacketBuilder`] and ends with its ICRC. Connection manager messages are owned values:
//! [`cm::CmMessage`].

mod ack;
pub mod addr;
mod aeth;
mod atomic;
mod bth;
mod bytes;
mod checksum;
mod cidr;
mod classify;
pub mod cm;
mod deth;
mod display;
mod drop;
mod ecn;
mod emit;
mod end_icrc;
mod feth;
mod icrc;
mod imm;
pub mod mad;
pub mod net;
mod opcode;
mod opcode_set;
mod packet;
mod path;
mod path_mtu;
mod peek;
pub mod psn;
mod reth;
pub mod tx;

pub use ack::AckTemplate;
pub use addr::{Gid, MacAddr};
pub use aeth::{AETH_LEN, Aeth, NakCode, Syndrome, credit_code, credit_count, rnr_timer};
pub use atomic::{ATOMIC_ACK_ETH_LEN, ATOMIC_ETH_LEN, AtomicAckEth, AtomicEth};
pub use bth::{Bth, BthFields, DEFAULT_PKEY, PKEY_FULL_MEMBER};
pub use checksum::Checksum;
pub use cidr::{Cidr, CidrParseError, PrefixList, common_prefix};
pub use classify::{Frame, classify};
pub use deth::{DETH_LEN, Deth};
pub use drop::{DropCounters, DropReason};
pub use ecn::mark_congestion;
pub use emit::{HeaderTemplate, PacketBuilder};
pub use end_icrc::{AtomicAckIcrc, ReadRequestIcrc};
pub use feth::{FETH_LEN, Feth};
pub use icrc::{ICRC_LEN, IcrcKernel, icrc};
pub use imm::{IETH_LEN, IMM_LEN, Ieth, ImmDt};
pub use net::ROCE_UDP_PORT;
pub use opcode::{BTH_LEN, BthOpcode, Headers, OPCODES, Opcode, OpcodeInfo, Position, Transport};
pub use opcode_set::{OpcodeSet, UnknownOpcodeName};
pub use packet::{AddressPair, RocePacket};
pub use path::{Path, udp_source_port, udp_source_port_ud};
pub use path_mtu::PathMtu;
pub use peek::{BthPeek, peek_bth};
pub use psn::Psn;
pub use reth::{RETH_LEN, Reth};
pub use tx::{PortId, Seal, TxFrames, TxQueue};
