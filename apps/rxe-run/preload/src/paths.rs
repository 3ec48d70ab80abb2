//! Which paths are ours, and where their files are. No allocation, as paths are looked at in signal handlers too.

use std::ffi::{CStr, c_char};

use nix::errno::Errno;
use rxe_uverbs::backend::Device;
use rxe_uverbs::sysfs::ROOTS;

/// A path below one of the roots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnPath {
    /// The device of this path, if it is one.
    pub device: Option<Device>,
}

/// The node that `path` names, if it is ours.
///
/// One that leaves its root again is ours too: the links that it passes are in our folder, and so are links to neighbours.
pub fn own(path: &CStr) -> Option<OwnPath> {
    let path = path.to_bytes();
    if path.first() != Some(&b'/') || !ROOTS.iter().any(|root| through(root.as_bytes(), path)) {
        return None;
    }
    let is = |device: &Device| components(device.path().as_bytes()).eq(components(path));
    Some(OwnPath { device: Device::ALL.into_iter().find(is) })
}

fn components(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|byte| *byte == b'/').filter(|component| !component.is_empty() && *component != b".")
}

/// Whether `path` is `root`, or leads through it.
fn through(root: &[u8], path: &[u8]) -> bool {
    let mut components_of_path = components(path);
    components(root).all(|component| components_of_path.next() == Some(component))
}

/// Room for the path of a file in the folder of this process.
pub struct PathBuffer([u8; libc::PATH_MAX as usize]);

impl PathBuffer {
    /// An empty buffer.
    pub fn new() -> PathBuffer {
        PathBuffer([0; libc::PATH_MAX as usize])
    }

    /// The path of `path` below `folder`, as a C string.
    ///
    /// # Errors
    /// `ENAMETOOLONG`.
    pub fn below(&mut self, folder: &[u8], path: &CStr) -> Result<*const c_char, Errno> {
        let path = path.to_bytes_with_nul();
        let room = self.0.get_mut(..folder.len() + path.len()).ok_or(Errno::ENAMETOOLONG)?;
        let (start, end) = room.split_at_mut(folder.len());
        start.copy_from_slice(folder);
        end.copy_from_slice(path);
        Ok(self.0.as_ptr().cast())
    }
}

/// The path that the program knows for `path` in `folder`.
pub fn outside<'a>(folder: &[u8], path: &'a [u8]) -> &'a [u8] {
    path.strip_prefix(folder).filter(|rest| rest.starts_with(b"/")).unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;

    use super::*;

    fn is(path: &str) -> Option<Option<Device>> {
        own(&CString::new(path).unwrap()).map(|own| own.device)
    }

    #[test]
    fn paths_through_the_roots_are_ours() {
        for path in [
            "/sys/class/infiniband",
            "/sys/class/infiniband/",
            "/sys/class/infiniband/rxe0/ports/1/gids/0",
            "/sys/class/infiniband_verbs/uverbs0/dev",
            "//sys/class//infiniband_verbs/./abi_version",
            "/sys/class/misc/rdma_cm/abi_version",
            "/dev/infiniband",
            "/dev/infiniband/uverbs1",
            "/sys/class/infiniband/rxe0/../rxe0/ports",
            "/sys/class/infiniband/rxe0/../..",
            "/sys/class/infiniband/../net",
            "/sys/devices/virtual/infiniband/rxe0/ports/1",
        ] {
            assert_eq!(is(path), Some(None), "{path}");
        }
    }

    #[test]
    fn devices_are_recognised() {
        assert_eq!(is("/dev/infiniband/uverbs0"), Some(Some(Device::Uverbs)));
        assert_eq!(is("/dev//infiniband/./rdma_cm"), Some(Some(Device::RdmaCm)));
        assert_eq!(is("/dev/infiniband/uverbs0/x"), Some(None));
        assert_eq!(is("/dev/infiniband/uverbs00"), Some(None));
    }

    #[test]
    fn other_paths_are_not() {
        for path in [
            "",
            "/",
            "/sys",
            "/sys/class",
            "/sys/class/infiniband_mad/abi_version",
            "/sys/class/misc",
            "/sys/class/misc/rdma_cmx",
            "/sys/class/net/infiniband",
            "/dev/infinibandx/uverbs0",
            "/dev/null",
            "sys/class/infiniband",
            "dev/infiniband/uverbs0",
            "/tmp/sys/class/infiniband",
            "/sys/devices/virtual",
            "/sys/devices/virtual/misc/fuse",
            "/sys/../dev/infiniband",
        ] {
            assert_eq!(is(path), None, "{path}");
        }
    }

    #[test]
    fn a_path_is_below_the_folder() {
        let mut buffer = PathBuffer::new();
        let inside = buffer.below(b"/tmp/rxe-run-0/7", c"/dev/infiniband").unwrap();
        // SAFETY: `below` returns a C string in the buffer, which lives.
        assert_eq!(unsafe { CStr::from_ptr(inside) }, c"/tmp/rxe-run-0/7/dev/infiniband");
    }

    #[test]
    fn a_path_that_is_too_long_is_an_error() {
        let folder = [b'f'; 96];
        let path = CString::new(vec![b'p'; 4000 - 1]).unwrap();
        assert!(PathBuffer::new().below(&folder, &path).is_ok());
        let path = CString::new(vec![b'p'; 4000]).unwrap();
        assert_eq!(PathBuffer::new().below(&folder, &path), Err(Errno::ENAMETOOLONG));
    }

    #[test]
    fn paths_are_mapped_back() {
        let folder = b"/tmp/rxe-run-0/7";
        assert_eq!(outside(folder, b"/tmp/rxe-run-0/7/sys/class/infiniband"), b"/sys/class/infiniband");
        assert_eq!(outside(folder, b"/tmp/rxe-run-0/77/sys"), b"/tmp/rxe-run-0/77/sys");
        assert_eq!(outside(folder, b"/etc"), b"/etc");
    }
}
