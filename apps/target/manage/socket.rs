//! The socket of `rxe-ctl`: who owns the target may use it, and nobody else.

use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// A socket in the file system. It goes when this is dropped.
pub struct Socket(PathBuf);

impl Socket {
    /// Makes the socket, and the folder that it is in. What a target left that was killed is replaced.
    pub fn bind(path: &Path) -> io::Result<(Socket, UnixListener)> {
        if let Some(folder) = path.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
            if folder.metadata()?.uid() != Path::new("/proc/self").metadata()?.uid() {
                return Err(io::Error::new(io::ErrorKind::PermissionDenied, "its folder is another user's"));
            }
            std::fs::set_permissions(folder, Permissions::from_mode(0o700))?;
        }
        if UnixStream::connect(path).is_ok() {
            let taken = "another target with this --file-prefix is running";
            return Err(io::Error::new(io::ErrorKind::AddrInUse, taken));
        }
        match std::fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        let socket = Socket(path.to_owned());
        std::fs::set_permissions(path, Permissions::from_mode(0o600))?;
        Ok((socket, listener))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // What cannot be removed is replaced by the next target.
        let _ = std::fs::remove_file(&self.0);
        if let Some(folder) = self.0.parent() {
            let _ = std::fs::remove_dir(folder);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_its_owners_and_one_of_the_dead_is_replaced() {
        let folder = std::env::temp_dir().join(format!("rxe-socket-{}", std::process::id()));
        let path = folder.join("a/ctl.sock");
        let (socket, listener) = Socket::bind(&path).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        assert_eq!(path.parent().unwrap().metadata().unwrap().mode() & 0o777, 0o700);
        let taken = Socket::bind(&path).map(|_| ()).unwrap_err();
        assert_eq!(taken.to_string(), "another target with this --file-prefix is running");
        // As after a kill: nobody listens, the file is there.
        drop(listener);
        std::mem::forget(socket);
        let (socket, _listener) = Socket::bind(&path).unwrap();
        drop(socket);
        assert!(!path.exists() && !path.parent().unwrap().exists());
        std::fs::remove_dir(folder).unwrap();
    }
}
