//! Transport services.

use std::fmt;

use crate::wire::Transport;

/// The transport service of a queue pair; the names are those of libibverbs' `ibv_qp_type`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum QpType {
    /// Reliable connection.
    #[default]
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
}

impl QpType {
    /// The transport bits of its packets.
    #[inline]
    pub const fn transport(self) -> Transport {
        match self {
            QpType::Rc => Transport::Rc,
            QpType::Uc => Transport::Uc,
            QpType::Ud => Transport::Ud,
        }
    }
}

impl fmt::Display for QpType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            QpType::Rc => "RC",
            QpType::Uc => "UC",
            QpType::Ud => "UD",
        })
    }
}
