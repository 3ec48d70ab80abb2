//! The socket of `rxe-ctl`, for the target's user only.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

/// A socket in the file system. Dropping it removes the socket.
pub struct Socket(PathBuf);

impl Socket {
    /// Creates the socket, in place of one that a killed target has left.
    pub fn bind(path: &Path) -> io::Result<(Socket, UnixListener)> {
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
        let (socket, listener) = Socket::bind(&path).unwrap();
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o600);
        let taken = Socket::bind(&path).map(|_| ()).unwrap_err();
        assert_eq!(taken.to_string(), "another target with this --file-prefix is running");
        // The state after a kill: the file exists, but no process listens.
        drop(listener);
        std::mem::forget(socket);
        let (socket, _listener) = Socket::bind(&path).unwrap();
        drop(socket);
        assert!(!path.exists());
        std::fs::remove_dir(folder).unwrap();
    }
}
