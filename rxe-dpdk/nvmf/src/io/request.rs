//! Checked I/O commands.

use super::tag::CommandTag;
use crate::subsystem::NamespaceView;
use crate::wire::identify::OptionalCommands;
use crate::wire::{
    DSM_RANGE_LEN, DataLength, DataLocation, DatasetManagement, Direction, DsmRange, HostBuffer, IoOpcode, NSID_ALL,
    RwFields, SglDescriptor, Sqe, StatusCode,
};

/// Blocks of a namespace that exist.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BlockRange {
    /// First block.
    pub slba: u64,
    /// Number of blocks.
    pub blocks: u32,
}

impl BlockRange {
    fn check(namespace: &NamespaceView, slba: u64, blocks: u32) -> Result<BlockRange, StatusCode> {
        match slba.checked_add(u64::from(blocks)) {
            Some(end) if end <= namespace.blocks => Ok(BlockRange { slba, blocks }),
            _ => Err(StatusCode::LbaOutOfRange),
        }
    }

    /// Offset in bytes of the first block.
    #[must_use]
    pub const fn byte_offset(self, block_shift: u8) -> u64 {
        self.slba << block_shift
    }

    /// Length in bytes.
    #[must_use]
    pub const fn byte_len(self, block_shift: u8) -> u64 {
        (self.blocks as u64) << block_shift
    }
}

/// What an I/O command does. Ranges exist, and data have the length of their range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoOperation {
    /// Make all data durable that were written before.
    Flush,
    /// Send blocks to the host.
    Read {
        /// The blocks.
        range: BlockRange,
        /// Destination of the RDMA WRITE.
        to: HostBuffer,
    },
    /// Replace blocks.
    Write {
        /// The blocks.
        range: BlockRange,
        /// The new data.
        from: DataLocation,
        /// The data must be durable before the completion.
        fua: bool,
    },
    /// Compare blocks with the host's data.
    Compare {
        /// The blocks.
        range: BlockRange,
        /// The host's data.
        from: DataLocation,
    },
    /// Check that blocks can be read.
    Verify {
        /// The blocks.
        range: BlockRange,
    },
    /// Replace blocks with zeroes.
    WriteZeroes {
        /// The blocks.
        range: BlockRange,
        /// The space may be given back.
        deallocate: bool,
        /// The zeroes must be durable before the completion.
        fua: bool,
    },
    /// Dataset Management; see [`dsm_ranges`] for the data.
    Dsm {
        /// Number of valid ranges in the data.
        ranges: u32,
        /// Deallocate the ranges; without it the command is a hint.
        deallocate: bool,
        /// The ranges.
        from: DataLocation,
    },
}

/// A checked command.
#[derive(PartialEq, Eq, Debug)]
pub struct IoRequest {
    /// For the completion.
    pub tag: CommandTag,
    /// Namespace; [`NSID_ALL`] is possible with [`IoOperation::Flush`] only.
    pub nsid: u32,
    /// log2 of the namespace's block size in bytes; 0 with [`NSID_ALL`].
    pub block_shift: u8,
    /// The operation, with its blocks.
    pub operation: IoOperation,
}

/// What is the same for all commands of a queue.
#[derive(Clone, Copy)]
pub(super) struct Checks {
    pub(super) commands: OptionalCommands,
    pub(super) max_transfer: u32,
}

impl Checks {
    /// Checks a command against the namespaces, which are in ascending order of the NSID.
    #[inline]
    pub(super) fn check(
        self,
        sqe: &Sqe,
        descriptor: SglDescriptor,
        capsule_data: usize,
        namespaces: &[NamespaceView],
    ) -> Result<(u8, IoOperation), StatusCode> {
        sqe.check_flags()?;
        let opcode = IoOpcode::from_code(sqe.opcode()).filter(|&opcode| self.supports(opcode));
        let opcode = opcode.ok_or(StatusCode::InvalidOpcode)?;
        let locate = |length| {
            DataLocation::check(descriptor, opcode.direction(), length, capsule_data)
                .map_err(|error| error.status_code())
        };
        if opcode == IoOpcode::Flush && sqe.nsid() == NSID_ALL {
            locate(DataLength::Exactly(0))?;
            return Ok((0, IoOperation::Flush));
        }
        let namespace = find(namespaces, sqe.nsid()).ok_or(StatusCode::InvalidNamespace)?;
        let operation = match opcode {
            IoOpcode::Flush => {
                locate(DataLength::Exactly(0))?;
                IoOperation::Flush
            }
            IoOpcode::DatasetManagement => {
                let DatasetManagement { ranges, deallocate } = DatasetManagement::parse(sqe);
                if deallocate && namespace.read_only {
                    return Err(StatusCode::NamespaceWriteProtected);
                }
                let from = locate(DataLength::AtLeast(ranges * DSM_RANGE_LEN as u32))?;
                self.check_transfer(from)?;
                IoOperation::Dsm { ranges, deallocate, from }
            }
            _ => self.check_range(sqe, opcode, namespace, locate)?,
        };
        Ok((namespace.block_shift, operation))
    }

    /// Commands with a range of blocks in the entry.
    #[inline]
    fn check_range(
        self,
        sqe: &Sqe,
        opcode: IoOpcode,
        namespace: &NamespaceView,
        locate: impl Fn(DataLength) -> Result<DataLocation, StatusCode>,
    ) -> Result<IoOperation, StatusCode> {
        let RwFields { slba, blocks, fua, deallocate } = RwFields::parse(sqe);
        let range = BlockRange::check(namespace, slba, blocks)?;
        if namespace.read_only && matches!(opcode, IoOpcode::Write | IoOpcode::WriteZeroes) {
            return Err(StatusCode::NamespaceWriteProtected);
        }
        let length = match opcode.direction() {
            Direction::None => 0,
            _ => u32::try_from(range.byte_len(namespace.block_shift)).unwrap_or(u32::MAX),
        };
        if length > self.max_transfer {
            return Err(StatusCode::InvalidField);
        }
        let data = locate(DataLength::Exactly(length))?;
        Ok(match opcode {
            IoOpcode::Read => match data {
                DataLocation::Host(to) => IoOperation::Read { range, to },
                // Not reached: a read has at least one block, and its data are never in the capsule.
                _ => return Err(StatusCode::DataSglLengthInvalid),
            },
            IoOpcode::Write => IoOperation::Write { range, from: data, fua },
            IoOpcode::Compare => IoOperation::Compare { range, from: data },
            IoOpcode::Verify => IoOperation::Verify { range },
            IoOpcode::WriteZeroes => IoOperation::WriteZeroes { range, deallocate, fua },
            IoOpcode::Flush | IoOpcode::DatasetManagement => return Err(StatusCode::InvalidOpcode),
        })
    }

    /// The data of a Dataset Management may be longer than its ranges, but not than a transfer.
    fn check_transfer(self, data: DataLocation) -> Result<(), StatusCode> {
        match data {
            DataLocation::Host(buffer) if buffer.len > self.max_transfer => Err(StatusCode::InvalidField),
            _ => Ok(()),
        }
    }

    const fn supports(self, opcode: IoOpcode) -> bool {
        let needed = match opcode {
            IoOpcode::Flush | IoOpcode::Write | IoOpcode::Read => return true,
            IoOpcode::Compare => OptionalCommands::COMPARE,
            IoOpcode::WriteZeroes => OptionalCommands::WRITE_ZEROES,
            IoOpcode::DatasetManagement => OptionalCommands::DATASET_MANAGEMENT,
            IoOpcode::Verify => OptionalCommands::VERIFY,
        };
        self.commands.contains(needed)
    }
}

#[inline]
fn find(namespaces: &[NamespaceView], nsid: u32) -> Option<&NamespaceView> {
    // Most subsystems have namespaces 1 to n.
    let guess = namespaces.get(nsid.wrapping_sub(1) as usize).filter(|view| view.nsid == nsid);
    guess.or_else(|| {
        let at = namespaces.binary_search_by_key(&nsid, |view| view.nsid).ok()?;
        namespaces.get(at)
    })
}

/// The ranges of a Dataset Management, checked against the namespace. Empty ranges are left out.
///
/// # Errors
/// LBA Out of Range: no range is to be deallocated then. Data SGL Length Invalid: `data` has fewer than `ranges` ranges.
pub fn dsm_ranges(
    data: &[u8],
    ranges: u32,
    namespace: NamespaceView,
) -> Result<impl Iterator<Item = BlockRange>, StatusCode> {
    let entries: &[[u8; DSM_RANGE_LEN]] = data.as_chunks().0;
    let entries = entries.get(..ranges as usize).ok_or(StatusCode::DataSglLengthInvalid)?;
    let range = |entry: &[u8; DSM_RANGE_LEN]| {
        let range: DsmRange = zerocopy::transmute!(*entry);
        BlockRange { slba: range.slba(), blocks: range.blocks() }
    };
    for BlockRange { slba, blocks } in entries.iter().map(range) {
        BlockRange::check(&namespace, slba, blocks)?;
    }
    Ok(entries.iter().map(range).filter(|range| range.blocks != 0))
}
