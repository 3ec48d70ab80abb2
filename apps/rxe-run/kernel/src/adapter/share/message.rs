//! Messages between the owner of an address and a guest.

use std::net::IpAddr;
use std::ops::Range;

use rxe_proto::wire::Gid;

/// No message is longer.
pub const MAX_LEN: usize = 60_000;

const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const FRAMES: u8 = 3;
const REQUEST: u8 = 4;
const NOT_MINE: u8 = 5;
const GROUPS: u8 = 6;
const JOINED: u8 = 7;
const REFUSED: u8 = 8;

/// The only version. A process of another one is no guest.
const VERSION: u8 = 1;
/// In a `HELLO`: any worker number will do.
const ANY: u8 = 0xFF;

/// One message.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Message<'a> {
    /// From a guest, first: the worker number that its queue pairs have already.
    Hello(Option<u8>),
    /// The answer: its worker number.
    Welcome(u8),
    /// The other answer: there is no worker number for it at present.
    Refused,
    /// Frames to send, or received frames.
    Frames(Frames<'a>),
    /// To a guest: the frame of a request to listeners.
    Request(&'a [u8]),
    /// From a guest: it has no listener for this frame.
    NotMine(&'a [u8]),
    /// From a guest: all multicast groups that it wants.
    Groups(Vec<IpAddr>),
    /// To a guest: the port is a member of the groups of its last message.
    Joined,
}

impl<'a> Message<'a> {
    /// Reads a message; `None` when it is none.
    pub fn parse(bytes: &'a [u8]) -> Option<Message<'a>> {
        let (&kind, rest) = bytes.split_first()?;
        Some(match (kind, rest) {
            (HELLO, &[VERSION, ANY]) => Message::Hello(None),
            (HELLO, &[VERSION, worker]) => Message::Hello(Some(worker)),
            (WELCOME, &[worker]) => Message::Welcome(worker),
            (REFUSED, []) => Message::Refused,
            (FRAMES, frames) => Message::Frames(Frames(frames)),
            (REQUEST, frame) => Message::Request(frame),
            (NOT_MINE, frame) => Message::NotMine(frame),
            (GROUPS, groups) => {
                let (groups, []) = groups.as_chunks::<16>() else { return None };
                Message::Groups(groups.iter().map(|gid| Gid(*gid).ip()).collect())
            }
            (JOINED, []) => Message::Joined,
            _ => return None,
        })
    }

    /// The bytes of a message.
    pub fn bytes(&self) -> Vec<u8> {
        match self {
            Message::Hello(worker) => vec![HELLO, VERSION, worker.unwrap_or(ANY)],
            Message::Welcome(worker) => vec![WELCOME, *worker],
            Message::Refused => vec![REFUSED],
            Message::Frames(Frames(frames)) => [&[FRAMES], *frames].concat(),
            Message::Request(frame) => [&[REQUEST], *frame].concat(),
            Message::NotMine(frame) => [&[NOT_MINE], *frame].concat(),
            Message::Groups(groups) => {
                groups.iter().fold(vec![GROUPS], |bytes, &group| [&bytes[..], &Gid::from(group).0].concat())
            }
            Message::Joined => vec![JOINED],
        }
    }
}

/// The frames of a message, each behind its length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Frames<'a>(&'a [u8]);

impl<'a> Frames<'a> {
    /// Frames as [`bytes`](Self::bytes) returns them.
    pub fn of(bytes: &'a [u8]) -> Frames<'a> {
        Frames(bytes)
    }

    /// Those that are left.
    pub fn bytes(&self) -> &'a [u8] {
        self.0
    }
}

impl<'a> Iterator for Frames<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        let (len, rest) = self.0.split_first_chunk::<2>()?;
        let (frame, rest) = rest.split_at_checked(usize::from(u16::from_le_bytes(*len)))?;
        self.0 = rest;
        Some(frame)
    }
}

/// A message of frames that is being put together.
#[derive(Debug)]
pub struct Batch(Vec<u8>);

impl Default for Batch {
    fn default() -> Batch {
        Batch(vec![FRAMES])
    }
}

impl Batch {
    /// Makes room for a frame; `None` when it does not fit.
    pub fn reserve(&mut self, len: usize) -> Option<Range<usize>> {
        let length = u16::try_from(len).ok()?;
        if self.0.len() + 2 + len > MAX_LEN {
            return None;
        }
        self.0.extend(length.to_le_bytes());
        let at = self.0.len();
        self.0.resize(at + len, 0);
        Some(at..at + len)
    }

    /// Adds a frame. False when it does not fit.
    pub fn push(&mut self, frame: &[u8]) -> bool {
        self.reserve(frame.len()).map(|room| self.0[room].copy_from_slice(frame)).is_some()
    }

    /// The bytes of a frame.
    pub fn frame_mut(&mut self, room: Range<usize>) -> &mut [u8] {
        &mut self.0[room]
    }

    /// Number of frames.
    pub fn count(&self) -> u64 {
        Frames(&self.0[1..]).count() as u64
    }

    /// The message.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether there is no frame.
    pub fn is_empty(&self) -> bool {
        self.0.len() == 1
    }

    /// Removes all frames.
    pub fn clear(&mut self) {
        self.0.truncate(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_were_written() {
        let groups: Vec<IpAddr> = vec![[239, 1, 2, 3].into(), "ff1e::7".parse().unwrap()];
        let all = [
            Message::Hello(None),
            Message::Hello(Some(3)),
            Message::Welcome(14),
            Message::Refused,
            Message::Request(b"frame"),
            Message::NotMine(b"frame"),
            Message::Groups(groups),
            Message::Groups(Vec::new()),
            Message::Joined,
        ];
        for message in all {
            assert_eq!(Message::parse(&message.bytes()), Some(message.clone()));
        }
        for bytes in [&b""[..], &[0], &[HELLO], &[HELLO, 2, 0], &[WELCOME], &[GROUPS, 1], &[JOINED, 0]] {
            assert_eq!(Message::parse(bytes), None, "{bytes:?}");
        }
    }

    #[test]
    fn a_batch_holds_frames_up_to_its_length() {
        let mut batch = Batch::default();
        assert!(batch.is_empty());
        let long = [7; 9000];
        let count = (0..).take_while(|_| batch.push(&long)).count();
        assert_eq!(count, MAX_LEN / 9002);
        assert!(batch.push(b"short") && !batch.push(&[0; 70_000]));
        let bytes = batch.bytes().to_vec();
        let Some(Message::Frames(frames)) = Message::parse(&bytes) else { panic!("frames") };
        let lengths: Vec<usize> = frames.map(<[u8]>::len).collect();
        assert_eq!((lengths.len(), lengths[0], lengths[count]), (count + 1, 9000, 5));
        assert_eq!(batch.count(), count as u64 + 1);
        batch.clear();
        assert!(batch.is_empty());
        // A length beyond the end.
        assert_eq!(Frames(&[5, 0, 1]).count(), 0);
    }
}
