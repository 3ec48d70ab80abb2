//! Commands supported and effects (page 05).

use crate::wire::{AdminOpcode, IoOpcode};

/// The command is supported and has no effects beyond those of its definition.
const SUPPORTED: u8 = 1;
/// Offset of the I/O commands.
const IO: usize = 1024;

/// The effects log: 4 bytes per opcode, admin commands first.
pub struct EffectsLog([u8; 4096]);

impl EffectsLog {
    /// These commands are supported, with no further effects.
    #[must_use]
    pub fn new(admin: impl Iterator<Item = AdminOpcode>, io: impl Iterator<Item = IoOpcode>) -> EffectsLog {
        let mut page = [0; 4096];
        for opcode in admin {
            page[4 * usize::from(opcode.code())] = SUPPORTED;
        }
        for opcode in io {
            page[IO + 4 * usize::from(opcode.code())] = SUPPORTED;
        }
        EffectsLog(page)
    }

    /// The data of the page.
    #[must_use]
    pub fn into_bytes(self) -> [u8; 4096] {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_opcode_has_its_dword() {
        let page = EffectsLog::new([AdminOpcode::Identify].into_iter(), [IoOpcode::Read].into_iter()).into_bytes();
        let set: Vec<usize> = (0..4096).filter(|&at| page[at] != 0).collect();
        assert_eq!(set, [4 * 0x06, 1024 + 4 * 0x02]);
    }
}
