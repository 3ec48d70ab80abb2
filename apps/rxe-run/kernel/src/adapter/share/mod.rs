//! One address for several processes of a user.
//!
//! The process with the UDP socket of the address is its *owner*; the others are its *guests*. A guest sends and receives its
//! frames through the owner, on a Unix socket. Each process has a worker number, which is in the upper four bits of its queue
//! pair numbers and of the identifiers of its connections, so that the owner knows which process a packet is for. A request
//! for a connection is offered to one process after the other until one listens for it. When the owner ends, the guests open
//! the port again; one of them becomes the owner, and the others its guests.
//!
//! A process becomes the owner by the name of the Unix socket, which is bound before the UDP port. So an owner always has a socket that
//! guests can connect to, and there is no time at which an address has a UDP socket and nobody to ask for a share of it.
//!
//! | module | subject |
//! |---|---|
//! | [`message`] | what is on the Unix socket |
//! | [`socket`] | the Unix sockets; both ends belong to one user |
//! | [`owner`] | the guests of an owner |
//! | [`guest`] | the port of a guest |

use rxe_proto::Instant;

use super::groups::Groups;

pub mod guest;
mod message;
pub mod owner;
pub mod socket;

/// Worker numbers are below this: those that queue pair numbers can have.
pub const WORKERS: usize = 15;

/// Role of a process that shares an address, with respect to frames.
pub trait Node {
    /// Handles a received frame.
    fn handle_frame(&mut self, now: Instant, frame: &[u8]);

    /// Whether the program listens for the request in a frame to queue pair 1.
    fn listens_for(&self, frame: &[u8]) -> bool;

    /// Sends a complete frame. False when there is no room.
    fn send_frame(&mut self, frame: &[u8]) -> bool;

    /// Multicast groups.
    fn groups_mut(&mut self) -> &mut Groups;
}
