//! `mr --digest`: the CRC-32C of a region.

use rxe::CliError;
use rxe_inspect::client::Client;
use rxe_inspect::protocol::Request;
use rxe_inspect::report::RegionDigest;

/// The digest of `length` bytes of the region `name` from `offset` on, or of all bytes up to its end. The target digests a
/// part in each answer, so that none takes long.
pub fn of(target: &mut Client, name: &str, offset: u64, length: Option<u64>) -> Result<RegionDigest, CliError> {
    let mut next = |offset, length| target.ask(&Request::Digest { name: name.to_owned(), offset, length });
    let mut digest: RegionDigest = next(offset, length)?;
    // The target has checked that the range lies inside of the region.
    let length = length.unwrap_or(digest.mrlen.saturating_sub(offset));
    while digest.length < length {
        let part: RegionDigest = next(offset + digest.length, Some(length - digest.length))?;
        if part.length == 0 {
            return Err(CliError::failed(
                "the target's answer is empty: rxe-ctl and rxe-target must be of one version",
            ));
        }
        digest = append(digest, &part);
    }
    Ok(digest)
}

/// The digest of a part and the part that follows it.
fn append(first: RegionDigest, second: &RegionDigest) -> RegionDigest {
    // A part is much smaller than the address space.
    let crc32c = crc32c::crc32c_combine(first.crc32c, second.crc32c, second.length as usize);
    RegionDigest { crc32c, length: first.length + second.length, ..first }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_give_the_digest_of_the_whole() {
        let part = |offset: u64, bytes: &[u8]| RegionDigest {
            name: "demo".to_owned(),
            mrlen: 9,
            offset,
            length: bytes.len() as u64,
            crc32c: crc32c::crc32c(bytes),
        };
        let parts = append(append(part(0, b"1234"), &part(4, b"5")), &part(5, b"6789"));
        assert_eq!(parts, part(0, b"123456789"));
        assert_eq!(parts.crc32c, 0xE306_9283);
    }
}
