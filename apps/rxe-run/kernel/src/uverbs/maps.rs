//! Which ranges of the program's memory are mapped.

use std::fs;

use nix::errno::Errno;

use crate::user;

/// Checks that the bytes from `start` to `end` are mapped and readable, and writable if `writable` is set: what pinning does
/// in the kernel.
///
/// The kernel's list of mappings is read, as a probe of each page would bring it into memory, and one for writing would
/// have to write.
///
/// # Errors
/// `EFAULT`.
pub(super) fn check(start: u64, end: u64, writable: bool) -> Result<(), Errno> {
    match fs::read_to_string("/proc/self/maps") {
        Ok(maps) if covers(&maps, start, end, writable) => Ok(()),
        Ok(_) => Err(Errno::EFAULT),
        // Without procfs: both ends are readable at least. A later access to an unmapped page fails anyway.
        Err(_) => user::read(start, &mut [0]).and_then(|()| user::read(end - 1, &mut [0])),
    }
}

/// Whether a list of mappings, in ascending order, has all bytes from `start` to `end`.
fn covers(maps: &str, start: u64, end: u64, writable: bool) -> bool {
    let mut reached = start;
    for line in maps.lines() {
        let Some((from, to, allowed)) = mapping(line, writable) else { continue };
        if to <= reached {
            continue;
        }
        if from > reached || !allowed {
            return false;
        }
        reached = to;
        if reached >= end {
            return true;
        }
    }
    false
}

/// First and last address of a mapping, and whether it allows the access.
fn mapping(line: &str, writable: bool) -> Option<(u64, u64, bool)> {
    let (range, rest) = line.split_once(' ')?;
    let (from, to) = range.split_once('-')?;
    let protection = rest.as_bytes().first_chunk::<2>()?;
    let allowed = protection[0] == b'r' && (!writable || protection[1] == b'w');
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
        assert!(covers(MAPS, 0x1000, 0x5000, false) && covers(MAPS, 0x1FFF, 0x3001, false));
        assert!(covers(MAPS, 0x3000, 0x5000, true) && covers(MAPS, 0x6800, 0x7000, true));
        assert!(!covers(MAPS, 0x2000, 0x4000, true), "the first part is read only");
        assert!(!covers(MAPS, 0x4000, 0x7000, false), "a hole");
        assert!(!covers(MAPS, 0x6000, 0x7001, false), "no access");
        assert!(!covers(MAPS, 0, 0x1000, false) && !covers(MAPS, 0x8000, 0x8001, false));
    }

    #[test]
    fn memory_of_this_process_is_found() {
        let bytes = vec![0u8; 100_000];
        let start = bytes.as_ptr() as u64;
        assert_eq!(check(start, start + 100_000, true), Ok(()));
        let code = check as fn(u64, u64, bool) -> Result<(), Errno> as usize as u64;
        assert_eq!((check(code, code + 1, false), check(code, code + 1, true)), (Ok(()), Err(Errno::EFAULT)));
        assert_eq!(check(0, 1, false), Err(Errno::EFAULT));
    }
}
