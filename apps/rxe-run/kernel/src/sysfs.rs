//! The files of sysfs and `/dev` that libibverbs, its rxe provider and librdmacm read, as Linux has them for an rxe device.
//!
//! They are in a private folder in the same tree as below `/`; the preload library redirects paths there. As in Linux the entries of
//! `/sys/class` are links to folders below `/sys/devices/virtual`, which is where programs look for a parent on a bus.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rxe_proto::wire::Gid;

use crate::backend::Device;
use crate::local::Local;

/// Paths below these are ours.
pub const ROOTS: [&str; 7] = [
    "/sys/class/infiniband",
    "/sys/class/infiniband_verbs",
    "/sys/class/misc/rdma_cm",
    "/sys/devices/virtual/infiniband",
    "/sys/devices/virtual/infiniband_verbs",
    "/sys/devices/virtual/misc/rdma_cm",
    "/dev/infiniband",
];

/// `ABI_VERSION` of the verbs devices.
const VERBS_ABI: u32 = 6;
/// Version of the rxe provider's queues.
const RXE_ABI: u32 = 2;
/// `RDMA_USER_CM_ABI_VERSION`.
const RDMA_CM_ABI: u32 = 4;
/// The rate of rxe on an interface of 10 Gb/s, as of QUERY_PORT's active width 1 (1X) and active speed 8 (FDR10).
const RATE: &str = "10 Gb/sec (1X FDR10)";
/// `IB_PORT_CM_SUP`: the port has a connection manager.
const CAPABILITIES: u32 = 1 << 16;

impl Device {
    /// Both devices.
    pub const ALL: [Device; 2] = [Device::Uverbs, Device::RdmaCm];

    /// Path of the device file.
    #[must_use]
    pub fn path(self) -> &'static str {
        match self {
            Device::Uverbs => "/dev/infiniband/uverbs0",
            Device::RdmaCm => "/dev/infiniband/rdma_cm",
        }
    }

    /// Major and minor number: those that Linux gives the first verbs device, and one of the miscellaneous devices.
    #[must_use]
    pub fn numbers(self) -> (u32, u32) {
        match self {
            Device::Uverbs => (231, 192),
            Device::RdmaCm => (10, 58),
        }
    }
}

/// The version of a device's commands.
#[must_use]
pub fn abi(device: Device) -> u32 {
    match device {
        Device::Uverbs => RXE_ABI,
        Device::RdmaCm => RDMA_CM_ABI,
    }
}

/// A file: its path from the folder, and its text.
type File = (String, String);

/// All files for a device of this name on the port `local`.
fn files(device: &str, local: &Local) -> Vec<File> {
    let mut files = Vec::new();
    let mut file = |path: String, text: String| files.push((path, text + "\n"));
    let number = |device: Device| {
        let (major, minor) = device.numbers();
        format!("{major}:{minor}")
    };

    file("sys/class/infiniband_verbs/abi_version".to_owned(), VERBS_ABI.to_string());
    let verbs = "sys/devices/virtual/infiniband_verbs";
    file(format!("{verbs}/uverbs0/abi_version"), RXE_ABI.to_string());
    file(format!("{verbs}/uverbs0/dev"), number(Device::Uverbs));
    file(format!("{verbs}/uverbs0/ibdev"), device.to_owned());

    let rdma_cm = "sys/devices/virtual/misc/rdma_cm";
    file(format!("{rdma_cm}/abi_version"), RDMA_CM_ABI.to_string());
    file(format!("{rdma_cm}/dev"), number(Device::RdmaCm));

    let adapter = format!("sys/devices/virtual/infiniband/{device}");
    let guid = groups(&local.node_guid.to_be_bytes());
    for (name, text) in [
        ("fw_ver", ""),
        ("node_desc", "rxe"),
        ("node_guid", &guid),
        ("node_type", "1: CA"),
        ("parent", &local.interface),
        ("sys_image_guid", &guid),
    ] {
        file(format!("{adapter}/{name}"), text.to_owned());
    }
    file(format!("{adapter}/device/net/{}/ifindex", local.interface), local.ifindex.to_string());

    let port = format!("{adapter}/ports/1");
    for (name, text) in [
        ("cap_mask", format!("{CAPABILITIES:#010x}").as_str()),
        ("lid", "0x0"),
        ("lid_mask_count", "0"),
        ("link_layer", "Ethernet"),
        ("phys_state", "5: LinkUp"),
        ("pkeys/0", "0xffff"),
        ("rate", RATE),
        ("sm_lid", "0x0"),
        ("sm_sl", "0"),
        ("state", "4: ACTIVE"),
    ] {
        file(format!("{port}/{name}"), text.to_owned());
    }
    for (index, Gid(gid)) in local.gids.iter().enumerate() {
        file(format!("{port}/gids/{index}"), groups(gid));
        file(format!("{port}/gid_attrs/types/{index}"), "RoCE v2".to_owned());
        file(format!("{port}/gid_attrs/ndevs/{index}"), local.interface.clone());
    }
    files
}

/// The bytes in groups of four hexadecimal digits.
fn groups(bytes: &[u8]) -> String {
    let mut text = String::new();
    for (index, pair) in bytes.chunks(2).enumerate() {
        let separator = if index > 0 { ":" } else { "" };
        let _ = write!(text, "{separator}{:02x}{:02x}", pair[0], pair[1]);
    }
    text
}

/// All links for a device of this name: their paths from the folder, and their targets.
fn links(device: &str) -> Vec<(String, String)> {
    let mut links = Vec::new();
    for (class, name) in [("infiniband", device), ("infiniband_verbs", "uverbs0"), ("misc", "rdma_cm")] {
        links.push((format!("sys/class/{class}/{name}"), format!("../../devices/virtual/{class}/{name}")));
        links.push((format!("sys/devices/virtual/{class}/{name}/subsystem"), format!("../../../../class/{class}")));
    }
    // A path to a neighbour of ours may pass through a folder of ours: `/sys/class/infiniband/rxe0/../../net`.
    for neighbour in ["sys/class/net", "sys/devices/virtual/net"] {
        links.push((neighbour.to_owned(), format!("/{neighbour}")));
    }
    links
}

/// Writes the tree into `folder`.
///
/// # Errors
/// A file or folder cannot be made there.
pub fn write_tree(folder: &Path, device: &str, local: &Local) -> io::Result<()> {
    for (path, text) in files(device, local) {
        write_file(folder, Path::new(&path), &text, 0o444)?;
    }
    for (path, target) in links(device) {
        make_parents(folder, Path::new(&path))?;
        symlink(target, folder.join(path))?;
    }
    // Their status is that of a device in the preload library's answers, and they are opened only there.
    for device in Device::ALL {
        write_file(folder, Path::new(device.path().trim_start_matches('/')), "", 0o666)?;
    }
    Ok(())
}

/// Makes the folders that lead to `path`. The program's umask must not matter, so each mode is set after the creation.
fn make_parents(folder: &Path, path: &Path) -> io::Result<()> {
    let mut parents: Vec<PathBuf> = path.ancestors().skip(1).map(|parent| folder.join(parent)).collect();
    parents.pop();
    for parent in parents.iter().rev() {
        match fs::create_dir(parent) {
            Ok(()) => fs::set_permissions(parent, Permissions::from_mode(0o755))?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Writes a file with this mode, whatever the program's umask is.
fn write_file(folder: &Path, path: &Path, text: &str, mode: u32) -> io::Result<()> {
    make_parents(folder, path)?;
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(folder.join(path))?;
    file.write_all(text.as_bytes())?;
    file.set_permissions(Permissions::from_mode(mode))
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use rxe_proto::wire::PathMtu;

    use super::*;

    const DEVICE: &str = "rxe0";

    fn local() -> Local {
        Local::new(IpAddr::from([127, 0, 7, 9]), "lo".to_owned(), 1, PathMtu::Mtu4096)
    }

    #[test]
    fn the_files_are_those_of_an_rxe_device_in_linux() {
        let files = files(DEVICE, &local());
        let text = |path: &str| files.iter().find(|(file, _)| file == path).map(|(_, text)| text.as_str());
        for (path, expected) in [
            ("sys/class/infiniband_verbs/abi_version", "6\n"),
            ("sys/devices/virtual/infiniband_verbs/uverbs0/abi_version", "2\n"),
            ("sys/devices/virtual/infiniband_verbs/uverbs0/dev", "231:192\n"),
            ("sys/devices/virtual/infiniband_verbs/uverbs0/ibdev", "rxe0\n"),
            ("sys/devices/virtual/misc/rdma_cm/abi_version", "4\n"),
            ("sys/devices/virtual/misc/rdma_cm/dev", "10:58\n"),
            ("sys/devices/virtual/infiniband/rxe0/fw_ver", "\n"),
            ("sys/devices/virtual/infiniband/rxe0/node_guid", "5058:7fff:fe00:0709\n"),
            ("sys/devices/virtual/infiniband/rxe0/parent", "lo\n"),
            ("sys/devices/virtual/infiniband/rxe0/device/net/lo/ifindex", "1\n"),
            ("sys/devices/virtual/infiniband/rxe0/ports/1/cap_mask", "0x00010000\n"),
            ("sys/devices/virtual/infiniband/rxe0/ports/1/state", "4: ACTIVE\n"),
            ("sys/devices/virtual/infiniband/rxe0/ports/1/gids/0", "0000:0000:0000:0000:0000:ffff:7f00:0709\n"),
            ("sys/devices/virtual/infiniband/rxe0/ports/1/gids/1", "0000:0000:0000:0000:0000:ffff:7f00:0709\n"),
            ("sys/devices/virtual/infiniband/rxe0/ports/1/gid_attrs/types/1", "RoCE v2\n"),
            ("sys/devices/virtual/infiniband/rxe0/ports/1/gid_attrs/ndevs/1", "lo\n"),
        ] {
            assert_eq!(text(path), Some(expected), "{path}");
        }
        assert_eq!(text("sys/devices/virtual/infiniband/rxe0/ports/1/gids/2"), None);
    }

    #[test]
    fn every_file_is_below_a_root() {
        let devices = Device::ALL.map(|device| device.path().to_owned());
        let files = files(DEVICE, &local()).into_iter().map(|(path, _)| format!("/{path}"));
        for path in files.chain(devices) {
            let below = |root: &&&str| path.strip_prefix(**root).is_some_and(|rest| rest.starts_with('/'));
            assert_eq!(ROOTS.iter().filter(below).count(), 1, "{path}");
        }
    }

    #[test]
    fn the_tree_is_readable_whatever_the_umask() {
        // The umask is the process's.
        rxe_testkit::child::alone(tree_with_a_umask_that_denies_everything);
    }

    fn tree_with_a_umask_that_denies_everything() {
        let folder = std::env::temp_dir().join(format!("rxe-uverbs-sysfs-{}", std::process::id()));
        fs::create_dir(&folder).unwrap();
        nix::sys::stat::umask(nix::sys::stat::Mode::all());
        write_tree(&folder, DEVICE, &local()).unwrap();
        let mode = |path: &str| fs::metadata(folder.join(path)).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode("sys"), 0o755);
        assert_eq!(mode("sys/class/infiniband/rxe0/ports/1/gids/1"), 0o444);
        assert_eq!(mode("dev/infiniband/rdma_cm"), 0o666);
        let text = fs::read_to_string(folder.join("sys/devices/virtual/infiniband_verbs/uverbs0/ibdev")).unwrap();
        assert_eq!(text, "rxe0\n");
        let real = |path: &str| folder.join(path).canonicalize().unwrap();
        let devices = real("sys/devices/virtual");
        assert_eq!(real("sys/class/infiniband/rxe0/../.."), devices);
        assert_eq!(real("sys/class/infiniband/rxe0/subsystem"), real("sys/class/infiniband"));
        assert_eq!(real("sys/class/infiniband_verbs/uverbs0"), devices.join("infiniband_verbs/uverbs0"));
        assert_eq!(real("sys/class/misc/rdma_cm/dev"), devices.join("misc/rdma_cm/dev"));
        assert_eq!(real("sys/class/infiniband/rxe0/../../net/lo"), real("/sys/class/net/lo"));
        fs::remove_dir_all(&folder).unwrap();
    }
}
