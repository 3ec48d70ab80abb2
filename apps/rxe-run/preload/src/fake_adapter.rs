//! An adapter for the tests of this library: it records the commands, and hands out events.

use std::collections::HashMap;
use std::ffi::CStr;
use std::io::Write;
use std::net::IpAddr;
use std::os::fd::{FromRawFd, IntoRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard};

use nix::errno::Errno;
use rxe_proto::wire::PathMtu;
use rxe_uverbs::adapter::AdapterError;
use rxe_uverbs::backend::{Answer, Backend, Device, Objects, Opened};
use rxe_uverbs::descriptors::{Descriptors, File, Kind, out_of_the_way};
use rxe_uverbs::instance::Info;
use rxe_uverbs::local::Local;
use rxe_uverbs::settings::Settings;

/// A command of an event channel that takes an event, as GET_EVENT does.
pub const TAKE: &[u8] = b"take an event";
/// A command at which the adapter panics.
pub const PANIC: &[u8] = b"panic";

/// The command that may interrupt others.
pub const DOORBELL: &[u8] = b"doorbell";
/// The handle of the file with the last command that has interrupted others.
pub static MISSED: AtomicU32 = AtomicU32::new(0);

/// Calls that the adapter has received.
#[derive(Default)]
pub struct Seen {
    /// Commands in their order.
    pub commands: Vec<(File, Vec<u8>)>,
    /// Files that were closed.
    pub closed: Vec<File>,
    /// The adapter's ends of event channels, by handle, and their events.
    channels: HashMap<u32, (UnixStream, usize)>,
    /// How often the end of the process was reported.
    pub shutdowns: usize,
}

static SEEN: Mutex<Option<Seen>> = Mutex::new(None);
static NEXT: AtomicU32 = AtomicU32::new(1);
/// A descriptor of the adapter alone.
pub static PRIVATE: AtomicI32 = AtomicI32::new(-1);

struct Adapter(Local);

/// The error of the next adapter that is made.
pub static ERROR: Mutex<Option<AdapterError>> = Mutex::new(None);

pub fn local(address: IpAddr) -> Result<Local, AdapterError> {
    Ok(Local::new(address, "lo".to_owned(), 1, PathMtu::Mtu4096))
}

pub fn new(settings: &Settings, _: &'static Descriptors) -> Result<Box<dyn Backend>, AdapterError> {
    if let Some(error) = ERROR.lock().unwrap().take() {
        return Err(error);
    }
    *SEEN.lock().unwrap() = Some(Seen::default());
    let private = out_of_the_way(memfd(c"private").unwrap());
    PRIVATE.store(private.into_raw_fd(), Ordering::Relaxed);
    Ok(Box::new(Adapter(local(settings.address.unwrap_or([127, 0, 0, 77].into()))?)))
}

/// Calls that the adapter has received so far.
pub fn seen<T>(look: impl FnOnce(&mut Seen) -> T) -> T {
    let mut seen: MutexGuard<'_, Option<Seen>> = SEEN.lock().unwrap();
    look(seen.as_mut().expect("an adapter was made"))
}

impl Seen {
    /// Adds an event to a channel.
    pub fn event(&mut self, handle: u32) {
        let (channel, events) = self.channels.get_mut(&handle).unwrap();
        *events += 1;
        channel.write_all(&[0]).unwrap();
    }
}

fn memfd(name: &CStr) -> Result<OwnedFd, Errno> {
    // SAFETY: the name is a C string, and the descriptor that is returned is a new one.
    unsafe {
        let fd = Errno::result(libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC))?;
        Ok(OwnedFd::from_raw_fd(fd))
    }
}

impl Backend for Adapter {
    fn objects(&self) -> Objects {
        Objects { qps: 7, ..Objects::default() }
    }

    /// Nothing is managed here.
    fn set_folder(&self, _: &Path, _: Info) {}

    fn local(&self) -> &Local {
        &self.0
    }

    fn open(&self, device: Device) -> Result<Opened, Errno> {
        let handle = NEXT.fetch_add(1, Ordering::Relaxed);
        let fd = match device {
            Device::Uverbs => memfd(c"uverbs0")?,
            Device::RdmaCm => {
                let (program, adapter) = UnixStream::pair().map_err(|_| Errno::EMFILE)?;
                seen(|seen| seen.channels.insert(handle, (adapter, 0)));
                program.into()
            }
        };
        Ok(Opened { fd, handle })
    }

    fn write(&self, file: File, command: &[u8], byte_read: bool) -> Result<Answer, Errno> {
        assert_ne!(command, PANIC, "a panic on purpose");
        seen(|seen| {
            if file.kind == Kind::RdmaCm && command == TAKE {
                if !byte_read {
                    return Ok(Answer::ReadByte);
                }
                let (_, events) = seen.channels.get_mut(&file.handle).ok_or(Errno::EBADF)?;
                *events -= 1;
            }
            seen.commands.push((file, command.to_vec()));
            if command == b"refused" { Err(Errno::EXDEV) } else { Ok(Answer::Done) }
        })
    }

    fn close(&self, file: File) {
        seen(|seen| {
            seen.closed.push(file);
            seen.channels.remove(&file.handle);
        });
    }

    fn ioctl(&self, file: File, at: u64) -> Result<(), Errno> {
        seen(|seen| seen.commands.push((file, at.to_ne_bytes().to_vec())));
        Ok(())
    }

    fn interrupting(&self, file: File, command: &[u8]) -> bool {
        let is_doorbell = command == DOORBELL;
        if is_doorbell {
            MISSED.store(file.handle, Ordering::Relaxed);
        }
        is_doorbell
    }

    fn forked(&self) {
        let _ = nix::unistd::close(PRIVATE.load(Ordering::Relaxed));
    }

    fn shutdown(&self) {
        seen(|seen| seen.shutdowns += 1);
    }
}
