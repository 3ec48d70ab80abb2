//! The adapter of this process.
//!
//! It takes its address; opening a device of it is refused.

use std::net::UdpSocket;
use std::os::fd::AsRawFd;

use nix::errno::Errno;
use rxe_uverbs::address;
use rxe_uverbs::backend::{Answer, Backend, Device, Opened};
use rxe_uverbs::descriptors::{Descriptors, File};
use rxe_uverbs::local::Local;
use rxe_uverbs::settings::Settings;

/// RoCEv2's port.
const PORT: u16 = 4791;

struct Adapter {
    local: Local,
    socket: UdpSocket,
}

/// The adapter with these settings.
///
/// # Errors
/// Its address cannot be taken.
pub fn new(settings: &Settings, _: &'static Descriptors) -> Result<Box<dyn Backend>, Box<dyn std::error::Error>> {
    let (address, socket) = address::take(settings.address, |address| UdpSocket::bind((address, PORT)))?;
    Ok(Box::new(Adapter { local: Local::new(address)?, socket }))
}

impl Backend for Adapter {
    fn local(&self) -> &Local {
        &self.local
    }

    fn open(&self, _: Device) -> Result<Opened, Errno> {
        Err(Errno::ENXIO)
    }

    fn write(&self, _: File, _: &[u8], _: bool) -> Result<Answer, Errno> {
        Err(Errno::EBADF)
    }

    fn close(&self, _: File) {}

    fn forked(&self) {
        // An error would say that the descriptor is closed.
        let _ = nix::unistd::close(self.socket.as_raw_fd());
    }

    fn shutdown(&self) {}
}
