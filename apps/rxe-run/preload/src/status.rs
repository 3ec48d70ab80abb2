//! The functions that return the status of files. Our devices are character devices, with the numbers that sysfs names.

use std::ffi::{c_char, c_int, c_uint};

use libc::{S_IFCHR, stat as stat_t, stat64 as stat64_t, statx as statx_t};
use rxe_uverbs::backend::Device;
use rxe_uverbs::descriptors::Kind;

use crate::open::{inside, own};
use crate::paths::OwnPath;
use crate::process::DESCRIPTORS;
use crate::real;

const MODE: u32 = S_IFCHR | 0o666;

/// A status that can be that of a device.
trait Status {
    /// The numbers of the file system and of the inode.
    fn inode(&self) -> (u64, u64);
    /// Makes it the status of `device`.
    fn become_device(&mut self, device: Device);
}

macro_rules! status {
    ($($status:ty),*) => { $(
        impl Status for $status {
            fn inode(&self) -> (u64, u64) {
                (self.st_dev, self.st_ino)
            }

            fn become_device(&mut self, device: Device) {
                let (major, minor) = device.numbers();
                self.st_mode = MODE;
                self.st_rdev = libc::makedev(major, minor);
                self.st_size = 0;
                self.st_blocks = 0;
            }
        }
    )* };
}

status!(stat_t, stat64_t);

impl Status for statx_t {
    fn inode(&self) -> (u64, u64) {
        (libc::makedev(self.stx_dev_major, self.stx_dev_minor), self.stx_ino)
    }

    fn become_device(&mut self, device: Device) {
        (self.stx_rdev_major, self.stx_rdev_minor) = device.numbers();
        self.stx_mode = MODE as u16;
        self.stx_size = 0;
        self.stx_blocks = 0;
    }
}

/// The status of a path, which `function` writes to `status`.
///
/// # Safety
/// `path` is null or a C string; when `function` returns 0, `status` is valid.
unsafe fn of_path<S: Status>(
    path: *const c_char,
    status: *mut S,
    function: impl FnOnce(*const c_char) -> c_int,
) -> c_int {
    // SAFETY: by the contract of this function.
    match unsafe { own(path) } {
        None => function(path),
        Some(OwnPath { device }) => {
            // SAFETY: the path is not null, as it is ours.
            let result = unsafe { inside(path, function) };
            if let Some(device) = device
                && result == 0
            {
                // SAFETY: the function has written the status.
                unsafe { (*status).become_device(device) };
            }
            result
        }
    }
}

/// The status of a descriptor, which `function` writes to `status`.
///
/// # Safety
/// When `function` returns 0, `status` is valid.
unsafe fn of_descriptor<S: Status>(fd: c_int, status: *mut S, function: impl FnOnce() -> c_int) -> c_int {
    let result = function();
    let Some(entry) = DESCRIPTORS.get(fd).filter(|_| result == 0) else { return result };
    let device = match entry.file.kind {
        Kind::Uverbs => Device::Uverbs,
        Kind::RdmaCm => Device::RdmaCm,
        Kind::Channel | Kind::Netlink => return result,
    };
    // SAFETY: the function has written the status.
    let status = unsafe { &mut *status };
    let (file_system, inode) = status.inode();
    // The number may belong to another file by now.
    if entry.is_of(file_system, inode) {
        status.become_device(device);
    }
    result
}

/// The status of `path` or, with an empty path and AT_EMPTY_PATH, of the descriptor `fd`.
///
/// # Safety
/// As of [`of_path`].
unsafe fn of_either<S: Status>(
    fd: c_int,
    path: *const c_char,
    flags: c_int,
    status: *mut S,
    function: impl FnOnce(*const c_char) -> c_int,
) -> c_int {
    // SAFETY: a path that is not null is a C string, so it has a first byte.
    let empty = path.is_null() || unsafe { *path } == 0;
    // SAFETY: by the contract of this function.
    unsafe {
        if empty && flags & libc::AT_EMPTY_PATH != 0 {
            of_descriptor(fd, status, || function(path))
        } else {
            of_path(path, status, function)
        }
    }
}

macro_rules! status_functions {
    ($(fn $name:ident($($argument:ident: $type:ty),*) => $of:ident($($of_argument:ident),*), [$($path:ident)?];)*) => { $(
        /// # Safety
        /// As of the function of libc.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> c_int {
            let function = |$($path)?| match real::$name.get() {
                // SAFETY: the caller's arguments, or a C string as the path.
                Some(function) => unsafe { function($($argument),*) },
                None => -1,
            };
            // SAFETY: the caller's path and status.
            unsafe { $of($($of_argument,)* function) }
        }
    )* };
}

status_functions! {
    fn stat(path: *const c_char, status: *mut stat_t) => of_path(path, status), [path];
    fn stat64(path: *const c_char, status: *mut stat64_t) => of_path(path, status), [path];
    fn lstat(path: *const c_char, status: *mut stat_t) => of_path(path, status), [path];
    fn lstat64(path: *const c_char, status: *mut stat64_t) => of_path(path, status), [path];
    fn __xstat(version: c_int, path: *const c_char, status: *mut stat_t) => of_path(path, status), [path];
    fn __xstat64(version: c_int, path: *const c_char, status: *mut stat64_t) => of_path(path, status), [path];
    fn __lxstat(version: c_int, path: *const c_char, status: *mut stat_t) => of_path(path, status), [path];
    fn __lxstat64(version: c_int, path: *const c_char, status: *mut stat64_t) => of_path(path, status), [path];
    fn fstat(fd: c_int, status: *mut stat_t) => of_descriptor(fd, status), [];
    fn fstat64(fd: c_int, status: *mut stat64_t) => of_descriptor(fd, status), [];
    fn __fxstat(version: c_int, fd: c_int, status: *mut stat_t) => of_descriptor(fd, status), [];
    fn __fxstat64(version: c_int, fd: c_int, status: *mut stat64_t) => of_descriptor(fd, status), [];
    fn fstatat(fd: c_int, path: *const c_char, status: *mut stat_t, flags: c_int)
        => of_either(fd, path, flags, status), [path];
    fn fstatat64(fd: c_int, path: *const c_char, status: *mut stat64_t, flags: c_int)
        => of_either(fd, path, flags, status), [path];
    fn __fxstatat(version: c_int, fd: c_int, path: *const c_char, status: *mut stat_t, flags: c_int)
        => of_either(fd, path, flags, status), [path];
    fn __fxstatat64(version: c_int, fd: c_int, path: *const c_char, status: *mut stat64_t, flags: c_int)
        => of_either(fd, path, flags, status), [path];
    fn statx(fd: c_int, path: *const c_char, flags: c_int, mask: c_uint, status: *mut statx_t)
        => of_either(fd, path, flags, status), [path];
}
