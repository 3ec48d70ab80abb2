//! `ibv_fork_init`: nothing is pinned here, so nothing has to be kept from children.
//!
//! libibverbs' own takes registered memory from children of a fork (`MADV_DONTFORK`), which crash when they use it. As a kernel with
//! copy-on-fork does, this library needs none of that.

use std::ffi::c_int;

/// `IBV_FORK_UNNEEDED`
const UNNEEDED: c_int = 2;

#[unsafe(no_mangle)]
pub extern "C-unwind" fn ibv_fork_init() -> c_int {
    0
}

#[unsafe(no_mangle)]
pub extern "C-unwind" fn ibv_is_fork_initialized() -> c_int {
    UNNEEDED
}
