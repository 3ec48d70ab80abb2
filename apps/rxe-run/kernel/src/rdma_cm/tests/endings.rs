//! Connections that are refused, lost, or ended in unusual ways.

use nix::errno::Errno;
use rxe_proto::Duration;
use rxe_proto::wire::cm::CmMessage;
use zerocopy::FromZeros;

use super::support::{Net, SERVER, command_bytes, conn_of, conn_param, ps, qps};
use crate::rdma_cm::abi::{self, cmd, event};

const PORT: u16 = 7471;

#[test]
fn a_port_without_listener_rejects_with_reason_8() {
    let mut net = Net::pair();
    let (file, id) = net.routed(ps::TCP, PORT);
    net.client().connect(file, id, conn_param(0x11, b"")).unwrap();
    net.run();
    assert!(net.client().event(file).is_none(), "it waits for a listener");
    let rejected = net.wait_for(1, file, event::REJECTED);
    assert_eq!((rejected.status, conn_of(&rejected).private_data_len), (8, 148));
    assert_eq!(net.client().connect(file, id, conn_param(0x11, b"")), Err(Errno::EINVAL), "once only");
    assert_eq!(net.client().qp_attr(file, id, qps::INIT).err(), Some(Errno::EINVAL));
    assert_eq!(net.client().destroy(file, id), Ok(3));
}

#[test]
fn a_request_that_comes_shortly_before_its_listener_is_served() {
    for ps in [ps::TCP, ps::UDP] {
        let mut net = Net::pair();
        let (file, id) = net.routed(ps, PORT);
        net.client().connect(file, id, conn_param(0x11, b"")).unwrap();
        net.run();
        net.advance(Duration::from_millis(200));
        assert!(net.client().event(file).is_none(), "it waits for a listener");
        let (listen_file, _) = net.listening(ps, PORT);
        assert_eq!(net.server().expect(listen_file, event::CONNECT_REQUEST).status, 0);
    }
}

#[test]
fn a_listener_for_other_addresses_rejects_with_reason_28() {
    let mut net = Net::pair();
    let server = net.server();
    let listen_file = server.open();
    let listener = server.create(listen_file, 1, ps::TCP);
    server.set_option(listen_file, listener, 0, 2, &1_u32.to_ne_bytes()).unwrap();
    server.bind(listen_file, listener, ([0_u16; 8], PORT)).unwrap();
    server.listen(listen_file, listener, 1).unwrap();
    let (file, id) = net.routed(ps::TCP, PORT);
    net.client().connect(file, id, conn_param(0x11, b"")).unwrap();
    net.run();
    assert_eq!(net.client().expect(file, event::REJECTED).status, 28);
    assert!(net.server().event(listen_file).is_none());
}

#[test]
fn private_data_of_a_reject_reaches_the_client() {
    let mut net = Net::pair();
    let (listen_file, _) = net.listening(ps::TCP, PORT);
    let (file, id) = net.routed(ps::TCP, PORT);
    net.client().connect(file, id, conn_param(0x11, b"")).unwrap();
    net.run();
    let child = net.server().expect(listen_file, event::CONNECT_REQUEST).id;
    assert_eq!(net.server().reject(listen_file, child, &[0; 149]), Err(Errno::EINVAL));
    net.server().reject(listen_file, child, b"connection rejected").unwrap();
    assert_eq!(net.server().reject(listen_file, child, b""), Err(Errno::EINVAL));
    net.run();
    let rejected = net.client().expect(file, event::REJECTED);
    assert_eq!((rejected.status, &conn_of(&rejected).private_data[..20]), (28, &b"connection rejected\0"[..]));
    assert_eq!(net.server().disconnect(listen_file, child), Ok(()), "as in a kernel");
    assert_eq!(net.server().destroy(listen_file, child), Ok(0));
    assert!(net.client().cm.is_empty() && net.server().cm.is_empty());
}

#[test]
fn a_client_rejects_an_answer() {
    let mut net = Net::pair();
    let (listen_file, _) = net.listening(ps::TCP, PORT);
    let (file, id) = net.routed(ps::TCP, PORT);
    net.client().connect(file, id, conn_param(0x11, b"")).unwrap();
    net.run();
    let child = net.server().expect(listen_file, event::CONNECT_REQUEST).id;
    net.server().accept(listen_file, child, 0xACC, conn_param(0x22, b"")).unwrap();
    net.run();
    net.client().expect(file, event::CONNECT_RESPONSE);
    let reject = abi::Reject { id, reason: 35, ..abi::Reject::new_zeroed() };
    net.client().tell(file, cmd::REJECT, &reject).unwrap();
    net.run();
    assert_eq!(net.server().expect(listen_file, event::REJECTED).status, 35);
}

#[test]
fn a_silent_peer_is_unreachable() {
    let mut net = Net::pair();
    net.loss = 100;
    let (file, id) = net.routed(ps::TCP, PORT);
    let before = net.client().now;
    net.client().connect(file, id, conn_param(0x11, b"")).unwrap();
    let unreachable = net.wait_for(1, file, event::UNREACHABLE);
    assert_eq!(unreachable.status, -(Errno::ETIMEDOUT as i32));
    let took = net.client().now - before;
    assert!((90..120).contains(&took.as_secs()), "{took:?}");
    assert_eq!(net.sent.iter().filter(|message| matches!(message, CmMessage::Req(_))).count(), 16);
}

#[test]
fn every_connection_comes_up_and_ends_on_a_lossy_network() {
    for seed in 0..20 {
        let mut net = Net::pair();
        net.seed(seed);
        net.loss = 30;
        let (listen_file, _) = net.listening(ps::TCP, PORT);
        let (file, id) = net.routed(ps::TCP, PORT);
        net.client().connect(file, id, conn_param(0x11, b"")).unwrap();
        let child = net.wait_for(0, listen_file, event::CONNECT_REQUEST).id;
        net.server().accept(listen_file, child, 0xACC, conn_param(0x22, b"")).unwrap();
        net.wait_for(1, file, event::CONNECT_RESPONSE);
        net.client().confirm(file, id).unwrap();
        net.wait_for(0, listen_file, event::ESTABLISHED);
        net.server().disconnect(listen_file, child).unwrap();
        net.wait_for(1, file, event::DISCONNECTED);
        net.wait_for(0, listen_file, event::DISCONNECTED);
        assert_eq!((net.client().destroy(file, id), net.server().destroy(listen_file, child)), (Ok(4), Ok(2)));
        net.advance(Duration::from_secs(200));
        assert!(net.client().cm.is_empty() && net.server().cm.is_empty());
    }
}

#[test]
fn disconnects_that_cross_end_both_ids() {
    let mut net = Net::pair();
    let ids = net.connected(ps::TCP, PORT);
    let (file, id) = ids.client;
    let (listen_file, child) = ids.server;
    net.client().disconnect(file, id).unwrap();
    net.server().disconnect(listen_file, child).unwrap();
    net.run();
    net.client().expect(file, event::DISCONNECTED);
    net.server().expect(listen_file, event::DISCONNECTED);
    assert!(net.client().event(file).is_none() && net.server().event(listen_file).is_none());
}

#[test]
fn the_end_of_timewait_is_reported_to_ids_that_are_left() {
    let mut net = Net::pair();
    let ids = net.connected(ps::TCP, PORT);
    let (file, id) = ids.client;
    let (listen_file, child) = ids.server;
    net.client().disconnect(file, id).unwrap();
    net.run();
    net.client().expect(file, event::DISCONNECTED);
    net.server().expect(listen_file, event::DISCONNECTED);
    net.server().destroy(listen_file, child).unwrap();
    net.wait_for(1, file, event::TIMEWAIT_EXIT);
    net.advance(Duration::from_secs(60));
    assert!(net.server().event(listen_file).is_none() && net.client().event(file).is_none());
    assert_eq!(net.client().destroy(file, id), Ok(5));
}

#[test]
fn an_unanswered_disconnect_ends_with_an_error() {
    let mut net = Net::pair();
    let (file, id) = net.connected(ps::TCP, PORT).client;
    net.loss = 100;
    net.client().disconnect(file, id).unwrap();
    assert_eq!(net.wait_for(1, file, event::DISCONNECTED).status, -(Errno::ETIMEDOUT as i32));
}

#[test]
fn destroying_an_id_ends_its_connection() {
    let mut net = Net::pair();
    let ids = net.connected(ps::TCP, PORT);
    let (file, id) = ids.client;
    let (listen_file, child) = ids.server;
    assert_eq!(net.server().destroy(listen_file, child), Ok(1));
    net.run();
    net.client().expect(file, event::DISCONNECTED);
    assert!(net.server().event(listen_file).is_none());
    assert_eq!(net.server().destroy(listen_file, child), Err(Errno::ENOENT));
    assert_eq!(net.client().disconnect(file, id), Ok(()));
}

#[test]
fn destroying_an_id_while_it_connects_ends_the_request() {
    let mut net = Net::pair();
    let (listen_file, _) = net.listening(ps::TCP, PORT);
    let (file, id) = net.routed(ps::TCP, PORT);
    net.client().connect(file, id, conn_param(0x11, b"")).unwrap();
    net.run();
    net.client().destroy(file, id).unwrap();
    net.run();
    // The server reads the request, but can no longer accept it.
    let child = net.server().expect(listen_file, event::CONNECT_REQUEST).id;
    assert_eq!(net.server().accept(listen_file, child, 1, conn_param(0x22, b"")), Err(Errno::EINVAL));
    assert!(net.server().event(listen_file).is_none());
    assert_eq!(net.server().destroy(listen_file, child), Ok(0));
}

#[test]
fn closing_the_channel_and_exit_end_all_connections() {
    for exit in [false, true] {
        let mut net = Net::pair();
        let ids = net.connected(ps::TCP, PORT);
        let (file, _) = ids.client;
        let (listen_file, _) = ids.server;
        // Another client whose request is not read.
        let (other_file, other) = net.routed(ps::TCP, PORT);
        net.client().connect(other_file, other, conn_param(0x12, b"")).unwrap();
        net.run();
        if exit {
            net.server().with(|device, host| device.shutdown(host));
            assert_eq!(net.server().device.ids.len(), 0);
        } else {
            net.server().close(listen_file);
            let get_event = command_bytes(cmd::GET_EVENT, &abi::GetEvent { response: 0 }, 336);
            assert_eq!(net.server().write(listen_file, &get_event), Err(Errno::EBADF));
        }
        net.run();
        net.client().expect(file, event::DISCONNECTED);
        assert_eq!(net.client().expect(other_file, event::REJECTED).status, 28);
    }
}

#[test]
fn the_first_packet_of_a_queue_pair_confirms_its_connection() {
    let mut net = Net::pair();
    let (listen_file, _) = net.listening(ps::TCP, PORT);
    let (file, id) = net.routed(ps::TCP, PORT);
    net.client().connect(file, id, conn_param(0x11, b"")).unwrap();
    net.run();
    let child = net.server().expect(listen_file, event::CONNECT_REQUEST).id;
    let notify = abi::Notify { id: child, event: 4 };
    assert_eq!(net.server().tell(listen_file, cmd::NOTIFY, &notify), Err(Errno::EINVAL));
    net.server().accept(listen_file, child, 0xACC, conn_param(0x22, b"")).unwrap();
    net.server().with(|device, host| device.established(host, 0x23));
    net.run();
    assert!(net.server().event(listen_file).is_none(), "another queue pair");
    net.server().with(|device, host| device.established(host, 0x22));
    net.run();
    net.server().expect(listen_file, event::ESTABLISHED);
    assert_eq!(net.server().tell(listen_file, cmd::NOTIFY, &notify), Err(Errno::EISCONN));
    // The RTU comes after all.
    net.client().expect(file, event::CONNECT_RESPONSE);
    net.client().confirm(file, id).unwrap();
    net.run();
    assert!(net.server().event(listen_file).is_none());
}

#[test]
fn a_program_notifies_of_the_first_packet() {
    let mut net = Net::pair();
    let (listen_file, _) = net.listening(ps::TCP, PORT);
    let (file, id) = net.routed(ps::TCP, PORT);
    net.client().connect(file, id, conn_param(0x11, b"")).unwrap();
    net.run();
    let child = net.server().expect(listen_file, event::CONNECT_REQUEST).id;
    net.server().accept(listen_file, child, 0xACC, conn_param(0x22, b"")).unwrap();
    net.server().tell(listen_file, cmd::NOTIFY, &abi::Notify { id: child, event: 4 }).unwrap();
    net.run();
    net.server().expect(listen_file, event::ESTABLISHED);
}

#[test]
fn an_accept_that_fails_rejects_the_request() {
    let mut net = Net::pair();
    let (listen_file, _) = net.listening(ps::TCP, PORT);
    let (file, id) = net.routed(ps::TCP, PORT);
    net.client().connect(file, id, conn_param(0x11, b"")).unwrap();
    net.run();
    let child = net.server().expect(listen_file, event::CONNECT_REQUEST).id;
    // More private data than a REP has room for.
    assert_eq!(net.server().accept(listen_file, child, 1, conn_param(0x22, &[0; 197])), Err(Errno::EINVAL));
    net.run();
    assert_eq!(net.client().expect(file, event::REJECTED).status, 28);
}

#[test]
fn a_second_accept_changes_nothing() {
    let mut net = Net::pair();
    let (listen_file, _) = net.listening(ps::TCP, PORT);
    let (file, id) = net.routed(ps::TCP, PORT);
    net.client().connect(file, id, conn_param(0x11, b"")).unwrap();
    net.run();
    let child = net.server().expect(listen_file, event::CONNECT_REQUEST).id;
    net.server().accept(listen_file, child, 0xACC, conn_param(0x22, b"")).unwrap();
    assert_eq!(net.server().accept(listen_file, child, 0xBAD, conn_param(0x33, b"")), Err(Errno::EINVAL));
    net.run();
    net.client().expect(file, event::CONNECT_RESPONSE);
    net.client().confirm(file, id).unwrap();
    net.run();
    assert_eq!(net.server().expect(listen_file, event::ESTABLISHED).uid, 0xACC);
    assert!(net.server().device.unconfirmed.is_empty());
}

#[test]
fn a_full_backlog_makes_clients_try_again() {
    let mut net = Net::pair();
    let server = net.server();
    let listen_file = server.open();
    let listener = server.create(listen_file, 1, ps::TCP);
    server.bind(listen_file, listener, (SERVER, PORT)).unwrap();
    server.listen(listen_file, listener, 2).unwrap();
    let clients: Vec<_> = (0..3).map(|_| net.routed(ps::TCP, PORT)).collect();
    for (n, &(file, id)) in clients.iter().enumerate() {
        net.client().connect(file, id, conn_param(0x11 + n as u32, b"")).unwrap();
    }
    net.run();
    net.server().expect(listen_file, event::CONNECT_REQUEST);
    net.server().expect(listen_file, event::CONNECT_REQUEST);
    assert!(net.server().event(listen_file).is_none());
    // The third client repeats its request.
    net.wait_for(0, listen_file, event::CONNECT_REQUEST);
    assert!(clients.iter().all(|&(file, _)| net.client().event(file).is_none()), "none was rejected");
}
