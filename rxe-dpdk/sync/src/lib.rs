//! State that lcores and other threads share without locks.
//!
//! Each type states which thread may call what, and what a reader may conclude. `tests/loom.rs` explores every interleaving
//! and every value that the memory model lets a load return.
//!
//! | type | writers | readers conclude |
//! |---|---|---|
//! | [`Counter`] | one | a value that never decreases |
//! | [`Histogram`] | one | counts and a sum that never decrease |
//! | [`UseCount`] | any | nobody uses what was closed |
//! | [`HitCount`] | any | no more hits than allowed |
//! | [`LostFlag`], [`LostCount`] | signal handlers | a mapping whose loss was counted is marked |
//! | [`Arrivals`] | each participant once | what all did before they arrived |
//! | [`Latest`] | one | a value that belongs to its number |
//! | [`WakeFlag`] | any | work whose event was not written, or an event |

mod arrivals;
mod counter;
mod histogram;
mod hit_count;
mod latest;
mod lost;
mod use_count;
mod wake_flag;

pub use arrivals::Arrivals;
pub use counter::Counter;
pub use histogram::Histogram;
pub use hit_count::HitCount;
pub use latest::Latest;
pub use lost::{LostCount, LostFlag};
pub use use_count::UseCount;
pub use wake_flag::WakeFlag;

/// Atomics: those of the standard library, or loom's.
mod atomic {
    #[cfg(loom)]
    pub(crate) use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
    #[cfg(not(loom))]
    pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering, fence};
}
