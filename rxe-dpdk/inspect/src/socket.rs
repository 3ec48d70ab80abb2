//! The path of a target's management socket.
//!
//! One folder per `--file-prefix`, beside DPDK's own: `/var/run/rxe/PREFIX` for root, else below `$XDG_RUNTIME_DIR/rxe`
//! or `/tmp/rxe-UID`. Folder and socket are for their owner only.

use std::env;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

/// EAL's `--file-prefix` when none is given.
pub const DEFAULT_PREFIX: &str = "rte";

/// The folder with one folder per target.
#[must_use]
pub fn base() -> PathBuf {
    base_of(uid(), env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from))
}

fn base_of(uid: u32, runtime_dir: Option<PathBuf>) -> PathBuf {
    match runtime_dir {
        _ if uid == 0 => PathBuf::from("/var/run/rxe"),
        Some(dir) if dir.is_absolute() => dir.join("rxe"),
        // /tmp is shared: each user has a folder of its own.
        _ => PathBuf::from(format!("/tmp/rxe-{uid}")),
    }
}

/// The user of this process: the owner of `/proc/self`.
fn uid() -> u32 {
    std::fs::metadata("/proc/self").map_or(u32::MAX, |meta| meta.uid())
}

/// Checks that `folder` is a folder, belongs to this user and is not writable by others. Sockets in another folder cannot be
/// trusted.
///
/// # Errors
/// The failed check, or that the folder cannot be read.
pub fn check_folder(folder: &Path) -> io::Result<()> {
    let meta = folder.symlink_metadata()?;
    let wrong = |what| Err(io::Error::new(io::ErrorKind::PermissionDenied, format!("{} {what}", folder.display())));
    match meta {
        _ if !meta.is_dir() => wrong("is no folder"),
        _ if meta.uid() != uid() => wrong("is another user's"),
        _ if meta.mode() & 0o022 != 0 => wrong("may be written to by others"),
        _ => Ok(()),
    }
}

/// A target of another user, or that user's folder of targets.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OtherUser {
    /// The user, by name or number.
    pub user: String,
    /// The `--file-prefix` of a target that runs; `None` where this user may not see which there are.
    pub prefix: Option<String>,
}

/// The targets of other users, as far as they can be seen.
#[must_use]
pub fn of_other_users() -> Vec<OtherUser> {
    let bases =
        ["/tmp", "/run/user"].into_iter().flat_map(|folder| std::fs::read_dir(folder).into_iter().flatten().flatten());
    let bases = bases.filter_map(|entry| {
        let (path, name) = (entry.path(), entry.file_name());
        match path.parent() {
            Some(parent) if parent == Path::new("/tmp") => name.to_str()?.starts_with("rxe-").then_some(path),
            _ => Some(path.join("rxe")),
        }
    });
    let own = base();
    let all = std::iter::once(PathBuf::from("/var/run/rxe")).chain(bases).filter(|base| *base != own);
    all.flat_map(|base| targets_below(&base)).collect()
}

/// The targets in a folder of another user.
fn targets_below(base: &Path) -> Vec<OtherUser> {
    let Ok(meta) = base.symlink_metadata() else { return Vec::new() };
    let runtime = |name: &str| name.strip_prefix("rxe-").is_none_or(|uid| uid == meta.uid().to_string());
    let own_folder = base.file_name().and_then(|name| name.to_str()).is_some_and(runtime);
    if !meta.is_dir() || meta.uid() == uid() || !own_folder {
        return Vec::new();
    }
    let user = user_name(meta.uid());
    match std::fs::read_dir(base) {
        Ok(entries) => entries
            .flatten()
            .filter(|entry| UnixStream::connect(entry.path().join("ctl.sock")).is_ok())
            .map(|entry| OtherUser { user: user.clone(), prefix: entry.file_name().into_string().ok() })
            .collect(),
        Err(_) => vec![OtherUser { user, prefix: None }],
    }
}

/// The name of a user; the number where it has none.
fn user_name(uid: u32) -> String {
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let fields = users.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let found = fields.into_iter().find(|fields| fields.get(2).is_some_and(|id| *id == uid.to_string()));
    found.and_then(|fields| fields.first().map(|name| (*name).to_owned())).unwrap_or_else(|| uid.to_string())
}

/// The socket of the target with this `--file-prefix`.
#[must_use]
pub fn path(prefix: &str) -> PathBuf {
    base().join(prefix).join("ctl.sock")
}

/// The prefixes of all reachable targets, sorted.
#[must_use]
pub fn running() -> Vec<String> {
    running_below(&base())
}

fn running_below(base: &Path) -> Vec<String> {
    if check_folder(base).is_err() {
        return Vec::new();
    }
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
        let base = |uid, dir: Option<&str>| base_of(uid, dir.map(PathBuf::from));
        assert_eq!(base(0, Some("/run/user/0")), Path::new("/var/run/rxe"));
        assert_eq!(base(7, Some("/run/user/7")), Path::new("/run/user/7/rxe"));
        assert_eq!(base(7, Some("relative")), Path::new("/tmp/rxe-7"));
        assert_eq!(base(7, None), Path::new("/tmp/rxe-7"));
    }

    #[test]
    fn users_have_names_or_numbers() {
        assert_eq!((user_name(0), user_name(4_000_000_000)), ("root".to_owned(), "4000000000".to_owned()));
    }

    #[test]
    fn only_sockets_with_a_listener_count_as_running() {
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
