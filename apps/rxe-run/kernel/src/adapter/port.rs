//! Opens the adapter's port: a UDP port of its own, or a part in that of another process.

use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use rxe_proto::wire::PathMtu;
use rxe_udp::{Interface, OpenError, Routes, UdpConfig, UdpPort, UdpReceiver, UdpStats, Waker};

use super::share::WORKERS;
use super::share::guest::{GuestReceiver, Joined, join};
use super::share::owner::Guests;
use super::share::socket::claim;
use super::tx::Tx;
use crate::address::{self, AddressError};
use crate::descriptors::{PRIVATE, lowest_private};
use crate::local::Local;

/// How long a process tries to become the owner of an address or a guest of its owner, which may be about to start or to end, or have
/// no number for another guest.
const PATIENCE: Duration = Duration::from_secs(5);
/// The same while the UDP port belongs to a program that no process here can share it with. The last owner closes its sockets one
/// after the other.
const PATIENCE_WITH_OTHERS: Duration = Duration::from_millis(500);
/// Interval between two attempts.
const RETRY: Duration = Duration::from_millis(5);

/// The receiving half of the adapter's port.
pub enum Half {
    /// Of a UDP port, and the other processes that share it, if that is possible.
    Own(Box<UdpReceiver>, Option<Box<Guests>>),
    /// From the process that has the UDP port.
    Guest(GuestReceiver),
}

/// An open port.
pub struct Opened {
    /// Receives.
    pub half: Half,
    /// Transmits.
    pub tx: Tx,
    /// Size of the receive buffer of an own UDP port, as the kernel counts it.
    pub receive_buffer: usize,
    /// The worker number of this process among those that share the address.
    pub worker: u8,
    /// The address, and the interface below it.
    pub local: Local,
    /// Routes from the address.
    pub routes: Routes,
    /// Counters of an own UDP port.
    pub stats: Arc<UdpStats>,
}

/// Opens the port at `wanted`, which may be that of another process of this user, or at the first free loopback address.
///
/// # Errors
/// The address cannot be taken.
pub fn open(wanted: Option<IpAddr>, waker: &Waker) -> Result<Opened, AddressError<OpenError>> {
    match wanted {
        Some(address) => own_or_join(address, None, waker),
        None => {
            let open = |address| match claim(address) {
                Err(Errno::EADDRINUSE) => Err(OpenError::InUse(address)),
                name => Ok((name.ok(), open_udp(address)?)),
            };
            let (name, port) = address::take_free(open, |error| matches!(error, OpenError::InUse(_)))?;
            Ok(owned(port, name, None, waker))
        }
    }
}

/// Opens the port of a process that has ended, whose guest this one was.
///
/// # Errors
/// It is not possible.
pub fn reopen(address: IpAddr, worker: u8, waker: &Waker) -> Result<Opened, AddressError<OpenError>> {
    own_or_join(address, Some(worker), waker)
}

/// Becomes the owner of the address or, when another process of this user is, its guest. The one that gets the name of the address is
/// its owner, so of processes that start together one opens the UDP port, and the others wait for it.
fn own_or_join(address: IpAddr, worker: Option<u8>, waker: &Waker) -> Result<Opened, AddressError<OpenError>> {
    let begin = Instant::now();
    loop {
        let (error, patience) = match claim(address) {
            Err(Errno::EADDRINUSE) => match as_guest(address, worker) {
                Ok(opened) => return Ok(opened),
                Err(Errno::EUSERS) => (AddressError::Full { address, processes: WORKERS }, PATIENCE),
                Err(_) => (address::in_use_by(address, OpenError::InUse(address)), PATIENCE),
            },
            name => match open_udp(address) {
                Ok(port) => return Ok(owned(port, name.ok(), worker, waker)),
                Err(error @ OpenError::InUse(_)) => (address::in_use_by(address, error), PATIENCE_WITH_OTHERS),
                Err(error) => return Err(AddressError::Port(error)),
            },
        };
        if begin.elapsed() > patience {
            return Err(error);
        }
        std::thread::sleep(RETRY);
    }
}

fn open_udp(address: IpAddr) -> Result<UdpPort, OpenError> {
    UdpPort::open(UdpConfig { lowest_descriptor: lowest_private(), ..UdpConfig::new(address) })
}

/// What is known of an address before its port is open.
///
/// # Errors
/// No interface has the address.
pub fn local(address: IpAddr) -> Result<Local, OpenError> {
    let interface = Interface::of(address)?;
    let path_mtu: PathMtu = interface.path_mtu(address);
    Ok(Local::new(address, interface.name, interface.index, path_mtu))
}

/// A port of this process, which has `name`: without that no other process can share it. `worker` is the number that it has already.
fn owned(port: UdpPort, name: Option<OwnedFd>, worker: Option<u8>, waker: &Waker) -> Opened {
    let stats = Arc::clone(port.stats());
    let (mut receiver, tx) = port.into_halves();
    receiver.set_waker(waker.clone());
    receiver.descriptors().for_each(|fd| PRIVATE.add(fd.as_raw_fd()));
    let interface = receiver.interface();
    let local = Local::new(receiver.address(), interface.name.clone(), interface.index, receiver.path_mtu());
    let routes = receiver.routes();
    let receive_buffer = receiver.receive_buffer().unwrap_or(0);
    let accepting = name.ok_or(Errno::EACCES);
    let accepting = accepting.and_then(|name| Guests::new(name, worker.unwrap_or(0), worker.is_some()));
    if let Err(error) = &accepting {
        tracing::debug!("{} cannot be shared: {error}", local.address);
    }
    let (half, tx) = (Half::Own(Box::new(receiver), accepting.ok().map(Box::new)), Tx::Own(Box::new(tx)));
    Opened { half, tx, receive_buffer, worker: worker.unwrap_or(0), local, routes, stats }
}

fn as_guest(address: IpAddr, worker: Option<u8>) -> Result<Opened, Errno> {
    let interface = Interface::of(address).map_err(|_| Errno::EADDRNOTAVAIL)?;
    let routes = Routes::new(address, &interface);
    let path_mtu: PathMtu = interface.path_mtu(address);
    let Joined { receiver, tx, worker } = join(address, worker, PATIENCE)?;
    let local = Local::new(address, interface.name, interface.index, path_mtu);
    let (half, tx) = (Half::Guest(receiver), Tx::Guest(tx));
    Ok(Opened { half, tx, receive_buffer: 0, worker, local, routes, stats: Arc::default() })
}
