//! The TCP stream of a pingpong client: one line, or 256 of ibv_srq_pingpong, then "done".
//!
//! One line does not announce more, but the others follow at once, as the client writes all of them before it reads. So the
//! first line is answered after a short delay. Each line that arrives later gets an answer of its own: the answer to the
//! first one is the same.

use super::line::{DONE, LINE, Line, MANY};

/// The client's side of the stream so far.
#[derive(Default)]
pub struct Talk {
    text: Vec<u8>,
    lines: Vec<Line>,
    /// Number of lines returned to the caller.
    asked: usize,
    done: bool,
}

/// The next action after the latest bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// Wait for more bytes.
    Wait,
    /// Wait for a moment, then call [`Talk::take_single`].
    Linger,
    /// Answer [`Talk::take`].
    Answer,
    /// The client has its answer and starts the test.
    Done,
}

/// The bytes are neither a line nor "done".
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Nonsense;

impl Talk {
    /// Handles the next bytes of the stream.
    pub fn feed(&mut self, data: &[u8]) -> Result<Next, Nonsense> {
        self.text.extend_from_slice(data);
        loop {
            if self.done && !self.text.is_empty() {
                return Err(Nonsense);
            }
            if self.asked > 0 && self.text.starts_with(DONE) {
                self.done = true;
                self.text.drain(..DONE.len());
            } else if let Some(line) = self.text.first_chunk::<LINE>() {
                let line = Line::parse(line).ok_or(Nonsense)?;
                if self.lines.len() == MANY || line.is_used() && !same_host(&self.lines, &line) {
                    return Err(Nonsense);
                }
                self.lines.push(line);
                self.text.drain(..LINE);
            } else {
                break;
            }
        }
        Ok(match (self.lines.len() - self.asked, self.lines.len()) {
            _ if self.done => Next::Done,
            (1, 1) if self.text.is_empty() => Next::Linger,
            (1.., MANY) => Next::Answer,
            _ => Next::Wait,
        })
    }

    /// The first line, if no other bytes have arrived and it was not returned before.
    pub fn take_single(&mut self) -> Option<Line> {
        match self.lines[..] {
            [line] if self.asked == 0 && self.text.is_empty() => {
                self.asked = 1;
                Some(line)
            }
            _ => None,
        }
    }

    /// The lines that were not returned yet.
    pub fn take(&mut self) -> Vec<Line> {
        let from = std::mem::replace(&mut self.asked, self.lines.len());
        self.lines[from..].to_vec()
    }

    /// Whether the client has confirmed our answer.
    pub fn is_done(&self) -> bool {
        self.done
    }
}

/// Whether `line` has the address of the client's other queue pairs.
fn same_host(lines: &[Line], line: &Line) -> bool {
    lines.iter().filter(|other| other.is_used()).all(|other| other.gid == line.gid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rxe_proto::verbs::Qpn;
    use rxe_proto::wire::{Gid, Psn};

    fn line(n: u32) -> Line {
        Line { qpn: Qpn::new(n), psn: Psn::new(7 * n), gid: Gid([9; 16]) }
    }

    fn many(used: u32) -> Vec<Line> {
        (0..MANY as u32).map(|n| if n < used { line(n + 1) } else { Line::default() }).collect()
    }

    #[test]
    fn one_line_is_answered_after_a_moment() {
        let mut talk = Talk::default();
        let text = line(5).write();
        assert_eq!(talk.feed(&text[..20]), Ok(Next::Wait));
        assert_eq!(talk.take_single(), None);
        assert_eq!(talk.feed(&text[20..]), Ok(Next::Linger));
        assert_eq!(talk.take_single(), Some(line(5)));
        assert_eq!(talk.take_single(), None);
        assert_eq!(talk.feed(b"don"), Ok(Next::Wait));
        assert!(!talk.is_done());
        assert_eq!(talk.feed(b"e\0"), Ok(Next::Done));
        assert!(talk.is_done());
        assert_eq!(talk.feed(b"more"), Err(Nonsense));
    }

    #[test]
    fn many_lines_are_answered_together_however_they_come() {
        let lines = many(16);
        let text: Vec<u8> = lines.iter().flat_map(Line::write).collect();
        for piece in [1, 51, 52, 53, 1448, text.len()] {
            let mut talk = Talk::default();
            let steps: Vec<Next> = text.chunks(piece).map(|data| talk.feed(data).expect("lines")).collect();
            let (last, before) = steps.split_last().expect("steps");
            assert_eq!(*last, Next::Answer, "pieces of {piece}");
            assert!(before.iter().all(|step| matches!(step, Next::Wait | Next::Linger)));
            assert_eq!(talk.take_single(), None);
            assert_eq!(talk.take(), lines);
            assert_eq!(talk.feed(DONE), Ok(Next::Done));
        }
    }

    #[test]
    fn the_others_may_come_late() {
        let lines = many(255);
        let mut talk = Talk::default();
        assert_eq!(talk.feed(&lines[0].write()), Ok(Next::Linger));
        assert_eq!(talk.take_single(), Some(lines[0]));
        for line in &lines[1..255] {
            assert_eq!(talk.feed(&line.write()), Ok(Next::Wait));
        }
        assert_eq!(talk.feed(&lines[255].write()), Ok(Next::Answer));
        assert_eq!(talk.take(), lines[1..]);
    }

    #[test]
    fn nonsense_is_recognised() {
        assert_eq!(Talk::default().feed(&[b'x'; LINE]), Err(Nonsense));
        // "done" before any answer is no line either.
        assert_eq!(Talk::default().feed(&[DONE, &[0; LINE]].concat()), Err(Nonsense));
        let mut talk = Talk::default();
        let text: Vec<u8> = many(3).iter().flat_map(Line::write).collect();
        assert_eq!(talk.feed(&text), Ok(Next::Answer));
        assert_eq!(talk.feed(&line(9).write()), Err(Nonsense), "one too many");
        let elsewhere = Line { gid: Gid([8; 16]), ..line(2) };
        let two = [line(1).write(), elsewhere.write()].concat();
        assert_eq!(Talk::default().feed(&two), Err(Nonsense), "two hosts");
    }

    #[test]
    fn mutated_streams_are_bounded_and_name_queue_pairs_of_one_host() {
        let mut text: Vec<u8> = many(3).iter().take(20).flat_map(Line::write).collect();
        text.extend_from_slice(DONE);
        let inputs = [&text[..], &text[..LINE], &text[20 * LINE..]];
        rxe_testkit::mutate::check_mutations("pingpong", &inputs, 8_000, |input| {
            let Some((piece, input)) = input.split_first() else { return };
            let (mut talk, mut taken) = (Talk::default(), Vec::new());
            for data in input.chunks(usize::from(*piece) + 1) {
                match talk.feed(data) {
                    Err(Nonsense) => return,
                    Ok(Next::Linger) => taken.extend(talk.take_single()),
                    Ok(Next::Answer) => taken.extend(talk.take()),
                    Ok(Next::Done) => assert!(!taken.is_empty() && talk.is_done()),
                    Ok(Next::Wait) => {}
                }
                assert!(talk.text.len() < LINE && talk.lines.len() <= MANY && taken.len() <= talk.lines.len());
            }
            let used: Vec<&Line> = taken.iter().filter(|line| line.is_used()).collect();
            assert!(used.windows(2).all(|pair| pair[0].gid == pair[1].gid));
            assert!(taken.iter().all(|line| Line::parse(&line.write()) == Some(*line)));
        });
    }
}
