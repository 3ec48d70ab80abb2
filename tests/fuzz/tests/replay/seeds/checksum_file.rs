//! Files of checksums.

use std::collections::BTreeMap;

use rxe_fuzz::checksum_file::{ENTRIES, FLAG_HEADER, FLAG_LARGE_BLOCKS, FLAG_SEAL, HEADER};

use crate::Corpus;

/// A file with a header that names `blocks` blocks, and the data of another size.
fn file(flags: u8, data: u16, kib: u16, blocks: u64, marks: &[u32], entry: u32) -> Vec<u8> {
    let mut header = [0; HEADER];
    header[16..24].copy_from_slice(&blocks.to_le_bytes());
    let mut input = vec![flags];
    input.extend(data.to_be_bytes());
    input.extend(kib.to_be_bytes());
    input.extend(header);
    for mark in marks {
        input.extend(mark.to_le_bytes());
        for _ in 0..ENTRIES {
            input.extend(entry.to_le_bytes());
        }
    }
    input
}

/// Every reason of a refusal, and files that are used.
pub fn all() -> Corpus {
    let good = FLAG_SEAL | FLAG_HEADER;
    let other = [good, 0, 100, 0, 72].into_iter().chain([b'R'; 60]).collect();
    BTreeMap::from(
        [
            ("clean", file(good, 100, 72, 100, &[0], 0)),
            ("suspect", file(good | FLAG_LARGE_BLOCKS, 100, 72, 100, &[1], 7)),
            ("damaged-entries", file(good, 100, 72, 100, &[0], 7)),
            ("two-regions", file(good, 20_000, 140, 20_000, &[0, 1], 3)),
            ("data-that-grew", file(good, 20_000, 72, 100, &[1], 3)),
            ("data-that-shrank", file(good, 100, 140, 20_000, &[0, 1], 3)),
            ("more-blocks-than-the-file-has-entries", file(good, 100, 72, 1 << 40, &[0], 0)),
            ("more-blocks-than-there-can-be", file(good, 100, 72, u64::MAX, &[0], 0)),
            ("a-damaged-header", file(FLAG_HEADER, 100, 72, 100, &[0], 0)),
            ("a-short-file", file(good, 100, 0, 100, &[], 0)),
            ("another-file", other),
        ]
        .map(|(name, input)| (name.to_owned(), input)),
    )
}
