//! Unix sockets on which a port of ours listens: net_vhost's, those of a net_memif or virtio_user that is the server.
//!
//! net_vhost removes a socket that it cannot bind to, also that of a process that is alive, whose peers would then come to
//! us. The other drivers fail on what a killed process has left. So what is there is looked at first.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use super::args::Vdev;
use super::error::EalError;

/// A socket that a device is going to make.
#[derive(PartialEq, Eq, Debug)]
struct Listening<'a> {
    path: &'a str,
    /// A name without a file.
    is_abstract: bool,
}

/// Removes a stale socket from the path where `vdev` is going to create one.
///
/// # Errors
///
/// [`EalError::Socket`] if a process listens there, or another file is in the way.
pub(super) fn make_way(vdev: &Vdev) -> Result<(), EalError> {
    let Some(socket) = listening(vdev) else { return Ok(()) };
    clear(&socket).map_err(|problem| EalError::Socket {
        name: vdev.name.clone(),
        path: socket.path.to_owned(),
        problem,
    })
}

/// The socket on which `vdev` is going to listen, if it does.
fn listening(vdev: &Vdev) -> Option<Listening<'_>> {
    let arg = |key: &str| vdev.args.get(key).map(String::as_str);
    if vdev.is("vhost") {
        let client = arg("client").is_some_and(|value| value != "0");
        let path = arg("iface").filter(|_| !client)?;
        return Some(Listening { path, is_abstract: false });
    }
    if vdev.is("virtio_user") {
        let server = arg("server").is_some_and(|value| value != "0");
        let path = arg("path").filter(|_| server)?;
        return Some(Listening { path, is_abstract: false });
    }
    if vdev.is("memif") && arg("role").is_some_and(|role| ["server", "master"].contains(&role)) {
        let path = arg("socket").unwrap_or("/run/memif.sock");
        let is_abstract = arg("socket-abstract") != Some("no");
        return Some(Listening { path, is_abstract });
    }
    None
}

/// Removes what is stale at the path of `socket`, or returns what is in the way.
fn clear(socket: &Listening<'_>) -> Result<(), String> {
    let taken = || "another process listens there; end it, or give this one another path".to_owned();
    if socket.is_abstract {
        return if is_heard(socket) { Err(taken()) } else { Ok(()) };
    }
    let path = Path::new(socket.path);
    // A symbolic link is no socket: what it leads to is not ours to remove, nor is the link.
    match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(format!("it cannot be looked at ({error}); choose another path")),
        Ok(meta) if !meta.file_type().is_socket() => {
            Err("something that is no socket has this name; remove it, or choose another path".to_owned())
        }
        Ok(_) if is_heard(socket) => Err(taken()),
        Ok(_) => {
            tracing::info!("{} is left over from a process that has ended: it is removed", socket.path);
            std::fs::remove_file(path)
                .map_err(|error| format!("the one of an ended process cannot be removed ({error}); remove it"))
        }
    }
}

/// Whether a process has `socket` open. It notices nothing: a connection that is closed again at once makes DPDK 22.11's
/// net_memif end its process.
fn is_heard(socket: &Listening<'_>) -> bool {
    if socket.is_abstract {
        return std::fs::read_to_string("/proc/net/unix").is_ok_and(|table| lists_abstract(&table, socket.path));
    }
    // SAFETY: all zeros is a valid sockaddr_un: numbers only.
    let mut address: libc::sockaddr_un = unsafe { std::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as libc::sa_family_t;
    // No process can listen on a path that does not fit. The last byte stays zero.
    let room = address.sun_path.len() - 1;
    if socket.path.len() > room {
        return false;
    }
    for (to, byte) in address.sun_path.iter_mut().zip(socket.path.bytes()) {
        *to = byte as libc::c_char;
    }
    let len = std::mem::size_of::<libc::sockaddr_un>() as libc::socklen_t;
    // A datagram socket cannot be connected to one of another type: the kernel finds the socket of that path, or that
    // there is none any more, and refuses.
    // SAFETY: makes a socket; the result is checked.
    let fd = unsafe { libc::socket(libc::AF_UNIX, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return true;
    }
    // SAFETY: just made, and nobody else knows it.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: an open socket, and an address of the length told.
    if unsafe { libc::connect(fd.as_raw_fd(), (&raw const address).cast(), len) } == 0 {
        return true;
    }
    // Any other error counts as "in use".
    !matches!(io::Error::last_os_error().raw_os_error(), Some(libc::ECONNREFUSED | libc::ENOENT))
}

/// Whether the kernel's table of Unix sockets has the abstract `name`. net_memif fills its names up with zeros, which the
/// table shows as `@`, as it does the first one.
fn lists_abstract(table: &str, name: &str) -> bool {
    let names = table.lines().filter_map(|line| line.split_once('@')).map(|(_, name)| name.trim_end_matches('@'));
    names.into_iter().any(|listed| listed == name)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;
    use crate::eal::args::EalArgs;

    fn vdev(text: &str) -> Vdev {
        EalArgs::new(&["--vdev".to_owned(), text.to_owned()]).vdevs().remove(0)
    }

    #[test]
    fn the_devices_that_listen_are_known() {
        let path = |text: &str| listening(&vdev(text)).map(|socket| (socket.path.to_owned(), socket.is_abstract));
        let file = |path: &str| Some((path.to_owned(), false));
        assert_eq!(path("net_vhost0,iface=/tmp/a"), file("/tmp/a"));
        assert_eq!(path("eth_vhost0,iface=/tmp/a,client=0"), file("/tmp/a"));
        assert_eq!(path("net_vhost0,iface=/tmp/a,client=1"), None);
        assert_eq!(path("net_virtio_user0,path=/tmp/a"), None);
        assert_eq!(path("virtio_user0,path=/tmp/a,server=1"), file("/tmp/a"));
        assert_eq!(path("net_memif0,socket=/tmp/a"), None);
        assert_eq!(path("net_memif0,role=server,socket-abstract=no,socket=/tmp/a"), file("/tmp/a"));
        assert_eq!(path("net_memif0,role=master"), Some(("/run/memif.sock".to_owned(), true)));
        assert_eq!(path("net_af_packet0,iface=eth0"), None);
    }

    #[test]
    fn abstract_names_are_found_in_the_kernels_table() {
        let table = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000000000000000: 00000002 00000000 00010000 0005 01 12345 @/run/memif.sock@@@@@@\n\
            0000000000000000: 00000002 00000000 00010000 0001 01 12346 /run/other.sock\n";
        assert!(lists_abstract(table, "/run/memif.sock"));
        assert!(!lists_abstract(table, "/run/memif") && !lists_abstract(table, "/run/other.sock"));
    }

    #[test]
    fn the_living_keep_their_sockets_and_only_those_of_the_dead_are_removed() {
        let folder = std::env::temp_dir().join(format!("rxe-sockets-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let path = folder.join("s");
        let device = vdev(&format!("net_vhost0,iface={}", path.display()));
        make_way(&device).unwrap();
        let listener = UnixListener::bind(&path).unwrap();
        let error = make_way(&device).unwrap_err().to_string();
        assert!(error.contains("net_vhost0") && error.contains("another process listens there"), "{error}");
        // memif's sockets are of another kind.
        let memif = vdev(&format!("net_memif0,role=server,socket-abstract=no,socket={}", path.display()));
        assert!(make_way(&memif).is_err() && path.exists());
        drop(listener);
        make_way(&memif).unwrap();
        assert!(!path.exists());
        std::fs::write(&path, "precious").unwrap();
        assert!(make_way(&device).unwrap_err().to_string().contains("no socket"));
        let link = folder.join("l");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert!(make_way(&vdev(&format!("net_vhost0,iface={}", link.display()))).is_err());
        assert_eq!(std::fs::read(&link).unwrap(), b"precious");
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
