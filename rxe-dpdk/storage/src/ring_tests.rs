use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rxe_testkit::temp::TempDir;

use super::*;

/// A ring; without io_uring the test ends, except in CI.
fn ring(depth: u32) -> Option<Ring> {
    match Ring::new(RingConfig { depth }) {
        Ok(ring) => Some(ring),
        Err(why @ (RingError::Forbidden | RingError::Unsupported)) => {
            assert!(std::env::var_os("CI").is_none_or(|ci| ci.is_empty()), "CI must not skip: {why}");
            println!("skipped: {why}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// The reading end, as a file, and the writing end. A read of it ends when something is written.
fn pipe() -> (Arc<File>, io::PipeWriter) {
    let (reader, writer) = io::pipe().unwrap();
    (Arc::new(File::from(OwnedFd::from(reader))), writer)
}

fn read(memory: &Memory, at: usize, len: u32, offset: u64) -> Request {
    Request::Read { memory: memory.clone(), at, len, offset }
}

fn bytes(memory: &Memory) -> Vec<u8> {
    let mut bytes = vec![0; memory.len()];
    memory.read(0, &mut bytes).unwrap();
    bytes
}

#[test]
fn each_client_gets_its_own_completions() {
    let Some(mut ring) = ring(8) else { return };
    let folder = TempDir::new(&std::env::temp_dir());
    let file = |name: &str, contents: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, contents).unwrap();
        Arc::new(File::open(path).unwrap())
    };
    let (one, two) =
        (ring.open_file(&file("one", b"first")).unwrap(), ring.open_file(&file("two", b"second")).unwrap());
    let (a, b) = (ring.attach(), ring.attach());
    let memory = Memory::heap(16);
    ring.push(a, 1, one, read(&memory, 0, 5, 0)).unwrap();
    ring.push(b, 2, two, read(&memory, 8, 6, 0)).unwrap();
    ring.push(a, 3, two, read(&memory, 14, 2, 4)).unwrap();
    while ring.in_flight() > 0 {
        ring.wait().unwrap();
    }
    let mut of_a: Vec<(u32, i32)> = std::iter::from_fn(|| ring.pop(a)).map(|done| (done.tag, done.result)).collect();
    of_a.sort_unstable();
    assert_eq!(of_a, [(1, 5), (3, 2)]);
    let done = ring.pop(b).unwrap();
    assert_eq!((done.tag, done.result), (2, 6));
    assert!(ring.pop(b).is_none());
    assert_eq!(bytes(&memory), b"first\0\0\0secondnd");
}

#[test]
fn a_full_ring_refuses_until_a_completion_is_popped() {
    let Some(mut ring) = ring(2) else { return };
    let (reader, mut writer) = pipe();
    let (file, client, memory) = (ring.open_file(&reader).unwrap(), ring.attach(), Memory::heap(8));
    ring.push(client, 0, file, read(&memory, 0, 1, 0)).unwrap();
    ring.push(client, 1, file, read(&memory, 1, 1, 0)).unwrap();
    assert!(!ring.has_room());
    assert!(ring.push(client, 2, file, read(&memory, 2, 1, 0)).is_err());
    writer.write_all(b"x").unwrap();
    ring.wait().unwrap();
    assert!(!ring.has_room(), "the slot is in use until the completion is popped");
    assert!(ring.pop(client).is_some());
    ring.push(client, 2, file, read(&memory, 2, 1, 0)).unwrap();
    writer.write_all(b"yz").unwrap();
}

#[test]
fn turns_without_news_make_no_system_call() {
    let Some(mut ring) = ring(2) else { return };
    let (reader, mut writer) = pipe();
    let (file, client, memory) = (ring.open_file(&reader).unwrap(), ring.attach(), Memory::heap(1));
    ring.turn().unwrap();
    assert_eq!(ring.stats().enters, 0);
    ring.push(client, 0, file, read(&memory, 0, 1, 0)).unwrap();
    for _ in 0..1000 {
        ring.turn().unwrap();
        assert!(ring.pop(client).is_none());
    }
    assert_eq!(ring.stats().enters, 1);
    writer.write_all(b"x").unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    while ring.pop(client).is_none() {
        ring.turn().unwrap();
        assert!(Instant::now() < deadline);
    }
    assert!(ring.stats().enters <= 2 && ring.stats().completions == 1, "{:?}", ring.stats());
}

#[test]
fn dropping_the_ring_waits_for_what_the_kernel_has() {
    let Some(mut ring) = ring(4) else { return };
    let (reader, mut writer) = pipe();
    let (file, client, memory) = (ring.open_file(&reader).unwrap(), ring.attach(), Memory::heap(3));
    ring.push(client, 0, file, read(&memory, 0, 3, 0)).unwrap();
    ring.turn().unwrap();
    ring.detach(client);
    ring.close_file(file);
    drop(reader);
    let pause = Duration::from_millis(100);
    let start = Instant::now();
    let thread = thread::spawn(move || {
        thread::sleep(pause);
        writer.write_all(b"end").unwrap();
    });
    drop(ring);
    assert!(start.elapsed() >= pause);
    assert_eq!(bytes(&memory), b"end");
    thread.join().unwrap();
}

#[test]
fn dropping_the_ring_on_another_thread_waits_too() {
    let Some(mut ring) = ring(4) else { return };
    let (reader, mut writer) = pipe();
    let (file, client, memory) = (ring.open_file(&reader).unwrap(), ring.attach(), Memory::heap(3));
    ring.push(client, 0, file, read(&memory, 0, 3, 0)).unwrap();
    ring.turn().unwrap();
    let thread = thread::spawn(move || drop(ring));
    thread::sleep(Duration::from_millis(50));
    assert!(!thread.is_finished());
    writer.write_all(b"end").unwrap();
    thread.join().unwrap();
    assert_eq!(bytes(&memory), b"end");
}

#[test]
fn slots_of_a_client_that_is_gone_become_free() {
    let Some(mut ring) = ring(2) else { return };
    let (reader, mut writer) = pipe();
    let (file, client, memory) = (ring.open_file(&reader).unwrap(), ring.attach(), Memory::heap(2));
    for tag in 0..2 {
        ring.push(client, tag, file, read(&memory, tag as usize, 1, 0)).unwrap();
    }
    writer.write_all(b"x").unwrap();
    ring.wait().unwrap();
    assert_eq!(ring.in_flight(), 1);
    ring.detach(client);
    writer.write_all(b"y").unwrap();
    while ring.in_flight() > 0 {
        ring.wait().unwrap();
    }
    let next = ring.attach();
    for tag in 0..2 {
        ring.push(next, tag, file, read(&memory, 0, 1, 0)).unwrap();
    }
    writer.write_all(b"zz").unwrap();
    while ring.in_flight() > 0 {
        ring.wait().unwrap();
    }
    assert!(ring.pop(next).is_some() && ring.pop(next).is_some() && ring.pop(next).is_none());
}

#[test]
fn a_range_outside_of_the_memory_never_reaches_the_kernel() {
    let Some(mut ring) = ring(2) else { return };
    let (reader, _writer) = pipe();
    let (file, client, memory) = (ring.open_file(&reader).unwrap(), ring.attach(), Memory::heap(8));
    for (at, len) in [(1, 8), (9, 0), (usize::MAX, 2)] {
        ring.push(client, 0, file, read(&memory, at, len, 0)).unwrap();
        assert_eq!(ring.in_flight(), 0);
        assert_eq!(ring.pop(client).map(|done| done.result), Some(-libc::EFAULT));
    }
}

#[test]
fn pinned_memory_is_read_and_written_like_any_other() {
    let Some(mut ring) = ring(4) else { return };
    let folder = TempDir::new(&std::env::temp_dir());
    let path = folder.path().join("file");
    std::fs::write(&path, [0; 16]).unwrap();
    let file = Arc::new(File::options().read(true).write(true).open(&path).unwrap());
    let memory = Memory::heap(4096);
    let pinned = ring.pin(&memory);
    assert!(!pinned || !ring.pin(&memory), "the second is refused");
    let (file, client) = (ring.open_file(&file).unwrap(), ring.attach());
    memory.write(100, b"pinned").unwrap();
    let piece = memory.slice(100, 6).unwrap();
    ring.push(client, 0, file, Request::Write { memory: piece, at: 0, len: 6, offset: 3, durable: true }).unwrap();
    ring.wait().unwrap();
    assert_eq!(ring.pop(client).map(|done| done.result), Some(6));
    assert_eq!(&std::fs::read(&path).unwrap()[3..9], b"pinned");
    ring.push(client, 0, file, read(&memory, 4000, 16, 0)).unwrap();
    ring.wait().unwrap();
    assert_eq!(ring.pop(client).map(|done| done.result), Some(16));
    assert_eq!(&bytes(&memory)[4003..4009], b"pinned");
}

/// Whether the kernel has a thread that executes requests of this thread's rings.
fn has_kernel_thread() -> bool {
    let name = format!("iou-wrk-{}", rustix::thread::gettid().as_raw_nonzero());
    let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    tasks
        .map(|task| std::fs::read_to_string(task.path().join("comm")).unwrap_or_default())
        .any(|comm| comm.trim() == name)
}

#[test]
fn reads_of_a_file_that_may_block_are_executed_by_a_thread_of_the_kernel() {
    let Some(mut ring) = ring(8) else { return };
    let folder = TempDir::new(&std::env::temp_dir());
    let path = folder.path().join("file");
    std::fs::write(&path, b"contents").unwrap();
    let file = ring.open_file(&Arc::new(File::open(&path).unwrap())).unwrap();
    let (client, memory) = (ring.attach(), Memory::heap(8));
    for blocks in [false, true] {
        ring.files[file as usize].as_mut().unwrap().blocks = blocks;
        ring.push(client, 1, file, read(&memory, 0, 8, 0)).unwrap();
        while ring.in_flight() > 0 {
            ring.wait().unwrap();
        }
        assert_eq!(ring.pop(client).unwrap().result, 8);
        assert_eq!(has_kernel_thread(), blocks);
    }
    assert_eq!(bytes(&memory), b"contents");
}

#[test]
fn a_file_system_that_cannot_say_that_it_would_block_is_found() {
    let folder = TempDir::new(Path::new(env!("CARGO_MANIFEST_DIR")));
    let path = folder.path().join("file");
    std::fs::write(&path, b"contents").unwrap();
    assert!(!blocks(&File::open(&path).unwrap()), "the file system of the sources");
    assert!(blocks(&File::open("/proc/version").unwrap()), "procfs");
}
