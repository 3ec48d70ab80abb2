//! Open devices: commands, waits for events, ends.

use std::ffi::c_int;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, OFlag, fcntl};
use nix::sys::stat::fstat;
use rxe_uverbs::backend::{Answer, Device};
use rxe_uverbs::descriptors::{Entry, File, Kind};
use rxe_uverbs::inside::is_inside;

use crate::guard::guarded;
use crate::log::say;
use crate::process::{DESCRIPTORS, Process};

/// Opens a device with the flags of the program. Returns the descriptor.
pub fn open(device: Device, flags: c_int) -> Result<c_int, Errno> {
    // A signal handler has interrupted the library, whose locks are held.
    if is_inside() {
        return Err(Errno::EDEADLK);
    }
    guarded_open(device, flags)
}

fn guarded_open(device: Device, flags: c_int) -> Result<c_int, Errno> {
    let process = Process::get_own()?;
    guarded(|| {
        if !process.is_this() {
            return Err(Errno::EIO);
        }
        let backend = process.backend()?;
        let opened = backend.open(device)?;
        let kind = match device {
            Device::Uverbs => Kind::Uverbs,
            Device::RdmaCm => Kind::RdmaCm,
        };
        let file = File { kind, handle: opened.handle };
        let flags = OFlag::from_bits_retain(flags);
        let entered = || {
            if !flags.contains(OFlag::O_CLOEXEC) {
                fcntl(&opened.fd, FcntlArg::F_SETFD(FdFlag::empty()))?;
            }
            if flags.contains(OFlag::O_NONBLOCK) {
                let flags = OFlag::from_bits_retain(fcntl(&opened.fd, FcntlArg::F_GETFL)?);
                fcntl(&opened.fd, FcntlArg::F_SETFL(flags | OFlag::O_NONBLOCK))?;
            }
            DESCRIPTORS.insert(&opened.fd, file)
        };
        match entered() {
            Ok(before) => {
                if let Some(Entry { file, inherited: false, .. }) = before
                    && !DESCRIPTORS.has(file)
                {
                    closed(process, file);
                }
                tracing::debug!("{} opened as descriptor {}", device.path(), opened.fd.as_raw_fd());
                Ok(opened.fd.into_raw_fd())
            }
            Err(error) => {
                backend.close(file);
                Err(error)
            }
        }
    })
}

/// A command that a signal handler writes while its thread is in the library, which holds its locks. A doorbell has its effect as soon as
/// the library goes on; nothing else can be done here.
///
/// # Errors
/// `EDEADLK` for other commands; `EIO` for a file of the parent of this process.
pub fn interrupting_command(entry: Entry, command: &[u8]) -> Result<(), Errno> {
    let process = Process::current().filter(|_| !entry.inherited).ok_or(Errno::EIO)?;
    if process.backend()?.interrupting(entry.file, command) { Ok(()) } else { Err(Errno::EDEADLK) }
}

/// Executes the command of the verbs device's ioctl at an address of the program.
pub fn ioctl(entry: Entry, at: u64) -> Result<(), Errno> {
    guarded(|| {
        let process = Process::current().filter(|_| !entry.inherited).ok_or_else(of_the_parent)?;
        process.backend()?.ioctl(entry.file, at)
    })
}

/// The action of a `write`.
pub enum Step {
    /// Return the number of bytes.
    Done,
    /// Read a byte, and pass the command again.
    ReadByte(Wait),
    /// Pass the call on: the descriptor is another file's.
    Foreign,
}

/// A wait that has begun. It is plain data, as cancellation may end it.
#[derive(Clone, Copy)]
pub struct Wait(File);

/// Executes a command that the program writes to `fd`.
pub fn command(fd: RawFd, entry: Entry, command: &[u8]) -> Result<Step, Errno> {
    guarded(|| {
        if (entry.inherited || !is_a_command(entry, command)) && !is_open(fd, entry) {
            ended(fd, entry);
            return Ok(Step::Foreign);
        }
        let process = match Process::current() {
            Some(process) if !entry.inherited => process,
            _ => return Err(of_the_parent()),
        };
        if entry.file.kind == Kind::Uverbs {
            return write(process, entry.file, command, false).map(|_| Step::Done);
        }
        // Before the adapter says that there is no event: the file must not be closed in between.
        process.waits.begin(entry.file);
        let answer = write(process, entry.file, command, false);
        if answer != Ok(Answer::ReadByte) {
            end_wait(Wait(entry.file));
        }
        Ok(match answer? {
            Answer::Done => Step::Done,
            Answer::ReadByte => Step::ReadByte(Wait(entry.file)),
        })
    })
}

/// Passes the command again after a byte was read. Does not end the wait.
pub fn command_again(Wait(file): Wait, command: &[u8]) -> Result<Answer, Errno> {
    guarded(|| write(Process::current().ok_or(Errno::EIO)?, file, command, true))
}

fn write(process: &Process, file: File, command: &[u8], byte_read: bool) -> Result<Answer, Errno> {
    let result = process.backend()?.write(file, command, byte_read);
    let number = || command.first_chunk().map_or(0, |number| u32::from_le_bytes(*number));
    match (file.kind, result) {
        (Kind::RdmaCm, Ok(Answer::Done)) => tracing::debug!("rdma_cm: command {} is done", number()),
        (Kind::RdmaCm, Err(error)) => tracing::debug!("rdma_cm: command {} has failed: {error}", number()),
        (Kind::Uverbs, Err(error)) => tracing::debug!("uverbs: command {:#x} has failed: {error}", number()),
        // Doorbells are among them.
        _ => {}
    }
    result
}

/// Ends a wait.
pub fn end_wait(Wait(file): Wait) {
    let errno = Errno::last_raw();
    let _ = guarded(|| {
        if let Some(process) = Process::current()
            && process.waits.end(file)
        {
            process.backend()?.close(file);
        }
        Ok(())
    });
    Errno::set_raw(errno);
}

/// The program closes `fd`.
pub fn close(fd: RawFd, entry: Entry) {
    // A child that shares our memory closes its own descriptors.
    if !entry.inherited && Process::current().is_some_and(|process| !process.is_this()) {
        return;
    }
    let _ = guarded(|| {
        ended(fd, entry);
        Ok(())
    });
}

/// `to` is a duplicate of `from`, which has `entry`: the file stays open until both are closed.
pub fn duplicated(from: RawFd, entry: Entry, to: RawFd) {
    // A child that shares our memory has numbers of its own.
    if entry.inherited || !is_open(from, entry) || Process::current().is_none_or(|process| !process.is_this()) {
        return;
    }
    let _ = guarded(|| {
        // SAFETY: the program has just got this number, and has to keep it open during its call.
        let before = DESCRIPTORS.insert(unsafe { BorrowedFd::borrow_raw(to) }, entry.file)?;
        if let Some(Entry { file, inherited: false, .. }) = before
            && !DESCRIPTORS.has(file)
            && let Some(process) = Process::current()
        {
            closed(process, file);
        }
        Ok(())
    });
}

/// Removes the entry, and closes its file unless another number has it too.
fn ended(fd: RawFd, entry: Entry) {
    if DESCRIPTORS.remove(fd, entry)
        && !entry.inherited
        && !DESCRIPTORS.has(entry.file)
        && let Some(process) = Process::current()
    {
        closed(process, entry.file);
    }
}

fn closed(process: &Process, file: File) {
    if file.kind == Kind::Netlink {
        // SAFETY: `netlink` has left our end of the socket, which has this number, open for this, and a file is closed once.
        return drop(unsafe { OwnedFd::from_raw_fd(file.handle.cast_signed()) });
    }
    if process.waits.close(file)
        && let Ok(backend) = process.backend()
    {
        backend.close(file);
    }
}

/// Whether the bytes have the form of a verbs command with the length that it names. Everything that is frequent has it, so the
/// status of the descriptor is needed for rare commands only.
fn is_a_command(entry: Entry, command: &[u8]) -> bool {
    match command {
        [_, 0, 0, 0, low, high, _, _, ..] if entry.file.kind == Kind::Uverbs => {
            4 * usize::from(u16::from_le_bytes([*low, *high])) == command.len()
        }
        _ => false,
    }
}

/// Whether `fd` is still the file that was opened.
pub fn is_open(fd: RawFd, entry: Entry) -> bool {
    // SAFETY: the descriptor is the argument of a call of the program, which has to keep it open.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    fstat(fd).is_ok_and(|status| entry.is_of(status.st_dev, status.st_ino))
}

/// A command on a descriptor from before a fork.
fn of_the_parent() -> Errno {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        say(format_args!(
            "process {} has forked since it opened the RDMA device: open it after the fork, as the adapter stays in the parent",
            std::process::id()
        ));
    }
    Errno::EIO
}

/// The thread was cancelled during a wait; called by the handler in read_byte.c.
#[unsafe(no_mangle)]
extern "C" fn rxe_verbs_wait_ended(file: u64) {
    end_wait(Wait::from_bits(file));
}

impl Wait {
    /// For C.
    pub fn to_bits(self) -> u64 {
        u64::from(self.0.handle) << 8 | self.0.kind as u64
    }

    fn from_bits(bits: u64) -> Wait {
        let kind = if bits as u8 == Kind::RdmaCm as u8 { Kind::RdmaCm } else { Kind::Uverbs };
        Wait(File { kind, handle: (bits >> 8) as u32 })
    }
}
