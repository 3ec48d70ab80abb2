//! Queue pair states and the table of transitions between them.

use std::fmt;

use crate::mem::Access;
use crate::wire::{Path, PathMtu, PortId, Psn};

use super::{QpType, Qpn};

/// The state of a queue pair, as in the standard and in verbs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum QpState {
    /// Just created: nothing may be posted.
    Reset,
    /// Receives may be posted; packets are dropped.
    Init,
    /// Ready to receive: requests are answered.
    Rtr,
    /// Ready to send: fully open.
    Rts,
    /// Send queue draining: nothing new is begun, what is outstanding gets finished.
    Sqd,
    /// Send queue in error (unreliable services only): the receive side still works.
    Sqe,
    /// In error: all work is flushed, packets are dropped.
    Error,
}

impl QpState {
    /// Every state.
    pub const ALL: [QpState; 7] =
        [QpState::Reset, QpState::Init, QpState::Rtr, QpState::Rts, QpState::Sqd, QpState::Sqe, QpState::Error];

    /// Whether a consumer may move a queue pair from this state to `to`.
    ///
    /// IBTA: the transitions of the QP state diagram that Modify Queue Pair may perform.
    pub const fn may_become(self, to: QpState) -> bool {
        // compliance.md [QP-STATE-WAYS]: Modify Queue Pair allows the transitions of the state diagram and no others.
        use QpState::*;
        matches!(
            (self, to),
            (_, Reset | Error) | (Reset | Init, Init) | (Init, Rtr) | (Rtr | Sqd | Sqe, Rts) | (Rts | Sqd, Sqd)
        )
    }

    /// Whether requests from the peer are served.
    #[inline]
    pub const fn receives(self) -> bool {
        matches!(self, QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe)
    }

    /// Whether requests of ours may be outstanding, so that responses mean something.
    #[inline]
    pub const fn sends(self) -> bool {
        matches!(self, QpState::Rts | QpState::Sqd)
    }
}

impl fmt::Display for QpState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            QpState::Reset => "RESET",
            QpState::Init => "INIT",
            QpState::Rtr => "RTR",
            QpState::Rts => "RTS",
            QpState::Sqd => "SQD",
            QpState::Sqe => "SQE",
            QpState::Error => "ERROR",
        })
    }
}

/// Attributes that a queue pair needs to receive: where its peer is and what the two agreed on.
#[derive(Clone, Debug)]
pub struct RtrAttr {
    /// The way to the peer. Packets from elsewhere are dropped.
    pub path: Path,
    /// Most payload of one packet.
    pub path_mtu: PathMtu,
    /// The peer's queue pair.
    pub dest_qpn: Qpn,
    /// The first PSN that the peer will send.
    pub rq_psn: Psn,
    /// Maximum number of READs and atomics that the peer may have outstanding here.
    pub max_dest_rd_atomic: u8,
    /// The wait that a RNR NAK of ours asks for, as a code (see [`rnr_timer`](crate::wire::rnr_timer)).
    pub min_rnr_timer: u8,
}

impl Default for RtrAttr {
    /// Path MTU 1024, one READ or atomic at a time, RNR timer code 12 (0.64 ms): what the ping-pong programs of
    /// libibverbs choose. Path, queue pair and PSN are for the caller to fill in.
    fn default() -> RtrAttr {
        RtrAttr {
            path: Path::default(),
            path_mtu: PathMtu::Mtu1024,
            dest_qpn: Qpn::default(),
            rq_psn: Psn::default(),
            max_dest_rd_atomic: 1,
            min_rnr_timer: 12,
        }
    }
}

/// Attributes that a queue pair needs to send.
#[derive(Clone, Copy, Debug)]
pub struct RtsAttr {
    /// The first PSN that we will send.
    pub sq_psn: Psn,
    /// The ACK timeout: 4.096 microseconds times 2 to the power of this code (0 to 31); 0 waits for ever. That long
    /// without progress uses up a retry. Packets are sent again sooner, when the measured round trip suggests that they
    /// were lost.
    pub timeout: u8,
    /// Number of ACK timeouts without progress before the one that ends the connection, 0 to 7.
    pub retry_cnt: u8,
    /// Number of retries for a receiver that is not ready, 0 to 6; 7 is unlimited.
    pub rnr_retry: u8,
    /// Maximum number of READs and atomics that we may have outstanding at the peer.
    pub max_rd_atomic: u8,
}

impl Default for RtsAttr {
    /// ACK timeout code 14 (67 ms), 7 retries, no end of RNR retries, one READ or atomic at a time: what the ping-pong
    /// programs of libibverbs choose. The first PSN is 0.
    fn default() -> RtsAttr {
        RtsAttr { sq_psn: Psn::default(), timeout: 14, retry_cnt: 7, rnr_retry: 7, max_rd_atomic: 1 }
    }
}

/// A change of state, with what the new state needs.
#[derive(Clone, Debug)]
pub enum QpTransition {
    /// To INIT, from RESET or INIT.
    ToInit {
        /// Remote operations that the peer may do (the remote flags; others mean nothing here).
        access: Access,
    },
    /// To RTR, from INIT. On UC `max_dest_rd_atomic` and `min_rnr_timer` mean nothing.
    ToRtr(RtrAttr),
    /// To RTS, from RTR. On UC only `sq_psn` means something.
    ToRts(RtsAttr),
    /// To INIT, from RESET or INIT (UD).
    ToInitDatagram {
        /// The port whose datagrams it gets.
        port: PortId,
        /// The queue key that datagrams must bear.
        qkey: u32,
    },
    /// To RTR, from INIT (UD).
    ToRtrDatagram {
        /// Most payload of one datagram.
        path_mtu: PathMtu,
    },
    /// To RTS, from RTR (UD).
    ToRtsDatagram {
        /// The first PSN that we will send.
        sq_psn: Psn,
    },
    /// To SQD: finish what is outstanding, begin nothing new. [`SendQueueDrained`](super::AsyncEvent) tells when done.
    ToSqd,
    /// From SQD or SQE back to RTS.
    Resume,
    /// To ERROR, from any state: outstanding work is flushed.
    ToError,
    /// To RESET, from any state: everything posted is forgotten without completions.
    ToReset,
}

impl QpTransition {
    /// Whether queue pairs of type `qp_type` have this transition.
    pub const fn is_of(&self, qp_type: QpType) -> bool {
        match self {
            QpTransition::ToInit { .. } | QpTransition::ToRtr(_) | QpTransition::ToRts(_) => {
                matches!(qp_type, QpType::Rc | QpType::Uc)
            }
            QpTransition::ToInitDatagram { .. }
            | QpTransition::ToRtrDatagram { .. }
            | QpTransition::ToRtsDatagram { .. } => matches!(qp_type, QpType::Ud),
            QpTransition::ToSqd | QpTransition::Resume | QpTransition::ToError | QpTransition::ToReset => true,
        }
    }

    /// The state this leads to.
    pub const fn target(&self) -> QpState {
        match self {
            QpTransition::ToInit { .. } | QpTransition::ToInitDatagram { .. } => QpState::Init,
            QpTransition::ToRtr(_) | QpTransition::ToRtrDatagram { .. } => QpState::Rtr,
            QpTransition::ToRts(_) | QpTransition::ToRtsDatagram { .. } | QpTransition::Resume => QpState::Rts,
            QpTransition::ToSqd => QpState::Sqd,
            QpTransition::ToError => QpState::Error,
            QpTransition::ToReset => QpState::Reset,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::QpState;

    #[test]
    fn allowed_transitions_between_all_states() {
        let mut matrix = String::from("from/to  RESET INIT  RTR   RTS   SQD   SQE   ERROR\n");
        for from in QpState::ALL {
            matrix += &format!("{:<9}", from.to_string());
            for to in QpState::ALL {
                matrix += if from.may_become(to) { "yes   " } else { "-     " };
            }
            matrix.truncate(matrix.trim_end().len());
            matrix.push('\n');
        }
        assert_eq!(
            matrix,
            "\
from/to  RESET INIT  RTR   RTS   SQD   SQE   ERROR
RESET    yes   yes   -     -     -     -     yes
INIT     yes   yes   yes   -     -     -     yes
RTR      yes   -     -     yes   -     -     yes
RTS      yes   -     -     -     yes   -     yes
SQD      yes   -     -     yes   yes   -     yes
SQE      yes   -     -     yes   -     -     yes
ERROR    yes   -     -     -     -     -     yes
"
        );
    }
}
