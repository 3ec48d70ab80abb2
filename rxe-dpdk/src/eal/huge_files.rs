//! Files of hugepages that EAL made for this process.
//!
//! EAL removes the file of a page when the page becomes free. Where it does not start, or a page never becomes free, the
//! file stays, and with it the page, until another process with hugepages starts.

use std::fs;
use std::os::unix::fs::MetadataExt;

use super::args::{EalArgs, file_prefix};

/// The files of this process.
#[derive(Debug)]
pub(super) struct HugeFiles {
    /// Beginning of the files' names; `None` where there are none, or they are not ours to remove.
    name: Option<String>,
}

impl HugeFiles {
    pub(super) fn new(args: &EalArgs<'_>) -> HugeFiles {
        let secondary = args.values("--proc-type").iter().any(|kind| *kind != "primary");
        let kept = args.has("--in-memory") || args.has("--no-huge") || args.values("--huge-unlink").contains(&"never");
        HugeFiles { name: (!secondary && !kept).then(|| format!("{}map_", file_prefix(args.words()))) }
    }

    /// The files that this process has mapped now.
    pub(super) fn mapped(&self) -> MappedFiles {
        let maps = self.name.as_ref().and_then(|_| fs::read_to_string("/proc/self/maps").ok()).unwrap_or_default();
        let files = mapped(&maps, self.name.as_deref().unwrap_or_default());
        MappedFiles(files.into_iter().map(|(inode, path)| (inode, path.to_owned())).collect())
    }
}

/// Files by inode and path.
pub(super) struct MappedFiles(Vec<(u64, String)>);

impl MappedFiles {
    /// Removes those that EAL has left. Pages that are in use stay, as anonymous ones would.
    pub(super) fn remove(self) {
        for (inode, path) in self.0 {
            // By now the name may be that of another's file.
            if fs::symlink_metadata(&path).is_ok_and(|meta| meta.is_file() && meta.ino() == inode) {
                let _ = fs::remove_file(&path);
            }
        }
    }
}

/// The mapped files whose names are `name` and a number, each once, with their inodes.
fn mapped<'a>(maps: &'a str, name: &str) -> Vec<(u64, &'a str)> {
    let ours = |path: &str| {
        let number = path.rsplit('/').next().and_then(|file| file.strip_prefix(name));
        number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
    };
    // Addresses, rights, offset, device, inode, path.
    let file = |line: &'a str| {
        let inode = line.split_whitespace().nth(4)?.parse().ok()?;
        Some((inode, line.get(line.find('/')?..)?))
    };
    let mut files: Vec<_> = maps.lines().filter_map(file).filter(|(_, path)| ours(path)).collect();
    files.sort_unstable();
    files.dedup();
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_of_a_prefix_are_found_among_the_mappings() {
        let maps = "\
100200000-100400000 rw-s 00000000 00:2c 71 /dev/hugepages/ours map_0
100200000-100400000 rw-s 00000000 00:2c 71                                 /dev/hugepages/a.map_0
100400000-100600000 rw-s 00000000 00:2c 72                                 /dev/hugepages/a.map_1
100600000-100800000 rw-s 00200000 00:2c 72                                 /dev/hugepages/a.map_1
100800000-100a00000 rw-s 00000000 00:2c 73                                 /dev/hugepages/a.map_2 (deleted)
100800000-100a00000 rw-s 00000000 00:2c 74                                 /dev/hugepages/bmap_0
7f0000000000-7f0000001000 r--p 00000000 08:01 75                           /usr/lib/a.map_
7f0000000000-7f0000001000 rw-p 00000000 00:00 0
";
        assert_eq!(mapped(maps, "a.map_"), [(71, "/dev/hugepages/a.map_0"), (72, "/dev/hugepages/a.map_1")]);
    }

    #[test]
    fn only_a_primary_process_with_files_has_some() {
        let name = |text: &str| {
            let args: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
            HugeFiles::new(&EalArgs::new(&args)).name
        };
        assert_eq!(name("--file-prefix x").as_deref(), Some("xmap_"));
        assert_eq!(name("--proc-type=primary").as_deref(), Some("rtemap_"));
        for none in ["--in-memory", "--no-huge", "--proc-type auto", "--huge-unlink=never"] {
            assert_eq!(name(none), None, "{none}");
        }
    }
}
