//! The private folder of a process that has an adapter.
//!
//! It is `$XDG_RUNTIME_DIR/rxe-run/PID` or, without that folder, `/tmp/rxe-run-UID/PID`, and for its user only. The process
//! holds a lock in it while it lives, so that other processes know which folders are left from dead ones: process numbers do
//! not tell, as containers may share the folder and not the numbers.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag};
use nix::unistd::geteuid;

use crate::descriptors::out_of_the_way;

/// The locked file.
const LOCK: &str = "lock";
/// The file with the lines of [`Info`].
const INFO: &str = "info";
/// Folders of one process number, at most: more than containers that share `/tmp`.
const NAMES: usize = 1000;

/// The socket of management of the process with this folder.
#[must_use]
pub fn socket_in(folder: &Path) -> PathBuf {
    folder.join("ctl.sock")
}

/// Public description of the process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Info {
    /// The address of its adapter.
    pub address: IpAddr,
    /// The name of its device.
    pub device: String,
    /// Its number, in its own namespace.
    pub pid: u32,
    /// Command line of the program.
    pub program: String,
}

impl Info {
    fn lines(&self) -> String {
        let Info { address, device, pid, program } = self;
        format!("address {address}\ndevice {device}\npid {pid}\nprogram {}\n", program.replace(char::is_control, " "))
    }

    fn parse(text: &str) -> Option<Info> {
        let value = |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        Some(Info {
            address: value("address")?.parse().ok()?,
            device: value("device")?.to_owned(),
            pid: value("pid")?.parse().ok()?,
            program: value("program")?.to_owned(),
        })
    }
}

/// The folder of this process.
#[derive(Debug)]
pub struct Instance {
    path: PathBuf,
    /// Held while the process lives.
    _lock: Flock<File>,
}

impl Instance {
    /// Makes the folder, and removes those of dead processes.
    ///
    /// # Errors
    /// No folder can be made, or one of its name belongs to another user.
    pub fn new(info: &Info) -> io::Result<Instance> {
        let mut result = Err(io::ErrorKind::NotFound.into());
        for base in bases() {
            result = Instance::below(&base, info);
            if result.is_ok() {
                break;
            }
        }
        result
    }

    fn below(base: &Path, info: &Info) -> io::Result<Instance> {
        make_base(base)?;
        remove_stale(base);
        for number in 0..NAMES {
            let name = if number == 0 { info.pid.to_string() } else { format!("{}.{number}", info.pid) };
            let path = base.join(name);
            if let Some(lock) = claim(&path)? {
                let instance = Instance { path, _lock: lock };
                OpenOptions::new()
                    .write(true)
                    .create_new(true)
                    .mode(0o600)
                    .open(instance.path.join(INFO))?
                    .write_all(info.lines().as_bytes())?;
                return Ok(instance);
            }
        }
        let path = base.join(info.pid.to_string());
        Err(io::Error::new(io::ErrorKind::AlreadyExists, format!("{} and its successors are in use", path.display())))
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the folder.
    ///
    /// # Errors
    /// A file cannot be removed. The next process removes what is left.
    pub fn remove(&self) -> io::Result<()> {
        fs::remove_dir_all(&self.path)
    }
}

/// A running process with an adapter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Running {
    /// Public description of the process.
    pub info: Info,
    /// Time since the adapter was created.
    pub uptime: Duration,
    /// Folder of the process, with its management socket.
    pub folder: PathBuf,
}

/// The running processes of this user, by address.
#[must_use]
pub fn running() -> Vec<Running> {
    let mut running: Vec<Running> = bases().iter().flat_map(|base| running_below(base)).collect();
    running.sort_by_key(|running| (running.info.address, running.info.pid));
    running
}

fn running_below(base: &Path) -> Vec<Running> {
    if check_base(base).is_err() {
        return Vec::new();
    }
    let running = |path: PathBuf| {
        let lock = open_lock(&path).ok()?;
        let since = lock.metadata().and_then(|meta| meta.modified()).ok()?;
        if Flock::lock(lock, FlockArg::LockSharedNonblock).is_ok() {
            return None;
        }
        let info = Info::parse(&fs::read_to_string(path.join(INFO)).ok()?)?;
        Some(Running { info, uptime: SystemTime::now().duration_since(since).unwrap_or_default(), folder: path })
    };
    folders(base).into_iter().filter_map(running).collect()
}

/// Folders that may have folders of processes, the preferred one first.
fn bases() -> Vec<PathBuf> {
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    // Programs like su leave it pointing to the folder of another user.
    let own = |folder: &PathBuf| folder.is_absolute() && fs::metadata(folder).is_ok_and(|meta| meta.uid() == uid());
    let runtime = runtime.filter(own).map(|folder| folder.join("rxe-run"));
    runtime.into_iter().chain([PathBuf::from(format!("/tmp/rxe-run-{}", uid()))]).collect()
}

fn uid() -> u32 {
    geteuid().as_raw()
}

fn make_base(base: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(base) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => check_base(base),
    }
}

/// Others must not be able to change anything below `base`.
fn check_base(base: &Path) -> io::Result<()> {
    let meta = base.symlink_metadata()?;
    if meta.is_dir() && meta.uid() == uid() && meta.mode() & 0o022 == 0 {
        return Ok(());
    }
    let what = format!("{} is not a folder that only its user may write to: remove it", base.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, what))
}

fn folders(base: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(base).into_iter().flatten().flatten();
    entries.map(|entry| entry.path()).collect()
}

fn open_lock(folder: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(OFlag::O_NOFOLLOW.bits()).open(folder.join(LOCK))
}

/// Makes the folder and locks it; `None` when the name is taken.
///
/// Another process may take the folder for one of a dead process before it is locked, and remove it. Then the lock is
/// held by that process, or the locked file is no longer there.
fn claim(folder: &Path) -> io::Result<Option<Flock<File>>> {
    match DirBuilder::new().mode(0o700).create(folder) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(None),
        made => made?,
    }
    let file = match OpenOptions::new().write(true).create_new(true).mode(0o600).open(folder.join(LOCK)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let number = file.metadata()?.ino();
    let file = File::from(out_of_the_way(file.into()));
    match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
        Ok(lock) => Ok(fs::metadata(folder.join(LOCK)).is_ok_and(|meta| meta.ino() == number).then_some(lock)),
        Err((_, Errno::EWOULDBLOCK)) => Ok(None),
        Err((_, error)) => Err(error.into()),
    }
}

/// Removes the folders whose lock nobody holds. What cannot be removed stays for the next process.
fn remove_stale(base: &Path) {
    for folder in folders(base) {
        match open_lock(&folder) {
            Ok(file) => {
                if let Ok(_lock) = Flock::lock(file, FlockArg::LockExclusiveNonblock) {
                    let _ = fs::remove_dir_all(&folder);
                }
            }
            // Its process may be about to create the lock: only an empty folder is removed, and its process takes the next name.
            Err(error) if error.kind() == io::ErrorKind::NotFound => drop(fs::remove_dir(&folder)),
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn info(pid: u32) -> Info {
        let address = IpAddr::from([127, 0, 0, pid as u8]);
        Info { address, device: "rxe0".to_owned(), pid, program: "rping -s".to_owned() }
    }

    /// A base that does not exist yet.
    fn base(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("rxe-uverbs-instance-{name}-{}", std::process::id()))
    }

    #[test]
    fn a_folder_is_for_its_user_and_is_removed() {
        let base = base("removed");
        let instance = Instance::below(&base, &info(1)).unwrap();
        assert_eq!(instance.path(), base.join("1"));
        assert_eq!(fs::metadata(instance.path()).unwrap().mode() & 0o7777, 0o700);
        assert_eq!(fs::metadata(&base).unwrap().mode() & 0o7777, 0o700);
        fs::create_dir_all(instance.path().join("sys/class")).unwrap();
        instance.remove().unwrap();
        assert!(folders(&base).is_empty());
        fs::remove_dir(&base).unwrap();
    }

    #[test]
    fn running_processes_are_listed_and_dead_ones_are_removed() {
        let base = base("stale");
        let alive = Instance::below(&base, &info(1)).unwrap();
        // The end of a process closes its descriptors.
        let dead = Instance::below(&base, &info(2)).unwrap();
        let folder = dead.path().to_owned();
        drop(dead);
        fs::create_dir(base.join("3")).unwrap();
        let names = |running: Vec<Running>| running.into_iter().map(|running| running.info).collect::<Vec<_>>();
        assert_eq!(names(running_below(&base)), [info(1)]);
        assert!(folder.join(INFO).exists());

        let next = Instance::below(&base, &info(4)).unwrap();
        assert!(!folder.exists() && !base.join("3").exists());
        assert!(alive.path().join(INFO).exists() && next.path().join(INFO).exists());
        fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn processes_of_two_containers_may_have_the_same_number() {
        let base = base("numbers");
        let [first, second] = [0, 1].map(|_| Instance::below(&base, &info(7)).unwrap());
        assert_eq!((first.path(), second.path()), (base.join("7").as_path(), base.join("7.1").as_path()));
        assert_eq!(running_below(&base).len(), 2);
        fs::remove_dir_all(&base).unwrap();
    }

    #[test]
    fn a_base_of_others_is_refused() {
        let base = base("foreign");
        let target = base.with_extension("target");
        fs::create_dir(&target).unwrap();
        symlink(&target, &base).unwrap();
        let error = Instance::below(&base, &info(1)).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::PermissionDenied, "{error}");
        assert_eq!(running_below(&base), []);
        fs::remove_file(&base).unwrap();

        fs::set_permissions(&target, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        let error = Instance::below(&target, &info(1)).unwrap_err();
        assert!(error.to_string().ends_with("is not a folder that only its user may write to: remove it"), "{error}");
        fs::remove_dir(&target).unwrap();
    }

    #[test]
    fn a_command_line_stays_one_line() {
        let strange = Info { program: "x\npid 5\u{1b}".to_owned(), ..info(1) };
        let read = Info::parse(&strange.lines()).unwrap();
        assert_eq!(read, Info { program: "x pid 5 ".to_owned(), ..info(1) });
        assert_eq!(Info::parse("address 127.0.0.1\n"), None);
    }
}
