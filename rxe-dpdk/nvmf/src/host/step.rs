//! The steps of a session.

/// A step of a session: one action and what it waits for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    OpenQueue(u16),
    ConnectQueue(u16),
    GetCapabilities,
    Configure,
    Enable,
    WaitReady,
    IdentifyController,
    SetQueues,
    SetEventMask,
    EventRequest,
    ActiveNamespaces,
    /// Identifiers of the namespace with this index.
    Descriptors(usize),
    /// Size of the namespace with this index.
    Namespace(usize),
    DiscoveryHeader,
    /// Record of the discovery log with this index.
    DiscoveryRecord(usize),
    Ready,
    KeepAlive,
    CloseQueue(u16),
    Shutdown,
    WaitShutdown,
    Closed,
}

impl Step {
    /// Name of the command that the step waits for.
    pub(super) const fn command_name(self) -> Option<&'static str> {
        match self {
            Step::ConnectQueue(_) => Some("Connect"),
            Step::GetCapabilities | Step::WaitReady | Step::WaitShutdown => Some("Property Get"),
            Step::Configure | Step::Enable | Step::Shutdown => Some("Property Set"),
            Step::IdentifyController | Step::ActiveNamespaces | Step::Descriptors(_) | Step::Namespace(_) => {
                Some("Identify")
            }
            Step::SetQueues | Step::SetEventMask => Some("Set Features"),
            Step::DiscoveryHeader | Step::DiscoveryRecord(_) => Some("Get Log Page"),
            Step::KeepAlive => Some("Keep Alive"),
            Step::OpenQueue(_) | Step::EventRequest | Step::Ready | Step::CloseQueue(_) | Step::Closed => None,
        }
    }
}
