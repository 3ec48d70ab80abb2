//! Opcodes of admin, I/O and fabrics commands.

use super::data::Direction;

/// Opcode of every fabrics command; its type is in the first byte of the NSID.
pub const FABRICS_OPCODE: u8 = 0x7F;

macro_rules! opcodes {
    ($(#[$outer:meta])* $type:ident { $($(#[$doc:meta])* $name:ident = $code:literal,)* }) => {
        $(#[$outer])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        #[repr(u8)]
        pub enum $type {
            $($(#[$doc])* $name = $code,)*
        }

        impl $type {
            /// Every value, in ascending order of the code.
            pub const ALL: &[$type] = &[$($type::$name),*];

            /// The value of a code, if it has one.
            #[must_use]
            #[inline]
            pub const fn from_code(code: u8) -> Option<$type> {
                match code {
                    $($code => Some($type::$name),)*
                    _ => None,
                }
            }

            /// The code on the wire.
            #[must_use]
            #[inline]
            pub const fn code(self) -> u8 {
                self as u8
            }
        }
    };
}

opcodes! {
    /// A command of the admin queue.
    AdminOpcode {
        /// Get Log Page.
        GetLogPage = 0x02,
        /// Identify.
        Identify = 0x06,
        /// Abort.
        Abort = 0x08,
        /// Set Features.
        SetFeatures = 0x09,
        /// Get Features.
        GetFeatures = 0x0A,
        /// Asynchronous Event Request.
        AsyncEventRequest = 0x0C,
        /// Keep Alive.
        KeepAlive = 0x18,
    }
}

opcodes! {
    /// A command of an I/O queue.
    IoOpcode {
        /// Flush: make written data durable.
        Flush = 0x00,
        /// Write.
        Write = 0x01,
        /// Read.
        Read = 0x02,
        /// Compare: the host's data with the namespace's.
        Compare = 0x05,
        /// Write Zeroes.
        WriteZeroes = 0x08,
        /// Dataset Management: hints and deallocation for ranges of blocks.
        DatasetManagement = 0x09,
        /// Verify: read without a transfer.
        Verify = 0x0C,
    }
}

impl IoOpcode {
    /// The direction of the command's data.
    #[must_use]
    #[inline]
    pub const fn direction(self) -> Direction {
        match self {
            IoOpcode::Write | IoOpcode::Compare | IoOpcode::DatasetManagement => Direction::ToController,
            IoOpcode::Read => Direction::ToHost,
            IoOpcode::Flush | IoOpcode::WriteZeroes | IoOpcode::Verify => Direction::None,
        }
    }
}

opcodes! {
    /// The type of a fabrics command.
    FabricsType {
        /// Property Set: write a register.
        PropertySet = 0x00,
        /// Connect: the first command of every queue.
        Connect = 0x01,
        /// Property Get: read a register.
        PropertyGet = 0x04,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_low_bits_of_an_opcode_are_its_direction() {
        for &opcode in IoOpcode::ALL {
            let expected = match opcode.code() & 3 {
                0 => Direction::None,
                1 => Direction::ToController,
                _ => Direction::ToHost,
            };
            assert_eq!(opcode.direction(), expected, "{opcode:?}");
            assert_eq!(IoOpcode::from_code(opcode.code()), Some(opcode));
        }
        assert_eq!(IoOpcode::from_code(FABRICS_OPCODE), None);
        assert_eq!(AdminOpcode::from_code(FABRICS_OPCODE), None);
    }
}
