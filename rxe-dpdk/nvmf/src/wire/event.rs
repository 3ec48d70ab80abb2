//! Asynchronous events: their mask, and the result of their completion.

use bitflags::bitflags;

bitflags! {
    /// Event types: OAES of Identify Controller, and the value of feature 0x0B.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
    pub struct EventMask: u32 {
        /// The reliability of the subsystem is degraded. Not in OAES, as all controllers have it.
        const DEGRADED = 1 << 2;
        /// All media are in read-only mode. Not in OAES.
        const MEDIA_READ_ONLY = 1 << 3;
        /// A namespace was added, removed, or changed.
        const NAMESPACE = 1 << 8;
        /// A firmware was activated.
        const FIRMWARE = 1 << 9;
        /// Access states of namespaces changed.
        const ASYMMETRIC_ACCESS = 1 << 11;
        /// The discovery log changed.
        const DISCOVERY = 1 << 31;
        const _ = !0;
    }
}

/// An event that this implementation reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum AsyncEvent {
    /// The attributes of a namespace, or the list of namespaces, changed; the details are in log 0x04.
    NamespaceChanged,
    /// The discovery log changed.
    DiscoveryChanged,
    /// Data may be lost, and media may be read-only; the details are in log 0x02.
    ReliabilityDegraded,
}

impl AsyncEvent {
    /// Dword 0 of the completion: type, information, and the log page whose reading enables the next one.
    #[must_use]
    pub const fn result(self) -> u64 {
        match self {
            AsyncEvent::NamespaceChanged => 0x0004_0002,
            AsyncEvent::DiscoveryChanged => 0x0070_F002,
            AsyncEvent::ReliabilityDegraded => 0x0002_0001,
        }
    }

    /// The event of a completion's result.
    #[must_use]
    pub const fn from_result(result: u64) -> Option<AsyncEvent> {
        match result & 0x00FF_FFFF {
            0x0004_0002 => Some(AsyncEvent::NamespaceChanged),
            0x0070_F002 => Some(AsyncEvent::DiscoveryChanged),
            0x0002_0001 => Some(AsyncEvent::ReliabilityDegraded),
            _ => None,
        }
    }

    /// The bits of which each enables it.
    #[must_use]
    pub const fn mask(self) -> EventMask {
        match self {
            AsyncEvent::NamespaceChanged => EventMask::NAMESPACE,
            AsyncEvent::DiscoveryChanged => EventMask::DISCOVERY,
            AsyncEvent::ReliabilityDegraded => EventMask::DEGRADED.union(EventMask::MEDIA_READ_ONLY),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::AsyncEvent;

    #[test]
    fn results_are_read_as_written() {
        for event in [AsyncEvent::NamespaceChanged, AsyncEvent::DiscoveryChanged, AsyncEvent::ReliabilityDegraded] {
            assert_eq!(AsyncEvent::from_result(event.result()), Some(event));
        }
        assert_eq!(AsyncEvent::from_result(0), None);
    }
}
