//! The choice of the adapter's address.
//!
//! An address that the user has chosen may be that of several processes. Without one, each process takes the first loopback address
//! that no other one has: opening the port is what takes it, so processes that start at the same time get different ones.

use std::error::Error;
use std::net::{IpAddr, Ipv4Addr};

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
    },
    /// As many processes of this user as there can be have the address.
    #[error("{processes} processes share {address}, the maximum: end one of them, or give this one another --address")]
    Full {
        /// The address.
        address: IpAddr,
        /// Their number.
        processes: usize,
    },
    /// All loopback addresses are in use.
    #[error(
        "UDP port {ROCE_UDP_PORT} of the loopback addresses up to {0} is in use: if the kernel's rdma_rxe has it, unload that \
         module (rmmod rdma_rxe), or use a network namespace of its own (unshare -rn)"
    )]
    AllInUse(IpAddr),
}

/// Opens the port at the first free loopback address. `in_use` tells the error of an address that another socket has.
///
/// # Errors
/// The port cannot be opened, or no loopback address is free.
pub fn take_free<P, E: Error>(
    mut open: impl FnMut(IpAddr) -> Result<P, E>,
    in_use: impl Fn(&E) -> bool,
) -> Result<P, AddressError<E>> {
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
pub fn in_use_by<E: Error>(address: IpAddr, error: E) -> AddressError<E> {
    match instance::running().into_iter().find(|running| running.info.address == address) {
        Some(user) => AddressError::InUse { address, program: user.info.program, pid: user.info.pid },
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
        assert_eq!(take_free(open, in_use).unwrap(), IpAddr::from([127, 0, 0, 3]));
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
        let error = take_free(open, in_use).unwrap_err().to_string();
        assert!(count > 4000 && error.contains("127.0.16.0") && error.contains("rmmod rdma_rxe"), "{count}: {error}");
    }

    #[test]
    fn other_errors_end_the_search() {
        let open = |_| Err::<(), io::Error>(io::ErrorKind::PermissionDenied.into());
        assert!(matches!(take_free(open, in_use), Err(AddressError::Port(_))));
    }
}
