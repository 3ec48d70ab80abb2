//! Connections: rping and its like.

use super::support::{Net, Node, SERVER, conn_of, conn_param, ps, qps};
use crate::rdma_cm::abi::{self, event};
use rxe_proto::wire::Gid;

const PORT: u16 = 7174;
const ACCESS: u32 = 1 << 3;

#[test]
fn rping_client_and_server_connect_and_disconnect() {
    let mut net = Net::pair();
    let (listen_file, listener) = net.listening(ps::TCP, PORT);
    let (file, id) = net.routed(ps::TCP, PORT);

    // The client creates its queue pair before it connects.
    let client = net.client();
    let init = client.qp_attr(file, id, qps::INIT).unwrap();
    assert_eq!((init.qp_attr_mask, init.port_num, init.qp_access_flags), (1 | 1 << 3 | 1 << 4 | 1 << 5, 1, 0));
    client.connect(file, id, conn_param(0x11, b"hello")).unwrap();
    assert!(client.event(file).is_none());

    net.run();
    let server = net.server();
    let request = server.expect(listen_file, event::CONNECT_REQUEST);
    assert_eq!((request.uid, request.status), (0x5E, 0));
    let param = conn_of(&request);
    assert_eq!((param.qp_num, param.private_data_len, &param.private_data[..6]), (0x11, 56, &b"hello\0"[..]));
    assert_eq!((param.responder_resources, param.initiator_depth, param.retry_count), (2, 7, 7));
    let child = request.id;
    assert_ne!(child, listener);
    let route = server.query_route(listen_file, child).unwrap();
    assert_eq!((route.num_paths, route.port_num), (1, 1));
    assert_eq!(route.ib_route[0].sgid, Gid::from(SERVER).0);

    // librdmacm takes the queue pair to RTS before it accepts.
    let init = server.qp_attr(listen_file, child, qps::INIT).unwrap();
    assert_eq!((init.qp_attr_mask & ACCESS, init.qp_access_flags), (ACCESS, 0b1110));
    let server_rtr = server.qp_attr(listen_file, child, qps::RTR).unwrap();
    let server_rts = server.qp_attr(listen_file, child, qps::RTS).unwrap();
    server.accept(listen_file, child, 0xACC, conn_param(0x22, b"welcome")).unwrap();

    net.run();
    let client = net.client();
    let response = client.expect(file, event::CONNECT_RESPONSE);
    let param = conn_of(&response);
    assert_eq!((response.uid, param.qp_num, param.private_data_len), (0xC1, 0x22, 196));
    assert_eq!(&param.private_data[..8], b"welcome\0");
    client.qp_attr(file, id, qps::INIT).unwrap();
    let client_rtr = client.qp_attr(file, id, qps::RTR).unwrap();
    let client_rts = client.qp_attr(file, id, qps::RTS).unwrap();
    client.confirm(file, id).unwrap();

    // Each end expects what the other one sends.
    assert_eq!((server_rtr.dest_qp_num, client_rtr.dest_qp_num), (0x11, 0x22));
    assert_eq!((server_rtr.rq_psn, client_rtr.rq_psn), (client_rts.sq_psn, server_rts.sq_psn));
    assert_eq!((server_rtr.path_mtu, client_rtr.path_mtu), (3, 3));
    assert_eq!((server_rtr.ah_attr.grh.dgid, client_rtr.ah_attr.grh.sgid_index), (route.ib_route[0].dgid, 0));
    assert_eq!((client_rts.timeout, client_rts.retry_cnt, client_rts.rnr_retry), (19, 7, 7));
    assert_eq!((server_rts.timeout, server_rts.retry_cnt, server_rts.rnr_retry), (19, 7, 7));
    assert_eq!(client_rtr.ah_attr.grh.flow_label, server_rtr.ah_attr.grh.flow_label);

    net.run();
    let established = net.server().expect(listen_file, event::ESTABLISHED);
    assert_eq!((established.uid, established.id), (0xACC, child));
    assert!(net.client().event(file).is_none(), "librdmacm itself reports this to the program");

    net.client().disconnect(file, id).unwrap();
    net.run();
    assert_eq!(net.client().expect(file, event::DISCONNECTED).status, 0);
    assert_eq!(net.server().expect(listen_file, event::DISCONNECTED).status, 0);
    net.server().disconnect(listen_file, child).unwrap();

    assert_eq!(net.client().destroy(file, id), Ok(4));
    assert_eq!(net.server().destroy(listen_file, child), Ok(2));
    assert_eq!(net.server().destroy(listen_file, listener), Ok(1));
    net.run();
    assert!(net.client().event(file).is_none() && net.server().event(listen_file).is_none());
}

/// rdma_get_cm_event(3): events report READ limits as the receiver has to use them for its own queue pair, so those of the peer
/// with the directions exchanged. librdmacm passes them on in `rdma_accept(id, NULL)`.
#[test]
fn events_report_read_limits_from_the_perspective_of_the_receiver() {
    let limits = |param: &abi::ConnParam| (param.responder_resources, param.initiator_depth);
    let param = |qp_num, (responder_resources, initiator_depth)| abi::ConnParam {
        responder_resources,
        initiator_depth,
        ..conn_param(qp_num, b"")
    };
    // The limits of the client, and those of the server: `None` for what the event says.
    for (sent, answered) in [((7, 0), None), ((0, 5), None), ((9, 4), Some((3, 6)))] {
        let mut net = Net::pair();
        let (listen_file, _) = net.listening(ps::TCP, PORT);
        let (file, id) = net.routed(ps::TCP, PORT);
        net.client().connect(file, id, param(0x11, sent)).unwrap();
        net.run();
        let server = net.server();
        let request = server.expect(listen_file, event::CONNECT_REQUEST);
        assert_eq!(limits(&conn_of(&request)), (sent.1, sent.0));
        let answer = answered.unwrap_or(limits(&conn_of(&request)));
        server.accept(listen_file, request.id, 0xACC, param(0x22, answer)).unwrap();
        let attr = |node: &mut Node, file, id| {
            let [rtr, rts] = [qps::RTR, qps::RTS].map(|state| node.qp_attr(file, id, state).unwrap());
            (rtr.max_dest_rd_atomic, rts.max_rd_atomic)
        };
        assert_eq!(attr(server, listen_file, request.id), answer, "of the server's queue pair");
        net.run();
        let client = net.client();
        let response = client.expect(file, event::CONNECT_RESPONSE);
        assert_eq!(limits(&conn_of(&response)), (answer.1, answer.0));
        assert_eq!(attr(client, file, id), (answer.1, answer.0), "of the client's queue pair");
    }
}
