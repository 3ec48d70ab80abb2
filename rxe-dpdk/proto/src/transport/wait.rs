//! Names for the events that a queue pair waits for.

use std::fmt;

macro_rules! waits {
    ($($(#[doc = $doc:literal])* $variant:ident => $name:literal,)*) => {
        /// The event that a queue pair waits for now. If there are several reasons, the first of them in the order of the checks.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Wait { $($(#[doc = $doc])* $variant,)* }

        impl Wait {
            /// Every reason to wait.
            pub const ALL: &'static [Wait] = &[$(Wait::$variant,)*];

            /// The name users see.
            pub const fn name(self) -> &'static str {
                match self { $(Wait::$variant => $name,)* }
            }

            /// Description, one sentence.
            pub const fn describe(self) -> &'static str {
                match self { $(Wait::$variant => concat!($($doc),*).trim_ascii(),)* }
            }
        }
    };
}

waits! {
    /// Nothing is posted that is not done, and the peer has asked for nothing.
    Nothing => "nothing",
    /// It has something to send, and its turn comes with the next transmission.
    Turn => "turn",
    /// All has been sent, and the peer has not answered yet.
    Answer => "answer",
    /// The peer has no receive for the next message (RNR NAK) and is given the time that it asked for.
    PeerReceive => "peer_receive",
    /// The peer's credits say that it has no receive for the next message.
    Credit => "credit",
    /// As many packets are without an answer as the window allows.
    Window => "window",
    /// Other queue pairs of the port send short messages, and long ones have enough bytes outstanding.
    ShortMessages => "short_messages",
    /// Congestion control has lowered the rate.
    Rate => "rate",
    /// As many READs and atomics are without an answer as the two ends have agreed on.
    RdAtomic => "rd_atomic",
    /// The next work request is fenced: READs and atomics before it have to be answered first.
    Fence => "fence",
    /// The next work request invalidates a key: all before it has to be done first.
    Invalidate => "invalidate",
    /// The send queue is being drained (SQD): nothing new is begun.
    Drain => "drain",
    /// A message of the peer found no receive: its consumer has to post one.
    Receive => "receive",
    /// It is in a state in which nothing is sent and received.
    State => "state",
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
