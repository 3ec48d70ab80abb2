//! Programs of the transport engine: the recorded captures from either side, and one for each situation that these lack.

use std::collections::{BTreeMap, BTreeSet};

use rxe_fuzz::engine::{PacketStep, SendStep, Setup, flag, op, sge_to_bytes};
use rxe_proto::wire::{Frame, OPCODES, Opcode, Psn, RocePacket, Transport, classify};
use rxe_testkit::pcap;

use crate::Corpus;

/// Most packets of a capture in a program.
const PACKETS: usize = 40;

/// Numbers of queue pairs, keys and transitions; see `KINDS` and `REGIONS` of the target.
const RC: u8 = 0;
const RC_READS_ONLY: u8 = 1;
const SHARED: u8 = 2;
const SECOND_PD: u8 = 3;
const LOSSY: u8 = 4;
const UC: u8 = 5;
const UC_SHARED: u8 = 6;
const UD: u8 = 7;
const ALL: u8 = 0;
const LOCAL: u8 = 3;
const OF_SECOND_PD: u8 = 5;
const FAST: u8 = 8;
const WINDOWS: [u8; 2] = [9, 10];
const TO_SQD: u8 = 3;
const RESUME: u8 = 4;
const TO_RESET: u8 = 6;
/// The place of a key's first byte.
const FIRST: u16 = 8;

/// A program in the making.
struct Program(Vec<u8>);

impl Program {
    fn new(setup: u8) -> Program {
        Program(vec![setup])
    }

    fn packet(mut self, opcode: u8, step: PacketStep) -> Program {
        self.0.push(op::PACKET);
        self.0.extend(PacketStep { opcode, ..step }.to_bytes());
        self
    }

    fn send(mut self, step: SendStep, buffer: (u8, u16)) -> Program {
        self.0.push(op::SEND);
        self.0.extend(step.to_bytes(buffer));
        self
    }

    fn recv(mut self, qp: u8, buffer: (u8, u16)) -> Program {
        self.0.extend([op::RECV, qp]);
        self.0.extend(sge_to_bytes(buffer));
        self
    }

    fn shared_recv(mut self, buffer: (u8, u16)) -> Program {
        self.0.push(op::SRQ_RECV);
        self.0.extend(sge_to_bytes(buffer));
        self
    }

    fn step(mut self, bytes: &[u8]) -> Program {
        self.0.extend(bytes);
        self
    }

    fn transmit(self) -> Program {
        self.step(&[op::TRANSMIT, 0])
    }

    /// Waits `millis` milliseconds.
    fn wait(self, millis: u16) -> Program {
        let [high, low] = (millis * 100).to_be_bytes();
        self.step(&[op::WAIT, high, low])
    }
}

/// A request of `len` bytes to a key.
fn request(qp: u8, key: u8, len: u16) -> PacketStep {
    PacketStep { qp, key, offset: FIRST, len, payload: 1, flags: flag::ACK_REQ, ..PacketStep::default() }
}

/// The opcode byte by its name in the table.
fn byte(name: &str) -> u8 {
    let at = OPCODES.iter().position(|info| info.as_ref().is_some_and(|info| info.name == name));
    at.unwrap_or_else(|| panic!("no opcode {name}")) as u8
}

/// The captures in which the peer, or the host itself, sends more than two requests. Those with the same opcodes in the same
/// order but for repetitions are one.
fn captures(corpus: &mut Corpus, requests: bool) {
    let mut shapes = BTreeSet::new();
    for (file, frames) in pcap::all() {
        for local in [1, 2] {
            let (program, ours, theirs) = capture(&frames, local);
            let mut shape: Vec<(bool, &str)> =
                roce(&frames).map(|packet| (is_to(local, &packet), packet.info().name)).collect();
            shape.dedup();
            shape.truncate(12);
            let enough = if requests { theirs > 2 } else { ours > 2 };
            if enough && program.0.len() < 1500 && shapes.insert(shape) {
                corpus.insert(format!("{}-{local}", file.trim_end_matches(".pcap")), program.0);
            }
        }
    }
}

/// The first packets of a capture that are not to queue pair 1.
fn roce(frames: &[Vec<u8>]) -> impl Iterator<Item = RocePacket<'_>> {
    let packet = |frame| match classify(frame) {
        Ok(Frame::Roce(packet)) if packet.dest_qp() != 1 => Some(packet),
        _ => None,
    };
    frames.iter().map(Vec::as_slice).filter_map(packet).take(PACKETS)
}

fn is_to(local: u8, packet: &RocePacket<'_>) -> bool {
    packet.dst_gid().0[15] == local
}

/// The packets to the host whose address ends in `local`, and work requests and transmissions for its own. Also the numbers
/// of its requests and of its peer's.
fn capture(frames: &[Vec<u8>], local: u8) -> (Program, usize, usize) {
    let mut program = Program::new(Setup::CREDITS | Setup::LARGE_MTU);
    let (mut ours, mut theirs, mut unacked) = (0, 0, None::<Psn>);
    for packet in roce(frames) {
        let qp = if packet.transport() == Transport::Ud { UD } else { RC };
        let info = packet.info();
        match (is_to(local, &packet), info.response) {
            (true, true) => {
                let step = received(&packet, qp, packet.psn().diff(unacked.unwrap_or(packet.psn())) as i8);
                program = program.packet(info.opcode.byte(), step);
                unacked = Some(packet.psn().next());
            }
            (true, false) => {
                theirs += 1;
                if info.takes_receive {
                    program = program.recv(qp, (LOCAL, 1500));
                }
                program = program.packet(info.opcode.byte(), received(&packet, qp, 0));
            }
            (false, true) => program = program.transmit(),
            (false, false) => {
                if let Some((operation, buffer)) = posted(&packet) {
                    ours += 1;
                    unacked.get_or_insert(packet.psn());
                    let step = SendStep { qp, op: operation, flags: 1, ..SendStep::default() };
                    program = program.send(step, buffer).transmit();
                }
            }
        }
    }
    (program, ours, theirs)
}

fn received(packet: &RocePacket<'_>, qp: u8, psn: i8) -> PacketStep {
    let len = packet.reth().map_or(0, |reth| reth.dma_len().min(4096) as u16);
    let mut flags = if packet.ack_req() { flag::ACK_REQ } else { 0 };
    flags |= if packet.solicited() { flag::SOLICITED } else { 0 };
    let syndrome = packet.aeth().map_or(0, |aeth| aeth.syndrome().to_byte());
    let payload = packet.payload().len() as u16 + 2;
    PacketStep { qp, opcode: 0, psn, flags, key: ALL, offset: FIRST, len, payload, syndrome }
}

/// The work request that begins with a packet of ours: its operation, and key and length of its buffer.
fn posted(packet: &RocePacket<'_>) -> Option<(u8, (u8, u16))> {
    use Opcode::*;
    let len = packet.reth().map_or(packet.payload().len(), |reth| reth.dma_len() as usize).min(2000) as u16;
    Some(match packet.opcode() {
        SendOnly | SendFirst => (if packet.transport() == Transport::Ud { 10 } else { 0 }, (LOCAL, len)),
        SendOnlyInvalidate => (2, (LOCAL, len)),
        WriteOnly | WriteFirst => (3, (LOCAL, len)),
        WriteOnlyImm => (4, (LOCAL, len)),
        ReadRequest => (5, (LOCAL, len)),
        CompareSwap => (6, (LOCAL, 8)),
        FetchAdd => (7, (LOCAL, 8)),
        _ => return None,
    })
}

/// Requests of peers.
pub fn responder() -> Corpus {
    let mut corpus = BTreeMap::new();
    captures(&mut corpus, true);
    let mut add = |name: &str, program: Program| assert!(corpus.insert(name.to_owned(), program.0).is_none(), "{name}");

    let mut every = Program::new(Setup::PLACEMENT | Setup::CREDITS);
    for info in OPCODES.iter().flatten() {
        let qp = match info.opcode.transport {
            Transport::Rc | Transport::Cnp => RC,
            Transport::Uc => UC,
            Transport::Ud => UD,
        };
        every = every.recv(qp, (LOCAL, 600)).packet(info.opcode.byte(), request(qp, ALL, 8)).transmit();
        every = every.step(&[op::MODIFY, qp, TO_RESET, op::BRING_UP, qp]);
    }
    add("every-opcode", every);

    for (name, qp, transport) in [("rc", RC, "RC"), ("uc", UC, "UC")] {
        let part = |kind: &str| byte(&format!("{transport} {kind}"));
        let whole = PacketStep { payload: 0, ..request(qp, ALL, 600) };
        let last = PacketStep { payload: 88 + 2, ..whole };
        add(
            &format!("{name}-messages-of-several-packets"),
            Program::new(Setup::CREDITS)
                .recv(qp, (LOCAL, 1000))
                .packet(part("WRITE_FIRST"), whole)
                .packet(part("WRITE_MIDDLE"), whole)
                .packet(part("WRITE_LAST"), last)
                .packet(part("SEND_FIRST"), whole)
                .packet(part("SEND_MIDDLE"), whole)
                .packet(part("SEND_LAST_IMM"), last)
                .packet(part("WRITE_FIRST"), whole)
                .packet(part("SEND_ONLY"), last)
                .transmit(),
        );
    }
    let mut refused = Program::new(0);
    for qp in [RC_READS_ONLY, SECOND_PD, RC] {
        for key in [ALL, OF_SECOND_PD, 1, 2, LOCAL] {
            refused = refused.packet(byte("RC WRITE_ONLY"), request(qp, key, 64));
            refused = refused.packet(byte("RC FETCH_ADD"), request(qp, key, 1));
            refused = refused.packet(byte("RC READ_REQUEST"), request(qp, key, 64)).transmit();
            refused = refused.step(&[op::MODIFY, qp, TO_RESET, op::BRING_UP, qp]);
        }
    }
    add("requests-without-the-right", refused);
    let changed = |opcode: u8, at: u8, value: u8, sealed: u8| {
        let step = PacketStep { opcode, flags: flag::CHANGED, ..request(RC, ALL, 64) };
        [&[op::PACKET][..], &step.to_bytes(), &[1, 0, at, value, sealed]].concat()
    };
    let mut damaged = Program::new(0);
    for opcode in [byte("RC WRITE_ONLY"), byte("RC FETCH_ADD"), byte("RC READ_REQUEST")] {
        // The last byte of the address, of the PSN and of the data, with a wrong ICRC and a right one.
        for (at, sealed) in [(19, 1), (11, 1), (40, 1), (19, 0)] {
            damaged = damaged.step(&changed(opcode, at, 9, sealed)).transmit();
        }
    }
    add("damaged", damaged);
    let read = request(RC, ALL, 700);
    add(
        "reads-again-and-out-of-order",
        Program::new(0)
            .packet(byte("RC READ_REQUEST"), read)
            .packet(byte("RC READ_REQUEST"), PacketStep { psn: -3, ..read })
            .packet(byte("RC FETCH_ADD"), request(RC, ALL, 1))
            .packet(byte("RC FETCH_ADD"), PacketStep { psn: -1, ..request(RC, ALL, 1) })
            .packet(byte("RC WRITE_ONLY"), PacketStep { psn: 2, ..request(RC, ALL, 9) })
            .transmit()
            .packet(byte("RC WRITE_ONLY"), request(RC, ALL, 9))
            .packet(byte("RC READ_REQUEST"), PacketStep { psn: -2, ..read })
            .step(&[op::TRANSMIT, 1])
            .transmit(),
    );
    add(
        "flushes-and-atomic-writes-again",
        Program::new(Setup::PLACEMENT)
            .packet(byte("RC FLUSH"), PacketStep { syndrome: 4, ..request(RC, ALL, 64) })
            .packet(byte("RC ATOMIC_WRITE"), request(RC, ALL, 8))
            .packet(byte("RC ATOMIC_WRITE"), PacketStep { psn: -1, ..request(RC, ALL, 8) })
            .transmit()
            .packet(byte("RC FLUSH"), PacketStep { syndrome: 5 | 8, ..request(RC, ALL, 0) })
            .packet(byte("RC FLUSH"), PacketStep { psn: -1, syndrome: 5 | 8, ..request(RC, ALL, 0) })
            .transmit(),
    );
    add(
        "read-of-a-region-that-is-deregistered",
        Program::new(0)
            .packet(byte("RC READ_REQUEST"), request(RC, 1, 1000))
            .step(&[op::TRANSMIT, 1, op::KEY, RC, 0, 1, 0])
            .transmit(),
    );
    add(
        "replies-of-a-destroyed-queue-pair",
        Program::new(0)
            .packet(byte("RC READ_REQUEST"), read)
            .step(&[op::RECREATE, RC, op::TRANSMIT, 2])
            .wait(300)
            .transmit(),
    );
    let window = |key: u8| request(RC, key, 100);
    add(
        "windows",
        Program::new(0)
            .step(&[op::KEY, RC, 4, 0, 0, op::KEY, RC, 4, 1, 0])
            .packet(byte("RC WRITE_ONLY"), window(WINDOWS[0]))
            .packet(byte("RC WRITE_ONLY"), PacketStep { qp: SHARED, ..window(WINDOWS[1]) })
            .packet(byte("RC WRITE_ONLY"), window(WINDOWS[1]))
            .packet(byte("RC READ_REQUEST"), window(WINDOWS[1]))
            .recv(RC, (LOCAL, 100))
            .packet(byte("RC SEND_ONLY_INVALIDATE"), window(WINDOWS[1]))
            .transmit()
            .packet(byte("RC READ_REQUEST"), window(WINDOWS[1]))
            .transmit(),
    );
    add(
        "fast-registration-mr-is-invalidated",
        Program::new(0)
            .packet(byte("RC WRITE_ONLY"), request(RC, FAST, 100))
            .recv(RC, (FAST, 100))
            .packet(byte("RC SEND_ONLY_INVALIDATE"), request(RC, FAST, 50))
            .step(&[op::KEY, RC, 3, 0, 1])
            .packet(byte("RC WRITE_ONLY"), request(RC, FAST, 100))
            .transmit(),
    );
    let mut shared = Program::new(Setup::LARGE_MTU);
    for qp in [SHARED, UC_SHARED, SHARED, LOSSY, LOSSY, LOSSY, LOSSY, LOSSY, LOSSY] {
        let send = byte(if qp == UC_SHARED { "UC SEND_ONLY" } else { "RC SEND_ONLY" });
        shared = shared.shared_recv((LOCAL, 100)).recv(qp, (ALL, 100)).packet(send, request(qp, ALL, 64));
    }
    add("shared-receive-queue-and-a-full-completion-queue", shared.transmit().step(&[op::POLL, 9]));
    let datagram = request(UD, ALL, 200);
    add(
        "datagrams-and-a-multicast-group",
        Program::new(Setup::IPV6)
            .recv(UD, (LOCAL, 300))
            .recv(UD, (LOCAL, 300))
            .recv(UD, (LOCAL, 200))
            .step(&[op::SET, UD, 1, 0])
            .packet(byte("UD SEND_ONLY"), datagram)
            .packet(byte("UD SEND_ONLY_IMM"), PacketStep { flags: flag::MULTICAST, ..datagram })
            .packet(byte("UD SEND_ONLY"), datagram),
    );
    add(
        "peer-type-is-detected",
        Program::new(0)
            .recv(RC, (LOCAL, 300))
            .step(&[op::SET, RC, 7, 0])
            .packet(byte("UC WRITE_ONLY"), request(RC, ALL, 10))
            .packet(byte("UD SEND_ONLY"), request(RC, ALL, 10)),
    );
    add(
        "refused-on-purpose",
        Program::new(0)
            .step(&[op::REFUSE, 1])
            .step(&PacketStep { opcode: byte("RC WRITE_ONLY"), ..request(RC, ALL, 5) }.to_bytes())
            .transmit()
            .packet(byte("RC WRITE_ONLY"), PacketStep { flags: flag::MARKED, ..request(RC, ALL, 5) })
            .transmit(),
    );
    corpus
}

/// Our own requests.
pub fn requester() -> Corpus {
    let mut corpus = BTreeMap::new();
    captures(&mut corpus, false);
    let mut add = |name: &str, program: Program| assert!(corpus.insert(name.to_owned(), program.0).is_none(), "{name}");
    let send = |op: u8| SendStep { qp: RC, op, flags: 1, key: ALL, offset: 0 };
    let response = PacketStep { qp: RC, payload: 0, syndrome: 0x1F, ..PacketStep::default() };
    let ack = byte("RC ACKNOWLEDGE");

    let mut every = Program::new(Setup::PLACEMENT | Setup::CREDITS);
    for operation in 0..14 {
        let buffer = if matches!(operation, 6..=8) { 8 } else { 64 };
        every = every.send(send(operation), (LOCAL, if matches!(operation, 9 | 11..=13) { 0 } else { buffer }));
        every = every.transmit().packet(ack, response);
    }
    add("every-operation", every);

    let mut reflected = Program::new(Setup::PLACEMENT | Setup::SIGNAL_ALL);
    for operation in [0, 3, 5, 7, 8] {
        let len = if operation > 5 { 8 } else { 600 };
        reflected = reflected.recv(RC, (LOCAL, 700)).send(send(operation), (ALL, len));
        reflected = reflected.step(&[op::REFLECT, 0, RC, 0]).step(&[op::REFLECT, 0, RC, 0]);
    }
    add("frames-come-back", reflected);

    let first = PacketStep { payload: 0, ..response };
    add(
        "read-response-of-several-packets",
        Program::new(0)
            .send(send(5), (LOCAL, 600))
            .transmit()
            .packet(byte("RC READ_RESPONSE_FIRST"), first)
            .packet(byte("RC READ_RESPONSE_LAST"), PacketStep { psn: 1, payload: 88 + 2, ..first })
            .packet(byte("RC READ_RESPONSE_MIDDLE"), first)
            .packet(byte("RC READ_RESPONSE_LAST"), PacketStep { payload: 88 + 2, ..first })
            .send(send(7), (LOCAL, 8))
            .transmit()
            .packet(byte("RC ATOMIC_ACKNOWLEDGE"), response),
    );
    add(
        "naks",
        Program::new(0)
            .send(send(3), (ALL, 600))
            .send(send(0), (ALL, 30))
            .transmit()
            .packet(ack, PacketStep { psn: 1, syndrome: 0x60, ..response })
            .transmit()
            .packet(ack, PacketStep { psn: 3, syndrome: 0x21, ..response })
            .wait(5)
            .transmit()
            .packet(ack, PacketStep { psn: 3, ..response })
            .send(send(0), (ALL, 30))
            .transmit()
            .packet(ack, PacketStep { syndrome: 0x62, ..response }),
    );
    let mut not_ready = Program::new(0).send(send(0), (ALL, 30));
    for _ in 0..5 {
        not_ready = not_ready.transmit().packet(ack, PacketStep { syndrome: 0x21, ..response }).wait(5);
    }
    add("a-receiver-that-is-never-ready", not_ready);
    add(
        "a-closed-window",
        Program::new(0)
            .send(send(3), (ALL, 4000))
            .send(send(3), (ALL, 4000))
            .send(send(3), (ALL, 4000))
            .transmit()
            .transmit()
            .packet(ack, PacketStep { psn: 31, ..response })
            .transmit(),
    );
    let mut silent = Program::new(0).send(send(3), (ALL, 600)).send(send(5), (LOCAL, 600));
    for _ in 0..6 {
        silent = silent.transmit().wait(50);
    }
    add("a-peer-that-does-not-answer", silent);
    add(
        "draining",
        Program::new(0)
            .send(send(3), (ALL, 600))
            .step(&[op::TRANSMIT, 1, op::MODIFY, RC, TO_SQD])
            .send(send(3), (ALL, 10))
            .transmit()
            .packet(ack, PacketStep { psn: 2, ..response })
            .step(&[op::MODIFY, RC, RESUME])
            .transmit(),
    );
    add(
        "unreliable-services",
        Program::new(0)
            .send(SendStep { qp: UC, ..send(3) }, (ALL, 600))
            .send(SendStep { qp: UC, ..send(1) }, (ALL, 60))
            .send(SendStep { qp: UD, ..send(10) }, (ALL, 60))
            .send(SendStep { qp: UD, ..send(10) }, (11, 60))
            .send(SendStep { qp: UD, ..send(10) }, (ALL, 60))
            .transmit()
            .step(&[op::MODIFY, UD, RESUME]),
    );
    add(
        "a-probed-peer-and-a-bad-key",
        Program::new(0).step(&[op::SET, RC, 0, 0]).wait(6).transmit().wait(6).send(send(0), (11, 60)).transmit(),
    );
    corpus
}
