//! Settings of a port.

use std::net::IpAddr;
use std::os::fd::{OwnedFd, RawFd};

use rustix::io::fcntl_dupfd_cloexec;

/// Settings of a [`UdpPort`](crate::UdpPort). All but the address have defaults: [`UdpConfig::new`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UdpConfig {
    /// The adapter's address: a unicast address of an interface of this machine, of which the port takes UDP port 4791.
    pub address: IpAddr,
    /// Whether to accept IPv4 packets of peers whose identification is not 0, as those of Linux's rxe and of network cards.
    ///
    /// The ICRC covers the identification, which a UDP socket does not show. So it is computed from the ICRC, which then
    /// finds a damaged packet with a probability of 1 - 2^-15 instead of 1 - 2^-32. Off, such packets have a wrong ICRC,
    /// and the engine drops them. IPv6 has no identification.
    pub recover_identification: bool,
    /// Whether to send and receive several packets of one length as one datagram of the kernel (`UDP_SEGMENT`, `UDP_GRO`)
    /// where that is possible: on the loopback interface, and to peers that send from UDP port 4791, as only sockets do.
    pub offload: bool,
    /// Size of the receive buffer of each socket, in bytes, as for `SO_RCVBUF`. The kernel limits it to
    /// `net.core.rmem_max`, except for programs with `CAP_NET_ADMIN`. What arrives while it is full is lost.
    pub receive_buffer: usize,
    /// Size of the transmit buffer in bytes, as for `SO_SNDBUF`, with the limit `net.core.wmem_max`.
    pub send_buffer: usize,
    /// The lowest number that a descriptor of the port may have, if one from there is free: for a library in a program that
    /// uses low numbers without asking whether they are free, as shells do.
    pub lowest_descriptor: RawFd,
}

impl UdpConfig {
    /// The defaults for a port at `address`: identifications are recovered, offloads are used, buffers of 8 and 2 MiB.
    pub fn new(address: IpAddr) -> UdpConfig {
        UdpConfig {
            address,
            recover_identification: true,
            offload: true,
            receive_buffer: 8 << 20,
            send_buffer: 2 << 20,
            lowest_descriptor: 0,
        }
    }
}

/// Gives a new descriptor a number from `lowest` on, if one is free.
pub(crate) fn moved(fd: OwnedFd, lowest: RawFd) -> OwnedFd {
    if lowest == 0 { fd } else { fcntl_dupfd_cloexec(&fd, lowest).unwrap_or(fd) }
}
