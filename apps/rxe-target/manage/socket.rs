//! Sockets in the file system.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// A socket in the file system. Dropping it removes the socket.
pub struct Socket(PathBuf);

impl Socket {
    /// Creates the socket with these permissions, in place of one that a killed target has left. `taken` is the error if a process
    /// listens on it.
    pub fn bind(path: &Path, mode: u32, taken: &str) -> io::Result<(Socket, UnixListener)> {
        if UnixStream::connect(path).is_ok() {
            return Err(io::Error::new(io::ErrorKind::AddrInUse, taken));
        }
        match std::fs::symlink_metadata(path) {
            Ok(file) if file.file_type().is_socket() => std::fs::remove_file(path)?,
            // Anything else is not ours; binding says that it is there.
            _ => {}
        }
        let listener = UnixListener::bind(path)?;
        let socket = Socket(path.to_owned());
        std::fs::set_permissions(path, Permissions::from_mode(mode))?;
        Ok((socket, listener))
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // On failure the next target replaces it.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn a_socket_is_private_and_replaces_that_of_a_killed_target() {
        let folder = std::env::temp_dir().join(format!("rxe-socket-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("ctl.sock");
        let bind = || Socket::bind(&path, 0o600, "it is taken");
        let (socket, listener) = bind().unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        assert_eq!(bind().map(|_| ()).unwrap_err().to_string(), "it is taken");
        // The state after a kill: the file exists, but no process listens.
        drop(listener);
        std::mem::forget(socket);
        let (socket, _listener) = bind().unwrap();
        drop(socket);
        assert!(!path.exists());
        std::fs::write(&path, "a file of somebody else's").unwrap();
        assert_eq!(bind().map(|_| ()).unwrap_err().kind(), io::ErrorKind::AddrInUse);
        std::fs::remove_file(&path).unwrap();
        std::fs::remove_dir(folder).unwrap();
    }
}
