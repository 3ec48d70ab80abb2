//! Programs of the connection manager: the recorded captures, from either side.

use std::collections::{BTreeMap, BTreeSet};

use rxe_fuzz::cm;
use rxe_proto::cm::read_mad;
use rxe_proto::wire::cm::CmMessage;
use rxe_proto::wire::{Frame, PortId, classify};
use rxe_testkit::pcap;

use crate::Corpus;

/// Each capture of the connection manager twice: the peer's messages as they are, and commands of the local side for ours.
/// Captures with the same messages in the same order are one.
pub fn connections() -> Corpus {
    let (mut corpus, mut shapes) = (BTreeMap::new(), BTreeSet::new());
    for (file, frames) in pcap::all() {
        for initiator in [false, true] {
            let (shape, program) = connection_program(&frames, initiator);
            if !shape.is_empty() && shapes.insert((initiator, shape)) {
                let side = if initiator { "active" } else { "passive" };
                corpus.insert(format!("{}-{side}", file.trim_end_matches(".pcap")), program);
            }
        }
    }
    corpus.insert("more-connections-than-may-be-closing".to_owned(), many());
    corpus
}

/// Connections of ours that are confirmed and disconnected, one after the other; the peer does not answer the DREQs.
fn many() -> Vec<u8> {
    let mut program = vec![0];
    for number in 0..12 {
        // A REP with an id and queue pair of its own.
        let rep = [cm::op::MESSAGE, 1, cm::FLAG_AIM, number, 0, number, 0, number, 0];
        program.extend([cm::op::CONNECT, 0, 0]);
        program.extend(rep);
        program.extend([cm::op::READ, cm::op::CONFIRM, number, 0, cm::op::READ, cm::op::DISCONNECT, number]);
    }
    program
}

/// The names of the messages, and the program.
fn connection_program(frames: &[Vec<u8>], initiator: bool) -> (Vec<&'static str>, Vec<u8>) {
    let mut shape = Vec::new();
    let mut program = vec![if initiator { cm::FLAG_INITIATOR } else { 0 }];
    let ours = if initiator { 2 } else { 1 };
    let mut last = None;
    for frame in frames {
        let Ok(Frame::Roce(packet)) = classify(frame) else { continue };
        let Ok((path, mad)) = read_mad(PortId(0), &packet) else { continue };
        let Ok((_, message)) = CmMessage::parse(mad) else { continue };
        shape.extend([message.name(), if packet.is_ipv4() { "IPv4" } else { "IPv6" }]);
        let flags = if packet.is_ipv4() { 0 } else { cm::FLAG_IPV6 };
        if path.local.0[15] == ours {
            program.extend([cm::op::RAW, flags | cm::FLAG_AIM, 0]);
            program.extend_from_slice(mad);
            program.push(cm::op::READ);
            last = None;
            continue;
        }
        // A retransmission of ours is not another command.
        if last.replace(message.attribute_id()) == Some(message.attribute_id()) {
            program.extend([cm::op::WAIT, 0x10, 0, cm::op::READ]);
            continue;
        }
        program.extend(match message {
            CmMessage::Req(_) => vec![cm::op::CONNECT, flags, 3],
            CmMessage::Rep(_) => vec![cm::op::ACCEPT, 0, 9],
            CmMessage::Rtu(_) => vec![cm::op::CONFIRM, 0, 0],
            CmMessage::Rej(_) => vec![cm::op::REJECT, 0, 28, 0],
            CmMessage::Dreq(_) => vec![cm::op::DISCONNECT, 0],
            CmMessage::SidrReq(_) => vec![cm::op::RESOLVE, flags, 0],
            CmMessage::SidrRep(_) => vec![cm::op::REPLY_SIDR, 0, 0, 0],
            _ => vec![],
        });
        program.push(cm::op::READ);
    }
    (shape, program)
}
