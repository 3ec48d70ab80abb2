//! Sets of opcodes by name, as written in settings.

use std::fmt;
use std::str::FromStr;

use super::{BthOpcode, OPCODES};

/// A set of opcodes, given as a comma-separated list of names: a full name (`RC SEND_ONLY`), a name without transport
/// for all transports (`SEND_ONLY`), or a prefix for several opcodes (`READ_RESPONSE`, `UD`). Upper and lower case are
/// the same, so are spaces, `_` and `-`, and the word `RDMA` is optional.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OpcodeSet {
    /// By the byte on the wire.
    bits: [u64; 4],
    /// The text that it was parsed from.
    text: String,
}

/// A name that no opcode has.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnknownOpcodeName(pub String);

impl fmt::Display for UnknownOpcodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}' is no opcode: write it as RC SEND_ONLY, SEND_ONLY or READ_RESPONSE", self.0)
    }
}

impl std::error::Error for UnknownOpcodeName {}

impl OpcodeSet {
    /// Whether `opcode` is one of them.
    #[inline]
    pub fn contains(&self, opcode: BthOpcode) -> bool {
        let byte = opcode.byte();
        self.bits[usize::from(byte >> 6)] >> (byte & 63) & 1 != 0
    }

    fn insert(&mut self, opcode: BthOpcode) {
        let byte = opcode.byte();
        self.bits[usize::from(byte >> 6)] |= 1 << (byte & 63);
    }
}

/// The words of a name, normalised.
fn words(name: &str) -> Vec<String> {
    let words = name.split([' ', '_', '-']).map(str::to_uppercase).filter(|word| !word.is_empty() && word != "RDMA");
    words.map(|word| if word == "IMMEDIATE" { "IMM".to_owned() } else { word }).collect()
}

impl FromStr for OpcodeSet {
    type Err = UnknownOpcodeName;

    fn from_str(text: &str) -> Result<OpcodeSet, UnknownOpcodeName> {
        let mut set = OpcodeSet { bits: [0; 4], text: text.trim().to_owned() };
        for name in text.split(',') {
            let given = words(name);
            let rows = || OPCODES.iter().flatten().map(|info| (info.opcode, words(info.name)));
            let mut found: Vec<BthOpcode> =
                rows().filter(|(_, row)| *row == given || row[1..] == given).map(|(opcode, _)| opcode).collect();
            if found.is_empty() {
                let begins = |row: &[String]| row.starts_with(&given) || row[1..].starts_with(&given);
                found = rows().filter(|(_, row)| begins(row)).map(|(opcode, _)| opcode).collect();
            }
            if given.is_empty() || found.is_empty() {
                return Err(UnknownOpcodeName(name.trim().to_owned()));
            }
            found.into_iter().for_each(|opcode| set.insert(opcode));
        }
        Ok(set)
    }
}

impl fmt::Display for OpcodeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<&'static str> {
        let set: OpcodeSet = text.parse().unwrap();
        OPCODES.iter().flatten().filter(|info| set.contains(info.opcode)).map(|info| info.name).collect()
    }

    #[test]
    fn every_opcode_goes_by_its_name() {
        for info in OPCODES.iter().flatten() {
            assert_eq!(names(info.name), [info.name]);
            assert_eq!(names(&info.name.to_lowercase().replace([' ', '_'], "-")), [info.name]);
        }
    }

    #[test]
    fn names_without_transport_and_beginnings_are_several() {
        assert_eq!(names("send_only"), ["RC SEND_ONLY", "UC SEND_ONLY", "UD SEND_ONLY"]);
        assert_eq!(names("UD"), ["UD SEND_ONLY", "UD SEND_ONLY_IMM"]);
        assert_eq!(names("rc send_last"), ["RC SEND_LAST"]);
        assert_eq!(names("RC RDMA Write Only Immediate"), ["RC WRITE_ONLY_IMM"]);
        assert_eq!(
            names("read response"),
            ["RC READ_RESPONSE_FIRST", "RC READ_RESPONSE_MIDDLE", "RC READ_RESPONSE_LAST", "RC READ_RESPONSE_ONLY"]
        );
        assert_eq!(names("CNP,RC ACKNOWLEDGE"), ["RC ACKNOWLEDGE", "CNP"]);
    }

    #[test]
    fn other_names_are_refused() {
        for (text, name) in [("", ""), ("RC SEND_ONLY,", ""), ("RC SEND_SOME", "RC SEND_SOME"), ("RDMA", "RDMA")] {
            assert_eq!(text.parse::<OpcodeSet>(), Err(UnknownOpcodeName(name.to_owned())), "{text}");
        }
    }
}
