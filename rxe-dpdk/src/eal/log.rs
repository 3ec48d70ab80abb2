//! EAL's own chatter: kept while EAL starts, so that a failure becomes one sentence; on stderr afterwards, through the
//! writer of [`output`] where that is started, as EAL logs on lcores too.

use std::ffi::{c_char, c_int, c_void};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::FileExt;

use crate::output;

/// While this lives, what EAL logs and what its option parser prints on stdout and stderr goes to memory.
///
/// The two descriptors belong to the whole process, so what other threads print in this time is kept, too. EAL is
/// started first thing in a process, when there are none.
pub(super) struct Capture {
    /// EAL's log and stderr.
    text: File,
    /// The former files of these descriptors.
    saved: Vec<(i32, OwnedFd)>,
}

impl Capture {
    pub(super) fn start() -> io::Result<Capture> {
        let text = memory_file()?;
        // The option parser prints the full usage text on stdout for an unknown option; it is discarded.
        let usage = memory_file()?;
        let mut capture = Capture { text, saved: Vec::new() };
        flush();
        capture.redirect(libc::STDOUT_FILENO, &usage);
        let text = capture.text.try_clone()?;
        capture.redirect(libc::STDERR_FILENO, &text);
        log_to(capture.text.try_clone()?.into());
        Ok(capture)
    }

    /// Puts everything back and returns what was said.
    pub(super) fn finish(self) -> String {
        flush();
        let len = self.text.metadata().map_or(0, |meta| meta.len());
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(0)];
        let read = self.text.read_at(&mut bytes, 0).unwrap_or(0);
        String::from_utf8_lossy(bytes.get(..read).unwrap_or_default()).into_owned()
    }

    fn redirect(&mut self, fd: i32, to: &File) {
        // SAFETY: duplicates a descriptor number; fails when it is closed, and then there is nothing to save.
        let saved = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3) };
        if saved < 0 {
            return;
        }
        // SAFETY: `saved` was just made and nobody else knows it.
        self.saved.push((fd, unsafe { OwnedFd::from_raw_fd(saved) }));
        // SAFETY: both are open; the old meaning of `fd` is saved and restored on drop.
        unsafe { libc::dup2(to.as_raw_fd(), fd) };
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        flush();
        for (fd, saved) in self.saved.drain(..) {
            // SAFETY: both are open descriptors, and this is what stood at `fd` before.
            unsafe { libc::dup2(saved.as_raw_fd(), fd) };
        }
        if output::started_stderr().is_some() && log_to_output() {
            return;
        }
        // SAFETY: duplicates stderr for the stream.
        let stderr = unsafe { libc::fcntl(libc::STDERR_FILENO, libc::F_DUPFD_CLOEXEC, 3) };
        if stderr >= 0 {
            // SAFETY: `stderr` was just made and nobody else knows it.
            log_to(unsafe { OwnedFd::from_raw_fd(stderr) });
        }
    }
}

/// The last informative lines of the log, for the error message of a failed start.
pub(super) fn gist(text: &str) -> String {
    const CHATTER: [&str; 9] = [
        "Detected ",
        "Multi-process socket",
        "Selected IOVA mode",
        "VFIO support initialized",
        "Probe PCI driver",
        "No available",
        "No free 1048576 kB",
        "TELEMETRY:",
        "WARNING: Main core",
    ];
    const LINES: usize = 4;
    let mut lines: Vec<&str> = Vec::new();
    for line in text.lines() {
        let line = line.trim();
        let line = line.strip_prefix("EAL: ").unwrap_or(line);
        let line = line.strip_prefix("FATAL: ").unwrap_or(line);
        let chatter = CHATTER.iter().any(|chatter| line.starts_with(chatter));
        if !line.is_empty() && !chatter && !lines.contains(&line) {
            lines.push(line);
        }
    }
    match lines.get(lines.len().saturating_sub(LINES)..) {
        Some(last) if !last.is_empty() => last.join("; "),
        _ => "EAL gave no reason".to_owned(),
    }
}

/// Makes EAL log to `fd` from now on. The stream lives as long as the process: EAL may log at any time.
fn log_to(fd: OwnedFd) {
    let fd = fd.into_raw_fd();
    // SAFETY: `fd` is open and now belongs to the stream; the mode is a C string.
    let stream = unsafe { libc::fdopen(fd, c"a".as_ptr()) };
    if stream.is_null() {
        // SAFETY: the stream was not made, so the descriptor is still ours.
        drop(unsafe { OwnedFd::from_raw_fd(fd) });
        return;
    }
    // SAFETY: a valid stream that is never closed.
    unsafe { dpdk_sys::rte_openlog_stream(stream.cast()) };
}

/// glibc's `cookie_io_functions_t`: the callbacks of a custom stream.
#[repr(C)]
struct CookieFunctions {
    read: Option<unsafe extern "C" fn(*mut c_void, *mut c_char, usize) -> isize>,
    write: Option<unsafe extern "C" fn(*mut c_void, *const c_char, usize) -> isize>,
    seek: Option<unsafe extern "C" fn(*mut c_void, *mut i64, c_int) -> c_int>,
    close: Option<unsafe extern "C" fn(*mut c_void) -> c_int>,
}

unsafe extern "C" {
    /// Of glibc; the structure goes by value, as declared in stdio.h.
    fn fopencookie(cookie: *mut c_void, mode: *const c_char, functions: CookieFunctions) -> *mut libc::FILE;
}

/// Makes EAL log through the writer of standard error. False when the stream cannot be made.
fn log_to_output() -> bool {
    /// glibc's contract: `bytes` points to `len` bytes, which are read before this returns.
    unsafe extern "C" fn write(_: *mut c_void, bytes: *const c_char, len: usize) -> isize {
        if !bytes.is_null() {
            // SAFETY: the contract.
            output::stderr().enqueue(unsafe { std::slice::from_raw_parts(bytes.cast::<u8>(), len) });
        }
        len as isize
    }
    let functions = CookieFunctions { read: None, write: Some(write), seek: None, close: None };
    // SAFETY: the mode is a C string, the functions live as long as the process, and the cookie is not used.
    let stream = unsafe { fopencookie(std::ptr::null_mut(), c"a".as_ptr(), functions) };
    if stream.is_null() {
        return false;
    }
    // SAFETY: a valid stream that is never closed.
    unsafe { dpdk_sys::rte_openlog_stream(stream.cast()) };
    true
}

/// Flushes every C stream, for text must not turn up behind a redirection that it was printed before.
fn flush() {
    // SAFETY: null means all output streams.
    unsafe { libc::fflush(std::ptr::null_mut()) };
}

fn memory_file() -> io::Result<File> {
    // SAFETY: the name is a C string; the result is checked.
    let fd = unsafe { libc::memfd_create(c"rxe-eal-log".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: just made and nobody else knows it.
    Ok(unsafe { File::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::gist;

    #[test]
    fn the_gist_is_the_last_lines_that_matter() {
        let text = "EAL: Detected CPU lcores: 2\nEAL: Cannot open x\n\nEAL: FATAL: Cannot init memory\nEAL: Cannot init memory\n";
        assert_eq!(gist(text), "Cannot open x; Cannot init memory");
        assert_eq!(gist(""), "EAL gave no reason");
    }
}
