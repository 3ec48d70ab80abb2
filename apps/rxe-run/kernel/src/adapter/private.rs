//! Descriptors that the program does not know of, and that a forked child closes.

use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::atomic::{AtomicI32, Ordering};

use crate::descriptors::PRIVATE;

/// More than an adapter ever has.
const SLOTS: usize = 64;
const FREE: RawFd = -1;

/// Their numbers, readable without a lock.
#[derive(Debug)]
pub struct Private([AtomicI32; SLOTS]);

impl Default for Private {
    fn default() -> Private {
        Private([const { AtomicI32::new(FREE) }; SLOTS])
    }
}

impl Private {
    /// Adds an open descriptor.
    pub fn add(&self, fd: impl AsFd) {
        let fd = fd.as_fd().as_raw_fd();
        PRIVATE.add(fd);
        let free = |slot: &&AtomicI32| slot.compare_exchange(FREE, fd, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        if self.0.iter().find(free).is_none() {
            tracing::debug!("descriptor {fd} stays open in the children of this process");
        }
    }

    /// Removes a descriptor that is about to be closed.
    pub fn remove(&self, fd: impl AsFd) {
        let fd = fd.as_fd().as_raw_fd();
        for slot in &self.0 {
            let _others = slot.compare_exchange(fd, FREE, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Closes all, in the child of a fork.
    pub fn close(&self) {
        for slot in &self.0 {
            let fd = slot.swap(FREE, Ordering::Relaxed);
            if fd != FREE {
                // An error would say that the descriptor is closed.
                let _ = nix::unistd::close(fd);
            }
        }
    }
}
