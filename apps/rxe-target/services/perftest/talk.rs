//! The client's side of perftest's exchange, message by message.
//!
//! Over TCP messages have no frame: position and first byte show the kind. A record begins with a hexadecimal digit, the five
//! fields of a report with a zero byte (the highest of a size), the end with "done". Over a queue pair each message is one
//! SEND, and its length shows the kind. The client waits for each answer before its next message.

use rxe_proto::wire::PathMtu;

use super::record::{BINARY, Record, TEXT};

/// Length of the first message.
pub const VERSION: usize = 16;
/// The version in our answer; clients demand at least [`OLDEST`].
const OURS: &[u8; VERSION] = b"6.06\0\0\0\0\0\0\0\0\0\0\0\0";
/// The oldest version with this exchange, in hundredths.
const OLDEST: u32 = 570;
/// Number of fields of a report.
pub const REPORT_FIELDS: u8 = 5;
const DONE: &[u8] = b"done\0";

/// Form of messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// A stream of bytes.
    Text,
    /// One message at a time.
    Binary,
}

/// A message of the client, with the answer to send.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Said {
    /// Answer with the same bytes.
    Echo(Fixed),
    /// The largest path MTU of the client; answer with ours.
    Mtu(PathMtu),
    /// A queue pair; answer with ours for it.
    Record(Record),
    /// Field `field` (from 0) of a report; answer with eight bytes.
    Report {
        /// Size, iterations, peak and average bandwidth, message rate.
        field: u8,
        /// The field's eight bytes.
        value: [u8; 8],
    },
    /// The test is over.
    Done,
}

/// At most [`VERSION`] bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fixed {
    bytes: [u8; VERSION],
    len: usize,
}

impl Fixed {
    fn new(from: &[u8]) -> Fixed {
        let mut bytes = [0; VERSION];
        let len = from.len().min(VERSION);
        bytes[..len].copy_from_slice(&from[..len]);
        Fixed { bytes, len }
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The bytes are no message of perftest's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Nonsense {
    /// No version.
    #[error("it names no version")]
    Version,
    /// A version with another exchange.
    #[error("its version {}.{:02} is too old: 5.70 is the least", .0 / 100, .0 % 100)]
    TooOld(u32),
    /// A message of the wrong length or kind.
    #[error("it sent what is no message of perftest's")]
    Message,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    Version,
    /// Two numbers to echo: page and cache line size.
    Sizes {
        left: u8,
    },
    Mtu,
    /// Records, reports and the end, with the number of fields received of a report.
    Records {
        fields: u8,
    },
    Over,
}

/// The exchange with one client.
pub struct Talk {
    form: Form,
    pending: Vec<u8>,
    stage: Stage,
}

/// The version in the first message, in hundredths.
pub fn version(message: &[u8; VERSION]) -> Option<u32> {
    let text = message.split(|b| *b == 0).next()?;
    let [whole @ .., b'.', tens, ones] = text else { return None };
    let rest_is_zero = message[text.len()..].iter().all(|b| *b == 0);
    if !(1..=4).contains(&whole.len()) || !rest_is_zero {
        return None;
    }
    let digits = whole.iter().chain([tens, ones]);
    digits.map(|b| char::from(*b).to_digit(10)).try_fold(0, |value, digit| Some(value * 10 + digit?))
}

impl Talk {
    /// An exchange without messages.
    pub fn new(form: Form) -> Talk {
        Talk { form, pending: Vec::new(), stage: Stage::Version }
    }

    /// Adds bytes, or one message, from the client.
    pub fn feed(&mut self, data: &[u8]) -> Result<(), Nonsense> {
        if self.pending.len() + data.len() > 4 * TEXT {
            // No client sends so much without waiting for an answer.
            return Err(Nonsense::Message);
        }
        self.pending.extend_from_slice(data);
        Ok(())
    }

    /// The next message, if it is complete. Answer it before the next call.
    pub fn next(&mut self) -> Result<Option<Said>, Nonsense> {
        let said = match self.stage {
            Stage::Version => {
                let Some(message) = self.take::<VERSION>()? else { return Ok(None) };
                match version(&message) {
                    None => return Err(Nonsense::Version),
                    Some(version) if version < OLDEST => return Err(Nonsense::TooOld(version)),
                    Some(_) => {}
                }
                self.stage = Stage::Sizes { left: 2 };
                Said::Echo(Fixed::new(OURS))
            }
            Stage::Sizes { left } => {
                let Some(message) = self.take::<4>()? else { return Ok(None) };
                self.stage = if left > 1 { Stage::Sizes { left: left - 1 } } else { Stage::Mtu };
                Said::Echo(Fixed::new(&message))
            }
            Stage::Mtu => {
                let Some(message) = self.take::<2>()? else { return Ok(None) };
                let [digit, 0] = message else { return Err(Nonsense::Message) };
                let mtu = PathMtu::from_code(digit.wrapping_sub(b'0')).ok_or(Nonsense::Message)?;
                self.stage = Stage::Records { fields: 0 };
                Said::Mtu(mtu)
            }
            Stage::Records { fields } => return self.next_record(fields),
            Stage::Over if self.pending.is_empty() => return Ok(None),
            Stage::Over => return Err(Nonsense::Message),
        };
        Ok(Some(said))
    }

    fn next_record(&mut self, fields: u8) -> Result<Option<Said>, Nonsense> {
        let first = self.pending.first().copied();
        let is_report = match self.form {
            Form::Text => fields > 0 || first == Some(0),
            Form::Binary => self.pending.len() == 8,
        };
        if is_report {
            let Some(value) = self.take::<8>()? else { return Ok(None) };
            self.stage = Stage::Records { fields: (fields + 1) % REPORT_FIELDS };
            return Ok(Some(Said::Report { field: fields, value }));
        }
        if self.form == Form::Binary {
            let record = self.take::<BINARY>()?;
            return Ok(record.map(|bytes| Said::Record(Record::parse_binary(&bytes))));
        }
        if self.pending.starts_with(DONE) {
            self.pending.drain(..DONE.len());
            self.stage = Stage::Over;
            return Ok(Some(Said::Done));
        }
        match self.take::<TEXT>()? {
            Some(text) => Record::parse(&text).map(|record| Some(Said::Record(record))).ok_or(Nonsense::Message),
            None => Ok(None),
        }
    }

    /// The next `N` bytes.
    fn take<const N: usize>(&mut self) -> Result<Option<[u8; N]>, Nonsense> {
        if self.form == Form::Binary && !self.pending.is_empty() && self.pending.len() != N {
            return Err(Nonsense::Message);
        }
        let Some(bytes) = self.pending.first_chunk::<N>().copied() else { return Ok(None) };
        self.pending.drain(..N);
        Ok(Some(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rxe_proto::verbs::Qpn;

    const CLIENT_VERSION: &[u8; VERSION] = b"6.06\0\0\0\0\0\0\0\0\0\0\0\0";

    fn record(n: u32) -> Record {
        Record { qpn: Qpn::new(n), out_reads: 1, ..Record::default() }
    }

    /// The parsed `messages`, fed in pieces of `piece` bytes.
    fn said(form: Form, messages: &[Vec<u8>], piece: usize) -> Result<Vec<Said>, Nonsense> {
        let mut talk = Talk::new(form);
        let mut all = Vec::new();
        for message in messages {
            for data in message.chunks(piece) {
                talk.feed(data)?;
                while let Some(said) = talk.next()? {
                    all.push(said);
                }
            }
        }
        Ok(all)
    }

    fn greeting() -> Vec<Vec<u8>> {
        vec![CLIENT_VERSION.to_vec(), vec![0, 0, 16, 0], vec![0, 0, 0, 64], b"3\0".to_vec()]
    }

    fn report(value: f64) -> Vec<Vec<u8>> {
        let mut fields = vec![65536u64.to_be_bytes().to_vec(), 5000u64.to_be_bytes().to_vec()];
        fields.extend([value; 3].map(|value| value.to_bits().to_be_bytes().to_vec()));
        fields
    }

    #[test]
    fn a_whole_test_is_understood_however_it_is_cut() {
        // The doubles begin with all kinds of bytes, hexadecimal digits among them.
        for value in [0.0, 123.25, 2e-57, 2e4] {
            let mut messages = greeting();
            messages.extend([record(1).write(), record(2).write(), record(1).write()]);
            messages.extend(report(value));
            messages.extend([record(1).write(), DONE.to_vec()]);
            let whole = said(Form::Text, &messages, usize::MAX).expect("a test");
            let kinds = |wanted: fn(&Said) -> bool| whole.iter().filter(|said| wanted(said)).count();
            assert_eq!(whole.len(), messages.len());
            assert_eq!(whole[0], Said::Echo(Fixed::new(OURS)));
            assert_eq!(whole[1], Said::Echo(Fixed::new(&[0, 0, 16, 0])));
            assert_eq!(whole[3], Said::Mtu(PathMtu::Mtu1024));
            assert_eq!(whole[5], Said::Record(record(2)));
            assert_eq!(kinds(|said| matches!(said, Said::Report { .. })), 5);
            assert_eq!(whole[11], Said::Report { field: 4, value: value.to_bits().to_be_bytes() });
            assert_eq!(whole.last(), Some(&Said::Done));
            for piece in [1, 3, 7, 50] {
                assert_eq!(said(Form::Text, &messages, piece).as_ref(), Ok(&whole), "pieces of {piece}");
            }
        }
    }

    #[test]
    fn over_a_queue_pair_the_length_tells() {
        let mut messages = greeting();
        messages.push(record(0).write_binary());
        messages.push(record(7).write_binary());
        messages.extend(report(1.5));
        messages.push(record(7).write_binary());
        let all = said(Form::Binary, &messages, usize::MAX).expect("a test");
        assert_eq!(all.len(), messages.len());
        assert_eq!((all[4], all[5]), (Said::Record(record(0)), Said::Record(record(7))));
        assert!(matches!(all[10], Said::Report { field: 4, .. }));
        assert_eq!(all[11], Said::Record(record(7)));
        messages.push(vec![0; 17]);
        assert_eq!(said(Form::Binary, &messages, usize::MAX), Err(Nonsense::Message));
    }

    #[test]
    fn versions() {
        let read = |text: &str| {
            let mut message = [0; VERSION];
            message[..text.len()].copy_from_slice(text.as_bytes());
            version(&message)
        };
        assert_eq!(
            (read("6.06"), read("5.96"), read("25.10"), read("5.70")),
            (Some(606), Some(596), Some(2510), Some(570))
        );
        for wrong in ["", "6", "6.6", "6.066", ".06", "x.06", "6.06 beta", "12345.00", "99999999999.99", "6.0a"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
        let mut junk = *CLIENT_VERSION;
        junk[9] = 1;
        assert_eq!(version(&junk), None);
        let mut old = greeting();
        old[0] = b"5.60\0\0\0\0\0\0\0\0\0\0\0\0".to_vec();
        let refused = said(Form::Text, &old, usize::MAX).expect_err("too old");
        assert_eq!(refused.to_string(), "its version 5.60 is too old: 5.70 is the least");
    }

    #[test]
    fn nonsense_is_recognised() {
        let with = |message: &[u8]| {
            let mut messages = greeting();
            messages.push(message.to_vec());
            said(Form::Text, &messages, usize::MAX)
        };
        assert_eq!(with(&[b'x'; TEXT]), Err(Nonsense::Message));
        assert_eq!(with(b"done\0more"), Err(Nonsense::Message));
        assert_eq!(with(&[b'0'; 5 * TEXT]), Err(Nonsense::Message));
        let mut mtu = greeting();
        for wrong in [b"6\0", b"0\0", b"3x"] {
            mtu[3] = wrong.to_vec();
            assert_eq!(said(Form::Text, &mtu, usize::MAX), Err(Nonsense::Message));
        }
    }

    #[test]
    fn mutated_exchanges_are_read_alike_in_any_pieces() {
        let mut messages = greeting();
        messages.extend([record(1).write(), record(2).write()]);
        messages.extend(report(1.5));
        messages.extend([record(1).write(), DONE.to_vec()]);
        let text = messages.concat();
        let binary: Vec<u8> = greeting().into_iter().chain([record(7).write_binary(), vec![0; 8]]).flatten().collect();
        let inputs = [&text[..], &text[..26], &text[26..], &binary];
        rxe_testkit::mutate::check_mutations("perftest", &inputs, 8_000, |input| {
            let whole = said(Form::Text, &[input.to_vec()], 50);
            assert_eq!(said(Form::Text, &[input.to_vec()], 1), whole);
            for message in whole.iter().flatten() {
                if let Said::Record(record) = message {
                    let again: [u8; TEXT] = record.write().try_into().expect("the length");
                    assert_eq!(Record::parse(&again), Some(*record));
                }
            }
            // Messages of the lengths that are expected, and the rest as one more.
            let (mut rest, mut parts) = (input, Vec::new());
            for len in [VERSION, 4, 4, 2, BINARY, 8, BINARY] {
                let (part, behind) = rest.split_at(len.min(rest.len()));
                parts.push(part.to_vec());
                rest = behind;
            }
            parts.push(rest.to_vec());
            let all = said(Form::Binary, &parts, usize::MAX);
            assert!(
                all.is_err() || parts.iter().filter(|part| !part.is_empty()).count() == all.map_or(0, |all| all.len())
            );
        });
    }
}
