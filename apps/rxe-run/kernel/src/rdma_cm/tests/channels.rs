//! Event channels: waiting, closing, moving ids, and exact counts.

use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use zerocopy::{FromZeros, IntoBytes};

use super::support::{Net, Node, SERVER, command_bytes, conn_param, ps};
use crate::rdma_cm::Outcome;
use crate::rdma_cm::abi::{self, cmd, event};

const PORT: u16 = 7471;

/// What a blocking `write` of GET_EVENT does: the lock is released while the thread waits.
fn get_event(node: &Mutex<Node>, fd: RawFd) -> Result<abi::EventResp, Errno> {
    let mut response = Box::new(abi::EventResp::new_zeroed());
    let to = response.as_mut_bytes().as_mut_ptr() as u64;
    let buf = command_bytes(cmd::GET_EVENT, &abi::GetEvent { response: to }, size_of::<abi::EventResp>());
    let mut outcome = node.lock().unwrap().write(fd, &buf);
    loop {
        match outcome {
            Ok(_) => {
                std::hint::black_box(&mut response);
                return Ok(*response);
            }
            Err(Outcome::Failed(errno)) => return Err(errno),
            Err(Outcome::Wait(wait)) => {
                wait.wait()?;
                outcome = node.lock().unwrap().device.resume(wait, &buf);
            }
        }
    }
}

/// An event of its own for each call.
fn make_event(node: &mut Node, fd: RawFd) -> u32 {
    let id = node.create(fd, 1, ps::TCP);
    node.resolve(fd, id, (SERVER, PORT)).unwrap();
    id
}

/// Waits until as many threads as that are blocked in [`get_event`], or about to be.
fn wait_for_waiters(node: &Mutex<Node>, fd: RawFd, count: usize) {
    while Arc::strong_count(node.lock().unwrap().device.channels[&fd].sockets()) < count + 1 {
        thread::yield_now();
    }
}

#[test]
fn each_of_several_waiting_threads_gets_one_event() {
    const THREADS: usize = 4;
    const EVENTS: usize = 200;
    let node = Arc::new(Mutex::new(Node::new(SERVER)));
    let fd = node.lock().unwrap().open();
    let (to_main, from_threads) = mpsc::channel();
    for _ in 0..THREADS {
        let (node, to_main) = (Arc::clone(&node), to_main.clone());
        thread::spawn(move || while to_main.send(get_event(&node, fd).unwrap().id).is_ok() {});
    }
    wait_for_waiters(&node, fd, THREADS);
    let made: Vec<u32> = (0..EVENTS).map(|_| make_event(&mut node.lock().unwrap(), fd)).collect();
    let mut read: Vec<u32> = from_threads.iter().take(EVENTS).collect();
    read.sort_unstable();
    assert_eq!(read, made);
    let mut node = node.lock().unwrap();
    assert!(!node.is_readable(fd));
    assert!(made.iter().all(|&id| node.destroy(fd, id) == Ok(1)));
}

#[test]
fn a_non_blocking_descriptor_does_not_wait() {
    let node = Mutex::new(Node::new(SERVER));
    let fd = node.lock().unwrap().open();
    let flags = OFlag::O_NONBLOCK;
    fcntl(node.lock().unwrap().device.channels[&fd].sockets(), FcntlArg::F_SETFL(flags)).unwrap();
    assert_eq!(get_event(&node, fd).err(), Some(Errno::EAGAIN));
    make_event(&mut node.lock().unwrap(), fd);
    assert_eq!(get_event(&node, fd).unwrap().event, event::ADDR_RESOLVED);
    assert_eq!(get_event(&node, fd).err(), Some(Errno::EAGAIN));
}

#[test]
fn closing_a_channel_does_not_wake_a_waiting_thread() {
    let node = Arc::new(Mutex::new(Node::new(SERVER)));
    let fd = node.lock().unwrap().open();
    let (to_main, from_thread) = mpsc::channel();
    let waiting = Arc::clone(&node);
    thread::spawn(move || to_main.send(get_event(&waiting, fd).map(|event| event.id)));
    wait_for_waiters(&node, fd, 1);
    let ends = Arc::downgrade(node.lock().unwrap().device.channels[&fd].sockets());
    drop(node.lock().unwrap().close(fd));
    // The thread keeps both ends, so its read does not end, and no other file gets the descriptor.
    assert!(ends.upgrade().is_some());
    let again = node.lock().unwrap().open();
    assert_ne!(again, fd);
    make_event(&mut node.lock().unwrap(), again);
    assert_eq!(get_event(&node, again).unwrap().event, event::ADDR_RESOLVED);
    assert_eq!(from_thread.try_recv().err(), Some(mpsc::TryRecvError::Empty));
}

#[test]
fn a_thread_that_is_late_for_an_event_waits_on() {
    let mut node = Node::new(SERVER);
    let fd = node.open();
    let mut response = Box::new(abi::EventResp::new_zeroed());
    let to = response.as_mut_bytes().as_mut_ptr() as u64;
    let buf = command_bytes(cmd::GET_EVENT, &abi::GetEvent { response: to }, size_of::<abi::EventResp>());
    let Err(Outcome::Wait(wait)) = node.write(fd, &buf) else { panic!("an event") };
    let id = make_event(&mut node, fd);
    wait.wait().unwrap();
    // Before it is back, the event is gone, and another one comes.
    node.destroy(fd, id).unwrap();
    let Err(Outcome::Wait(wait)) = node.device.resume(wait, &buf) else { panic!("an event") };
    assert!(!node.is_readable(fd));
    let id = make_event(&mut node, fd);
    wait.wait().unwrap();
    assert_eq!(node.device.resume(wait, &buf).unwrap(), buf.len());
    std::hint::black_box(&mut response);
    assert_eq!((response.id, node.is_readable(fd)), (id, false));
}

#[test]
fn an_event_that_cannot_be_written_stays() {
    let mut node = Node::new(SERVER);
    let fd = node.open();
    make_event(&mut node, fd);
    let get = |response, room| command_bytes(cmd::GET_EVENT, &abi::GetEvent { response }, room);
    for (buf, errno) in [(get(8, 336), Errno::EFAULT), (get(8, 323), Errno::ENOSPC)] {
        assert!(matches!(node.write(fd, &buf), Err(Outcome::Failed(e)) if e == errno));
    }
    node.expect(fd, event::ADDR_RESOLVED);
}

#[test]
fn events_of_a_destroyed_id_are_not_delivered() {
    let mut node = Node::new(SERVER);
    let fd = node.open();
    let ids: Vec<u32> = (0..3).map(|_| make_event(&mut node, fd)).collect();
    assert_eq!(node.destroy(fd, ids[0]), Ok(0));
    assert_eq!(node.expect(fd, event::ADDR_RESOLVED).id, ids[1]);
    assert_eq!(node.destroy(fd, ids[2]), Ok(0));
    assert!(node.event(fd).is_none());
    assert_eq!(node.destroy(fd, ids[1]), Ok(1));
}

#[test]
fn a_destroyed_request_is_not_delivered() {
    let mut net = Net::pair();
    let (listen_fd, listener) = net.listening(ps::TCP, PORT);
    let (fd, id) = net.routed(ps::TCP, PORT);
    net.client().connect(fd, id, conn_param(0x11, b"")).unwrap();
    net.run();
    let server = net.server();
    let child = listener + 1;
    assert_eq!(server.destroy(listen_fd, child), Ok(0));
    assert!(server.event(listen_fd).is_none());
    assert_eq!(server.device.ids.get(listener).unwrap().backlog, 1024);
    net.run();
    assert_eq!(net.client().expect(fd, event::REJECTED).status, 28);
}

/// A synchronous server of librdmacm moves each new id to a channel of its own.
#[test]
fn an_id_moves_to_another_channel_with_its_events() {
    let mut net = Net::pair();
    let (listen_fd, listener) = net.listening(ps::TCP, PORT);
    let (fd, id) = net.routed(ps::TCP, PORT);
    net.client().connect(fd, id, conn_param(0x11, b"")).unwrap();
    net.run();
    let server = net.server();
    let child = server.expect(listen_fd, event::CONNECT_REQUEST).id;
    let child_fd = server.open();
    assert_eq!(server.migrate(child_fd, listen_fd, child), Ok(0));
    assert_eq!(server.accept(listen_fd, child, 9, conn_param(0x22, b"")), Err(Errno::EINVAL));
    server.accept(child_fd, child, 9, conn_param(0x22, b"")).unwrap();
    net.run();
    net.client().expect(fd, event::CONNECT_RESPONSE);
    net.client().confirm(fd, id).unwrap();
    net.client().disconnect(fd, id).unwrap();
    net.run();
    let server = net.server();
    server.expect(child_fd, event::ESTABLISHED);
    // The unread event moves.
    let third = server.open();
    assert_eq!(server.migrate(third, child_fd, child), Ok(1));
    assert!(server.event(child_fd).is_none());
    server.expect(third, event::DISCONNECTED);
    assert!(server.close(child_fd).is_some());
    assert_eq!((server.destroy(third, child), server.destroy(listen_fd, listener)), (Ok(2), Ok(1)));
}

#[test]
fn a_listener_moves_with_the_requests_that_were_not_read() {
    let mut net = Net::pair();
    let (listen_fd, listener) = net.listening(ps::TCP, PORT);
    let (fd, id) = net.routed(ps::TCP, PORT);
    net.client().connect(fd, id, conn_param(0x11, b"")).unwrap();
    net.run();
    let server = net.server();
    let new_fd = server.open();
    assert_eq!(server.migrate(new_fd, listen_fd, listener), Ok(0));
    assert!(server.close(listen_fd).is_some());
    let child = server.expect(new_fd, event::CONNECT_REQUEST).id;
    server.accept(new_fd, child, 9, conn_param(0x22, b"")).unwrap();
    net.run();
    net.client().expect(fd, event::CONNECT_RESPONSE);
}

#[test]
fn ids_move_only_between_channels_of_the_device() {
    let mut node = Node::new(SERVER);
    let (fd, other) = (node.open(), node.open());
    let id = node.create(fd, 1, ps::TCP);
    assert_eq!(node.migrate(other, other, id), Err(Errno::EINVAL));
    assert_eq!(node.migrate(other, 9999, id), Err(Errno::EINVAL));
    assert_eq!(node.migrate(other, fd, 77), Err(Errno::ENOENT));
    assert_eq!(node.migrate(fd, fd, id), Ok(0));
    assert_eq!(node.destroy(fd, id), Ok(0));
}

#[test]
fn a_program_that_reads_no_events_is_stopped() {
    let mut node = Node::new(SERVER);
    node.unreachable.push([10, 0, 0, 1].into());
    let fd = node.open();
    let id = node.create(fd, 1, ps::TCP);
    // Each failed resolution is an event, and the id can try again.
    node.device.max_events = 3;
    for _ in 0..3 {
        node.resolve(fd, id, ([10, 0, 0, 1], 1)).unwrap();
    }
    assert_eq!(node.resolve(fd, id, ([10, 0, 0, 1], 1)), Err(Errno::ENOMEM));
    assert_eq!(node.expect(fd, event::ADDR_ERROR).status, -(Errno::ENETUNREACH as i32));
    node.resolve(fd, id, ([10, 0, 0, 1], 1)).unwrap();
    assert_eq!(node.destroy(fd, id), Ok(1));
    assert!(node.event(fd).is_none());
}
