//! The transport engine: packets of peers with any contents, work requests, state changes, keys that come and go, and time.
//!
//! Two targets run the same programs: [`responder`] and [`requester`] differ in the step that is most frequent. Invariants:
//!
//! * A packet changes only bytes that its peer may write: of a key that the packet names and that the local side made for
//!   it, or of posted buffers. A packet with a wrong ICRC, from another address, or out of sequence changes nothing.
//! * A response brings no byte that the peer may not read.
//! * Work requests complete at most once and in order; in ERROR all of them do.
//! * Every frame is a valid packet to the peer of its queue pair.
//! * When everything is destroyed, nothing is left: no timer, no pending reply, no key, no bytes written outside.
//!
//! An input is a [`Setup`] and then steps, each an [`op`] and its arguments.

mod check;
mod env;
mod memory;
mod packet;
mod step;
mod work;

pub use env::Setup;
pub use packet::{PacketStep, flag};
pub use step::{SendStep, op, sge_to_bytes};

use crate::input::Input;
use env::Env;

/// Most steps of an input.
const STEPS: usize = 250;

/// Runs a program of peers that send requests.
pub fn responder(data: &[u8]) {
    run(data, op::PACKET);
}

/// Runs a program of our own requests.
pub fn requester(data: &[u8]) {
    run(data, op::SEND);
}

/// `usual` is the step for bytes that are no step.
fn run(data: &[u8], usual: u8) {
    let mut input = Input::new(data);
    let mut env = Env::new(Setup(input.u8()));
    for _ in 0..STEPS {
        if input.is_empty() {
            break;
        }
        let byte = input.u8();
        env.step(if byte < op::COUNT { byte } else { usual }, &mut input);
        env.settle();
    }
    env.end();
}
