//! Opens the adapter's port: a UDP port of its own, or a part in that of another process.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use rxe_proto::wire::PathMtu;
use rxe_udp::{Interface, OpenError, Routes, UdpConfig, UdpPort, UdpReceiver, UdpStats, Waker};

use super::private::Private;
use super::share::guest::{GuestReceiver, Joined, join};
use super::share::owner::Guests;
use super::tx::Tx;
use crate::address::{self, AddressError};
use crate::descriptors::lowest_private;
use crate::local::Local;

/// How long a process tries to open the port of one that has ended: others try it too, one of them has it first, and then is
/// the owner.
const PATIENCE: Duration = Duration::from_secs(5);

/// The receiving half of the adapter's port.
pub enum Half {
    /// Of a UDP port, and those who share it: none before a device is open, as nobody would serve them.
    Own(Box<UdpReceiver>, Option<Box<Guests>>),
    /// From the process that has the UDP port.
    Guest(GuestReceiver),
}

impl Half {
    /// Shares a UDP port of our own with other processes from now on.
    pub fn share(&mut self, worker: u8, private: &Arc<Private>) {
        if let Half::Own(receiver, guests) = self {
            let address = receiver.address();
            match Guests::new(address, worker, private) {
                Ok(accepting) => *guests = Some(Box::new(accepting)),
                Err(error) => tracing::debug!("{address} cannot be shared: {error}"),
            }
        }
    }
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

/// Opens the port at `wanted`, or at the first free loopback address. With `share`, a port of another process of this user
/// will do.
///
/// # Errors
/// The address cannot be taken.
pub fn open(
    wanted: Option<IpAddr>,
    share: bool,
    private: &Arc<Private>,
    waker: &Waker,
) -> Result<Opened, AddressError<OpenError>> {
    let open = |address| UdpPort::open(UdpConfig { lowest_descriptor: lowest_private(), ..UdpConfig::new(address) });
    match address::take(wanted, open, is_in_use) {
        Ok(port) => Ok(owned(port, 0, private, waker)),
        Err(error) => {
            let in_use = matches!(&error, AddressError::InUse { .. })
                || matches!(&error, AddressError::Port(error) if is_in_use(error));
            match wanted.filter(|_| share && in_use).and_then(|address| as_guest(address, None, private).ok()) {
                Some(opened) => Ok(opened),
                None => Err(error),
            }
        }
    }
}

/// Opens the port of a process that has ended, whose guest this one was.
///
/// # Errors
/// It is not possible.
pub fn reopen(address: IpAddr, worker: u8, private: &Arc<Private>, waker: &Waker) -> Result<Opened, OpenError> {
    let begin = Instant::now();
    loop {
        match UdpPort::open(UdpConfig { lowest_descriptor: lowest_private(), ..UdpConfig::new(address) }) {
            Ok(port) => {
                let mut opened = owned(port, worker, private, waker);
                opened.half.share(worker, private);
                return Ok(opened);
            }
            Err(error) => {
                if let Ok(opened) = as_guest(address, Some(worker), private) {
                    return Ok(opened);
                }
                if !is_in_use(&error) || begin.elapsed() > PATIENCE {
                    return Err(error);
                }
            }
        }
    }
}

fn is_in_use(error: &OpenError) -> bool {
    matches!(error, OpenError::InUse(_))
}

fn owned(port: UdpPort, worker: u8, private: &Arc<Private>, waker: &Waker) -> Opened {
    let stats = Arc::clone(port.stats());
    let (mut receiver, tx) = port.into_halves();
    receiver.set_waker(waker.clone());
    receiver.descriptors().for_each(|fd| private.add(fd));
    let interface = receiver.interface();
    let local = Local::new(receiver.address(), interface.name.clone(), interface.index, receiver.path_mtu());
    let routes = receiver.routes();
    let receive_buffer = receiver.receive_buffer().unwrap_or(0);
    let (half, tx) = (Half::Own(Box::new(receiver), None), Tx::Own(Box::new(tx)));
    Opened { half, tx, receive_buffer, worker, local, routes, stats }
}

fn as_guest(address: IpAddr, worker: Option<u8>, private: &Arc<Private>) -> Result<Opened, Errno> {
    let interface = Interface::of(address).map_err(|_| Errno::EADDRNOTAVAIL)?;
    let path_mtu: PathMtu = interface.path_mtu(address);
    let Joined { receiver, tx, worker } = join(address, worker, private)?;
    let routes = Routes::new(address, &interface);
    let local = Local::new(address, interface.name, interface.index, path_mtu);
    let (half, tx) = (Half::Guest(receiver), Tx::Guest(tx));
    Ok(Opened { half, tx, receive_buffer: 0, worker, local, routes, stats: Arc::default() })
}
