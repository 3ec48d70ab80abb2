//! The functions as a program calls them: this test program has them in place of libc's. Each test is a process of its own, as a
//! process has one adapter.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, IntoRawFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

use nix::errno::Errno;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};
use rxe_testkit::child::alone;
use rxe_uverbs::adapter::AdapterError;
use rxe_uverbs::address::AddressError;
use rxe_uverbs::descriptors::File;
use rxe_uverbs::inside::set_inside;
use rxe_uverbs::uverbs::RDMA_VERBS_IOCTL;

use crate::adapter::{DOORBELL, ERROR, MISSED, PANIC, PRIVATE, TAKE, seen};
use crate::process::{DESCRIPTORS, Process, set_exiting};
use crate::real::Place;
use crate::walks;

const UVERBS: &CStr = c"/dev/infiniband/uverbs0";
const RDMA_CM: &CStr = c"/dev/infiniband/rdma_cm";

fn open(path: &CStr, flags: c_int) -> Result<RawFd, Errno> {
    // SAFETY: the path is a C string.
    Errno::result(unsafe { libc::open(path.as_ptr(), flags) })
}

fn write(fd: RawFd, bytes: &[u8]) -> Result<isize, Errno> {
    // SAFETY: pointer and length are those of a slice.
    Errno::result(unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) })
}

fn close(fd: RawFd) -> Result<c_int, Errno> {
    // SAFETY: each test closes what it has opened, by this number.
    Errno::result(unsafe { libc::close(fd) })
}

fn closed() -> Vec<File> {
    seen(|seen| seen.closed.clone())
}

fn file(fd: RawFd) -> File {
    DESCRIPTORS.get(fd).expect("an entry").file
}

/// Runs `body` in a forked child, and expects that it returns.
fn in_child(body: impl FnOnce()) {
    // SAFETY: the child runs code of this test alone.
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => {
            body();
            // SAFETY: ends the child at once. A panic ends it with another status.
            unsafe { libc::_exit(0) };
        }
        ForkResult::Parent { child } => assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0))),
    }
}

#[test]
fn files_below_our_roots_are_read() {
    alone(|| {
        assert_eq!(fs::read_to_string("/sys/class/infiniband_verbs/uverbs0/ibdev").unwrap(), "rxe0\n");
        let names = |folder: &str| fs::read_dir(folder).unwrap().count();
        assert_eq!((names("/sys/class/infiniband"), names("/dev/infiniband")), (1, 2));
        let resolved = fs::canonicalize("/sys/class/infiniband/rxe0/ports/1/../../device").unwrap();
        assert_eq!(resolved, Path::new("/sys/devices/virtual/infiniband/rxe0/device"));
        assert!(!Path::new("/sys/class/infiniband/rxe0/ports/2").exists());
    });
}

/// As programs find the place of a device on a bus.
#[test]
fn entries_of_classes_are_links_to_devices() {
    alone(|| {
        let device = "/sys/class/infiniband/rxe0";
        let target = "../../devices/virtual/infiniband/rxe0";
        assert_eq!(fs::read_link(device).unwrap(), Path::new(target));
        let mut names = ptr::null_mut();
        // SAFETY: the path is a C string, and the names, which are never freed, go to a pointer of this function.
        assert_eq!(unsafe { crate::open::scandir(c"/sys/class/infiniband".as_ptr(), &raw mut names, None, None) }, 3);
        let mut buffer = [0_u8; 64];
        // SAFETY: the path is a C string, and the length is that of the buffer.
        let len =
            unsafe { libc::readlinkat(7, c"/sys/class/infiniband/rxe0".as_ptr(), buffer.as_mut_ptr().cast(), 64) };
        assert_eq!(&buffer[..len.cast_unsigned()], target.as_bytes());
        assert_eq!(fs::canonicalize(format!("{device}/../..")).unwrap(), Path::new("/sys/devices/virtual"));
        assert_eq!(fs::canonicalize(format!("{device}/../../net")).unwrap(), Path::new("/sys/devices/virtual/net"));
        assert!(Path::new("/sys/devices/virtual/infiniband/rxe0/ports/1/state").is_file());
        std::env::set_current_dir("/sys/class/infiniband").unwrap();
        assert_eq!(fs::read_to_string("rxe0/ports/1/state").unwrap(), "4: ACTIVE\n");
    });
}

/// Sets the address of the device. Only for `alone`, as it changes the environment.
fn set_address(address: &str) {
    // SAFETY: no other thread of this process uses the environment.
    unsafe { std::env::set_var("RXE_ADDRESS", address) };
}

/// As hwloc in mpirun looks, whose children need the address.
#[test]
fn a_program_that_only_looks_has_files_and_no_adapter() {
    alone(|| {
        set_address("127.0.0.78");
        let error = || {
            let (address, program) = ([127, 0, 0, 78].into(), "ib_write_bw".to_owned());
            AdapterError::Address(AddressError::InUse { address, program, pid: 7 })
        };
        *ERROR.lock().unwrap() = Some(error());
        let gid = fs::read_to_string("/sys/class/infiniband/rxe0/ports/1/gids/1").unwrap();
        assert!(gid.ends_with("7f00:004e\n"), "{gid}");
        assert!(ERROR.lock().unwrap().is_some(), "no adapter was made");
        assert_eq!(open(UVERBS, libc::O_RDWR), Err(Errno::EADDRINUSE));
        assert!(Path::new("/sys/class/infiniband/rxe0").exists());
        // The other process has ended.
        let fd = open(UVERBS, libc::O_RDWR).unwrap();
        assert_eq!(write(fd, b"command"), Ok(7));
    });
}

#[test]
fn a_process_that_has_become_another_user_sees_the_device_and_keeps_what_is_open() {
    alone(|| {
        if !nix::unistd::geteuid().is_root() {
            eprintln!("SKIPPED: to become another user needs root");
            return;
        }
        set_address("127.0.0.79");
        let fd = open(UVERBS, libc::O_RDWR).unwrap();
        let before = Process::current().unwrap().folder();
        nix::unistd::seteuid(nix::unistd::Uid::from_raw(65534)).unwrap();
        assert_eq!(fs::read_to_string("/sys/class/infiniband_verbs/uverbs0/ibdev").unwrap(), "rxe0\n");
        assert_ne!(Process::current().unwrap().folder(), before);
        let second = open(UVERBS, libc::O_RDWR).unwrap();
        assert_eq!((write(fd, b"one"), write(second, b"other")), (Ok(3), Ok(5)));
        assert_eq!(seen(|seen| seen.commands.len()), 2);
        let folder = std::str::from_utf8(Process::current().unwrap().folder()).unwrap();
        fs::remove_dir_all(folder).unwrap();
        nix::unistd::seteuid(nix::unistd::Uid::from_raw(0)).unwrap();
    });
}

/// A signal handler of the program may interrupt this library, and has to leave its locks alone.
#[test]
fn a_command_that_interrupts_the_library_changes_nothing_but_is_a_doorbell() {
    alone(|| {
        let fd = open(UVERBS, libc::O_RDWR).unwrap();
        let file = file(fd);
        set_inside(true);
        assert_eq!(write(fd, b"command"), Err(Errno::EDEADLK));
        assert_eq!(write(fd, DOORBELL), Ok(DOORBELL.len() as isize));
        assert_eq!(open(RDMA_CM, libc::O_RDWR), Err(Errno::EDEADLK));
        // The library's own descriptor with the number of a file whose end was not seen.
        let mut pipe = [0; 2];
        // SAFETY: the array has room for both descriptors, and `fd` is open.
        unsafe {
            assert_eq!((libc::pipe(pipe.as_mut_ptr()), libc::syscall(libc::SYS_dup2, pipe[1], fd)), (0, fd.into()));
        }
        assert_eq!(write(fd, b"own"), Ok(3));
        set_inside(false);
        assert_eq!(MISSED.load(Ordering::Relaxed), file.handle);
        assert_eq!(seen(|seen| seen.commands.len()), 0);
    });
}

#[test]
fn devices_are_character_devices() {
    alone(|| {
        for (path, numbers) in [(UVERBS, (231, 192)), (RDMA_CM, (10, 58))] {
            let rdev = libc::makedev(numbers.0, numbers.1);
            let by_path = fs::metadata(path.to_str().unwrap()).unwrap();
            assert!(by_path.file_type().is_char_device());
            assert_eq!(by_path.rdev(), rdev);
            let fd = open(path, libc::O_RDWR | libc::O_CLOEXEC).unwrap();
            // SAFETY: the descriptor is open and nobody else's.
            let opened = fs::File::from(unsafe { OwnedFd::from_raw_fd(fd) });
            let by_descriptor = opened.metadata().unwrap();
            assert!(by_descriptor.file_type().is_char_device());
            assert_eq!(by_descriptor.rdev(), rdev);
        }
        assert!(fs::metadata("/dev/infiniband/uverbs1").is_err());
    });
}

#[test]
fn commands_reach_the_adapter_until_the_close() {
    alone(|| {
        let fd = open(UVERBS, libc::O_RDWR).unwrap();
        let file = file(fd);
        Errno::ERANGE.set();
        assert_eq!(write(fd, b"command"), Ok(7));
        assert_eq!(Errno::last(), Errno::ERANGE, "a call that succeeds leaves errno as it is");
        assert_eq!(write(fd, b"refused"), Err(Errno::EXDEV));
        assert_eq!(close(fd), Ok(0));
        assert_eq!(write(fd, b"command"), Err(Errno::EBADF));
        let commands = seen(|seen| seen.commands.clone());
        assert_eq!(commands, [(file, b"command".to_vec()), (file, b"refused".to_vec())]);
        assert_eq!(closed(), [file]);
        // SAFETY: a null pointer is refused, as by the kernel.
        let fault = Errno::result(unsafe { libc::write(open(UVERBS, libc::O_RDWR).unwrap(), ptr::null(), 8) });
        assert_eq!(fault, Err(Errno::EFAULT));
    });
}

#[test]
fn the_flags_of_an_open_are_those_of_the_descriptor() {
    alone(|| {
        // SAFETY: F_GETFD and F_GETFL have no argument.
        let flags = |fd| unsafe { (libc::fcntl(fd, libc::F_GETFD), libc::fcntl(fd, libc::F_GETFL) & libc::O_NONBLOCK) };
        assert_eq!(flags(open(RDMA_CM, libc::O_RDWR | libc::O_CLOEXEC).unwrap()), (libc::FD_CLOEXEC, 0));
        assert_eq!(flags(open(RDMA_CM, libc::O_RDWR | libc::O_NONBLOCK).unwrap()), (0, libc::O_NONBLOCK));
    });
}

#[test]
fn a_number_that_another_file_has_now_is_the_other_file() {
    alone(|| {
        let fd = open(UVERBS, libc::O_RDWR).unwrap();
        let file = file(fd);
        let name = std::env::temp_dir().join(format!("rxe-verbs-{}", std::process::id()));
        let other = fs::File::create(&name).unwrap();
        // SAFETY: both are open. `dup2` closes the device without a call of `close`.
        assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), fd) }, fd);
        // SAFETY: the status is a local variable, which the call fills.
        let mode = unsafe {
            let mut status: libc::stat = std::mem::zeroed();
            assert_eq!(libc::fstat(fd, &raw mut status), 0);
            status.st_mode & libc::S_IFMT
        };
        assert_eq!(mode, libc::S_IFREG);
        assert_eq!(write(fd, b"text"), Ok(4));
        assert_eq!(fs::read(&name).unwrap(), b"text");
        assert_eq!(closed(), [file]);
        assert_eq!(close(fd), Ok(0));
        assert_eq!(closed(), [file]);
        fs::remove_file(name).unwrap();
    });
}

#[test]
fn a_panic_of_the_adapter_is_an_error() {
    alone(|| {
        let fd = open(UVERBS, libc::O_RDWR).unwrap();
        assert_eq!(write(fd, PANIC), Err(Errno::EIO));
    });
}

#[test]
fn events_are_waited_for() {
    alone(|| {
        let fd = open(RDMA_CM, libc::O_RDWR).unwrap();
        let handle = file(fd).handle;
        seen(|seen| seen.event(handle));
        assert_eq!(write(fd, TAKE), Ok(TAKE.len() as isize));
        // SAFETY: F_SETFL has an int as its argument.
        assert_eq!(unsafe { libc::fcntl(fd, libc::F_SETFL, libc::O_NONBLOCK) }, 0);
        assert_eq!(write(fd, TAKE), Err(Errno::EAGAIN));
        close(fd).unwrap();
        assert_eq!(closed().len(), 1);
    });
}

/// Waits until thread `id` sleeps in `read`.
fn until_it_reads(id: &AtomicI32) {
    loop {
        let id = id.load(Ordering::Acquire);
        let call = fs::read_to_string(format!("/proc/self/task/{id}/syscall")).unwrap_or_default();
        if id != 0 && call.split(' ').next() == Some(&libc::SYS_read.to_string()) {
            return;
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_channel_that_is_closed_during_a_wait_stays_open_for_the_wait() {
    alone(|| {
        let fd = open(RDMA_CM, libc::O_RDWR).unwrap();
        let file = file(fd);
        static WAITING: AtomicI32 = AtomicI32::new(0);
        let waits = std::thread::spawn(move || {
            WAITING.store(nix::unistd::gettid().as_raw(), Ordering::Release);
            write(fd, TAKE)
        });
        until_it_reads(&WAITING);
        close(fd).unwrap();
        assert_eq!(closed(), []);
        seen(|seen| seen.event(file.handle));
        assert_eq!(waits.join().unwrap(), Ok(TAKE.len() as isize));
        assert_eq!(closed(), [file]);
    });
}

#[test]
fn a_call_that_fails_at_the_end_of_the_process_does_not_return() {
    alone(|| {
        let fd = open(RDMA_CM, libc::O_RDWR).unwrap();
        set_exiting(true);
        assert_eq!(write(fd, b"refused"), Err(Errno::EXDEV), "in the thread that ends it");
        let other = std::thread::spawn(move || write(fd, b"refused"));
        while !seen(|seen| seen.commands.len() == 2) {
            std::thread::yield_now();
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
        assert!(!other.is_finished());
        set_exiting(false);
        assert_eq!(other.join().unwrap(), Err(Errno::EXDEV));
    });
}

/// The destructor of a library that waits for its threads.
#[test]
fn calls_at_the_end_of_the_process_share_one_deadline() {
    alone(|| {
        let fd = open(RDMA_CM, libc::O_RDWR).unwrap();
        set_exiting(true);
        let begin = std::time::Instant::now();
        let calls = std::thread::spawn(move || [(); 4].map(|()| write(fd, b"refused")));
        assert_eq!(calls.join().unwrap(), [Err(Errno::EXDEV); 4]);
        assert!(begin.elapsed().as_secs() < 8, "{:?}", begin.elapsed());
    });
}

static CANCELLED: AtomicI32 = AtomicI32::new(0);

extern "C" fn takes_an_event(fd: *mut c_void) -> *mut c_void {
    CANCELLED.store(nix::unistd::gettid().as_raw(), Ordering::Release);
    // SAFETY: pointer and length are those of a slice.
    unsafe { libc::write(fd as RawFd, TAKE.as_ptr().cast(), TAKE.len()) };
    ptr::null_mut()
}

unsafe extern "C" {
    fn pthread_cancel(thread: libc::pthread_t) -> c_int;
}

#[test]
fn a_thread_that_waits_can_be_cancelled() {
    alone(|| {
        let fd = open(RDMA_CM, libc::O_RDWR).unwrap();
        let file = file(fd);
        // SAFETY: the thread gets the descriptor as its argument, and is joined before the end of this function. It is
        // cancelled in a call that has no Rust frame with clean-up above it.
        unsafe {
            let mut thread = std::mem::zeroed();
            let argument = fd as *mut c_void;
            assert_eq!(libc::pthread_create(&raw mut thread, ptr::null(), takes_an_event, argument), 0);
            until_it_reads(&CANCELLED);
            assert_eq!(pthread_cancel(thread), 0);
            let mut result = ptr::null_mut();
            assert_eq!(libc::pthread_join(thread, &raw mut result), 0);
            assert_eq!(result as isize, -1, "PTHREAD_CANCELED");
        }
        close(fd).unwrap();
        assert_eq!(closed(), [file]);
    });
}

#[test]
fn the_child_of_a_fork_has_an_adapter_of_its_own() {
    alone(|| {
        let fd = open(UVERBS, libc::O_RDWR).unwrap();
        let folder = Process::current().unwrap().folder().to_vec();
        in_child(|| {
            assert!(Process::current().is_none());
            assert_eq!(close(PRIVATE.load(Ordering::Relaxed)), Err(Errno::EBADF), "the adapter has closed it");
            assert_eq!(write(fd, b"command"), Err(Errno::EIO));
            assert!(fs::read_to_string("/sys/class/infiniband_verbs/abi_version").is_ok());
            assert_ne!(Process::current().unwrap().folder(), folder);
            let own = open(UVERBS, libc::O_RDWR).unwrap();
            assert_eq!(write(own, b"command"), Ok(7));
            assert_eq!(write(fd, b"command"), Err(Errno::EIO));
            assert_eq!((close(fd), close(own)), (Ok(0), Ok(0)));
            assert_eq!(closed().len(), 1);
        });
        assert_eq!(write(fd, b"command"), Ok(7));
        assert!(Path::new(std::str::from_utf8(&folder).unwrap()).exists());
    });
}

/// `_Fork`, and `clone` by other means.
#[test]
fn a_child_that_ran_no_handlers_has_an_adapter_of_its_own() {
    alone(|| {
        let fd = open(UVERBS, libc::O_RDWR).unwrap();
        let private = PRIVATE.load(Ordering::Relaxed);
        // SAFETY: as `fork`, without its handlers. The child runs code of this test alone.
        let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
        if child == 0 {
            assert_eq!(write(fd, b"command"), Err(Errno::EIO));
            assert_eq!(close(private), Err(Errno::EBADF), "it is closed here");
            let own = open(UVERBS, libc::O_RDWR).unwrap();
            assert_eq!(write(own, b"command"), Ok(7));
            // SAFETY: ends the child at once. A panic ends it with another status.
            unsafe { libc::_exit(0) };
        }
        let child = Pid::from_raw(child as i32);
        assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
        assert_eq!((write(fd, b"command"), seen(|seen| seen.commands.len())), (Ok(7), 1));
    });
}

/// As daemons do, and whoever does not know what is open.
#[test]
fn descriptors_of_the_library_outlive_a_program_that_closes_all() {
    alone(|| {
        let fd = open(UVERBS, libc::O_RDWR).unwrap();
        let (file, private) = (file(fd), PRIVATE.load(Ordering::Relaxed));
        // SAFETY: the numbers are those of a descriptor of the library, or of none.
        let replaced = Errno::result(unsafe { libc::dup2(0, private) });
        assert_eq!((close(private), replaced), (Err(Errno::EBADF), Err(Errno::EBUSY)));
        // SAFETY: this test has opened the only descriptor that is closed.
        assert_eq!(unsafe { libc::close_range(fd.cast_unsigned(), u32::MAX, 0) }, 0);
        assert_eq!((write(fd, b"command"), closed()), (Err(Errno::EBADF), vec![file]));
        // SAFETY: F_GETFD has no argument.
        assert_ne!(unsafe { libc::fcntl(private, libc::F_GETFD) }, -1, "it is open");
    });
}

#[test]
fn a_device_is_open_until_its_last_duplicate_is_closed() {
    alone(|| {
        let fd = open(UVERBS, libc::O_RDWR).unwrap();
        let file = file(fd);
        // SAFETY: the arguments are numbers, and the descriptor that is replaced is this test's.
        let copies = unsafe {
            let number = fs::File::open("/dev/null").unwrap().into_raw_fd();
            [libc::dup(fd), libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 3), libc::dup2(fd, number)]
        };
        close(fd).unwrap();
        for copy in copies {
            assert_eq!((write(copy, b"command"), closed()), (Ok(7), vec![]));
            close(copy).unwrap();
        }
        assert_eq!(closed(), [file]);
    });
}

#[test]
fn an_inherited_number_that_another_file_has_now_is_the_other_file() {
    alone(|| {
        let fd = open(UVERBS, libc::O_RDWR).unwrap();
        in_child(|| {
            // SAFETY: closes all but the standard streams, as daemons do, without calls of `close`.
            assert_eq!(unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) }, 0);
            // SAFETY: the path is a C string.
            while unsafe { libc::open(c"/dev/null".as_ptr(), libc::O_WRONLY) } < fd {}
            assert_eq!(write(fd, b"text"), Ok(4));
        });
    });
}

extern "C" fn closes(fd: *mut c_void) -> c_int {
    // SAFETY: closes a descriptor of this process, which does not share them with its parent.
    unsafe { libc::close(fd as RawFd) }
}

#[test]
fn a_child_that_shares_memory_may_close_its_descriptors() {
    alone(|| {
        let fd = open(UVERBS, libc::O_RDWR).unwrap();
        let mut stack = vec![0_u8; 65536];
        // SAFETY: the stack is large enough for what `closes` does, and aligned to 16 bytes at its end. This thread
        // sleeps until the child has ended, as after `vfork`.
        let child = unsafe {
            let end = stack.as_mut_ptr_range().end;
            let end = end.wrapping_sub(end.addr() % 16).cast();
            Errno::result(libc::clone(
                closes,
                end,
                libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD,
                fd as *mut c_void,
            ))
        };
        let child = Pid::from_raw(child.unwrap());
        assert_eq!(waitpid(child, None), Ok(WaitStatus::Exited(child, 0)));
        assert_eq!(write(fd, b"command"), Ok(7));
        assert_eq!(closed(), []);
    });
}

/// Paths that a walk has shown, with the names in them.
static SHOWN: std::sync::Mutex<Vec<String>> = std::sync::Mutex::new(Vec::new());

unsafe extern "C-unwind" fn show(path: *const c_char, _: *const libc::stat, _: c_int, place: *mut Place) -> c_int {
    // SAFETY: nftw passes a C string and a place in it.
    let (path, name) = unsafe { (CStr::from_ptr(path), CStr::from_ptr(path.add((*place).base as usize))) };
    SHOWN.lock().unwrap().push(format!("{} {}", path.to_str().unwrap(), name.to_str().unwrap()));
    0
}

#[test]
fn patterns_and_walks_have_the_paths_that_programs_know() {
    alone(|| {
        // SAFETY: plain data of C, of which the paths live until the end of the test.
        let mut result: libc::glob_t = unsafe { std::mem::zeroed() };
        let pattern = c"/sys/class/infiniband/*/ports/*/state";
        // SAFETY: the pattern is a C string.
        let outcome = unsafe { walks::glob(pattern.as_ptr(), 0, None, &raw mut result) };
        assert_eq!((outcome, result.gl_pathc), (0, 1));
        // SAFETY: there is a path.
        let found = |result: &libc::glob_t| unsafe { CStr::from_ptr(*result.gl_pathv) }.to_str().unwrap().to_owned();
        assert_eq!(found(&result), "/sys/class/infiniband/rxe0/ports/1/state");
        // SAFETY: as above; glob reads the paths of the first call.
        let outcome = unsafe { walks::glob(c"/dev/infiniband/r*".as_ptr(), libc::GLOB_APPEND, None, &raw mut result) };
        assert_eq!(
            (outcome, result.gl_pathc, found(&result).as_str()),
            (0, 2, "/sys/class/infiniband/rxe0/ports/1/state")
        );

        let root = c"/sys/class/infiniband/rxe0/ports/1/pkeys";
        // SAFETY: the path is a C string, and the function one for nftw.
        assert_eq!(unsafe { walks::nftw(root.as_ptr(), show, 4, 0) }, 0);
        let root = root.to_str().unwrap();
        assert_eq!(*SHOWN.lock().unwrap(), [format!("{root} pkeys"), format!("{root}/0 0")]);
    });
}

#[test]
fn the_ioctl_of_a_verbs_device_reaches_the_adapter() {
    alone(|| {
        let fd = open(UVERBS, libc::O_RDWR).unwrap();
        let mut bytes = 7_i32;
        // SAFETY: the adapter of these tests does not look at the address; FIONREAD writes a number.
        let results = unsafe {
            (libc::ioctl(fd, RDMA_VERBS_IOCTL, 0x1234_5678_9ABC_usize), libc::ioctl(fd, libc::FIONREAD, &raw mut bytes))
        };
        assert_eq!((results, bytes), ((0, 0), 0), "the second one is the kernel's");
        let command = (file(fd), 0x1234_5678_9ABC_u64.to_ne_bytes().to_vec());
        assert_eq!(seen(|seen| seen.commands.clone()), [command]);
        in_child(|| {
            // SAFETY: as above.
            let result = unsafe { libc::ioctl(fd, RDMA_VERBS_IOCTL, 8_usize) };
            assert_eq!((result, Errno::last()), (-1, Errno::EIO), "a device of the parent");
        });
    });
}

#[test]
fn netlink_of_rdma_is_answered() {
    alone(|| {
        // SAFETY: the arguments are numbers.
        let socket = |protocol| Errno::result(unsafe { libc::socket(libc::AF_NETLINK, libc::SOCK_RAW, protocol) });
        let device = open(UVERBS, libc::O_RDWR).unwrap();
        let fd = socket(libc::NETLINK_RDMA).unwrap();
        // SAFETY: plain data of C.
        let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        address.nl_family = libc::AF_NETLINK as u16;
        let mut length = size_of_val(&address) as libc::socklen_t;
        let at = (&raw mut address).cast::<libc::sockaddr>();
        // SAFETY: address and length are those of a structure.
        let named = unsafe { (libc::bind(fd, at, length), libc::getsockname(fd, at, &raw mut length)) };
        assert_eq!((named, address.nl_pid, length), ((0, 0), std::process::id(), 12));
        // A dump of the objects: length, type, flags, sequence number, port.
        let mut request = [0_u32; 4];
        (request[0], request[1], request[2]) = (16, 0x301 << 16 | 5 << 10 | 9, 77);
        // SAFETY: pointers and lengths are those of values.
        let sent = unsafe { libc::sendto(fd, request.as_ptr().cast(), 16, 0, at, 12) };
        let mut buffer = [0_u8; 4096];
        // SAFETY: as above.
        let received = unsafe { libc::recvfrom(fd, buffer.as_mut_ptr().cast(), 4096, 0, at, &raw mut length) };
        assert_eq!((sent, buffer[8], address.nl_pid, length), (16, 77, 0, 12));
        let answer = &buffer[..received.cast_unsigned()];
        let name = answer.windows(3).position(|bytes| bytes == b"qp\0").unwrap();
        assert_eq!(answer[name + 8..name + 10], [7, 0], "queue pairs");
        in_child(|| {
            // SAFETY: as above.
            let sent = unsafe { libc::send(fd, request.as_ptr().cast(), 16, 0) };
            assert_eq!((sent, Errno::last()), (-1, Errno::EIO), "a socket of the parent");
        });
        close(fd).unwrap();
        close(device).unwrap();
        close(socket(libc::NETLINK_ROUTE).unwrap()).unwrap();
    });
}

#[test]
fn the_end_of_the_process_ends_the_adapter() {
    // The folder's removal is what a test can see of it.
    let folder = std::env::temp_dir().join(format!("rxe-verbs-end-{}", std::process::id()));
    fs::create_dir(&folder).unwrap();
    let program = std::env::current_exe().unwrap();
    let status = std::process::Command::new(program)
        .args(["--exact", "tests::files_below_our_roots_are_read"])
        .env("XDG_RUNTIME_DIR", &folder)
        .status()
        .unwrap();
    assert!(status.success());
    assert_eq!(fs::read_dir(folder.join("rxe-run")).unwrap().count(), 0);
    fs::remove_dir_all(folder).unwrap();
}
