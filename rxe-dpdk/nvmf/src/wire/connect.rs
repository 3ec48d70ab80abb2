//! Connect, the first command of every queue, and its 1024 bytes of data.

use bitflags::bitflags;
use zerocopy::byteorder::little_endian::U16;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::nqn::{NQN_FIELD_LEN, Nqn, NqnError};
use super::opcode::FabricsType;
use super::sgl::SglDescriptor;
use super::sqe::Sqe;
use super::status::StatusCode;

/// Length of Connect's data in bytes.
pub const CONNECT_DATA_LEN: usize = 1024;

/// Controller id in the Connect of an admin queue: the controller chooses one.
pub const DYNAMIC_CONTROLLER: u16 = 0xFFFF;

bitflags! {
    /// CATTR of Connect.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
    pub struct ConnectAttributes: u8 {
        /// The host does not use the submission queue head of completions.
        const NO_SQ_FLOW_CONTROL = 1 << 2;
        const _ = !0;
    }
}

/// The fields of a Connect command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ConnectCommand {
    /// Queue: 0 is the admin queue.
    pub qid: u16,
    /// Entries of the submission queue, minus 1.
    pub sqsize: u16,
    /// Attributes of the queue.
    pub attributes: ConnectAttributes,
    /// Keep alive timeout in milliseconds, of an admin queue; 0 is none.
    pub kato_ms: u32,
}

impl ConnectCommand {
    /// Reads the fields of a Connect.
    ///
    /// # Errors
    /// The record format is not 0.
    pub fn parse(sqe: &Sqe) -> Result<ConnectCommand, StatusCode> {
        let [format_qid, size_attributes, kato_ms, ..] = sqe.cdws();
        if format_qid & 0xFFFF != 0 {
            return Err(StatusCode::ConnectIncompatibleFormat);
        }
        Ok(ConnectCommand {
            qid: (format_qid >> 16) as u16,
            sqsize: size_attributes as u16,
            attributes: ConnectAttributes::from_bits_retain((size_attributes >> 16) as u8),
            kato_ms,
        })
    }

    /// The command, with the descriptor of its data.
    #[must_use]
    pub fn to_sqe(&self, command_id: u16, data: SglDescriptor) -> Sqe {
        let size_attributes = u32::from(self.sqsize) | u32::from(self.attributes.bits()) << 16;
        Sqe::fabrics(FabricsType::Connect, command_id).with_sgl(data).with_cdws([
            u32::from(self.qid) << 16,
            size_attributes,
            self.kato_ms,
            0,
            0,
            0,
        ])
    }
}

/// The data of a Connect.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct ConnectData {
    host_id: [u8; 16],
    controller_id: U16,
    reserved: [u8; 238],
    subsystem_nqn: [u8; NQN_FIELD_LEN],
    host_nqn: [u8; NQN_FIELD_LEN],
    reserved2: [u8; 256],
}

const _: () = assert!(size_of::<ConnectData>() == CONNECT_DATA_LEN);

impl ConnectData {
    /// Data of a host that connects to a subsystem.
    #[must_use]
    pub fn new(host_id: [u8; 16], controller_id: u16, subsystem: &Nqn, host: &Nqn) -> ConnectData {
        let mut data = ConnectData::new_zeroed();
        data.host_id = host_id;
        data.controller_id.set(controller_id);
        data.subsystem_nqn = subsystem.to_field();
        data.host_nqn = host.to_field();
        data
    }

    /// The host's UUID.
    #[must_use]
    pub const fn host_id(&self) -> [u8; 16] {
        self.host_id
    }

    /// The controller: [`DYNAMIC_CONTROLLER`] on an admin queue.
    #[must_use]
    pub fn controller_id(&self) -> u16 {
        self.controller_id.get()
    }

    /// The subsystem's name.
    ///
    /// # Errors
    /// The field has no valid name.
    pub fn subsystem_nqn(&self) -> Result<Nqn, NqnError> {
        Nqn::from_field(&self.subsystem_nqn)
    }

    /// Whether the host has a name. SPDK's hosts have none unless they are configured to.
    #[must_use]
    pub const fn has_host_nqn(&self) -> bool {
        self.host_nqn[0] != 0
    }

    /// The host's name.
    ///
    /// # Errors
    /// The field has no valid name.
    pub fn host_nqn(&self) -> Result<Nqn, NqnError> {
        Nqn::from_field(&self.host_nqn)
    }
}

/// The field that a Connect with status [`StatusCode::ConnectInvalidParameters`] failed for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InvalidParameter {
    /// QID, in the command.
    QueueId,
    /// SQSIZE, in the command.
    SqSize,
    /// Host identifier, in the data.
    HostId,
    /// Controller id, in the data.
    ControllerId,
    /// NQN of the subsystem, in the data.
    SubsystemNqn,
    /// NQN of the host, in the data.
    HostNqn,
}

impl InvalidParameter {
    /// The completion's result: the field's offset, and bit 16 for a field of the data.
    #[must_use]
    pub const fn result(self) -> u64 {
        match self {
            InvalidParameter::QueueId => 0x2A,
            InvalidParameter::SqSize => 0x2C,
            InvalidParameter::HostId => 0x1_0000,
            InvalidParameter::ControllerId => 0x1_0010,
            InvalidParameter::SubsystemNqn => 0x1_0100,
            InvalidParameter::HostNqn => 0x1_0200,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn data_fields_are_at_the_offsets_of_the_results() {
        let subsystem: Nqn = "nqn.2024-01.test:ram".parse().unwrap();
        let host: Nqn = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555".parse().unwrap();
        let data = ConnectData::new([0x11; 16], 0x0102, &subsystem, &host);
        let bytes = data.as_bytes();
        let at = |field: InvalidParameter| &bytes[(field.result() & 0xFFFF) as usize..];
        assert!(at(InvalidParameter::HostId).starts_with(&[0x11; 16]));
        assert!(at(InvalidParameter::ControllerId).starts_with(&[2, 1]));
        assert!(at(InvalidParameter::SubsystemNqn).starts_with(b"nqn.2024-01.test:ram\0"));
        assert!(at(InvalidParameter::HostNqn).starts_with(host.as_str().as_bytes()));
        assert_eq!((data.subsystem_nqn(), data.host_nqn()), (Ok(subsystem), Ok(host)));
    }

    #[test]
    fn another_record_format_is_refused() {
        let sqe = Sqe::fabrics(FabricsType::Connect, 0).with_cdws([1, 0, 0, 0, 0, 0]);
        assert_eq!(ConnectCommand::parse(&sqe), Err(StatusCode::ConnectIncompatibleFormat));
    }

    proptest! {
        #[test]
        fn commands_are_read_as_written(qid: u16, sqsize: u16, attributes: u8, kato_ms: u32, id: u16) {
            let attributes = ConnectAttributes::from_bits_retain(attributes);
            let command = ConnectCommand { qid, sqsize, attributes, kato_ms };
            let sqe = command.to_sqe(id, SglDescriptor::NO_DATA);
            prop_assert_eq!(ConnectCommand::parse(&sqe), Ok(command));
            prop_assert_eq!(sqe.fabrics_type(), FabricsType::Connect.code());
        }
    }
}
