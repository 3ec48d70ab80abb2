//! What a recording holds of NVMe: the messages of each queue, put together from their packets.

use std::collections::{HashMap, VecDeque};

use rxe_proto::wire::cm::CmMessage;
use rxe_proto::wire::{Frame, Gid, Opcode, RocePacket, classify};
use rxe_testkit::pcap;

/// A message. Queues are numbered from 0 in the order of their REQs.
#[derive(Debug)]
pub enum Recorded {
    /// Private data of a REQ to port 4420.
    Request { queue: usize, data: Vec<u8> },
    /// Private data of a REP.
    Accept { queue: usize, data: Vec<u8> },
    /// A SEND of the host.
    Command { queue: usize, capsule: Vec<u8> },
    /// Data of an RDMA READ of the target.
    Fetched { queue: usize, rkey: u32, data: Vec<u8> },
    /// An RDMA WRITE of the target.
    Written { queue: usize, rkey: u32, data: Vec<u8> },
    /// A SEND of the target.
    Response { queue: usize, capsule: Vec<u8>, invalidate: Option<u32> },
    /// A DREQ of the host.
    Disconnect { queue: usize },
}

#[derive(Default)]
struct Reader {
    host: Option<Gid>,
    /// Queue of each communication id of the host.
    by_comm_id: HashMap<u32, usize>,
    /// Queue of each queue pair number, of the target and of the host.
    by_qpn: HashMap<(bool, u32), usize>,
    queues: usize,
    /// Messages of which the end is missing: by direction, queue, and whether they are READ responses.
    open: HashMap<(bool, usize, bool), Open>,
    /// Keys of READ requests without a response.
    reads: HashMap<usize, VecDeque<u32>>,
    messages: Vec<Recorded>,
}

struct Open {
    rkey: Option<u32>,
    data: Vec<u8>,
}

/// The messages of a capture in this repository.
pub fn recorded(name: &str) -> Vec<Recorded> {
    let mut reader = Reader::default();
    for frame in pcap::recorded(name) {
        let Ok(Frame::Roce(packet)) = classify(&frame) else { panic!("{name}: not RoCE") };
        if packet.dest_qp() == 1 { reader.management(&packet) } else { reader.data(&packet) }
    }
    assert!(reader.open.is_empty(), "{name}: a message without an end");
    reader.messages
}

impl Reader {
    fn management(&mut self, packet: &RocePacket<'_>) {
        match CmMessage::parse(packet.payload()).expect("a message of the connection manager").1 {
            CmMessage::Req(req) if req.service_id.0 & 0xFFFF == 4420 => {
                self.host = Some(packet.src_gid());
                self.by_comm_id.insert(req.local_comm_id, self.queues);
                self.by_qpn.insert((false, req.local_qpn), self.queues);
                self.messages.push(Recorded::Request { queue: self.queues, data: req.ulp_data().to_vec() });
                self.queues += 1;
            }
            CmMessage::Rep(rep) => {
                let queue = self.by_comm_id[&rep.remote_comm_id];
                self.by_qpn.insert((true, rep.local_qpn), queue);
                self.messages.push(Recorded::Accept { queue, data: rep.private_data.to_vec() });
            }
            CmMessage::Dreq(dreq) => {
                let queue = self.by_comm_id[&dreq.local_comm_id];
                self.messages.push(Recorded::Disconnect { queue });
            }
            _ => {}
        }
    }

    fn data(&mut self, packet: &RocePacket<'_>) {
        let to_target = Some(packet.src_gid()) == self.host;
        let queue = self.by_qpn[&(to_target, packet.dest_qp())];
        match packet.opcode() {
            Opcode::Acknowledge => return,
            Opcode::ReadRequest => {
                let rkey = packet.reth().expect("a RETH").rkey();
                return self.reads.entry(queue).or_default().push_back(rkey);
            }
            _ => {}
        }
        let response = packet.info().response;
        let position = packet.info().position;
        let key = (to_target, queue, response);
        if position.is_start() {
            let rkey = packet.reth().map(|reth| reth.rkey());
            let previous = self.open.insert(key, Open { rkey, data: Vec::new() });
            assert!(previous.is_none(), "a message without an end");
        }
        self.open.get_mut(&key).expect("a message without a start").data.extend(packet.payload());
        if position.is_end() {
            let Open { rkey, data } = self.open.remove(&key).expect("just extended");
            let invalidate = packet.invalidate_rkey();
            self.messages.push(match (to_target, response, rkey) {
                (true, true, _) => {
                    let rkey = self.reads.get_mut(&queue).and_then(VecDeque::pop_front).expect("a READ request");
                    Recorded::Fetched { queue, rkey, data }
                }
                (true, false, None) => Recorded::Command { queue, capsule: data },
                (false, false, Some(rkey)) => Recorded::Written { queue, rkey, data },
                (false, false, None) => Recorded::Response { queue, capsule: data, invalidate },
                other => panic!("unexpected message {other:?}"),
            });
        }
    }
}
