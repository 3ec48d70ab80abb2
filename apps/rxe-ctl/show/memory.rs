//! Memory regions and windows.

use std::collections::HashMap;

use rxe_inspect::report::{Mr, RegionDigest};

use super::dash;
use crate::table::{Align, Table};

/// Memory regions and windows.
pub fn mrs(mrs: &[Mr]) -> String {
    use Align::{Left, Right};
    let columns = [
        ("KEY", Left),
        ("KIND", Left),
        ("NAME", Left),
        ("LCORE", Right),
        ("PDN", Right),
        ("IOVA", Left),
        ("MRLEN", Right),
        ("ACCESS", Left),
    ];
    let mut table = Table::new("", &columns);
    // There may be a hundred thousand numbered regions, so those of one name share a row.
    let mut counts = HashMap::<&str, usize>::new();
    mrs.iter().filter_map(|mr| mr.numbered.as_deref()).for_each(|name| *counts.entry(name).or_default() += 1);
    table.rows.extend(mrs.iter().filter_map(|mr| {
        let count = match &mr.numbered {
            Some(name) => Some(counts.remove(name.as_str())?),
            None => None,
        };
        Some(vec![
            count.map_or_else(|| format!("{:#010x}", mr.key), |count| format!("{count} keys")),
            mr.kind.clone(),
            dash(mr.numbered.as_ref().or(mr.name.as_ref())),
            mr.lcore.map_or_else(|| "all".to_owned(), |lcore| lcore.to_string()),
            mr.pdn.to_string(),
            if count.is_some() { "-".to_owned() } else { format!("{:#x}", mr.iova) },
            mr.mrlen.to_string(),
            if mr.lost { "lost".to_owned() } else { mr.access.join(",") },
        ])
    }));
    table.text()
}

/// The digest of a region.
pub fn digest(digest: &RegionDigest) -> String {
    let RegionDigest { name, offset, length, crc32c, .. } = digest;
    format!("crc32c {crc32c:#010x} region {name} offset {offset} length {length}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbered_regions_share_a_row() {
        let mr = |key: u32, name: Option<&str>, numbered: Option<&str>| Mr {
            lcore: name.is_none().then_some(0),
            key,
            kind: "region".to_owned(),
            name: name.map(str::to_owned),
            numbered: numbered.map(str::to_owned),
            iova: 0x1000 * u64::from(key),
            mrlen: 4096,
            pdn: 1,
            access: vec!["remote_read".to_owned()],
            lost: key == 8,
        };
        let many = |n: u32| mr(n, Some(&format!("many{n}")), Some("many*"));
        let one = mr(0xAB, Some("scratch"), None);
        let text = mrs(&[many(2), one, many(1), mr(7, None, None), many(3), mr(8, None, None)]);
        let words: Vec<Vec<&str>> = text.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words[0], ["3", "keys", "region", "many*", "all", "1", "-", "4096", "remote_read"]);
        assert_eq!(words[1], ["0x000000ab", "region", "scratch", "all", "1", "0xab000", "4096", "remote_read"]);
        assert_eq!(words[2], ["0x00000007", "region", "-", "0", "1", "0x7000", "4096", "remote_read"]);
        assert_eq!(words[3], ["0x00000008", "region", "-", "0", "1", "0x8000", "4096", "lost"]);
        assert_eq!(words.len(), 4, "{text}");
    }
}
