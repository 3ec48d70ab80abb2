//! The functions of the next library in the order of symbol lookup: usually libc's.
//!
//! Each is looked up at its first use: programs call these functions before `main` and in signal handlers.

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulong, c_void};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicPtr, Ordering};

use libc::{
    DIR, FILE, dirent, glob_t, msghdr, size_t, sockaddr, socklen_t, ssize_t, stat as stat_t, stat64 as stat64_t,
    statx as statx_t,
};
use nix::errno::Errno;

/// A function of the next library. `F` is the type of its pointer.
pub struct Real<F> {
    name: &'static CStr,
    address: AtomicPtr<c_void>,
    function: PhantomData<F>,
}

impl<F: Copy> Real<F> {
    /// # Safety
    /// `F` is a function pointer of the type of the function `name`.
    const unsafe fn new(name: &'static CStr) -> Real<F> {
        Real { name, address: AtomicPtr::new(std::ptr::null_mut()), function: PhantomData }
    }

    /// The function, if there is one; else `errno` is set.
    pub fn get(&self) -> Option<F> {
        let mut address = self.address.load(Ordering::Relaxed);
        if address.is_null() {
            // SAFETY: the name is a C string, and the call comes from this library, which RTLD_NEXT refers to.
            address = unsafe { libc::dlsym(libc::RTLD_NEXT, self.name.as_ptr()) };
            if address.is_null() {
                Errno::ENOSYS.set();
                return None;
            }
            self.address.store(address, Ordering::Relaxed);
        }
        const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
        // SAFETY: by the contract of `new`, F is the function's pointer type, and the address is not null.
        Some(unsafe { std::mem::transmute_copy::<*mut c_void, F>(&address) })
    }
}

/// Of `scandir`: which entries to return.
pub type Filter = Option<unsafe extern "C-unwind" fn(*const dirent) -> c_int>;
/// Of `scandir`: their order.
pub type Compare = Option<unsafe extern "C-unwind" fn(*mut *const dirent, *mut *const dirent) -> c_int>;

/// What `glob` calls for an error.
pub type GlobError = Option<unsafe extern "C-unwind" fn(*const c_char, c_int) -> c_int>;

/// `struct FTW`: where a file is.
#[repr(C)]
pub struct Place {
    /// Index of the name in the path.
    pub base: c_int,
    level: c_int,
}

/// What `nftw` calls for each file.
pub type Visit = unsafe extern "C-unwind" fn(*const c_char, *const stat_t, c_int, *mut Place) -> c_int;

macro_rules! real {
    ($(fn $name:ident($($argument:ty),* $(; $variadic:tt)?) -> $result:ty;)*) => { $(
        #[allow(non_upper_case_globals, reason = "the names are those of the functions")]
        pub static $name: Real<unsafe extern "C-unwind" fn($($argument),* $(, $variadic)?) -> $result> = {
            const NAME: &CStr = match CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                Ok(name) => name,
                Err(_) => unreachable!(),
            };
            // SAFETY: the type is that of the function in libc's headers.
            unsafe { Real::new(NAME) }
        };
    )* };
}

real! {
    fn open(*const c_char, c_int; ...) -> c_int;
    fn open64(*const c_char, c_int; ...) -> c_int;
    fn openat(c_int, *const c_char, c_int; ...) -> c_int;
    fn openat64(c_int, *const c_char, c_int; ...) -> c_int;
    fn __open_2(*const c_char, c_int) -> c_int;
    fn __open64_2(*const c_char, c_int) -> c_int;
    fn __openat_2(c_int, *const c_char, c_int) -> c_int;
    fn __openat64_2(c_int, *const c_char, c_int) -> c_int;
    fn fopen(*const c_char, *const c_char) -> *mut FILE;
    fn fopen64(*const c_char, *const c_char) -> *mut FILE;
    fn opendir(*const c_char) -> *mut DIR;
    fn scandir(*const c_char, *mut *mut *mut dirent, Filter, Compare) -> c_int;
    fn scandir64(*const c_char, *mut *mut *mut dirent, Filter, Compare) -> c_int;
    fn glob(*const c_char, c_int, GlobError, *mut glob_t) -> c_int;
    fn glob64(*const c_char, c_int, GlobError, *mut glob_t) -> c_int;
    fn nftw(*const c_char, Visit, c_int, c_int) -> c_int;
    fn nftw64(*const c_char, Visit, c_int, c_int) -> c_int;
    fn access(*const c_char, c_int) -> c_int;
    fn eaccess(*const c_char, c_int) -> c_int;
    fn euidaccess(*const c_char, c_int) -> c_int;
    fn faccessat(c_int, *const c_char, c_int, c_int) -> c_int;
    fn readlink(*const c_char, *mut c_char, size_t) -> ssize_t;
    fn readlinkat(c_int, *const c_char, *mut c_char, size_t) -> ssize_t;
    fn __readlink_chk(*const c_char, *mut c_char, size_t, size_t) -> ssize_t;
    fn __readlinkat_chk(c_int, *const c_char, *mut c_char, size_t, size_t) -> ssize_t;
    fn chdir(*const c_char) -> c_int;
    fn realpath(*const c_char, *mut c_char) -> *mut c_char;
    fn __realpath_chk(*const c_char, *mut c_char, size_t) -> *mut c_char;
    fn stat(*const c_char, *mut stat_t) -> c_int;
    fn stat64(*const c_char, *mut stat64_t) -> c_int;
    fn lstat(*const c_char, *mut stat_t) -> c_int;
    fn lstat64(*const c_char, *mut stat64_t) -> c_int;
    fn fstat(c_int, *mut stat_t) -> c_int;
    fn fstat64(c_int, *mut stat64_t) -> c_int;
    fn fstatat(c_int, *const c_char, *mut stat_t, c_int) -> c_int;
    fn fstatat64(c_int, *const c_char, *mut stat64_t, c_int) -> c_int;
    fn __xstat(c_int, *const c_char, *mut stat_t) -> c_int;
    fn __xstat64(c_int, *const c_char, *mut stat64_t) -> c_int;
    fn __lxstat(c_int, *const c_char, *mut stat_t) -> c_int;
    fn __lxstat64(c_int, *const c_char, *mut stat64_t) -> c_int;
    fn __fxstat(c_int, c_int, *mut stat_t) -> c_int;
    fn __fxstat64(c_int, c_int, *mut stat64_t) -> c_int;
    fn __fxstatat(c_int, c_int, *const c_char, *mut stat_t, c_int) -> c_int;
    fn __fxstatat64(c_int, c_int, *const c_char, *mut stat64_t, c_int) -> c_int;
    fn statx(c_int, *const c_char, c_int, libc::c_uint, *mut statx_t) -> c_int;
    fn write(c_int, *const c_void, size_t) -> ssize_t;
    fn close(c_int) -> c_int;
    fn close_range(c_uint, c_uint, c_int) -> c_int;
    fn closefrom(c_int) -> ();
    fn dup(c_int) -> c_int;
    fn dup2(c_int, c_int) -> c_int;
    fn dup3(c_int, c_int, c_int) -> c_int;
    fn fcntl(c_int, c_int; ...) -> c_int;
    fn fcntl64(c_int, c_int; ...) -> c_int;
    fn ioctl(c_int, c_ulong; ...) -> c_int;
    fn socket(c_int, c_int, c_int) -> c_int;
    fn bind(c_int, *const sockaddr, socklen_t) -> c_int;
    fn getsockname(c_int, *mut sockaddr, *mut socklen_t) -> c_int;
    fn setsockopt(c_int, c_int, c_int, *const c_void, socklen_t) -> c_int;
    fn send(c_int, *const c_void, size_t, c_int) -> ssize_t;
    fn sendto(c_int, *const c_void, size_t, c_int, *const sockaddr, socklen_t) -> ssize_t;
    fn sendmsg(c_int, *const msghdr, c_int) -> ssize_t;
    fn recvfrom(c_int, *mut c_void, size_t, c_int, *mut sockaddr, *mut socklen_t) -> ssize_t;
    fn recvmsg(c_int, *mut msghdr, c_int) -> ssize_t;
}
