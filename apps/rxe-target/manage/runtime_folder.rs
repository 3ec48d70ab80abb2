//! The runtime folder of a target: one target for each `--file-prefix`.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rxe::{CliError, cli_error};
use rxe_inspect::socket as place;

/// The folder, locked. Dropping it removes the folder if it is empty. A target takes over the folder that a killed target
/// with the same prefix has left.
pub struct RuntimeFolder {
    folder: PathBuf,
    /// Locked as long as it is open.
    _lock: File,
}

/// How often a folder is tried, and the time between.
const ATTEMPTS: u32 = 50;
const PAUSE: Duration = Duration::from_millis(10);

/// Why the folder cannot be used.
enum Refused {
    /// Another target uses it.
    Taken,
    Io(io::Error),
}

impl RuntimeFolder {
    /// Locks the folder of a `--file-prefix`, which is a plain name. `None` with a warning if it cannot be created: the target
    /// can run without it.
    pub fn take(prefix: &str) -> Result<Option<RuntimeFolder>, CliError> {
        match RuntimeFolder::below(&place::base(), prefix) {
            Ok(folder) => Ok(Some(folder)),
            Err(Refused::Taken) => cli_error!(
                "another target with --file-prefix {prefix} is running: give this one another, as --file-prefix {prefix}2"
            ),
            Err(Refused::Io(error)) => {
                tracing::warn!("rxe-ctl cannot reach this target: the folder for its socket cannot be used: {error}");
                Ok(None)
            }
        }
    }

    fn below(base: &Path, prefix: &str) -> Result<RuntimeFolder, Refused> {
        let folder = base.join(prefix);
        // A target that ends may be removing its folder now, or hold the lock a little longer.
        for attempt in 0..ATTEMPTS {
            if attempt > 0 {
                std::thread::sleep(PAUSE);
            }
            match RuntimeFolder::try_take(base, &folder) {
                Ok(Some(lock)) => return Ok(RuntimeFolder { folder, _lock: lock }),
                Ok(None) | Err(Refused::Taken) => {}
                Err(Refused::Io(error)) if error.kind() == io::ErrorKind::NotFound => {}
                Err(refused) => return Err(refused),
            }
        }
        Err(Refused::Taken)
    }

    /// The lock, or `None` when its file was removed before it was locked.
    fn try_take(base: &Path, folder: &Path) -> Result<Option<File>, Refused> {
        for own in [base, folder] {
            match DirBuilder::new().mode(0o700).create(own) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(Refused::Io(error)),
                _ => place::check_folder(own).map_err(Refused::Io)?,
            }
        }
        let path = folder.join("lock");
        // Only this user can write to the folder, so the file cannot be a link made by another.
        let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
        let file = file.map_err(Refused::Io)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(Refused::Taken),
            Err(TryLockError::Error(error)) => return Err(Refused::Io(error)),
        }
        let locked = file.metadata().map_err(Refused::Io)?;
        let same = path.symlink_metadata().is_ok_and(|meta| (meta.dev(), meta.ino()) == (locked.dev(), locked.ino()));
        Ok(same.then_some(file))
    }

    /// Path of the socket.
    pub fn socket(&self) -> PathBuf {
        self.folder.join("ctl.sock")
    }
}

impl Drop for RuntimeFolder {
    fn drop(&mut self) {
        // Both under the lock, so that nothing of another target is removed. On failure the files stay for the next target.
        let _ = std::fs::remove_file(self.folder.join("lock"));
        let _ = std::fs::remove_dir(&self.folder);
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn base(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("rxe-folder-{name}-{}", std::process::id()))
    }

    #[test]
    fn a_folder_has_one_target_which_removes_only_its_own_files() {
        let base = base("one");
        let take = || RuntimeFolder::below(&base, "a");
        let first = take().map_err(|_| "refused").unwrap();
        assert_eq!(base.join("a").metadata().unwrap().mode() & 0o777, 0o700);
        assert!(matches!(take(), Err(Refused::Taken)));
        assert!(RuntimeFolder::below(&base, "b").is_ok());
        drop(first);
        assert!(!base.join("a").exists() && !base.join("b").exists());
        // As after a kill.
        std::fs::create_dir(base.join("a")).unwrap();
        std::fs::write(base.join("a/lock"), "").unwrap();
        let again = take().map_err(|_| "refused").unwrap();
        std::fs::write(base.join("a/precious"), "").unwrap();
        drop(again);
        assert!(base.join("a/precious").exists());
        std::fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn a_target_that_ends_while_the_next_one_starts_is_waited_for() {
        let base = base("ends");
        let first = RuntimeFolder::below(&base, "a").map_err(|_| "refused").unwrap();
        let next = std::thread::scope(|scope| {
            let next = scope.spawn(|| RuntimeFolder::below(&base, "a").map_err(|_| "refused"));
            std::thread::sleep(5 * PAUSE);
            drop(first);
            next.join().unwrap()
        });
        assert!(next.is_ok());
        drop(next);
        std::fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn folders_writable_by_others_are_not_used() {
        let base = base("other");
        std::fs::create_dir(&base).unwrap();
        std::fs::create_dir(base.join("aim")).unwrap();
        symlink(base.join("aim"), base.join("a")).unwrap();
        assert!(matches!(RuntimeFolder::below(&base, "a"), Err(Refused::Io(_))));
        assert!(std::fs::read_dir(base.join("aim")).unwrap().next().is_none());
        std::fs::set_permissions(&base, Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(RuntimeFolder::below(&base, "b"), Err(Refused::Io(_))));
        assert!(!base.join("b").exists());
        assert_eq!(base.metadata().unwrap().mode() & 0o777, 0o777, "nothing is changed");
        std::fs::remove_dir_all(&base).unwrap();
    }
}
