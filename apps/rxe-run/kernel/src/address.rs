//! The choice of the adapter's address.
//!
//! One process has one address: its UDP socket owns port 4791 there. Binding the socket is what takes an address, so
//! processes that start at the same time get different ones.

use std::io;
use std::net::{IpAddr, Ipv4Addr};

use rxe_proto::wire::ROCE_UDP_PORT;

use crate::instance;

/// Loopback addresses that are tried: 127.0.0.1 and up.
const AUTOMATIC: u32 = 4096;

/// No address could be taken.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// Another process has the address.
    #[error("UDP port {ROCE_UDP_PORT} of {address} is taken{by}: end that process, or give this one another --address")]
    Taken {
        /// The address.
        address: IpAddr,
        /// Words that name the process, where it is known.
        by: String,
    },
    /// The address is not one of this machine.
    #[error("no interface has the address {0}: add it (ip address add), or give another --address")]
    NotHere(IpAddr),
    /// All addresses are taken.
    #[error(
        "UDP port {ROCE_UDP_PORT} of the loopback addresses up to {0} is taken: if the kernel's rdma_rxe has it, unload that \
         module (rmmod rdma_rxe), or use a network namespace of its own (unshare -rn)"
    )]
    AllTaken(IpAddr),
    /// Binding failed for another reason.
    #[error("UDP port {ROCE_UDP_PORT} of {0} cannot be bound: {1}")]
    Failed(IpAddr, io::Error),
}

/// Takes `wanted`, or the first free loopback address. `bind` binds port 4791 of an address; the error kind
/// [`io::ErrorKind::AddrInUse`] says that it is taken.
///
/// # Errors
/// `wanted` cannot be bound, or no loopback address is free.
pub fn take<S>(
    wanted: Option<IpAddr>,
    mut bind: impl FnMut(IpAddr) -> io::Result<S>,
) -> Result<(IpAddr, S), AddressError> {
    if let Some(address) = wanted {
        return match bind(address) {
            Ok(socket) => Ok((address, socket)),
            Err(error) => Err(explained(address, error)),
        };
    }
    let nth = |offset| IpAddr::V4(Ipv4Addr::from_bits(Ipv4Addr::LOCALHOST.to_bits() + offset));
    // Ends in 0 and 255 look like those of a network, and some programs take them for that.
    let usual = |address: &IpAddr| !matches!(address, IpAddr::V4(v4) if [0, 255].contains(&v4.octets()[3]));
    for address in (0..AUTOMATIC).map(nth).filter(usual) {
        match bind(address) {
            Ok(socket) => return Ok((address, socket)),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(explained(address, error)),
        }
    }
    Err(AddressError::AllTaken(nth(AUTOMATIC - 1)))
}

fn explained(address: IpAddr, error: io::Error) -> AddressError {
    match error.kind() {
        io::ErrorKind::AddrInUse => {
            let user = instance::running().into_iter().find(|running| running.info.address == address);
            let by = user.map(|user| format!(" by `{}` (process {})", user.info.program, user.info.pid));
            AddressError::Taken { address, by: by.unwrap_or_default() }
        }
        io::ErrorKind::AddrNotAvailable => AddressError::NotHere(address),
        _ => AddressError::Failed(address, error),
    }
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;

    use super::*;

    fn text(error: Result<(IpAddr, ()), AddressError>) -> String {
        error.unwrap_err().to_string()
    }

    #[test]
    fn the_first_free_loopback_address_is_taken() {
        let mut tried = Vec::new();
        let taken = take(None, |address| {
            tried.push(address.to_string());
            if tried.len() == 3 { Ok(tried.len()) } else { Err(io::ErrorKind::AddrInUse.into()) }
        });
        assert_eq!(taken.unwrap(), (IpAddr::from([127, 0, 0, 3]), 3));
        assert_eq!(tried, ["127.0.0.1", "127.0.0.2", "127.0.0.3"]);
    }

    #[test]
    fn when_all_are_taken_the_error_names_the_module() {
        let mut count = 0;
        let error = text(take(None, |address| {
            let IpAddr::V4(address) = address else { panic!("{address}") };
            assert!(![0, 255].contains(&address.octets()[3]), "{address}");
            count += 1;
            Err(io::ErrorKind::AddrInUse.into())
        }));
        assert!(count > 4000 && error.contains("127.0.16.0") && error.contains("rmmod rdma_rxe"), "{count}: {error}");
    }

    #[test]
    fn an_address_that_was_asked_for_is_the_only_one_tried() {
        let address = IpAddr::from([192, 0, 2, 1]);
        let refused = |kind: io::ErrorKind| text(take(Some(address), |_| Err(kind.into())));
        assert_eq!(
            refused(io::ErrorKind::AddrInUse),
            "UDP port 4791 of 192.0.2.1 is taken: end that process, or give this one another --address"
        );
        assert!(refused(io::ErrorKind::AddrNotAvailable).starts_with("no interface has the address 192.0.2.1: "));
        assert!(refused(io::ErrorKind::PermissionDenied).starts_with("UDP port 4791 of 192.0.2.1 cannot be bound: "));
        assert_eq!(take(Some(address), |address| Ok(address.to_string())).unwrap().1, "192.0.2.1");
    }

    #[test]
    fn the_errors_of_sockets_are_these() {
        let address = IpAddr::from([127, 9, 0, 1]);
        let first = UdpSocket::bind((address, 0)).unwrap();
        let port = first.local_addr().unwrap().port();
        let taken = take(Some(address), |address| UdpSocket::bind((address, port)));
        assert!(matches!(taken, Err(AddressError::Taken { .. })), "{taken:?}");
        let foreign = take(Some(IpAddr::from([192, 0, 2, 1])), |address| UdpSocket::bind((address, 0)));
        assert!(matches!(foreign, Err(AddressError::NotHere(_))), "{foreign:?}");
    }
}
