//! Feature identifiers of Get and Set Features.

/// A feature that a controller may have here.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[repr(u8)]
pub enum FeatureId {
    /// Volatile write cache.
    WriteCache = 0x06,
    /// Number of I/O queues.
    NumberOfQueues = 0x07,
    /// Mask of asynchronous events.
    AsyncEvents = 0x0B,
    /// Keep alive timeout in milliseconds.
    KeepAliveTimeout = 0x0F,
    /// The host's identifier.
    HostIdentifier = 0x81,
}

impl FeatureId {
    /// The feature of a code.
    #[must_use]
    pub const fn from_code(code: u8) -> Option<FeatureId> {
        match code {
            0x06 => Some(FeatureId::WriteCache),
            0x07 => Some(FeatureId::NumberOfQueues),
            0x0B => Some(FeatureId::AsyncEvents),
            0x0F => Some(FeatureId::KeepAliveTimeout),
            0x81 => Some(FeatureId::HostIdentifier),
            _ => None,
        }
    }
}
