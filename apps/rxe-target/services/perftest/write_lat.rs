//! The server's end of ib_write_lat, in which the server writes first without knowing the size of the messages.
//!
//! Each end polls the last byte of its buffer for the other's counter: 1, 2, 3 and so on, modulo 256. The client's buffer
//! holds at least 4096 bytes, so our first WRITE may be that long and consist of ones: the client finds its one whatever its
//! size. Its own WRITE shows the size, because our buffer was filled with a value that no client writes first.
//!
//! A client that does not answer waits for a longer message, so its memory is longer too. Then we write a single one to the last
//! byte of a message of 8192 bytes, of 16384 and so on, each after a time of silence. So a size that is a power of two needs no
//! setting; with another one, the byte may be beyond the client's memory, and its adapter refuses the WRITE.
//!
//! With `-a` client and server switch to twice the size, without notice, and the counter restarts. Up to the length of the
//! first WRITE the client finds its one at once and writes. Beyond that it waits, so after an idle time we write a single one
//! to the byte that it polls.

/// The buffer is filled with this value, so that a WRITE is visible.
pub const BLANK: u8 = 0xFF;

/// The exchange of counters, once the size is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rally {
    /// Bytes of each message.
    pub size: usize,
    /// The counter that the client writes next.
    expected: u8,
}

/// A message to write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stroke {
    /// Bytes of the message.
    pub size: usize,
    /// The last of them.
    pub counter: u8,
}

/// The next size to try for a client that does not answer messages of `size` bytes.
pub fn longer(size: usize) -> usize {
    (size + 1).next_power_of_two()
}

impl Rally {
    /// Looks for the client's first message in a blank buffer: of any size up to `first` bytes, or of one of those that are
    /// [longer], up to `extent`.
    pub fn find(first: usize, extent: usize, byte: impl Fn(usize) -> u8) -> Option<(Rally, Stroke)> {
        // Zeros and a one. The packets of a long message arrive one by one, the last of them with the one.
        let size = (0..first).find(|at| byte(*at) == BLANK).unwrap_or(first);
        if size > 0 && byte(size - 1) == 1 {
            return Some(Rally { size, expected: 1 }.answer());
        }
        let sizes = std::iter::successors(Some(longer(first)), |size| Some(longer(*size)));
        let size = sizes.take_while(|size| *size <= extent).find(|size| byte(*size - 1) == 1)?;
        Some(Rally { size, expected: 1 }.answer())
    }

    /// Looks for the next message of the client. `limit` is the length of the buffer.
    pub fn look(self, limit: usize, byte: impl Fn(usize) -> u8) -> Option<(Rally, Stroke)> {
        if byte(self.size - 1) == self.expected {
            return Some(self.answer());
        }
        let doubled = self.size * 2;
        if doubled <= limit && byte(doubled - 1) == 1 {
            return Some(Rally { size: doubled, expected: 1 }.answer());
        }
        None
    }

    fn answer(self) -> (Rally, Stroke) {
        let counter = self.expected.wrapping_add(1);
        (Rally { expected: counter, ..self }, Stroke { size: self.size, counter })
    }

    /// Offset of the byte that the client polls if it has switched to twice the size.
    pub fn beyond(self) -> usize {
        2 * self.size - 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The client's write of `size` bytes with its counter.
    fn write(buffer: &mut [u8], size: usize, counter: u8) {
        buffer[..size].fill(0);
        buffer[size - 1] = counter;
    }

    #[test]
    fn the_first_message_shows_the_size() {
        for size in [1, 2, 33, 700, 4095, 4096] {
            let mut buffer = [BLANK; 4096];
            assert_eq!(Rally::find(4096, 4096, |at| buffer[at]), None);
            if size > 1024 {
                buffer[..1024].fill(0);
                assert_eq!(Rally::find(4096, 4096, |at| buffer[at]), None, "a part of it");
            }
            write(&mut buffer, size, 1);
            let (rally, stroke) = Rally::find(4096, 4096, |at| buffer[at]).expect("a message");
            assert_eq!((rally.size, stroke), (size, Stroke { size, counter: 2 }));
        }
    }

    #[test]
    fn longer_messages_of_a_power_of_two_are_found_once_they_were_tried() {
        let mut buffer = [BLANK; 65536];
        write(&mut buffer, 16384, 0);
        assert_eq!(Rally::find(4096, 65536, |at| buffer[at]), None, "its last packet is missing");
        write(&mut buffer, 16384, 1);
        assert_eq!(Rally::find(4096, 8192, |at| buffer[at]), None, "not tried yet");
        for extent in [16384, 65536] {
            let (rally, stroke) = Rally::find(4096, extent, |at| buffer[at]).expect("a message");
            assert_eq!((rally.size, stroke), (16384, Stroke { size: 16384, counter: 2 }));
        }
        let sizes: Vec<usize> = std::iter::successors(Some(5000), |size| Some(longer(*size))).take(4).collect();
        assert_eq!(sizes, [5000, 8192, 16384, 32768]);
        assert_eq!(longer(4096), 8192);
    }

    #[test]
    fn counters_go_round() {
        let mut buffer = [BLANK; 4096];
        write(&mut buffer, 2, 1);
        let (mut rally, _) = Rally::find(4096, 4096, |at| buffer[at]).expect("a message");
        for n in 2..1000u32 {
            assert_eq!(rally.look(4096, |at| buffer[at]), None);
            write(&mut buffer, 2, n as u8);
            let (next, stroke) = rally.look(4096, |at| buffer[at]).expect("a message");
            assert_eq!(stroke, Stroke { size: 2, counter: (n + 1) as u8 });
            rally = next;
        }
    }

    #[test]
    fn the_size_may_double_up_to_the_limit() {
        let mut buffer = [BLANK; 4096];
        write(&mut buffer, 2, 1);
        let (mut rally, _) = Rally::find(4096, 4096, |at| buffer[at]).expect("a message");
        let mut size = 2;
        while size < 4096 {
            for n in 2..=5 {
                write(&mut buffer, size, n);
                rally = rally.look(4096, |at| buffer[at]).expect("a message").0;
            }
            assert_eq!(rally.beyond(), 2 * size - 1);
            size *= 2;
            write(&mut buffer, size, 1);
            let (next, stroke) = rally.look(4096, |at| buffer[at]).expect("a message");
            assert_eq!(stroke, Stroke { size, counter: 2 });
            rally = next;
        }
        assert_eq!(rally.look(4096, |at| buffer[at]), None);
    }
}
