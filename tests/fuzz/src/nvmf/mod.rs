//! NVMe over Fabrics: [`target`] has hosts that send anything, [`host`] has a target that answers anything.

pub mod host;
pub mod target;

use crate::input::Input;

/// Bytes of a message: its length, the number of those that follow, and these. The others are zero.
fn message(input: &mut Input<'_>, longest: usize) -> Vec<u8> {
    let (len, present) = (usize::from(input.u16()) % (longest + 1), usize::from(input.u16()));
    let mut bytes = input.bytes(present.min(len)).to_vec();
    bytes.resize(len, 0);
    bytes
}

/// Writes a message for `message`.
pub fn put_message(program: &mut Vec<u8>, bytes: &[u8]) {
    let present = bytes.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
    for len in [bytes.len(), present] {
        program.extend((len as u16).to_be_bytes());
    }
    program.extend_from_slice(&bytes[..present]);
}
