//! The functions that find files by a pattern, and that walk a tree: their results have paths, which are mapped back.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int};
use std::ptr;

use libc::{glob_t, stat as stat_t};

use crate::open::{inside, own};
use crate::paths;
use crate::process::Process;
use crate::real::{self, GlobError, Place, Visit};

/// # Safety
/// As of `glob` of libc.
unsafe fn globbed(pattern: *const c_char, result: *mut glob_t, function: impl FnOnce(*const c_char) -> c_int) -> c_int {
    // SAFETY: the caller's pattern.
    if unsafe { own(pattern) }.is_none() {
        return function(pattern);
    }
    // SAFETY: the pattern is not null, as it is ours.
    let outcome = unsafe { inside(pattern, function) };
    let Some(process) = Process::current().filter(|_| outcome == 0 && !result.is_null()) else { return outcome };
    // SAFETY: glob has written so many paths, behind `gl_offs` null pointers, which it sets to 0 without GLOB_DOOFFS.
    // Those of earlier calls stay as they are, as they are mapped back already.
    unsafe {
        let found = (*result).gl_pathv.add((*result).gl_offs);
        for at in 0..(*result).gl_pathc {
            map_back(process.folder(), *found.add(at));
        }
    }
    outcome
}

/// Maps a path in `folder` back, in place.
///
/// # Safety
/// `path` is a C string that may be changed.
unsafe fn map_back(folder: &[u8], path: *mut c_char) {
    // SAFETY: by the contract of this function.
    let inside = unsafe { CStr::from_ptr(path) }.to_bytes_with_nul();
    let outside = paths::outside(folder, inside);
    // SAFETY: the source is the end of the string at the destination, terminator included.
    unsafe { ptr::copy(outside.as_ptr(), path.cast(), outside.len()) };
}

macro_rules! glob_functions {
    ($($name:ident),*) => { $(
        /// # Safety
        /// As of the function of libc.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            pattern: *const c_char,
            flags: c_int,
            error: GlobError,
            result: *mut glob_t,
        ) -> c_int {
            let function = |pattern| match real::$name.get() {
                // SAFETY: the caller's arguments, or a C string as the pattern.
                Some(function) => unsafe { function(pattern, flags, error, result) },
                None => libc::GLOB_ABORTED,
            };
            // SAFETY: the caller's arguments.
            unsafe { globbed(pattern, result, function) }
        }
    )* };
}

glob_functions!(glob, glob64);

thread_local! {
    /// The function of the program, while this thread is in a call of `nftw` for our files.
    static VISIT: Cell<Option<Visit>> = const { Cell::new(None) };
}

/// Calls the function of the program with the path that it knows.
///
/// # Safety
/// As of the function that `nftw` calls.
unsafe extern "C-unwind" fn visit(path: *const c_char, status: *const stat_t, kind: c_int, place: *mut Place) -> c_int {
    let (Some(visit), Some(process)) = (VISIT.get(), Process::current()) else { return -1 };
    // SAFETY: the path is a C string.
    let inside = unsafe { CStr::from_ptr(path) }.to_bytes_with_nul();
    let outside = paths::outside(process.folder(), inside);
    let removed = inside.len() - outside.len();
    // SAFETY: the arguments of nftw, with the end of the path.
    unsafe {
        (*place).base -= removed as c_int;
        visit(outside.as_ptr().cast(), status, kind, place)
    }
}

macro_rules! nftw_functions {
    ($($name:ident),*) => { $(
        /// # Safety
        /// As of the function of libc.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            path: *const c_char,
            function: Visit,
            descriptors: c_int,
            flags: c_int,
        ) -> c_int {
            let Some(nftw) = real::$name.get() else { return -1 };
            // SAFETY: the caller's path.
            if unsafe { own(path) }.is_none() {
                // SAFETY: the caller's arguments.
                return unsafe { nftw(path, function, descriptors, flags) };
            }
            let before = VISIT.replace(Some(function));
            // SAFETY: the path is not null, as it is ours, and `visit` is such a function.
            let outcome = unsafe { inside(path, |path| nftw(path, visit, descriptors, flags)) };
            VISIT.set(before);
            outcome
        }
    )* };
}

nftw_functions!(nftw, nftw64);
