//! The Unix sockets between the owner of an address and its guests.
//!
//! Their name is that of the user and the address. It is an abstract one, so like the UDP port it belongs to the network namespace,
//! and it is gone with the owner. As any user may take such a name, both ends check whom the other one belongs to.

use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, MsgFlags, SockFlag, SockType, UnixAddr, bind, connect, getsockopt, listen, recv, send,
    setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use nix::unistd::geteuid;

use crate::descriptors::out_of_the_way;

/// Guests that wait to be accepted: those of a machine whose processes start together.
const BACKLOG: i32 = 128;

/// Outcome of sending a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sent {
    Done,
    /// The socket has no room.
    Full,
    /// The other end is closed.
    Gone,
}

/// A received message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Received {
    /// A message of this length.
    Message(usize),
    Nothing,
    /// The other end is closed.
    Gone,
}

fn name(address: IpAddr) -> Result<UnixAddr, Errno> {
    UnixAddr::new_abstract(format!("rxe-run-{}-{address}", geteuid()).as_bytes())
}

fn new_socket(flags: SockFlag) -> Result<OwnedFd, Errno> {
    let flags = flags | SockFlag::SOCK_CLOEXEC;
    socket(AddressFamily::Unix, SockType::SeqPacket, flags, None).map(out_of_the_way)
}

/// The socket that guests connect to. Its name is what makes a process the owner of an address, before it opens the UDP port.
///
/// # Errors
/// Those of `bind`: `EADDRINUSE` when another process has the name.
pub fn claim(address: IpAddr) -> Result<OwnedFd, Errno> {
    let socket = new_socket(SockFlag::SOCK_NONBLOCK)?;
    bind(socket.as_raw_fd(), &name(address)?)?;
    listen(&socket, Backlog::new(BACKLOG)?)?;
    Ok(socket)
}

/// Claims a port of the connection manager for this process, of those that share the address.
///
/// # Errors
/// `EADDRINUSE`: another process has it. Where a filter forbids such a socket, nothing is claimed.
pub fn claim_port(address: IpAddr, space: u16, port: u16) -> Result<Option<OwnedFd>, Errno> {
    let bound = new_socket(SockFlag::empty()).and_then(|socket| {
        let name = format!("rxe-run-{}-{address}-{space:#x}-{port}", geteuid());
        bind(socket.as_raw_fd(), &UnixAddr::new_abstract(name.as_bytes())?).map(|()| socket)
    });
    match bound {
        Err(Errno::EADDRINUSE) => Err(Errno::EADDRINUSE),
        bound => Ok(bound.ok()),
    }
}

/// The next guest; `None` when there is none. A process of another user is no guest.
pub fn accept(listener: &OwnedFd) -> Option<OwnedFd> {
    loop {
        let accepted =
            rustix::net::accept_with(listener, rustix::net::SocketFlags::CLOEXEC | rustix::net::SocketFlags::NONBLOCK);
        let guest = out_of_the_way(accepted.ok()?);
        if is_of_this_user(&guest) {
            return Some(guest);
        }
    }
}

/// Connects to the owner of an address, for which it waits at most `patience`, as for each message from it.
///
/// # Errors
/// Those of `connect`; `EACCES` when it is a process of another user.
pub fn connect_to_owner(address: IpAddr, patience: Duration) -> Result<OwnedFd, Errno> {
    let socket = new_socket(SockFlag::empty())?;
    let limit = TimeVal::milliseconds(patience.as_millis() as i64);
    // An owner that is stopped accepts nobody, and its backlog may be full.
    setsockopt(&socket, sockopt::SendTimeout, &limit)?;
    setsockopt(&socket, sockopt::ReceiveTimeout, &limit)?;
    connect(socket.as_raw_fd(), &name(address)?)?;
    if is_of_this_user(&socket) { Ok(socket) } else { Err(Errno::EACCES) }
}

fn is_of_this_user(socket: &OwnedFd) -> bool {
    getsockopt(socket, sockopt::PeerCredentials).is_ok_and(|peer| peer.uid() == geteuid().as_raw())
}

/// Sends a message, without waiting.
pub fn send_message(socket: &OwnedFd, message: &[u8]) -> Sent {
    match send(socket.as_raw_fd(), message, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL) {
        Ok(_) => Sent::Done,
        Err(Errno::EAGAIN | Errno::ENOBUFS | Errno::EINTR) => Sent::Full,
        Err(_) => Sent::Gone,
    }
}

/// Receives a message, without waiting.
pub fn receive_message(socket: &OwnedFd, buffer: &mut [u8]) -> Received {
    loop {
        return match recv(socket.as_raw_fd(), buffer, MsgFlags::MSG_DONTWAIT) {
            Ok(0) => Received::Gone,
            Ok(len) => Received::Message(len),
            Err(Errno::EAGAIN) => Received::Nothing,
            // Once, when the other end was closed with messages unread. What it has sent is still to be received.
            Err(Errno::ECONNRESET | Errno::EINTR) => continue,
            Err(_) => Received::Gone,
        };
    }
}

#[cfg(test)]
mod tests {
    use nix::sys::socket::socketpair;

    use super::*;

    #[test]
    fn what_was_sent_before_the_end_is_received() {
        let flags = SockFlag::SOCK_CLOEXEC;
        let (ours, theirs) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, flags).unwrap();
        assert_eq!(send_message(&ours, b"unread"), Sent::Done);
        assert_eq!(send_message(&theirs, b"last"), Sent::Done);
        drop(theirs);
        let mut buffer = [0; 8];
        assert_eq!(receive_message(&ours, &mut buffer), Received::Message(4));
        assert_eq!(receive_message(&ours, &mut buffer), Received::Gone);
        assert_eq!(send_message(&ours, b"more"), Sent::Gone);
    }

    #[test]
    fn guests_are_processes_of_this_user() {
        let address = IpAddr::from([127, 77, 0, (std::process::id() % 250) as u8]);
        let patience = Duration::from_secs(1);
        assert_eq!(connect_to_owner(address, patience).err(), Some(Errno::ECONNREFUSED));
        let listener = claim(address).unwrap();
        assert!(accept(&listener).is_none());
        let guest = connect_to_owner(address, patience).unwrap();
        let ours = accept(&listener).unwrap();
        assert_eq!(send_message(&guest, b"hello"), Sent::Done);
        assert_eq!(receive_message(&ours, &mut [0; 8]), Received::Message(5));
        assert_eq!(receive_message(&ours, &mut [0; 8]), Received::Nothing);
        assert_eq!(claim(address).err(), Some(Errno::EADDRINUSE));
    }

    #[test]
    fn an_owner_that_accepts_nobody_is_waited_for_only_so_long() {
        let address = IpAddr::from([127, 77, 1, (std::process::id() % 250) as u8]);
        let _listener = claim(address).unwrap();
        let patience = Duration::from_millis(20);
        // Linux lets one more in than the backlog.
        let waiting: Vec<_> = (0..=BACKLOG).map(|_| connect_to_owner(address, patience).unwrap()).collect();
        assert_eq!(connect_to_owner(address, patience).err(), Some(Errno::EAGAIN));
        assert_eq!(nix::unistd::read(&waiting[0], &mut [0; 8]), Err(Errno::EAGAIN));
    }
}
