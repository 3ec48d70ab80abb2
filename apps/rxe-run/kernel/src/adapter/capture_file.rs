//! The file of a capture from the start on. Processes of one program may be told to write the same file.

use std::fs::{File, TryLockError};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use rxe_adapter::manage::CaptureError;

use crate::descriptors::out_of_the_way;

/// A file that no other process captures to, while this lives.
pub struct CaptureFile {
    path: PathBuf,
    lock: File,
}

/// The descriptor that holds the lock.
impl AsFd for CaptureFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.lock.as_fd()
    }
}

impl CaptureFile {
    /// The file; or, when another process writes it, as programs with several processes do, one with the number of this process
    /// added to the name.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn new(path: &Path) -> Result<CaptureFile, CaptureError> {
        let failed = |path: &Path, error: &io::Error| CaptureError::File {
            file: path.display().to_string(),
            problem: error.to_string().split(" (os error").next().unwrap_or_default().to_owned(),
        };
        let path = std::path::absolute(path).map_err(|error| failed(path, &error))?;
        if let Some(file) = locked(&path).map_err(|error| failed(&path, &error))? {
            return Ok(CaptureFile::of(file, path));
        }
        let mut own = path.into_os_string();
        own.push(format!(".{}", std::process::id()));
        let own = PathBuf::from(own);
        match File::options().write(true).create(true).truncate(false).open(&own) {
            Ok(file) => Ok(CaptureFile::of(file, own)),
            Err(error) => Err(failed(&own, &error)),
        }
    }

    fn of(file: File, path: PathBuf) -> CaptureFile {
        CaptureFile { path, lock: File::from(out_of_the_way(file.into())) }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// The file, unless another process writes it.
fn locked(path: &Path) -> io::Result<Option<File>> {
    let file = File::options().write(true).create(true).truncate(false).open(path)?;
    match file.try_lock() {
        Ok(()) => Ok(Some(file)),
        Err(TryLockError::WouldBlock) => Ok(None),
        // A file system without locks.
        Err(TryLockError::Error(_)) => Ok(Some(file)),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_that_another_process_writes_is_left_alone() {
        let folder = std::env::temp_dir().join(format!("rxe-capture-test-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("a.pcapng");
        let first = CaptureFile::new(&path).unwrap();
        let second = CaptureFile::new(&path).unwrap();
        assert_eq!(first.path(), path);
        assert_eq!(second.path(), folder.join(format!("a.pcapng.{}", std::process::id())));
        drop(first);
        assert_eq!(CaptureFile::new(&path).unwrap().path(), path);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn an_error_names_the_file() {
        let error = CaptureFile::new(Path::new("/no/such/folder/a.pcapng")).err().unwrap().to_string();
        assert!(error.starts_with("the capture file /no/such/folder/a.pcapng cannot be made ("), "{error}");
    }
}
