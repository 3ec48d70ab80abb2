//! SMART and health information (page 02).

use zerocopy::byteorder::little_endian::{U16, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Temperature of a controller without a sensor: 25 degrees Celsius in Kelvin. 0 would show as -273 degrees.
const ROOM_TEMPERATURE: u16 = 298;

/// The SMART log. The counters have 16 bytes on the wire, of which the upper 8 are always 0 here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct SmartLog {
    critical_warning: u8,
    temperature: U16,
    spare: u8,
    spare_threshold: u8,
    reserved5: [u8; 27],
    data_units_read: U64,
    reserved40: U64,
    data_units_written: U64,
    reserved56: U64,
    read_commands: U64,
    reserved72: U64,
    write_commands: U64,
    reserved88: [u8; 72],
    media_errors: U64,
    reserved168: U64,
    error_entries: U64,
    reserved184: [u8; 328],
}

const _: () = assert!(size_of::<SmartLog>() == 512);

/// Critical warning: the reliability of the subsystem is degraded.
const DEGRADED: u8 = 1 << 2;
/// Critical warning: all media are in read-only mode.
const MEDIA_READ_ONLY: u8 = 1 << 3;
/// Bytes of a data unit: 1000 blocks of 512.
const DATA_UNIT: u64 = 512_000;

impl SmartLog {
    /// A healthy controller at room temperature that has done nothing.
    #[must_use]
    pub fn healthy() -> SmartLog {
        let mut log = SmartLog::new_zeroed();
        log.temperature.set(ROOM_TEMPERATURE);
        log.spare = 100;
        log.spare_threshold = 10;
        log
    }

    /// The same after this many bytes were read and written by this many commands. A started data unit counts.
    #[must_use]
    pub fn with_traffic(mut self, read: (u64, u64), written: (u64, u64)) -> SmartLog {
        self.data_units_read.set(read.0.div_ceil(DATA_UNIT));
        self.read_commands.set(read.1);
        self.data_units_written.set(written.0.div_ceil(DATA_UNIT));
        self.write_commands.set(written.1);
        self
    }

    /// The same after a failed flush, which may have lost data.
    #[must_use]
    pub const fn degraded(mut self) -> SmartLog {
        self.critical_warning |= DEGRADED;
        self
    }

    /// The same with failed flushes of every namespace, each of which is read-only since.
    #[must_use]
    pub const fn read_only(mut self) -> SmartLog {
        self.critical_warning |= MEDIA_READ_ONLY;
        self
    }

    /// The same with this many media errors, and errors in the error log since the controller was created.
    #[must_use]
    pub fn with_errors(mut self, media: u64, entries: u64) -> SmartLog {
        self.media_errors.set(media);
        self.error_entries.set(entries);
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_at_their_offsets() {
        let log = SmartLog::healthy().with_traffic((512_001, 3), (1, 4)).with_errors(5, 6);
        let bytes = log.as_bytes();
        assert_eq!(bytes[..5], [0, 0x2A, 0x01, 100, 10]);
        assert_eq!((bytes[32], bytes[48], bytes[64], bytes[80], bytes[160], bytes[176]), (2, 1, 3, 4, 5, 6));
    }
}
