//! The adapter as the preload library uses it.

use std::os::fd::OwnedFd;
use std::path::Path;

use nix::errno::Errno;

use crate::descriptors::File;
use crate::instance::Info;
use crate::local::Local;

/// A device that a program opens.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Device {
    /// `/dev/infiniband/uverbs0`.
    Uverbs,
    /// `/dev/infiniband/rdma_cm`.
    RdmaCm,
}

/// A device that was opened.
#[derive(Debug)]
pub struct Opened {
    /// The program's descriptor, close-on-exec.
    pub fd: OwnedFd,
    /// The handle of the file: a number that the adapter has not given before. Descriptor numbers will not do, as the end of
    /// a file may be seen only when its number is in use again.
    pub handle: u32,
}

/// Outcome of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answer {
    /// It is done: the `write` returns the number of its bytes.
    Done,
    /// There is no event: read one byte of the descriptor, which may block, and pass the command again.
    ReadByte,
}

/// Numbers of objects that a program has.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
#[expect(missing_docs, reason = "the names say it")]
pub struct Objects {
    pub pds: usize,
    pub cqs: usize,
    pub qps: usize,
    pub cm_ids: usize,
    pub mrs: usize,
    pub contexts: usize,
    pub srqs: usize,
}

/// The kernel's side of one process: an adapter with one address.
///
/// The program's threads call it at any time, and concurrently. It is made when the program opens a device or, without an address in
/// the settings, when it first looks at one of our paths, as files there show the address.
pub trait Backend: Send + Sync {
    /// The address of the adapter, which is in the files of sysfs.
    fn local(&self) -> &Local;

    /// The objects of the program.
    fn objects(&self) -> Objects;

    /// The process is known to others by `info`, and has this folder, in which it may be managed from now on.
    fn set_folder(&self, folder: &Path, info: Info);

    /// Opens a device.
    ///
    /// # Errors
    /// The `errno` of the program's `open`.
    fn open(&self, device: Device) -> Result<Opened, Errno>;

    /// Executes the command that the program has written to `file`.
    ///
    /// `byte_read` says that the command was passed before, was answered with [`Answer::ReadByte`], and that a byte was read.
    ///
    /// # Errors
    /// The `errno` of the program's `write`; `EBADF` when `file` is not open.
    fn write(&self, file: File, command: &[u8], byte_read: bool) -> Result<Answer, Errno>;

    /// Executes the command of `RDMA_VERBS_IOCTL` at an address of the program.
    ///
    /// # Errors
    /// The `errno` of the program's `ioctl`.
    fn ioctl(&self, file: File, at: u64) -> Result<(), Errno>;

    /// A command of a signal handler that has interrupted a call of this interface in its thread, so that locks may be held. Returns
    /// whether it will be done: that is so for a doorbell.
    fn interrupting(&self, file: File, command: &[u8]) -> bool;

    /// The program has closed its descriptor of `file`, or is about to. As in a kernel, the file stays open as long as a
    /// `write` waits for a byte of it. Does nothing when `file` is not open.
    fn close(&self, file: File);

    /// This process is the child of a fork: closes the descriptors that the program does not know of, such as the UDP
    /// socket. The threads of the adapter are in the parent, and locks may be held for ever: only `close` may be called, on
    /// numbers that are readable without a lock. The adapter is not used again here, nor dropped.
    fn forked(&self);

    /// The process ends: sends what is pending, ends connections, and stops. Calls of other methods fail from then on.
    fn shutdown(&self);
}
