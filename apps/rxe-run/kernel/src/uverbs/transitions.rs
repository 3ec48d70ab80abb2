//! Which attributes a program must and may give with each change of a queue pair's state.
//!
//! IBTA: "QP State Transition Properties"; the kernel checks the same table for every driver.

use rxe_proto::transport::QpType;

use super::abi::qp_attr::*;
use super::abi::qp_state;

/// Attributes of one transition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Attributes {
    required: u32,
    optional: u32,
}

const NONE: Attributes = Attributes { required: 0, optional: 0 };

/// Whether a queue pair of this type may go from state `from` to state `to`, the same one included, with the attributes of
/// `mask`.
pub(super) fn is_allowed(qp_type: QpType, from: u8, to: u8, mask: u32) -> bool {
    // A program can say which state it believes the queue pair to be in only where it can change by itself.
    let may_tell = matches!(from, qp_state::RTR | qp_state::RTS | qp_state::SQD | qp_state::SQE);
    if mask & CUR_STATE != 0 && !may_tell {
        return false;
    }
    let Some(Attributes { required, optional }) = attributes(qp_type, from, to) else { return false };
    mask & required == required && mask & !(required | optional | STATE) == 0
}

/// Attributes of a transition; `None` when there is no such transition.
fn attributes(qp_type: QpType, from: u8, to: u8) -> Option<Attributes> {
    use qp_state::{ERR, INIT, RESET, RTR, RTS, SQD, SQE};
    let (ud, rc) = (qp_type == QpType::Ud, qp_type == QpType::Rc);
    // The part of the table that UD, UC and RC have in common, then what each of them adds.
    let pick = |for_ud, for_uc, only_rc| if ud { for_ud } else { for_uc | if rc { only_rc } else { 0 } };
    Some(match (from, to) {
        (_, RESET) => NONE,
        (RESET, INIT) => {
            Attributes { required: pick(PKEY_INDEX | PORT | QKEY, PKEY_INDEX | PORT | ACCESS_FLAGS, 0), optional: 0 }
        }
        (INIT, INIT) => {
            Attributes { required: 0, optional: pick(PKEY_INDEX | PORT | QKEY, PKEY_INDEX | PORT | ACCESS_FLAGS, 0) }
        }
        (INIT, RTR) => Attributes {
            required: pick(0, AV | PATH_MTU | DEST_QPN | RQ_PSN, MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER),
            optional: pick(PKEY_INDEX | QKEY, ALT_PATH | ACCESS_FLAGS | PKEY_INDEX, 0),
        },
        (RTR, RTS) => Attributes {
            required: pick(SQ_PSN, SQ_PSN, TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC),
            optional: pick(CUR_STATE | QKEY, CUR_STATE | ALT_PATH | ACCESS_FLAGS | PATH_MIG_STATE, MIN_RNR_TIMER),
        },
        (RTS, RTS) | (SQD, RTS) => Attributes {
            required: 0,
            optional: pick(CUR_STATE | QKEY, CUR_STATE | ACCESS_FLAGS | ALT_PATH | PATH_MIG_STATE, MIN_RNR_TIMER),
        },
        (RTS, SQD) => Attributes { required: 0, optional: EN_SQD_ASYNC_NOTIFY },
        (SQD, SQD) => Attributes {
            required: 0,
            optional: pick(
                PKEY_INDEX | QKEY,
                AV | ALT_PATH | ACCESS_FLAGS | PKEY_INDEX | PATH_MIG_STATE,
                PORT | TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER,
            ),
        },
        (SQE, RTS) if !rc => Attributes { required: 0, optional: pick(CUR_STATE | QKEY, CUR_STATE | ACCESS_FLAGS, 0) },
        (INIT | RTR | RTS | SQD | SQE | ERR, ERR) => NONE,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use qp_state::*;

    #[test]
    fn what_ibv_rc_pingpong_does_is_allowed() {
        let rc = |from, to, mask| is_allowed(QpType::Rc, from, to, mask);
        let init = STATE | PKEY_INDEX | PORT | ACCESS_FLAGS;
        let rtr = STATE | AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER;
        let rts = STATE | TIMEOUT | RETRY_CNT | RNR_RETRY | SQ_PSN | MAX_QP_RD_ATOMIC;
        assert!(rc(RESET, INIT, init) && rc(INIT, RTR, rtr) && rc(RTR, RTS, rts));
        for missing in [PKEY_INDEX, PORT, ACCESS_FLAGS] {
            assert!(!rc(RESET, INIT, init & !missing));
        }
        for missing in [AV, PATH_MTU, DEST_QPN, RQ_PSN, MAX_DEST_RD_ATOMIC, MIN_RNR_TIMER] {
            assert!(!rc(INIT, RTR, rtr & !missing));
        }
        assert!(!rc(INIT, RTR, rtr | TIMEOUT) && !rc(RESET, RTR, rtr) && !rc(INIT, RTS, rts));
    }

    #[test]
    fn attributes_of_one_type_are_none_of_another() {
        assert!(is_allowed(QpType::Ud, RESET, INIT, STATE | PKEY_INDEX | PORT | QKEY));
        assert!(!is_allowed(QpType::Uc, RESET, INIT, STATE | PKEY_INDEX | PORT | QKEY));
        assert!(is_allowed(QpType::Ud, INIT, RTR, STATE));
        assert!(is_allowed(QpType::Uc, INIT, RTR, STATE | AV | PATH_MTU | DEST_QPN | RQ_PSN));
        assert!(is_allowed(QpType::Uc, RTR, RTS, STATE | SQ_PSN));
        assert!(!is_allowed(QpType::Uc, RTR, RTS, STATE | SQ_PSN | TIMEOUT));
        assert!(is_allowed(QpType::Uc, SQE, RTS, STATE | CUR_STATE));
        assert!(!is_allowed(QpType::Rc, SQE, RTS, STATE));
    }

    #[test]
    fn every_state_leads_to_reset_and_all_but_reset_to_error() {
        for from in RESET..=ERR {
            assert!(is_allowed(QpType::Rc, from, RESET, STATE));
            assert_eq!(is_allowed(QpType::Rc, from, ERR, STATE), from != RESET);
            assert!(!is_allowed(QpType::Rc, from, ERR, STATE | QKEY));
        }
        assert!(!is_allowed(QpType::Rc, 7, RTS, STATE) && !is_allowed(QpType::Rc, RTS, 7, STATE));
    }
}
