//! A port: the sockets of one address, and what belongs to them.

use std::io;
use std::net::IpAddr;
use std::ops::{Deref, DerefMut};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt};
use rxe_proto::wire::PathMtu;

use crate::config::UdpConfig;
use crate::error::{GroupError, OpenError, RouteError};
use crate::local::{Interface, Route, route_between};
use crate::rx::{MAX_GROUPS, RxBurst, UdpRx};
use crate::segmentation::{Segmentation, SocketPeers, Sockets};
use crate::socket::{self, Opened};
use crate::stats::UdpStats;
use crate::tx::UdpTx;
use crate::wake::Waker;

/// A RoCEv2 port: UDP port 4791 of one address. It has one owner, the thread that drives the engine, or one for each of its
/// [halves](Self::into_halves). Derefs to the receiving half.
#[derive(Debug)]
pub struct UdpPort {
    receiver: UdpReceiver,
    tx: UdpTx,
}

/// The receiving half of a port, with everything but the queue for frames to transmit: for a thread that waits for packets while
/// others transmit.
#[derive(Debug)]
pub struct UdpReceiver {
    config: UdpConfig,
    interface: Interface,
    rx: UdpRx,
    socket: Arc<std::net::UdpSocket>,
    waker: Waker,
    stats: Arc<UdpStats>,
}

/// Finds routes from the address of a port, on any thread.
#[derive(Clone, Copy, Debug)]
pub struct Routes {
    address: IpAddr,
    scope: u32,
}

impl Routes {
    /// Those from `address`, which `interface` has.
    pub fn new(address: IpAddr, interface: &Interface) -> Routes {
        Routes { address, scope: interface.index }
    }

    /// The route to a destination, which may have a smaller MTU than the interface.
    ///
    /// # Errors
    /// When there is none from the address.
    pub fn route_to(&self, destination: IpAddr) -> Result<Route, RouteError> {
        route_between(self.address, destination, self.scope)
    }
}

impl UdpPort {
    /// Opens the port at an address.
    ///
    /// # Errors
    /// When the address is not one of this machine, or another program has the UDP port.
    pub fn open(config: UdpConfig) -> Result<UdpPort, OpenError> {
        let interface = Interface::of(config.address)?;
        let Opened { socket, merges, segments } = socket::open(&config, &interface)?;
        let waker = Waker::new(config.lowest_descriptor).map_err(|source| OpenError::System {
            action: "create an event descriptor",
            address: config.address,
            source,
        })?;
        let stats = Arc::<UdpStats>::default();
        let socket = Arc::new(socket);
        let address = config.address;
        let recover = config.recover_identification;
        let peers = Arc::<SocketPeers>::default();
        let segmentation = match (segments, interface.loopback) {
            (false, _) => Segmentation::Never,
            (true, true) => Segmentation::Everything,
            (true, false) => Segmentation::Sockets(Sockets::new(Arc::clone(&peers))),
        };
        let rx = UdpRx::new(address, Arc::clone(&socket), merges, recover, peers, Arc::clone(&stats));
        let tx = UdpTx::new(address, interface.index, Arc::clone(&socket), segmentation, Arc::clone(&stats));
        Ok(UdpPort { receiver: UdpReceiver { config, interface, rx, socket, waker, stats }, tx })
    }

    /// The two halves, for different threads.
    pub fn into_halves(self) -> (UdpReceiver, UdpTx) {
        (self.receiver, self.tx)
    }

    /// The two halves, so that replies can be staged while a burst is handled.
    pub fn split(&mut self) -> (&mut UdpReceiver, &mut UdpTx) {
        (&mut self.receiver, &mut self.tx)
    }

    /// The queue for frames to transmit.
    pub fn tx(&mut self) -> &mut UdpTx {
        &mut self.tx
    }

    /// Sleeps until packets have arrived, the [`Waker`] was used, staged frames can be sent, or `timeout` has passed. Flush first:
    /// with staged frames the port also waits for room in the socket's transmit buffer.
    ///
    /// # Errors
    /// Those of ppoll, which are defects.
    pub fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let blocked = self.tx.waiting() > 0;
        self.receiver.wait(blocked, None, timeout)
    }
}

impl Deref for UdpPort {
    type Target = UdpReceiver;

    fn deref(&self) -> &UdpReceiver {
        &self.receiver
    }
}

impl DerefMut for UdpPort {
    fn deref_mut(&mut self) -> &mut UdpReceiver {
        &mut self.receiver
    }
}

impl UdpReceiver {
    /// The address.
    pub fn address(&self) -> IpAddr {
        self.config.address
    }

    /// The interface that has the address.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// The largest path MTU whose every packet fits the interface.
    pub fn path_mtu(&self) -> PathMtu {
        self.interface.path_mtu(self.config.address)
    }

    /// The route to a destination, which may have a smaller MTU than the interface.
    ///
    /// # Errors
    /// When there is none from this address.
    pub fn route_to(&self, destination: IpAddr) -> Result<Route, RouteError> {
        self.routes().route_to(destination)
    }

    /// Finds routes on any thread.
    pub fn routes(&self) -> Routes {
        Routes::new(self.config.address, &self.interface)
    }

    /// Counters, readable from any thread.
    pub fn stats(&self) -> &Arc<UdpStats> {
        &self.stats
    }

    /// Size of the receive buffer as the kernel counts it, which includes its own overhead per datagram.
    ///
    /// # Errors
    /// Those of getsockopt.
    pub fn receive_buffer(&self) -> io::Result<usize> {
        Ok(getsockopt(&self.socket, sockopt::RcvBuf)?)
    }

    /// The port's descriptors: its sockets, those of its groups, and the event of its wakers. A forked child that does not use the
    /// port closes them, so that the address is free when the parent ends.
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.rx.descriptors().chain([self.waker.as_fd()])
    }

    /// Receives a burst: what the socket has, up to 64 datagrams, and what the socket of one of the multicast groups has, in turn.
    #[inline]
    pub fn receive(&mut self) -> RxBurst<'_> {
        self.rx.receive()
    }

    /// Whether the last burst emptied the socket of the port's address. If not, the next burst is there already.
    pub fn is_drained(&self) -> bool {
        self.rx.is_drained()
    }

    /// A handle by which other threads end a [`wait`](Self::wait).
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Lets `waker` end the waits from now on.
    pub fn set_waker(&mut self, waker: Waker) {
        self.waker = waker;
    }

    /// Sleeps until packets have arrived, the [`Waker`] was used, or `timeout` has passed. With `blocked`, because the other half holds
    /// frames that the kernel did not accept, also until the socket's transmit buffer has room. Also ends when `also` is readable.
    ///
    /// # Errors
    /// Those of ppoll, which are defects.
    pub fn wait(&mut self, blocked: bool, also: Option<BorrowedFd<'_>>, timeout: Option<Duration>) -> io::Result<()> {
        let writable = blocked.then(|| self.socket.as_fd());
        self.waker.wait(self.rx.descriptors().chain(also), writable, timeout)
    }

    /// Joins a multicast group, so that datagrams to it are received, also those of this port and of other programs of this
    /// machine. No change for a member.
    ///
    /// # Errors
    /// When `group` is no multicast group of the port's IP version, or the port is a member of [`MAX_GROUPS`] others.
    pub fn join(&mut self, group: IpAddr) -> Result<(), GroupError> {
        let address = self.config.address;
        if !group.is_multicast() || group.is_ipv4() != address.is_ipv4() {
            return Err(GroupError::NotAGroup { group, address });
        }
        if self.rx.groups().any(|member| member == group) {
            return Ok(());
        }
        if self.rx.groups().count() >= MAX_GROUPS {
            return Err(GroupError::TooMany { group, address, limit: MAX_GROUPS });
        }
        let socket = socket::open_group(group, &self.config, &self.interface).map_err(|source| GroupError::System {
            group,
            interface: self.interface.name.clone(),
            source,
        })?;
        self.rx.add_group(group, socket);
        Ok(())
    }

    /// Leaves a multicast group. Returns whether the port was a member.
    pub fn leave(&mut self, group: IpAddr) -> bool {
        self.rx.remove_group(group)
    }

    /// The multicast groups that the port is a member of.
    pub fn groups(&self) -> impl Iterator<Item = IpAddr> + '_ {
        self.rx.groups()
    }
}
