//! Operations that a service waits for.

use std::iter::Sum;

/// Number of operations that a service has begun and that have not completed: I/O on a disk, work of another thread. See
/// [`Service::poll`](crate::Service::poll).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Outstanding(pub usize);

impl Outstanding {
    /// No operation.
    pub const NONE: Outstanding = Outstanding(0);

    /// Whether there is no operation.
    #[inline]
    #[must_use]
    pub const fn is_none(self) -> bool {
        self.0 == 0
    }
}

/// The operations of several services.
impl Sum for Outstanding {
    fn sum<I: Iterator<Item = Outstanding>>(each: I) -> Outstanding {
        Outstanding(each.map(|outstanding| outstanding.0).fold(0, usize::saturating_add))
    }
}
