//! Digests of named regions, computed by the thread of the client that requests them.

use rxe::digest::crc32c;
use rxe_adapter::manage::Inspector;
use rxe_inspect::report::RegionDigest;
use rxe_proto::mem::Memory;

/// Maximum number of bytes for one request: some hundredths of a second, for which the end of the target may wait.
const MAX_LENGTH: u64 = 64 << 20;

/// The digest of `length` bytes of the region `name` from `offset` on, or of the first `MAX_LENGTH` of them.
pub fn of(inspector: &Inspector, name: &str, offset: u64, length: Option<u64>) -> Result<RegionDigest, String> {
    let digest = inspector.with_region(name, |memory| digest(name, memory, offset, length));
    digest.unwrap_or_else(|| Err(format!("there is no region '{name}': rxe-ctl mr lists the regions")))
}

fn digest(name: &str, memory: &Memory, offset: u64, length: Option<u64>) -> Result<RegionDigest, String> {
    let mrlen = memory.len() as u64;
    let rest = mrlen.checked_sub(offset);
    let Some(length) = rest.and_then(|rest| Some(length.unwrap_or(rest)).filter(|length| *length <= rest)) else {
        return Err(format!("the region '{name}' has {mrlen} bytes: choose --offset and --length inside of it"));
    };
    let length = length.min(MAX_LENGTH);
    // Both are at most the length of memory.
    match crc32c(memory, offset as usize, length as usize) {
        Ok(crc32c) => Ok(RegionDigest { name: name.to_owned(), mrlen, offset, length, crc32c }),
        Err(error) => Err(format!("the region '{name}' cannot be read: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_digest_covers_the_requested_bytes() {
        let memory = Memory::heap(13);
        memory.write(2, b"123456789").expect("it fits");
        let check = RegionDigest { name: "r".to_owned(), mrlen: 13, offset: 2, length: 9, crc32c: 0xE306_9283 };
        assert_eq!(digest("r", &memory, 2, Some(9)), Ok(check));
        let length = |offset, length| digest("r", &memory, offset, length).map(|digest| digest.length);
        assert_eq!(
            (length(0, None), length(4, None), length(13, None), length(13, Some(0))),
            (Ok(13), Ok(9), Ok(0), Ok(0))
        );
        let outside = "the region 'r' has 13 bytes: choose --offset and --length inside of it".to_owned();
        for (offset, len) in [(14, None), (13, Some(1)), (0, Some(14)), (1, Some(u64::MAX)), (u64::MAX, Some(1))] {
            assert_eq!(length(offset, len), Err(outside.clone()), "{offset} {len:?}");
        }
        let long = Memory::heap(MAX_LENGTH as usize + 1);
        let first = digest("r", &long, 1, None).map(|digest| digest.length);
        let all = digest("r", &long, 0, None).map(|digest| (digest.mrlen, digest.length));
        assert_eq!((first, all), (Ok(MAX_LENGTH), Ok((MAX_LENGTH + 1, MAX_LENGTH))));
    }
}
