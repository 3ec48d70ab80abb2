//! The wire format: every multi-byte field is little-endian, unlike the headers of RoCE and of the connection manager.
//!
//! Fixed layouts are structures that borrow from and are written as bytes. Fields with a meaning of their own are
//! enums and newtypes, which keep values that have no name.

mod connect;
mod cqe;
mod data;
mod event;
mod feature;
pub mod identify;
mod io;
pub mod log;
mod nqn;
mod opcode;
pub mod private_data;
mod property;
mod sgl;
mod sqe;
mod status;

pub use connect::{
    CONNECT_DATA_LEN, ConnectAttributes, ConnectCommand, ConnectData, DYNAMIC_CONTROLLER, InvalidParameter,
};
pub use cqe::{CQE_LEN, Cqe, Response};
pub use data::{DataLength, DataLocation, Direction};
pub use event::{AsyncEvent, EventMask};
pub use feature::FeatureId;
pub use io::{DSM_RANGE_LEN, DatasetManagement, DsmRange, MAX_DSM_RANGES, RwFields};
pub use nqn::{DISCOVERY_NQN, NQN_FIELD_LEN, Nqn, NqnError};
pub use opcode::{AdminOpcode, FABRICS_OPCODE, FabricsType, IoOpcode};
pub use property::{Capabilities, Configuration, PropertyGet, PropertySet, Register, ShutdownStatus, StatusRegister};
pub use sgl::{HostBuffer, SGL_LEN, SglDescriptor, SglError};
pub use sqe::{SQE_LEN, Sqe};
pub use status::{Status, StatusCode};

/// NSID that addresses every namespace.
pub const NSID_ALL: u32 = 0xFFFF_FFFF;

/// NVMe version 1.3.0, in the format of the VS register.
pub const VERSION_1_3: u32 = 0x0001_0300;
