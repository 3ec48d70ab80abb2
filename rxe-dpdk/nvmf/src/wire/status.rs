//! Completion status: code, and the bits that tell the host whether to retry.

use std::fmt;

/// Most bits of a code: three of the code type, eight of the code.
const CODE_MASK: u16 = 0x7FF;
/// More information is in the error log.
const MORE: u16 = 1 << 14;
/// Do not retry.
const DNR: u16 = 1 << 15;

macro_rules! status_codes {
    ($($(#[$doc:meta])* $name:ident = $code:literal, $text:literal;)*) => {
        /// A status code with its type: bits 10:8 are the type, bits 7:0 the code, as Linux prints them.
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        pub enum StatusCode {
            $($(#[$doc])* $name,)*
            /// A code without a name here.
            Other(u16),
        }

        impl StatusCode {
            /// Every code with a name.
            pub const ALL: &[StatusCode] = &[$(StatusCode::$name),*];

            /// The code of 11 bits; further bits are ignored.
            #[must_use]
            pub const fn from_bits(bits: u16) -> StatusCode {
                match bits & CODE_MASK {
                    $($code => StatusCode::$name,)*
                    other => StatusCode::Other(other),
                }
            }

            /// Code type and code, 11 bits.
            #[must_use]
            pub const fn bits(self) -> u16 {
                match self {
                    $(StatusCode::$name => $code,)*
                    StatusCode::Other(bits) => bits & CODE_MASK,
                }
            }

            const fn text(self) -> &'static str {
                match self {
                    $(StatusCode::$name => $text,)*
                    StatusCode::Other(_) => "unknown status",
                }
            }
        }
    };
}

status_codes! {
    /// The command succeeded.
    Success = 0x000, "success";
    /// The opcode is unknown, or not supported on this queue.
    InvalidOpcode = 0x001, "invalid opcode";
    /// A field of the command has a reserved or unsupported value.
    InvalidField = 0x002, "invalid field";
    /// The command id is in use.
    CommandIdConflict = 0x003, "command id conflict";
    /// The data could not be transferred.
    DataTransferError = 0x004, "data transfer error";
    /// The controller failed.
    Internal = 0x006, "internal error";
    /// An Abort command aborted the command.
    AbortRequested = 0x007, "aborted on request";
    /// No active namespace has this NSID.
    InvalidNamespace = 0x00B, "invalid namespace";
    /// The command is not allowed in this state.
    CommandSequenceError = 0x00C, "command sequence error";
    /// The length of the SGL is not that of the command's data.
    DataSglLengthInvalid = 0x00F, "data SGL length invalid";
    /// The type of an SGL descriptor is not supported.
    SglTypeInvalid = 0x011, "SGL descriptor type invalid";
    /// The offset of an SGL descriptor is outside the capsule.
    SglOffsetInvalid = 0x016, "SGL offset invalid";
    /// The namespace is read-only.
    NamespaceWriteProtected = 0x020, "namespace is write protected";
    /// A block is outside the namespace.
    LbaOutOfRange = 0x080, "LBA out of range";
    /// The backend has no space left.
    CapacityExceeded = 0x081, "capacity exceeded";
    /// The namespace is not ready.
    NamespaceNotReady = 0x082, "namespace not ready";
    /// More asynchronous event requests than the controller holds.
    AsyncEventLimitExceeded = 0x105, "asynchronous event request limit exceeded";
    /// The log page is not supported.
    InvalidLogPage = 0x109, "invalid log page";
    /// Connect: the format of the record is not supported.
    ConnectIncompatibleFormat = 0x180, "connect: incompatible format";
    /// Connect: the controller, or the identifier of one, is not available now.
    ConnectControllerBusy = 0x181, "connect: controller busy";
    /// Connect: a field is invalid; the result names it.
    ConnectInvalidParameters = 0x182, "connect: invalid parameters";
    /// Connect: the host must read the discovery log again.
    ConnectRestartDiscovery = 0x183, "connect: restart discovery";
    /// Connect: the host may not use this subsystem.
    ConnectInvalidHost = 0x184, "connect: invalid host";
    /// The backend could not write.
    WriteFault = 0x280, "write fault";
    /// The backend could not read.
    UnrecoveredReadError = 0x281, "unrecovered read error";
    /// Compare found different data.
    CompareFailure = 0x285, "compare failure";
}

impl fmt::Display for StatusCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:#05x})", self.text(), self.bits())
    }
}

/// The status of a completion entry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Status {
    /// The code.
    pub code: StatusCode,
    /// Do not retry: the command will fail again.
    pub dnr: bool,
    /// The error log has an entry for the command.
    pub more: bool,
}

impl Status {
    /// The command succeeded.
    pub const SUCCESS: Status = Status { code: StatusCode::Success, dnr: false, more: false };

    /// A failure that the host must not retry.
    #[must_use]
    pub const fn permanent(code: StatusCode) -> Status {
        Status { code, dnr: true, more: false }
    }

    /// A failure that the host may retry.
    #[must_use]
    pub const fn retryable(code: StatusCode) -> Status {
        Status { code, dnr: false, more: false }
    }

    /// Whether the command succeeded.
    #[must_use]
    pub const fn is_success(self) -> bool {
        matches!(self.code, StatusCode::Success)
    }

    /// The last word of a completion entry, with phase 0 and no retry delay.
    #[must_use]
    pub const fn to_word(self) -> u16 {
        (self.code.bits() << 1) | if self.more { MORE } else { 0 } | if self.dnr { DNR } else { 0 }
    }

    /// Reads the last word of a completion entry. Phase and retry delay are ignored.
    #[must_use]
    pub const fn from_word(word: u16) -> Status {
        Status { code: StatusCode::from_bits(word >> 1), dnr: word & DNR != 0, more: word & MORE != 0 }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.code, if self.dnr { ", do not retry" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_without_phase_and_delay_is_written_as_it_was_read() {
        for word in 0..=u16::MAX {
            assert_eq!(Status::from_word(word).to_word(), word & !0x3001, "{word:#06x}");
        }
    }

    #[test]
    fn codes_are_distinct_and_found_by_their_bits() {
        for &code in StatusCode::ALL {
            assert_eq!(StatusCode::from_bits(code.bits()), code);
        }
        assert_eq!(StatusCode::from_bits(0x7FF), StatusCode::Other(0x7FF));
    }

    #[test]
    fn captured_words_have_the_status_that_linux_prints() {
        // nvmf-rdma-cmds.pcap, Connect to an unknown NQN.
        assert_eq!(Status::from_word(0x8304), Status::permanent(StatusCode::ConnectInvalidParameters));
        // The same file, a refused Compare: invalid opcode, more, do not retry.
        assert_eq!(Status::from_word(0xC002), Status { code: StatusCode::InvalidOpcode, dnr: true, more: true });
        assert_eq!(Status::permanent(StatusCode::LbaOutOfRange).to_string(), "LBA out of range (0x080), do not retry");
    }
}
