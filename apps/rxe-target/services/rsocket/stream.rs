//! The two directions of a stream, without verbs: how much each end may write, and where.
//!
//! Each side has a ring of two halves and hands them out, one after the other, as soon as half of the ring is free. It
//! also says up to which number it takes messages.

use rxe_proto::verbs::RemoteAddr;

use super::data::{Buffer, ENTRIES};

/// A message that is against the rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Nonsense(pub &'static str);

/// Credits for the peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    /// The number up to which it may send messages.
    pub credits: u16,
    /// The half of our ring that begins here goes into this entry of its list.
    pub half: Option<(u32, u32)>,
}

/// The peer's messages.
#[derive(Debug)]
pub struct Inbound {
    /// Bytes of half the ring.
    half: u32,
    /// How many messages the peer may be ahead.
    queue: u16,
    /// Where the next byte comes in the ring.
    at: u32,
    /// Bytes that the peer may still write.
    granted: u32,
    /// Bytes written and not read.
    unread: u32,
    /// The half that is handed out next, and the entry that it goes into.
    next: u32,
    /// Messages that came.
    messages: u16,
    /// How many there were when we last said how many more may come.
    told: u16,
}

impl Inbound {
    /// The peer knows the first half from the connection data, and that it may send `queue` messages.
    pub fn new(half: u32, queue: u16) -> Inbound {
        Inbound { half, queue, at: 0, granted: half, unread: 0, next: 1, messages: 0, told: 0 }
    }

    fn ring(&self) -> u32 {
        2 * self.half
    }

    /// The peer says that it wrote `length` bytes; `written` is what the WRITE carried.
    pub fn data(&mut self, length: u32, written: u32) -> Result<(), Nonsense> {
        self.numbered()?;
        if length != written {
            return Err(Nonsense("it wrote another length than it says"));
        }
        if length == 0 || length > self.granted.min(self.half - self.at % self.half) {
            return Err(Nonsense("it wrote more than there was room for, or nothing"));
        }
        self.at = (self.at + length) % self.ring();
        self.granted -= length;
        self.unread += length;
        Ok(())
    }

    /// A message came that counts.
    pub fn numbered(&mut self) -> Result<(), Nonsense> {
        if self.messages.wrapping_sub(self.told) >= self.queue {
            return Err(Nonsense("it sent more messages than it may"));
        }
        self.messages = self.messages.wrapping_add(1);
        Ok(())
    }

    /// Where unread bytes lie in the ring, and how many in one piece.
    pub fn unread(&self) -> (u32, u32) {
        let start = (self.at + self.ring() - self.unread) % self.ring();
        (start, self.unread.min(self.ring() - start))
    }

    /// Takes `length` bytes, at most [`unread`](Self::unread), off the unread ones.
    pub fn read(&mut self, length: u32) {
        self.unread = self.unread.saturating_sub(length);
    }

    /// The credits to send to the peer now. The caller sends them.
    pub fn grant(&mut self) -> Option<Grant> {
        let free = self.ring() - self.unread - self.granted;
        let half = free >= self.half;
        if !half && self.messages.wrapping_sub(self.told) < self.queue / 2 {
            return None;
        }
        self.told = self.messages;
        let credits = self.messages.wrapping_add(self.queue);
        let half = half.then(|| {
            let entry = self.next;
            self.granted += self.half;
            self.next = (entry + 1) % ENTRIES;
            (entry * self.half, entry)
        });
        Some(Grant { credits, half })
    }
}

/// Our messages.
#[derive(Debug)]
pub struct Outbound {
    /// The number of the next message.
    number: u16,
    /// The number before which we have to stop.
    limit: u16,
    /// The buffer in use.
    buffer: Buffer,
    /// The one behind it.
    following: Option<Buffer>,
    /// The entry of our list that the peer writes next.
    entry: u32,
}

impl Outbound {
    /// The peer takes `credits` messages, into `buffer`.
    pub fn new(credits: u16, buffer: Buffer) -> Outbound {
        Outbound { number: 0, limit: credits, buffer, following: None, entry: 1 }
    }

    /// The entry of our list that comes with the next new buffer.
    pub fn entry(&self) -> u32 {
        self.entry
    }

    /// The peer takes messages before the number `limit`, and has a new `buffer`.
    pub fn granted(&mut self, limit: u16, buffer: Option<Buffer>) -> Result<(), Nonsense> {
        self.limit = limit;
        let Some(buffer) = buffer else { return Ok(()) };
        if buffer.length == 0 || self.following.is_some() {
            return Err(Nonsense("it gave an empty buffer, or a third one"));
        }
        self.entry = (self.entry + 1) % ENTRIES;
        self.following = Some(buffer);
        self.advance();
        Ok(())
    }

    fn advance(&mut self) {
        if self.buffer.length == 0
            && let Some(buffer) = self.following.take()
        {
            self.buffer = buffer;
        }
    }

    /// Whether a message that counts may be sent.
    pub fn open(&self) -> bool {
        self.number != self.limit
    }

    /// Number of bytes that the next message may carry.
    pub fn room(&self) -> u32 {
        if self.open() { self.buffer.length } else { 0 }
    }

    /// A message of `length` bytes is sent, at most [`room`](Self::room): where they go.
    pub fn data(&mut self, length: u32) -> RemoteAddr {
        let at = self.buffer.at;
        self.buffer.at.addr = at.addr.wrapping_add(u64::from(length));
        self.buffer.length = self.buffer.length.saturating_sub(length);
        self.advance();
        self.numbered();
        at
    }

    /// A message that counts is sent.
    pub fn numbered(&mut self) {
        self.number = self.number.wrapping_add(1);
    }
}

/// Memory of messages that wait for their acknowledgement, which come in order.
#[derive(Debug)]
pub struct SendRing {
    size: u32,
    head: u32,
    used: u32,
}

impl SendRing {
    /// An empty one of `size` bytes.
    pub fn new(size: u32) -> SendRing {
        SendRing { size, head: 0, used: 0 }
    }

    /// Number of free bytes in one piece.
    pub fn room(&self) -> u32 {
        (self.size - self.used).min(self.size - self.head)
    }

    /// Takes `length` bytes, at most [`room`](Self::room): where they lie.
    pub fn take(&mut self, length: u32) -> u32 {
        let at = self.head;
        self.head = (at + length) % self.size;
        self.used += length;
        at
    }

    /// The oldest `length` bytes are free again.
    pub fn give(&mut self, length: u32) {
        self.used = self.used.saturating_sub(length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn buffer(addr: u64, length: u32) -> Buffer {
        Buffer { at: RemoteAddr { addr, rkey: 7 }, length }
    }

    #[test]
    fn the_second_half_is_handed_out_at_once_and_then_in_turns() {
        let mut inbound = Inbound::new(100, 8);
        assert_eq!(inbound.grant(), Some(Grant { credits: 8, half: Some((100, 1)) }));
        assert_eq!(inbound.grant(), None);
        for (start, entry) in [(0, 0), (100, 1), (0, 0)] {
            assert_eq!(inbound.data(60, 60), Ok(()));
            assert_eq!(inbound.unread(), (start, 60));
            assert_eq!(inbound.data(40, 40), Ok(()));
            assert_eq!(inbound.grant(), None, "nothing was read yet");
            inbound.read(100);
            assert_eq!(inbound.grant().and_then(|grant| grant.half), Some((start, entry)));
        }
    }

    #[test]
    fn credits_are_renewed_after_half_of_them() {
        let mut inbound = Inbound::new(100, 8);
        inbound.grant();
        for round in 1..=20_000u16 {
            for _ in 0..3 {
                assert_eq!(inbound.numbered(), Ok(()));
                assert_eq!(inbound.grant(), None);
            }
            assert_eq!(inbound.numbered(), Ok(()));
            let credits = round.wrapping_mul(4).wrapping_add(8);
            assert_eq!(inbound.grant(), Some(Grant { credits, half: None }));
        }
    }

    #[test]
    fn what_is_against_the_rules_is_seen() {
        let fresh = || Inbound::new(100, 8);
        for (length, written) in [(0, 0), (101, 101), (5, 4), (5, 6)] {
            assert!(fresh().data(length, written).is_err());
        }
        let mut inbound = fresh();
        inbound.grant();
        assert_eq!(inbound.data(50, 50), Ok(()));
        assert!(inbound.data(51, 51).is_err(), "a message never crosses halves");
        let mut inbound = fresh();
        assert_eq!(inbound.data(100, 100), Ok(()));
        assert!(inbound.data(1, 1).is_err(), "the second half was not handed out");
        let mut inbound = fresh();
        for _ in 0..8 {
            assert_eq!(inbound.data(1, 1), Ok(()));
        }
        assert!(inbound.data(1, 1).is_err(), "the ninth message of eight");
    }

    #[test]
    fn a_ring_that_is_full_is_read_in_two_pieces() {
        let mut inbound = Inbound::new(100, 80);
        inbound.grant();
        assert_eq!(inbound.data(100, 100), Ok(()));
        inbound.read(100);
        inbound.grant();
        assert_eq!(inbound.data(100, 100), Ok(()));
        assert_eq!(inbound.data(100, 100), Ok(()));
        assert_eq!(inbound.unread(), (100, 100));
        inbound.read(100);
        assert_eq!(inbound.unread(), (0, 100));
    }

    #[test]
    fn buffers_of_the_peer_are_filled_in_order() {
        let mut outbound = Outbound::new(3, buffer(1000, 10));
        assert_eq!((outbound.room(), outbound.entry()), (10, 1));
        assert_eq!(outbound.data(4).addr, 1000);
        assert_eq!(outbound.granted(3, Some(buffer(2000, 20))), Ok(()));
        assert_eq!((outbound.room(), outbound.entry()), (6, 0));
        assert!(outbound.granted(3, Some(buffer(3000, 20))).is_err());
        assert_eq!(outbound.data(6).addr, 1004);
        assert_eq!(outbound.room(), 20);
        assert_eq!(outbound.data(20).addr, 2000);
        assert_eq!((outbound.room(), outbound.open()), (0, false));
        assert_eq!(outbound.granted(4, None), Ok(()));
        assert_eq!((outbound.room(), outbound.open()), (0, true), "credits, but no buffer");
        assert_eq!(outbound.granted(4, Some(buffer(1000, 10))), Ok(()));
        assert_eq!((outbound.room(), outbound.entry()), (10, 1));
        assert!(outbound.granted(4, Some(buffer(1000, 0))).is_err());
    }

    #[test]
    fn numbers_wrap() {
        let mut outbound = Outbound::new(u16::MAX, buffer(0, u32::MAX));
        for _ in 0..u16::MAX {
            outbound.numbered();
        }
        assert!(!outbound.open());
        assert_eq!(outbound.granted(2, None), Ok(()));
        for _ in 0..3 {
            assert!(outbound.open());
            outbound.numbered();
        }
        assert!(!outbound.open());
    }

    #[test]
    fn the_send_ring_wraps_without_splitting() {
        let mut ring = SendRing::new(100);
        assert_eq!((ring.take(70), ring.room()), (0, 30));
        ring.give(70);
        assert_eq!((ring.room(), ring.take(30)), (30, 70));
        assert_eq!((ring.room(), ring.take(70)), (70, 0));
        assert_eq!(ring.room(), 0);
        ring.give(30);
        assert_eq!(ring.room(), 30);
    }

    /// The peer and the service act in any order, and the service writes only into the room that the peer has announced.
    #[test]
    fn any_order_of_messages_keeps_the_rings_consistent() {
        const HALF: u32 = 100;
        let inputs = [&[0, 50, 3, 100, 4, 0, 0, 50, 4, 0, 5, 9, 6, 9, 7, 9][..], &[0, 100, 3, 255, 4, 0, 0, 100, 4, 0]];
        rxe_testkit::mutate::check_mutations("rsocket-stream", &inputs, 8_000, |input| {
            let mut inbound = Inbound::new(HALF, 8);
            let mut outbound = Outbound::new(8, buffer(1000, HALF));
            let mut ring = SendRing::new(HALF);
            let mut taken = std::collections::VecDeque::new();
            for step in input.chunks_exact(2) {
                let value = u32::from(step[1]);
                match step[0] % 9 {
                    0 => {
                        let _refused = inbound.data(value, value);
                    }
                    1 => {
                        let _refused = inbound.data(value, value / 2);
                    }
                    2 => {
                        let _refused = inbound.numbered();
                    }
                    3 => {
                        let (_, unread) = inbound.unread();
                        inbound.read(value.min(unread));
                    }
                    4 => {
                        let grant = inbound.grant();
                        assert!(grant.and_then(|grant| grant.half).is_none_or(|(at, _)| at == 0 || at == HALF));
                    }
                    5 => {
                        let _refused = outbound.granted(value as u16, Some(buffer(value.into(), value)));
                    }
                    6 => {
                        let _refused = outbound.granted(u16::from(step[1]) << 8, None);
                    }
                    7 => {
                        let length = value.min(outbound.room()).min(ring.room());
                        if length > 0 {
                            outbound.data(length);
                            let at = ring.take(length);
                            assert!(at + length <= HALF, "a message is split");
                            taken.push_back(length);
                        }
                    }
                    _ => {
                        if let Some(length) = taken.pop_front() {
                            ring.give(length);
                        }
                    }
                }
                let (start, unread) = inbound.unread();
                assert!(start + unread <= inbound.ring() && inbound.unread + inbound.granted <= inbound.ring());
                assert_eq!(ring.used, taken.iter().sum::<u32>());
                assert!(outbound.entry() < ENTRIES);
            }
        });
    }
}
