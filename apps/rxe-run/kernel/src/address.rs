//! The choice of the adapter's address.
//!
//! One process has one address: its UDP socket owns port 4791 there. Binding the socket is what takes an address, so
//! processes that start at the same time get different ones.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use rxe_proto::wire::ROCE_UDP_PORT;

use crate::instance;

/// Loopback addresses that are tried: 127.0.0.1 and up.
const AUTOMATIC: u32 = 4096;

/// No address could be taken. `E` is the error of the port.
#[derive(Debug, thiserror::Error)]
pub enum AddressError<E: Error> {
    /// The port cannot be opened.
    #[error("{0}")]
    Port(E),
    /// Another process of this user has the address.
    #[error(
        "UDP port {ROCE_UDP_PORT} of {address} is in use by `{program}` (process {pid}): end that process, or give this one \
         another --address"
    )]
    InUse {
        /// The address.
        address: IpAddr,
        /// The command line of the process.
        program: String,
        /// Process id of the program that has the address.
        pid: u32,
        /// Folder of that program, with its management socket.
        folder: PathBuf,
    },
    /// All loopback addresses are in use.
    #[error(
        "UDP port {ROCE_UDP_PORT} of the loopback addresses up to {0} is in use: if the kernel's rdma_rxe has it, unload that \
         module (rmmod rdma_rxe), or use a network namespace of its own (unshare -rn)"
    )]
    AllInUse(IpAddr),
}

/// Opens the port at `wanted`, or at the first free loopback address. `in_use` tells the error of an address that another
/// socket has.
///
/// # Errors
/// The port cannot be opened at `wanted`, or no loopback address is free.
pub fn take<P, E: Error>(
    wanted: Option<IpAddr>,
    mut open: impl FnMut(IpAddr) -> Result<P, E>,
    in_use: impl Fn(&E) -> bool,
) -> Result<P, AddressError<E>> {
    if let Some(address) = wanted {
        return open(address)
            .map_err(|error| if in_use(&error) { user_of(address, error) } else { AddressError::Port(error) });
    }
    let nth = |offset| IpAddr::V4(Ipv4Addr::from_bits(Ipv4Addr::LOCALHOST.to_bits() + offset));
    // Ends in 0 and 255 look like those of a network, and some programs take them for that.
    let usual = |address: &IpAddr| !matches!(address, IpAddr::V4(v4) if [0, 255].contains(&v4.octets()[3]));
    for address in (0..AUTOMATIC).map(nth).filter(usual) {
        match open(address) {
            Err(error) if in_use(&error) => {}
            result => return result.map_err(AddressError::Port),
        }
    }
    Err(AddressError::AllInUse(nth(AUTOMATIC - 1)))
}

/// Names the process that has the address, if it can be seen.
fn user_of<E: Error>(address: IpAddr, error: E) -> AddressError<E> {
    match instance::running().into_iter().find(|running| running.info.address == address) {
        Some(user) => {
            AddressError::InUse { address, program: user.info.program, pid: user.info.pid, folder: user.folder }
        }
        None => AddressError::Port(error),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn in_use(error: &io::Error) -> bool {
        error.kind() == io::ErrorKind::AddrInUse
    }

    #[test]
    fn the_first_free_loopback_address_is_taken() {
        let mut tried = Vec::new();
        let open = |address: IpAddr| {
            tried.push(address.to_string());
            if tried.len() == 3 { Ok(address) } else { Err(io::ErrorKind::AddrInUse.into()) }
        };
        assert_eq!(take(None, open, in_use).unwrap(), IpAddr::from([127, 0, 0, 3]));
        assert_eq!(tried, ["127.0.0.1", "127.0.0.2", "127.0.0.3"]);
    }

    #[test]
    fn when_all_are_in_use_the_error_names_the_module() {
        let mut count = 0;
        let open = |address| -> io::Result<()> {
            let IpAddr::V4(address) = address else { panic!("{address}") };
            assert!(![0, 255].contains(&address.octets()[3]), "{address}");
            count += 1;
            Err(io::ErrorKind::AddrInUse.into())
        };
        let error = take(None, open, in_use).unwrap_err().to_string();
        assert!(count > 4000 && error.contains("127.0.16.0") && error.contains("rmmod rdma_rxe"), "{count}: {error}");
    }

    #[test]
    fn an_address_that_was_asked_for_is_the_only_one_tried() {
        let address = IpAddr::from([192, 0, 2, 1]);
        for kind in [io::ErrorKind::AddrInUse, io::ErrorKind::AddrNotAvailable] {
            let error = take(Some(address), |_| Err::<(), io::Error>(kind.into()), in_use).unwrap_err();
            assert_eq!(error.to_string(), io::Error::from(kind).to_string(), "the error of the port");
        }
        assert_eq!(take(Some(address), Ok, in_use).unwrap(), address);
    }

    #[test]
    fn other_errors_end_the_search() {
        let open = |_| Err::<(), io::Error>(io::ErrorKind::PermissionDenied.into());
        assert!(matches!(take(None, open, in_use), Err(AddressError::Port(_))));
    }
}
