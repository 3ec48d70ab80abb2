//! Lines on standard error. Each is one `write` and takes no lock: a lock could be held for ever in the child of a fork.

use std::fmt;
use std::io;
use std::panic;
use std::sync::Mutex;

use nix::errno::Errno;
use tracing::metadata::LevelFilter;

use crate::real;

/// Prints a line that users see without a log level.
pub fn say(line: fmt::Arguments<'_>) {
    write_all(format!("rxe-verbs: {line}\n").as_bytes());
}

/// [`say`], unless it was the last line of this function.
pub fn say_once(line: &str) {
    static LAST: Mutex<String> = Mutex::new(String::new());
    // In the child of a fork the lock may be held for ever.
    let Ok(mut last) = LAST.try_lock() else { return say(format_args!("{line}")) };
    if *last != line {
        line.clone_into(&mut last);
        say(format_args!("{line}"));
    }
}

/// Starts the log, and makes panics of this library one line. Does nothing when called again.
pub fn start(level: LevelFilter) {
    // An error says that it has been started.
    let _ = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_ansi(false)
        .with_target(false)
        .without_time()
        .with_writer(|| Lines)
        .try_init();
    panic::set_hook(Box::new(|info| {
        let place = info.location().map(|place| format!("{}:{}", place.file(), place.line())).unwrap_or_default();
        let message = info.payload_as_str().unwrap_or_default();
        say(format_args!("a defect of this library at {place}, please report it: {message}"));
    }));
}

/// Passes each line on at once.
struct Lines;

impl io::Write for Lines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        write_all(&[b"rxe-verbs: ", line].concat());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The program's `errno` stays.
fn write_all(line: &[u8]) {
    let errno = Errno::last_raw();
    if let Some(write) = real::write.get() {
        // SAFETY: pointer and length are those of a slice. A closed standard error is no reason to fail.
        unsafe { write(libc::STDERR_FILENO, line.as_ptr().cast(), line.len()) };
    }
    Errno::set_raw(errno);
}
