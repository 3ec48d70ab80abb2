//! Decides when SENDs are sent back.
//!
//! A client does not announce whether it expects answers (ib_send_lat, `-b`), so every SEND is answered. A client that
//! expects none posts no receives. So the first answer is one byte, and no other is sent until that one is acknowledged: for
//! a client that is never ready, only this byte is retransmitted after RNR NAKs, which costs next to nothing.

/// Maximum number of outstanding answers, once the client has received one.
pub const WINDOW: u32 = 64;

/// The answers of one queue pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Echo {
    owed: u64,
    under_way: u32,
    /// The client has received one.
    wanted: bool,
    /// Length of the latest message.
    length: u32,
}

impl Echo {
    /// A message of `length` bytes was received.
    pub fn received(&mut self, length: u32) {
        self.owed += 1;
        self.length = length;
    }

    /// The length of an answer to send now, if the window allows one.
    pub fn next(&mut self) -> Option<u32> {
        let window = if self.wanted { WINDOW } else { 1 };
        if self.owed == 0 || self.under_way >= window {
            return None;
        }
        self.owed -= 1;
        self.under_way += 1;
        Some(if self.wanted { self.length } else { self.length.min(1) })
    }

    /// The client has received an answer.
    pub fn taken(&mut self) {
        self.under_way = self.under_way.saturating_sub(1);
        self.wanted = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_answer_is_a_probe() {
        let mut echo = Echo::default();
        assert_eq!(echo.next(), None);
        for _ in 0..100 {
            echo.received(65536);
        }
        assert_eq!((echo.next(), echo.next()), (Some(1), None));
        echo.taken();
        let sent = std::iter::from_fn(|| echo.next()).inspect(|length| assert_eq!(*length, 65536)).count();
        assert_eq!(sent, WINDOW as usize);
        for _ in 0..sent {
            echo.taken();
        }
        assert_eq!(std::iter::from_fn(|| echo.next()).count(), 100 - 1 - sent);
    }

    #[test]
    fn ping_and_pong() {
        let mut echo = Echo::default();
        for (length, answer) in [(0, 0), (2, 2), (9000, 9000)] {
            echo.received(length);
            assert_eq!((echo.next(), echo.next()), (Some(answer), None));
            echo.taken();
        }
    }
}
