//! Where the socket of a target is.
//!
//! One folder per `--file-prefix`, beside DPDK's own: `/var/run/rxe/PREFIX` for root, else below `$XDG_RUNTIME_DIR` or
//! `/tmp`. Folder and socket are for their owner only.

use std::env;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// EAL's `--file-prefix` when none is given.
pub const DEFAULT_PREFIX: &str = "rte";

/// The folder with one folder per target.
#[must_use]
pub fn base() -> PathBuf {
    base_of(is_root(), env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from))
}

fn base_of(root: bool, runtime_dir: Option<PathBuf>) -> PathBuf {
    match runtime_dir {
        _ if root => PathBuf::from("/var/run/rxe"),
        Some(dir) if dir.is_absolute() => dir.join("rxe"),
        _ => PathBuf::from("/tmp/rxe"),
    }
}

/// Whether this process may do everything, which is whose folder `/proc/self` is.
fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|meta| meta.uid() == 0)
}

/// The socket of the target with this `--file-prefix`.
#[must_use]
pub fn path(prefix: &str) -> PathBuf {
    base().join(prefix).join("ctl.sock")
}

/// The prefixes of all targets that run and can be asked, in order.
#[must_use]
pub fn running() -> Vec<String> {
    running_below(&base())
}

fn running_below(base: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(base).into_iter().flatten().flatten();
    let mut prefixes: Vec<String> = entries
        .filter(|entry| UnixStream::connect(entry.path().join("ctl.sock")).is_ok())
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    prefixes.sort();
    prefixes
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn the_folder_follows_dpdks_rules() {
        let base = |root, dir: Option<&str>| base_of(root, dir.map(PathBuf::from));
        assert_eq!(base(true, Some("/run/user/0")), Path::new("/var/run/rxe"));
        assert_eq!(base(false, Some("/run/user/7")), Path::new("/run/user/7/rxe"));
        assert_eq!(base(false, Some("relative")), Path::new("/tmp/rxe"));
        assert_eq!(base(false, None), Path::new("/tmp/rxe"));
    }

    #[test]
    fn only_sockets_that_answer_count_as_running() {
        let base = env::temp_dir().join(format!("rxe-inspect-{}", std::process::id()));
        for name in ["dead", "b", "a", "empty"] {
            std::fs::create_dir_all(base.join(name)).unwrap();
        }
        drop(UnixListener::bind(base.join("dead/ctl.sock")).unwrap());
        let _b = UnixListener::bind(base.join("b/ctl.sock")).unwrap();
        let _a = UnixListener::bind(base.join("a/ctl.sock")).unwrap();
        assert_eq!(running_below(&base), ["a", "b"]);
        assert_eq!(running_below(&base.join("nowhere")), Vec::<String>::new());
        std::fs::remove_dir_all(&base).unwrap();
    }
}
