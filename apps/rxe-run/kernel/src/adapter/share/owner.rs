//! The guests of the process that has the UDP port.

use std::collections::{BTreeSet, VecDeque};
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::{Duration, Instant as Time};

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use rxe_proto::Instant;
use rxe_proto::transport::Qpn;
use rxe_proto::wire::{Frame, classify};

use super::message::{Batch, Frames, MAX_LEN, Message};
use super::socket::{Received, Sent, accept, receive_message, send_message};
use super::{Node, WORKERS};
use crate::adapter::addressee::Addressee;
use crate::descriptors::out_of_the_way;

/// Processes that have connected and not said hello, at most.
const NEWCOMERS: usize = 16;
/// Messages of one guest that one turn reads, at most.
const BURST: usize = 4;
/// Messages of up to 60 KB that wait for room in the socket of one guest, at most: all that several of its queue pairs may have
/// outstanding. Frames beyond that are dropped, so that a guest that is stopped uses up no memory.
const MAX_QUEUED: usize = 64;
/// How long newcomers wait after another process has taken the address over. Its guests come back with the numbers that they have.
const RETURN: Duration = Duration::from_secs(1);

/// The guests, by their worker numbers.
pub struct Guests {
    /// The worker number of the owner.
    own: u8,
    listener: OwnedFd,
    epoll: Epoll,
    newcomers: Vec<OwnedFd>,
    guests: [Option<Guest>; WORKERS],
    buffer: Box<[u8]>,
    /// Until then only guests of the last owner are accepted.
    returning: Option<Time>,
    /// Frames for which there was no room.
    dropped: u64,
}

struct Guest {
    socket: OwnedFd,
    /// The frames that are put together.
    out: Batch,
    /// Complete messages that the socket had no room for, the oldest first.
    queued: VecDeque<Batch>,
    /// Frames of its last message that the port had no room for. Nothing more is read from it before they are sent.
    unsent: Vec<u8>,
    /// What the epoll instance reports of the socket.
    interest: EpollFlags,
    groups: BTreeSet<IpAddr>,
    /// It is to be told when the port is a member of its groups.
    waits_for_groups: bool,
}

impl Guest {
    fn new(socket: OwnedFd) -> Guest {
        Guest {
            socket,
            out: Batch::default(),
            queued: VecDeque::new(),
            unsent: Vec::new(),
            interest: EpollFlags::EPOLLIN,
            groups: BTreeSet::new(),
            waits_for_groups: false,
        }
    }

    /// Adds a frame. Returns how many frames were dropped for it.
    fn push(&mut self, frame: &[u8]) -> u64 {
        if self.out.push(frame) {
            return 0;
        }
        self.flush();
        let mut dropped = 0;
        if !self.out.is_empty() {
            let full = std::mem::take(&mut self.out);
            if self.queued.len() < MAX_QUEUED { self.queued.push_back(full) } else { dropped = full.count() }
        }
        dropped + u64::from(!self.out.push(frame))
    }

    /// Sends what waits, as far as the socket has room.
    fn flush(&mut self) {
        while let Some(message) = self.queued.front() {
            if send_message(&self.socket, message.bytes()) == Sent::Full {
                return;
            }
            self.queued.pop_front();
        }
        // What is for a guest that has ended is lost, as on a network.
        if !self.out.is_empty() && send_message(&self.socket, self.out.bytes()) != Sent::Full {
            self.out.clear();
        }
    }

    /// What its socket is watched for: messages unless it has to wait, and room for what waits.
    fn wanted(&self) -> EpollFlags {
        let mut wanted = EpollFlags::empty();
        wanted.set(EpollFlags::EPOLLIN, self.unsent.is_empty());
        wanted.set(EpollFlags::EPOLLOUT, !self.out.is_empty());
        wanted
    }
}

impl Guests {
    /// Accepts guests from `listener`, which has the name of the address. With `taken_over` the address has had guests before.
    ///
    /// # Errors
    /// There are no more descriptors.
    pub fn new(listener: OwnedFd, own: u8, taken_over: bool) -> Result<Guests, Errno> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let epoll = Epoll(out_of_the_way(epoll.0));
        let event = |fd: &OwnedFd| EpollEvent::new(EpollFlags::EPOLLIN, fd.as_raw_fd() as u64);
        epoll.add(&listener, event(&listener))?;
        Ok(Guests {
            own,
            listener,
            epoll,
            newcomers: Vec::new(),
            guests: [const { None }; WORKERS],
            buffer: vec![0; MAX_LEN].into_boxed_slice(),
            returning: taken_over.then(|| Time::now() + RETURN),
            dropped: 0,
        })
    }

    /// A descriptor that is readable when there is something to [`serve`](Self::serve).
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.epoll.0.as_fd()
    }

    /// Whether there is no guest.
    pub fn is_empty(&self) -> bool {
        self.guests.iter().all(Option::is_none)
    }

    /// Handles a received frame, or passes it to its guest.
    pub fn route(&mut self, state: &mut impl Node, now: Instant, frame: &[u8]) {
        let Ok(Frame::Roce(packet)) = classify(frame) else { return state.handle_frame(now, frame) };
        match Qpn::new(packet.dest_qp()) {
            Qpn::MULTICAST => {
                for worker in 0..WORKERS {
                    self.pass(worker, frame);
                }
                state.handle_frame(now, frame);
            }
            Qpn::GSI => match Addressee::of(frame) {
                Some(Addressee::Worker(worker)) => self.pass_or_handle(worker, state, now, frame),
                Some(Addressee::Listener) if !state.listens_for(frame) => self.offer(0, state, now, frame),
                _ => state.handle_frame(now, frame),
            },
            qpn => self.pass_or_handle((qpn.get() >> 20) as u8, state, now, frame),
        }
    }

    fn pass_or_handle(&mut self, worker: u8, state: &mut impl Node, now: Instant, frame: &[u8]) {
        if !self.pass(usize::from(worker), frame) {
            state.handle_frame(now, frame);
        }
    }

    /// Passes a frame to a guest. False when there is no such guest.
    fn pass(&mut self, worker: usize, frame: &[u8]) -> bool {
        let Some(Some(guest)) = self.guests.get_mut(worker) else { return false };
        self.dropped += guest.push(frame);
        true
    }

    /// Offers a request to the guests from number `first` on; when none is left, it is ours to refuse.
    fn offer(&mut self, first: usize, state: &mut impl Node, now: Instant, frame: &[u8]) {
        for guest in self.guests.iter_mut().skip(first).flatten() {
            // Without room the request is lost, and the peer repeats it: this guest may be the one that listens.
            if send_message(&guest.socket, &Message::Request(frame).bytes()) != Sent::Gone {
                return;
            }
        }
        state.handle_frame(now, frame);
    }

    /// Sends what was put together.
    pub fn flush(&mut self) {
        for guest in self.guests.iter_mut().flatten() {
            guest.flush();
            let wanted = guest.wanted();
            if wanted != guest.interest {
                let mut event = EpollEvent::new(wanted, guest.socket.as_raw_fd() as u64);
                // It cannot fail: the socket is in the list.
                if self.epoll.modify(&guest.socket, &mut event).is_ok() {
                    guest.interest = wanted;
                }
            }
        }
    }

    /// The groups that guests want.
    fn groups(&self) -> BTreeSet<IpAddr> {
        self.guests.iter().flatten().flat_map(|guest| &guest.groups).copied().collect()
    }

    /// The port is a member of all groups that are wanted.
    pub fn groups_are_joined(&mut self) {
        for guest in self.guests.iter_mut().flatten().filter(|guest| guest.waits_for_groups) {
            guest.waits_for_groups = send_message(&guest.socket, &Message::Joined.bytes()) == Sent::Full;
        }
    }

    /// Whether frames of guests wait for room in the port.
    pub fn has_unsent(&self) -> bool {
        self.guests.iter().flatten().any(|guest| !guest.unsent.is_empty())
    }

    /// Accepts guests, and does what they ask for.
    pub fn serve(&mut self, state: &mut impl Node, now: Instant) {
        for guest in self.guests.iter_mut().flatten().filter(|guest| !guest.unsent.is_empty()) {
            let left = send_frames(state, Frames::of(&guest.unsent)).len();
            guest.unsent.drain(..guest.unsent.len() - left);
        }
        let mut events = [EpollEvent::empty(); 16];
        let count = self.epoll.wait(&mut events, EpollTimeout::ZERO).unwrap_or(0);
        for event in &events[..count] {
            let fd = event.data() as RawFd;
            if fd == self.listener.as_raw_fd() {
                self.accept();
            } else if let Some(at) = self.newcomers.iter().position(|newcomer| newcomer.as_raw_fd() == fd) {
                self.greet(at);
            } else if let Some(worker) = self.worker_at(fd) {
                self.read(worker, state, now);
            }
        }
    }

    fn worker_at(&self, fd: RawFd) -> Option<usize> {
        self.guests.iter().position(|guest| guest.as_ref().is_some_and(|guest| guest.socket.as_raw_fd() == fd))
    }

    /// Accepts as many as there is room for; the others wait in the backlog. While there is none, the oldest has to go: it says nothing.
    fn accept(&mut self) {
        if self.newcomers.len() == NEWCOMERS {
            self.newcomers.remove(0);
        }
        while self.newcomers.len() < NEWCOMERS
            && let Some(newcomer) = accept(&self.listener)
        {
            let event = EpollEvent::new(EpollFlags::EPOLLIN, newcomer.as_raw_fd() as u64);
            if self.epoll.add(&newcomer, event).is_ok() {
                self.newcomers.push(newcomer);
            }
        }
    }

    /// Makes a newcomer a guest. One that says anything but hello is disconnected; so is one for which there is no number, with an
    /// answer.
    fn greet(&mut self, at: usize) {
        let newcomer = self.newcomers.swap_remove(at);
        let message = match receive_message(&newcomer, &mut self.buffer) {
            Received::Message(len) => self.buffer.get(..len).and_then(Message::parse),
            Received::Nothing => return self.newcomers.push(newcomer),
            Received::Gone => None,
        };
        let free = |worker: u8| worker != self.own && self.guests.get(usize::from(worker)).is_some_and(Option::is_none);
        let worker = match message {
            Some(Message::Hello(Some(worker))) => Some(worker).filter(|&worker| free(worker)),
            Some(Message::Hello(None)) if self.returning.is_some_and(|until| Time::now() < until) => None,
            // Number 0 last: an owner that was no guest before has it, also the next one.
            Some(Message::Hello(None)) => (1..WORKERS as u8).chain([0]).find(|&worker| free(worker)),
            _ => return,
        };
        match worker {
            Some(worker) if send_message(&newcomer, &Message::Welcome(worker).bytes()) == Sent::Done => {
                self.guests[usize::from(worker)] = Some(Guest::new(newcomer));
            }
            _ => {
                // It is about to be disconnected, which says the same.
                let _ = send_message(&newcomer, &Message::Refused.bytes());
            }
        }
    }

    fn read(&mut self, worker: usize, state: &mut impl Node, now: Instant) {
        for _ in 0..BURST {
            let Some(Some(guest)) = self.guests.get_mut(worker) else { return };
            if !guest.unsent.is_empty() {
                return;
            }
            let len = match receive_message(&guest.socket, &mut self.buffer) {
                Received::Message(len) => len,
                Received::Nothing => return,
                Received::Gone => return self.remove(worker, state),
            };
            let buffer = std::mem::take(&mut self.buffer);
            let understood = self.execute(worker, buffer.get(..len).and_then(Message::parse), state, now);
            self.buffer = buffer;
            if !understood {
                return self.remove(worker, state);
            }
        }
    }

    /// Does what a message of a guest asks for. False when it is none of a guest's messages.
    fn execute(&mut self, worker: usize, message: Option<Message<'_>>, state: &mut impl Node, now: Instant) -> bool {
        match message {
            Some(Message::Frames(frames)) => {
                let unsent = send_frames(state, frames);
                if let Some(guest) = &mut self.guests[worker] {
                    guest.unsent.extend_from_slice(unsent);
                }
            }
            Some(Message::NotMine(frame)) => self.offer(worker + 1, state, now, frame),
            Some(Message::Groups(groups)) => {
                if let Some(guest) = &mut self.guests[worker] {
                    guest.groups = groups.into_iter().collect();
                    guest.waits_for_groups = true;
                }
                state.groups_mut().set_of_guests(self.groups());
            }
            _ => return false,
        }
        true
    }

    fn remove(&mut self, worker: usize, state: &mut impl Node) {
        if self.guests[worker].take().is_some() {
            state.groups_mut().set_of_guests(self.groups());
        }
    }
}

/// Sends frames until the port has no more room. Returns those that are left.
fn send_frames<'a>(state: &mut impl Node, mut frames: Frames<'a>) -> &'a [u8] {
    loop {
        let left = frames.bytes();
        match frames.next() {
            None => return &[],
            Some(frame) if !state.send_frame(frame) => return left,
            Some(_) => {}
        }
    }
}

impl Drop for Guests {
    fn drop(&mut self) {
        if self.dropped > 0 {
            tracing::debug!(
                "{} frames for other programs at this address were dropped: their sockets were full",
                self.dropped
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use rxe_proto::wire::{PortId, TxQueue};

    use super::super::guest::{Joined, join};
    use super::super::socket::claim;
    use super::*;
    use crate::adapter::groups::Groups;

    /// A port with room for so many frames, and those that were sent.
    #[derive(Default)]
    struct Port {
        room: usize,
        sent: Vec<Vec<u8>>,
        groups: Groups,
    }

    impl Node for Port {
        fn handle_frame(&mut self, _: Instant, _: &[u8]) {}

        fn listens_for(&self, _: &[u8]) -> bool {
            false
        }

        fn send_frame(&mut self, frame: &[u8]) -> bool {
            let has_room = self.room > 0;
            if has_room {
                self.room -= 1;
                self.sent.push(frame.to_vec());
            }
            has_room
        }

        fn groups_mut(&mut self) -> &mut Groups {
            &mut self.groups
        }
    }

    #[test]
    fn frames_of_a_guest_wait_for_room_in_the_port() {
        let address = IpAddr::from([127, 77, 2, (std::process::id() % 250) as u8]);
        let mut guests = Guests::new(claim(address).unwrap(), 0, false).unwrap();
        let mut port = Port::default();
        let joining = std::thread::spawn(move || join(address, None, Duration::from_secs(60)).unwrap());
        while guests.is_empty() {
            guests.serve(&mut port, Instant::ZERO);
        }
        let Joined { mut tx, worker, .. } = joining.join().unwrap();
        assert_eq!(worker, 1);
        const FRAMES: usize = 1000;
        let (mut pushed, mut refused, mut turns) = (0, 0, 0);
        while port.sent.len() < FRAMES {
            while pushed < FRAMES
                && let Some(frame) = tx.push(PortId(0), 2000)
            {
                frame.fill(pushed as u8);
                pushed += 1;
            }
            refused += usize::from(tx.flush() > 0);
            (port.room, turns) = (7, turns + 1);
            assert!(turns < FRAMES, "{} of {pushed} frames arrived", port.sent.len());
            guests.serve(&mut port, Instant::ZERO);
            guests.flush();
        }
        assert!(refused > 0 && (FRAMES / 7..FRAMES / 3).contains(&turns), "refused {refused}, {turns} turns");
        assert!(port.sent.iter().enumerate().all(|(number, frame)| *frame == [number as u8; 2000]));
        assert_eq!(guests.guests[1].as_ref().unwrap().interest, EpollFlags::EPOLLIN);
    }
}
