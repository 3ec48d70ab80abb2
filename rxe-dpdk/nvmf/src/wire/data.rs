//! Matching a command's SGL descriptor with the data that the command implies.

use super::sgl::{HostBuffer, SglDescriptor, SglError};

/// The direction of a command's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Direction {
    /// The command has no data.
    None,
    /// From the host to the controller: in the capsule, or by RDMA READ.
    ToController,
    /// From the controller to the host: by RDMA WRITE.
    ToHost,
}

/// The length of a command's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DataLength {
    /// The descriptor must have this length.
    Exactly(u32),
    /// The descriptor must have this length or more.
    AtLeast(u32),
}

/// Where the checked data of a command are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DataLocation {
    /// There are none.
    None,
    /// In the capsule, behind the submission queue entry; both values were checked against the received bytes.
    Capsule {
        /// Offset in bytes from the end of the submission queue entry.
        offset: u32,
        /// Length in bytes.
        len: u32,
    },
    /// In the host's memory.
    Host(HostBuffer),
}

impl DataLocation {
    /// Checks a descriptor against the command's data. `capsule_data` is the number of bytes received behind the
    /// submission queue entry.
    ///
    /// # Errors
    /// See [`SglError`].
    #[inline]
    pub fn check(
        descriptor: SglDescriptor,
        direction: Direction,
        length: DataLength,
        capsule_data: usize,
    ) -> Result<DataLocation, SglError> {
        let (SglDescriptor::Keyed(HostBuffer { len, .. }) | SglDescriptor::Capsule { len, .. }) = descriptor;
        let fits = match length {
            DataLength::Exactly(expected) => len == expected,
            DataLength::AtLeast(least) => len >= least,
        };
        match descriptor {
            SglDescriptor::Capsule { .. } if direction != Direction::ToController => Err(SglError::CapsuleDirection),
            SglDescriptor::Capsule { offset, len } => {
                let end = offset.checked_add(u64::from(len)).filter(|&end| end <= capsule_data as u64);
                match (end, u32::try_from(offset)) {
                    (Some(_), Ok(offset)) if fits => Ok(DataLocation::Capsule { offset, len }),
                    (Some(_), Ok(_)) => Err(SglError::Length(len)),
                    _ => Err(SglError::CapsuleOffset { offset, len }),
                }
            }
            SglDescriptor::Keyed(_) if !fits => Err(SglError::Length(len)),
            SglDescriptor::Keyed(_) if len == 0 => Ok(DataLocation::None),
            SglDescriptor::Keyed(buffer) => Ok(DataLocation::Host(buffer)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOST: HostBuffer = HostBuffer { addr: 0x1000, len: 4096, rkey: 7, invalidate: true };

    fn capsule(offset: u64, len: u32) -> Result<DataLocation, SglError> {
        let descriptor = SglDescriptor::Capsule { offset, len };
        DataLocation::check(descriptor, Direction::ToController, DataLength::Exactly(512), 1024)
    }

    #[test]
    fn capsule_data_must_be_inside_the_received_bytes() {
        assert_eq!(capsule(512, 512), Ok(DataLocation::Capsule { offset: 512, len: 512 }));
        assert_eq!(capsule(513, 512), Err(SglError::CapsuleOffset { offset: 513, len: 512 }));
        assert_eq!(capsule(u64::MAX, 512), Err(SglError::CapsuleOffset { offset: u64::MAX, len: 512 }));
        assert_eq!(capsule(0, u32::MAX), Err(SglError::CapsuleOffset { offset: 0, len: u32::MAX }));
        assert_eq!(capsule(0, 511), Err(SglError::Length(511)));
    }

    #[test]
    fn capsule_data_need_a_command_that_sends_data() {
        let descriptor = SglDescriptor::Capsule { offset: 0, len: 512 };
        for direction in [Direction::None, Direction::ToHost] {
            let result = DataLocation::check(descriptor, direction, DataLength::Exactly(512), 1024);
            assert_eq!(result, Err(SglError::CapsuleDirection));
        }
    }

    #[test]
    fn host_memory_must_have_the_length_of_the_command() {
        let check = |length| DataLocation::check(SglDescriptor::Keyed(HOST), Direction::ToHost, length, 0);
        assert_eq!(check(DataLength::Exactly(4096)), Ok(DataLocation::Host(HOST)));
        assert_eq!(check(DataLength::Exactly(4095)), Err(SglError::Length(4096)));
        assert_eq!(check(DataLength::AtLeast(16)), Ok(DataLocation::Host(HOST)));
        assert_eq!(check(DataLength::AtLeast(4097)), Err(SglError::Length(4096)));
        let none = DataLocation::check(SglDescriptor::NO_DATA, Direction::None, DataLength::Exactly(0), 0);
        assert_eq!(none, Ok(DataLocation::None));
    }
}
