//! Which ranges of the program's memory are mapped.

use std::fs::File;
use std::io::{BufRead, BufReader};

use nix::errno::Errno;
use zerocopy::FromBytes;

use super::abi::{ACCESS_ON_DEMAND, CommandHeader, RegMr, ReregMr, command, rereg};
use crate::user;

/// What the program can do with all of a range of its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mapped {
    /// Not even read it. Also where nobody has looked.
    No,
    /// Read it.
    Readable,
    /// Read and write it.
    Writable,
}

impl Mapped {
    /// Looks at the range that a command is about to register: what pinning does in the kernel. With many mappings that takes
    /// milliseconds, so call it without a lock.
    pub fn of_command(buf: &[u8]) -> Mapped {
        let Ok((header, rest)) = CommandHeader::read_from_prefix(buf) else { return Mapped::No };
        let range = match header.command {
            command::REG_MR => RegMr::read_from_prefix(rest)
                .ok()
                .filter(|(request, _)| request.access_flags & ACCESS_ON_DEMAND == 0)
                .map(|(request, _)| (request.start, request.length)),
            command::REREG_MR => ReregMr::read_from_prefix(rest)
                .ok()
                .filter(|(request, _)| request.flags & rereg::TRANS != 0)
                .map(|(request, _)| (request.start, request.length)),
            _ => None,
        };
        let end = range.and_then(|(start, length)| start.checked_add(length).filter(|&end| end > start));
        match (range, end) {
            (Some((start, _)), Some(end)) => Mapped::of_range(start, end),
            _ => Mapped::No,
        }
    }

    /// The kernel's list of mappings is read, as a probe of each page would bring it into memory, and one for writing would
    /// have to write.
    fn of_range(start: u64, end: u64) -> Mapped {
        match File::open("/proc/self/maps") {
            Ok(maps) => Mapped::in_list(BufReader::with_capacity(1 << 16, maps), start, end),
            // Without procfs: both ends are readable at least. A later access to an unmapped page fails anyway.
            Err(_) if user::read(start, &mut [0]).and_then(|()| user::read(end - 1, &mut [0])).is_ok() => {
                Mapped::Writable
            }
            Err(_) => Mapped::No,
        }
    }

    /// What the mappings of a list, in ascending order, allow with all bytes from `start` to `end`.
    fn in_list(mut list: impl BufRead, start: u64, end: u64) -> Mapped {
        let (mut reached, mut mapped, mut line) = (start, Mapped::Writable, String::new());
        while reached < end {
            line.clear();
            if !list.read_line(&mut line).is_ok_and(|len| len > 0) {
                return Mapped::No;
            }
            let Some((from, to, allowed)) = mapping(&line) else { continue };
            if to <= reached {
                continue;
            }
            if from > reached {
                return Mapped::No;
            }
            mapped = match (mapped, allowed) {
                (_, Mapped::No) => return Mapped::No,
                (Mapped::Writable, Mapped::Writable) => Mapped::Writable,
                _ => Mapped::Readable,
            };
            reached = to;
        }
        mapped
    }

    /// Whether memory can be registered that the device only reads or, with `writable`, writes.
    ///
    /// # Errors
    /// `EFAULT`.
    pub(super) fn check(self, writable: bool) -> Result<(), Errno> {
        let allowed = if writable { self == Mapped::Writable } else { self != Mapped::No };
        if allowed { Ok(()) } else { Err(Errno::EFAULT) }
    }
}

/// First and last address of a mapping, and what it allows.
fn mapping(line: &str) -> Option<(u64, u64, Mapped)> {
    let (range, rest) = line.split_once(' ')?;
    let (from, to) = range.split_once('-')?;
    let allowed = match rest.as_bytes().first_chunk()? {
        b"rw" => Mapped::Writable,
        b"r-" => Mapped::Readable,
        _ => Mapped::No,
    };
    Some((u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?, allowed))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAPS: &str = "\
1000-3000 r--p 00000000 08:01 1 /bin/program
3000-5000 rw-p 00000000 00:00 0 [heap]
6000-7000 rw-p 00000000 00:00 0
7000-8000 ---p 00000000 00:00 0
";

    #[test]
    fn a_range_must_be_mapped_without_holes_and_with_the_right_protection() {
        let mapped = |start, end| Mapped::in_list(MAPS.as_bytes(), start, end);
        assert_eq!((mapped(0x1000, 0x5000), mapped(0x1FFF, 0x3001)), (Mapped::Readable, Mapped::Readable));
        assert_eq!((mapped(0x3000, 0x5000), mapped(0x6800, 0x7000)), (Mapped::Writable, Mapped::Writable));
        assert_eq!(mapped(0x4000, 0x7000), Mapped::No, "a hole");
        assert_eq!(mapped(0x6000, 0x7001), Mapped::No, "no access");
        assert_eq!((mapped(0, 0x1000), mapped(0x8000, 0x8001)), (Mapped::No, Mapped::No));
        assert_eq!(Mapped::Readable.check(true), Err(Errno::EFAULT));
        assert_eq!((Mapped::Readable.check(false), Mapped::Writable.check(true)), (Ok(()), Ok(())));
    }

    #[test]
    fn memory_of_this_process_is_found() {
        let bytes = vec![0u8; 100_000];
        let start = bytes.as_ptr() as u64;
        assert_eq!(Mapped::of_range(start, start + 100_000), Mapped::Writable);
        let code = Mapped::of_command as fn(&[u8]) -> Mapped as usize as u64;
        assert_eq!((Mapped::of_range(code, code + 1), Mapped::of_range(0, 1)), (Mapped::Readable, Mapped::No));
    }
}
