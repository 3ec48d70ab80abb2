//! The port of a guest: the owner's, through a Unix socket.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use rxe_proto::wire::{PortId, Seal, TxQueue};
use rxe_udp::{Tap, Waker};

use super::Node;
use super::message::{Batch, MAX_LEN, Message};
use super::socket::{Received, Sent, connect_to_owner, receive_message, send_message};

/// Messages that one turn reads, at most.
const BURST: usize = 16;

/// The owner has ended, or does not speak our language.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnerGone;

/// A connection to the owner: both halves of the port, and the worker number.
pub struct Joined {
    /// Receives.
    pub receiver: GuestReceiver,
    /// Transmits.
    pub tx: GuestTx,
    /// Our worker number.
    pub worker: u8,
}

/// Becomes a guest of the process that has the address, which has this long to answer. `worker` is the number that this process has
/// already.
///
/// # Errors
/// `EUSERS`: as many processes as there can be share the address. `EAGAIN`: the owner does not answer. Others: there is none of this user,
/// or it ends.
pub fn join(address: IpAddr, worker: Option<u8>, patience: Duration) -> Result<Joined, Errno> {
    let socket = connect_to_owner(address, patience)?;
    if send_message(&socket, &Message::Hello(worker).bytes()) != Sent::Done {
        return Err(Errno::ECONNREFUSED);
    }
    let mut answer = [0; 16];
    // The owner answers in its next turn, unless it is stopped.
    let len = nix::unistd::read(&socket, &mut answer)?;
    let worker = match answer.get(..len).and_then(Message::parse) {
        Some(Message::Welcome(worker)) => worker,
        Some(Message::Refused) => return Err(Errno::EUSERS),
        _ => return Err(Errno::ECONNREFUSED),
    };
    let socket = Arc::new(socket);
    let receiver =
        GuestReceiver { socket: Arc::clone(&socket), buffer: vec![0; MAX_LEN].into_boxed_slice(), asked: None };
    Ok(Joined { receiver, tx: GuestTx { socket, batch: Batch::default(), frames: Vec::new(), tap: None }, worker })
}

/// The receiving half.
pub struct GuestReceiver {
    socket: Arc<OwnedFd>,
    buffer: Box<[u8]>,
    /// The groups that the owner was asked for and has not confirmed.
    asked: Option<BTreeSet<IpAddr>>,
}

impl GuestReceiver {
    /// Sleeps until something was received, `waker` was used, or `timeout` has passed; with `blocked` also until there is room to
    /// send.
    ///
    /// # Errors
    /// Those of ppoll.
    pub fn wait(&self, waker: &Waker, blocked: bool, timeout: Option<Duration>) -> io::Result<()> {
        let socket = self.socket.as_fd();
        waker.wait([socket].into_iter(), blocked.then_some(socket), timeout)
    }

    /// Handles what was received.
    ///
    /// # Errors
    /// [`OwnerGone`]
    pub fn receive(&mut self, state: &mut impl Node, now: rxe_proto::Instant) -> Result<(), OwnerGone> {
        for _ in 0..BURST {
            let len = match receive_message(&self.socket, &mut self.buffer) {
                Received::Message(len) => len,
                Received::Nothing => return Ok(()),
                Received::Gone => return Err(OwnerGone),
            };
            match self.buffer.get(..len).and_then(Message::parse) {
                Some(Message::Frames(frames)) => frames.for_each(|frame| state.handle_frame(now, frame)),
                Some(Message::Request(frame)) if state.listens_for(frame) => state.handle_frame(now, frame),
                Some(Message::Request(frame)) => {
                    // Without room the request is lost, and the peer repeats it.
                    if send_message(&self.socket, &Message::NotMine(frame).bytes()) == Sent::Gone {
                        return Err(OwnerGone);
                    }
                }
                Some(Message::Joined) => {
                    if let Some(groups) = self.asked.take() {
                        state.groups_mut().set_joined(groups);
                    }
                }
                _ => return Err(OwnerGone),
            }
        }
        Ok(())
    }

    /// Asks the owner for the groups that the program wants, unless it was asked already.
    pub fn ask_for_groups(&mut self, wanted: &BTreeSet<IpAddr>) {
        if self.asked.is_none()
            && send_message(&self.socket, &Message::Groups(wanted.iter().copied().collect()).bytes()) == Sent::Done
        {
            self.asked = Some(wanted.clone());
        }
    }
}

/// The transmitting half.
pub struct GuestTx {
    socket: Arc<OwnedFd>,
    batch: Batch,
    /// The frames of the batch, and the data for their ICRCs.
    frames: Vec<(Range<usize>, Option<Seal>)>,
    tap: Option<Tap>,
}

impl GuestTx {
    /// Shows every frame that is sent to `tap`. Returns what saw them before.
    pub fn set_tap(&mut self, tap: Option<Tap>) -> Option<Tap> {
        std::mem::replace(&mut self.tap, tap)
    }

    /// Number of frames that the socket had no room for.
    pub fn waiting(&self) -> usize {
        self.frames.len()
    }

    /// Sends everything. Returns how many frames wait for room.
    pub fn flush(&mut self) -> usize {
        if self.frames.is_empty() {
            return 0;
        }
        for (room, seal) in &mut self.frames {
            let frame = self.batch.frame_mut(room.clone());
            if let Some(seal) = seal.take() {
                seal.apply(frame);
            }
        }
        match send_message(&self.socket, self.batch.bytes()) {
            Sent::Full => {}
            // Frames to an owner that has ended are lost, as on a network.
            Sent::Done | Sent::Gone => {
                if let Some(tap) = &mut self.tap {
                    self.frames.iter().for_each(|(room, _)| tap(&self.batch.bytes()[room.clone()]));
                }
                self.frames.clear();
                self.batch.clear();
            }
        }
        self.frames.len()
    }

    fn stage(&mut self, len: usize, seal: Option<Seal>) -> Option<&mut [u8]> {
        let room = match self.batch.reserve(len) {
            Some(room) => room,
            None if self.flush() == 0 => self.batch.reserve(len)?,
            None => return None,
        };
        self.frames.push((room.clone(), seal));
        Some(self.batch.frame_mut(room))
    }
}

impl TxQueue for GuestTx {
    fn push(&mut self, _port: PortId, len: usize) -> Option<&mut [u8]> {
        self.stage(len, None)
    }

    fn push_unsealed(&mut self, _port: PortId, len: usize, seal: Seal) -> Option<(&mut [u8], bool)> {
        self.stage(len, Some(seal)).map(|frame| (frame, true))
    }
}
