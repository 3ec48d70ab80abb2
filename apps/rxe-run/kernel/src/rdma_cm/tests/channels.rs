//! Event channels: waiting, closing, moving ids, and exact counts.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::poll::PollFlags;
use nix::unistd::read;
use zerocopy::{FromZeros, IntoBytes};

use super::support::{Net, Node, SERVER, command_bytes, conn_param, ps};
use crate::backend::Answer;
use crate::rdma_cm::abi::{self, cmd, event};

const PORT: u16 = 7471;

/// What a blocking `write` of GET_EVENT does: the lock is released while the thread waits. `reads` counts the reads that begin.
fn get_event(node: &Mutex<Node>, file: u32, reads: &AtomicUsize) -> Result<abi::EventResp, Errno> {
    let descriptor = node.lock().unwrap().descriptors[&file].try_clone().unwrap();
    let mut response = Box::new(abi::EventResp::new_zeroed());
    let to = response.as_mut_bytes().as_mut_ptr() as u64;
    let buf = command_bytes(cmd::GET_EVENT, &abi::GetEvent { response: to }, size_of::<abi::EventResp>());
    let mut answer = node.lock().unwrap().write(file, &buf)?;
    while answer == Answer::ReadByte {
        reads.fetch_add(1, Ordering::Relaxed);
        assert_eq!(read(&descriptor, &mut [0])?, 1);
        answer = node.lock().unwrap().write_again(file, &buf)?;
    }
    std::hint::black_box(&mut response);
    Ok(*response)
}

/// An event of its own for each call.
fn make_event(node: &mut Node, file: u32) -> u32 {
    let id = node.create(file, 1, ps::TCP);
    node.resolve(file, id, (SERVER, PORT)).unwrap();
    id
}

#[test]
fn each_of_several_waiting_threads_gets_one_event() {
    const THREADS: usize = 4;
    const EVENTS: usize = 200;
    let node = Arc::new(Mutex::new(Node::new(SERVER)));
    let file = node.lock().unwrap().open();
    let reads = Arc::new(AtomicUsize::new(0));
    let (to_main, from_threads) = mpsc::channel();
    for _ in 0..THREADS {
        let (node, reads, to_main) = (Arc::clone(&node), Arc::clone(&reads), to_main.clone());
        thread::spawn(move || while to_main.send(get_event(&node, file, &reads).unwrap().id).is_ok() {});
    }
    while reads.load(Ordering::Relaxed) < THREADS {
        thread::yield_now();
    }
    let made: Vec<u32> = (0..EVENTS).map(|_| make_event(&mut node.lock().unwrap(), file)).collect();
    let mut read: Vec<u32> = from_threads.iter().take(EVENTS).collect();
    read.sort_unstable();
    assert_eq!(read, made);
    let mut node = node.lock().unwrap();
    assert!(!node.is_readable(file));
    assert!(made.iter().all(|&id| node.destroy(file, id) == Ok(1)));
}

#[test]
fn a_non_blocking_descriptor_does_not_wait() {
    let node = Mutex::new(Node::new(SERVER));
    let file = node.lock().unwrap().open();
    let reads = AtomicUsize::new(0);
    fcntl(&node.lock().unwrap().descriptors[&file], FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    assert_eq!(get_event(&node, file, &reads).err(), Some(Errno::EAGAIN));
    assert!(!node.lock().unwrap().is_ready(file, PollFlags::POLLOUT), "the device is never ready for writing");
    make_event(&mut node.lock().unwrap(), file);
    assert_eq!(get_event(&node, file, &reads).unwrap().event, event::ADDR_RESOLVED);
    assert_eq!(get_event(&node, file, &reads).err(), Some(Errno::EAGAIN));
}

#[test]
fn a_thread_that_is_late_for_an_event_waits_on() {
    let mut node = Node::new(SERVER);
    let file = node.open();
    let mut response = Box::new(abi::EventResp::new_zeroed());
    let to = response.as_mut_bytes().as_mut_ptr() as u64;
    let buf = command_bytes(cmd::GET_EVENT, &abi::GetEvent { response: to }, size_of::<abi::EventResp>());
    let read_byte = |node: &Node| assert_eq!(read(&node.descriptors[&file], &mut [0]), Ok(1));
    assert_eq!(node.write(file, &buf), Ok(Answer::ReadByte));
    let id = make_event(&mut node, file);
    read_byte(&node);
    // Before it is back, the event is gone, and another one comes.
    node.destroy(file, id).unwrap();
    assert_eq!(node.write_again(file, &buf), Ok(Answer::ReadByte));
    assert!(!node.is_readable(file));
    let id = make_event(&mut node, file);
    read_byte(&node);
    assert_eq!(node.write_again(file, &buf), Ok(Answer::Done));
    std::hint::black_box(&mut response);
    assert_eq!((response.id, node.is_readable(file)), (id, false));
}

#[test]
fn an_event_that_cannot_be_written_stays() {
    let mut node = Node::new(SERVER);
    let file = node.open();
    make_event(&mut node, file);
    let get = |response, room| command_bytes(cmd::GET_EVENT, &abi::GetEvent { response }, room);
    for (buf, errno) in [(get(8, 336), Errno::EFAULT), (get(8, 323), Errno::ENOSPC)] {
        assert_eq!(node.write(file, &buf), Err(errno));
    }
    node.expect(file, event::ADDR_RESOLVED);
}

#[test]
fn events_of_a_destroyed_id_are_not_delivered() {
    let mut node = Node::new(SERVER);
    let file = node.open();
    let ids: Vec<u32> = (0..3).map(|_| make_event(&mut node, file)).collect();
    assert_eq!(node.destroy(file, ids[0]), Ok(0));
    assert_eq!(node.expect(file, event::ADDR_RESOLVED).id, ids[1]);
    assert_eq!(node.destroy(file, ids[2]), Ok(0));
    assert!(node.event(file).is_none());
    assert_eq!(node.destroy(file, ids[1]), Ok(1));
}

#[test]
fn a_destroyed_request_is_not_delivered() {
    let mut net = Net::pair();
    let (listen_file, listener) = net.listening(ps::TCP, PORT);
    let (file, id) = net.routed(ps::TCP, PORT);
    net.client().connect(file, id, conn_param(0x11, b"")).unwrap();
    net.run();
    let server = net.server();
    let child = listener + 1;
    assert_eq!(server.destroy(listen_file, child), Ok(0));
    assert!(server.event(listen_file).is_none());
    assert_eq!(server.device.ids.get(listener).unwrap().backlog, 1024);
    net.run();
    assert_eq!(net.client().expect(file, event::REJECTED).status, 28);
}

/// A synchronous server of librdmacm moves each new id to a channel of its own.
#[test]
fn an_id_moves_to_another_channel_with_its_events() {
    let mut net = Net::pair();
    let (listen_file, listener) = net.listening(ps::TCP, PORT);
    let (file, id) = net.routed(ps::TCP, PORT);
    net.client().connect(file, id, conn_param(0x11, b"")).unwrap();
    net.run();
    let server = net.server();
    let child = server.expect(listen_file, event::CONNECT_REQUEST).id;
    let child_file = server.open();
    assert_eq!(server.migrate(child_file, listen_file, child), Ok(0));
    assert_eq!(server.accept(listen_file, child, 9, conn_param(0x22, b"")), Err(Errno::EINVAL));
    server.accept(child_file, child, 9, conn_param(0x22, b"")).unwrap();
    net.run();
    net.client().expect(file, event::CONNECT_RESPONSE);
    net.client().confirm(file, id).unwrap();
    net.client().disconnect(file, id).unwrap();
    net.run();
    let server = net.server();
    server.expect(child_file, event::ESTABLISHED);
    // The unread event moves.
    let third = server.open();
    assert_eq!(server.migrate(third, child_file, child), Ok(1));
    assert!(server.event(child_file).is_none());
    server.expect(third, event::DISCONNECTED);
    server.close(child_file);
    assert_eq!((server.destroy(third, child), server.destroy(listen_file, listener)), (Ok(2), Ok(1)));
}

#[test]
fn a_listener_moves_with_the_requests_that_were_not_read() {
    let mut net = Net::pair();
    let (listen_file, listener) = net.listening(ps::TCP, PORT);
    let (file, id) = net.routed(ps::TCP, PORT);
    net.client().connect(file, id, conn_param(0x11, b"")).unwrap();
    net.run();
    let server = net.server();
    let new_file = server.open();
    assert_eq!(server.migrate(new_file, listen_file, listener), Ok(0));
    server.close(listen_file);
    let child = server.expect(new_file, event::CONNECT_REQUEST).id;
    server.accept(new_file, child, 9, conn_param(0x22, b"")).unwrap();
    net.run();
    net.client().expect(file, event::CONNECT_RESPONSE);
}

#[test]
fn ids_move_only_between_channels_of_the_device() {
    let mut node = Node::new(SERVER);
    let (file, other) = (node.open(), node.open());
    let id = node.create(file, 1, ps::TCP);
    assert_eq!(node.migrate(other, other, id), Err(Errno::EINVAL));
    assert_eq!(node.migrate(other, 9999, id), Err(Errno::EINVAL));
    assert_eq!(node.migrate(other, file, 77), Err(Errno::ENOENT));
    assert_eq!(node.migrate(file, file, id), Ok(0));
    assert_eq!(node.destroy(file, id), Ok(0));
}

#[test]
fn a_program_that_reads_no_events_is_stopped() {
    let mut node = Node::new(SERVER);
    node.unreachable.push([10, 0, 0, 1].into());
    let file = node.open();
    let id = node.create(file, 1, ps::TCP);
    // Each failed resolution is an event, and the id can try again.
    node.device.max_events = 3;
    for _ in 0..3 {
        node.resolve(file, id, ([10, 0, 0, 1], 1)).unwrap();
    }
    assert_eq!(node.resolve(file, id, ([10, 0, 0, 1], 1)), Err(Errno::ENOMEM));
    assert_eq!(node.expect(file, event::ADDR_ERROR).status, -(Errno::ENETUNREACH as i32));
    node.resolve(file, id, ([10, 0, 0, 1], 1)).unwrap();
    assert_eq!(node.destroy(file, id), Ok(1));
    assert!(node.event(file).is_none());
}
