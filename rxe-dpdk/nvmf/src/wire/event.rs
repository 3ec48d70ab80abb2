//! Asynchronous events: their mask, and the result of their completion.

use bitflags::bitflags;

bitflags! {
    /// Event types: OAES of Identify Controller, and the value of feature 0x0B.
    #[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
    pub struct EventMask: u32 {
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
}

impl AsyncEvent {
    /// Dword 0 of the completion: type, information, and the log page whose reading enables the next one.
    #[must_use]
    pub const fn result(self) -> u64 {
        match self {
            AsyncEvent::NamespaceChanged => 0x0004_0002,
            AsyncEvent::DiscoveryChanged => 0x0070_F002,
        }
    }

    /// The event of a completion's result.
    #[must_use]
    pub const fn from_result(result: u64) -> Option<AsyncEvent> {
        match result & 0x00FF_FFFF {
            0x0004_0002 => Some(AsyncEvent::NamespaceChanged),
            0x0070_F002 => Some(AsyncEvent::DiscoveryChanged),
            _ => None,
        }
    }

    /// The bit that enables it.
    #[must_use]
    pub const fn mask(self) -> EventMask {
        match self {
            AsyncEvent::NamespaceChanged => EventMask::NAMESPACE,
            AsyncEvent::DiscoveryChanged => EventMask::DISCOVERY,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::AsyncEvent;

    #[test]
    fn results_are_read_as_written() {
        for event in [AsyncEvent::NamespaceChanged, AsyncEvent::DiscoveryChanged] {
            assert_eq!(AsyncEvent::from_result(event.result()), Some(event));
        }
        assert_eq!(AsyncEvent::from_result(0), None);
    }
}
