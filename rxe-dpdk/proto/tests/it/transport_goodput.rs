//! The cost of losses, in virtual time: one packet of a READ, the last packet of a message, and a share of all packets.
//!
//! The link has 100 Gb/s and 10 microseconds each way. Nothing else takes time, so the numbers say what the protocol
//! makes of a link, not what a machine does.

use std::fmt::Write;

use crate::harness::Agreed;
use crate::harness::rated::{LinkParams, RatedPair};
use rxe_proto::Duration;
use rxe_proto::transport::{EngineConfig, RemoteAddr, SendOp, WcStatus};
use rxe_proto::wire::{Opcode, PathMtu, Psn};

const LINE: LinkParams = LinkParams { rate: 100_000, delay: Duration::from_micros(10), loss: 0 };
const LARGEST: usize = 1 << 20;

/// As with rdma_cm: ACK timeout code 19 is 2.15 s.
fn agreed(mtu: PathMtu) -> Agreed {
    Agreed { mtu, timeout: 19, rd_atomic: 16, sq_psn: Psn::new(0xFF_FF00), ..Agreed::default() }
}

fn pair(seed: u64, mtu: PathMtu, loss: u32) -> RatedPair {
    RatedPair::new(seed, &agreed(mtu), &EngineConfig::default(), 128, LARGEST, LinkParams { loss, ..LINE })
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Op {
    Write,
    Read,
    Send,
}

fn post(pair: &mut RatedPair, op: Op, len: usize) {
    let [a, b] = &mut pair.nodes;
    let remote = RemoteAddr { addr: b.region.addr(), rkey: b.region.rkey() };
    let op = match op {
        Op::Write => SendOp::Write { remote, imm: None },
        Op::Read => SendOp::Read { remote },
        Op::Send => SendOp::Send { imm: None },
    };
    a.post_send(0, op, &[a.sge(0, len)]);
}

fn post_receive(pair: &mut RatedPair, len: usize) {
    let b = &mut pair.nodes[1];
    b.post_recv(0, &[b.sge(0, len)]);
}

/// Does `count` operations of `len` bytes, as many at once as the queues hold. Returns how long they took.
fn run(pair: &mut RatedPair, op: Op, len: usize, count: usize) -> Duration {
    let start = pair.now;
    let (mut posted, mut done) = (0, 0);
    if op == Op::Send {
        for _ in 0..128 {
            post_receive(pair, len);
        }
    }
    while done < count {
        while posted < count && posted - done < 128 {
            post(pair, op, len);
            posted += 1;
        }
        assert!(
            pair.step() && pair.now - start < Duration::from_secs(10),
            "{op:?} {len}: {:?}",
            pair.nodes[0].engine.stats()
        );
        for wc in std::mem::take(&mut pair.nodes[0].completions) {
            assert_eq!(wc.status, WcStatus::Success);
            done += 1;
        }
        for wc in std::mem::take(&mut pair.nodes[1].completions) {
            assert_eq!(wc.status, WcStatus::Success);
            post_receive(pair, len);
        }
    }
    pair.now - start
}

/// How long an operation takes when the frame from end `from` that `lost` picks is lost, and how often the timer ran
/// out. Ten operations before it have shown how long a round trip takes.
fn with_loss(op: Op, len: usize, from: usize, mut lost: impl FnMut(Opcode, Psn) -> bool + 'static) -> (Duration, u64) {
    let mut pair = pair(1, PathMtu::Mtu1024, 0);
    run(&mut pair, Op::Read, 1, 10);
    let mut gone = false;
    pair.drop_filter = Box::new(move |end, packet| {
        let this = !gone && end == from && lost(packet.opcode(), packet.psn());
        gone |= this;
        this
    });
    let took = run(&mut pair, op, len, 1);
    (took, pair.nodes[0].stat("timeouts"))
}

#[test]
fn a_gap_in_a_read_response_costs_one_round_trip() {
    const PACKETS: u32 = 64;
    let len = PACKETS as usize * 1024;
    let first = Psn::new(0xFF_FF00 + 10);
    let (without, _) = with_loss(Op::Read, len, 1, |_, _| false);
    let line = pair(1, PathMtu::Mtu1024, 0);
    // A READ request, and a MIDDLE of the responses: Ethernet, IPv4, UDP, BTH, RETH or payload, ICRC.
    let (request, response) =
        (line.serialization(14 + 20 + 8 + 12 + 16 + 4), line.serialization(14 + 20 + 8 + 12 + 1024 + 4));
    for missing in 0..PACKETS - 1 {
        let (took, timeouts) = with_loss(Op::Read, len, 1, move |_, psn| psn == first.add(missing));
        assert_eq!(timeouts, 0, "response {missing}");
        // The next response shows the gap; the request goes there, waits for the one that is being sent, and what is
        // missing comes back.
        let cost = took - without;
        let least = 2 * LINE.delay + request + response;
        // FIRST carries four bytes of AETH, a fraction of a nanosecond is cut off each time.
        let most = least + response + Duration::from_nanos(5);
        assert!(
            cost >= least - Duration::from_nanos(5) && cost <= most,
            "response {missing}: {cost:?}, not {least:?}..{most:?}"
        );
    }
}

/// No later packet shows the loss, and the ACK timeout is 2.15 s; the round trip takes 20 microseconds.
#[test]
fn a_loss_at_the_end_of_a_message_costs_a_millisecond() {
    use Opcode::*;
    let first = Psn::new(0xFF_FF00 + 10);
    type Lost = fn(Opcode) -> bool;
    let cases: [(Op, usize, Lost); 6] = [
        (Op::Send, 0, |op| op == SendLast),
        (Op::Write, 0, |op| op == WriteLast),
        (Op::Write, 1, |op| op == Acknowledge),
        (Op::Read, 0, |op| op == ReadRequest),
        (Op::Read, 1, |op| op == ReadResponseLast),
        (Op::Read, 1, |op| op == ReadResponseFirst),
    ];
    for (op, from, lost) in cases {
        let (without, _) = with_loss(op, 3000, from, |_, _| false);
        let (took, timeouts) = with_loss(op, 3000, from, move |op, _| lost(op));
        let cost = took - without;
        // The loss of a READ response's first packet is detected at once.
        let is_gap = op == Op::Read && from == 1 && lost(ReadResponseFirst);
        assert_eq!(timeouts, u64::from(!is_gap), "{op:?} from {from}");
        let most = if is_gap { Duration::from_micros(21) } else { Duration::from_micros(1021) };
        assert!(cost <= most, "{op:?} from {from}: {cost:?}");
    }
    // Everything at once: a message of one packet, and then its ACK.
    let (took, timeouts) = with_loss(Op::Write, 1, 0, move |_, psn| psn == first);
    assert!(took < Duration::from_micros(1041) && timeouts == 1, "{took:?}");
}

#[test]
fn goodput() {
    const SIZES: [(&str, usize, usize); 4] =
        [("64 B", 64, 2000), ("4 KiB", 4096, 1000), ("64 KiB", 1 << 16, 128), ("1 MiB", LARGEST, 16)];
    const LOSSES: [u32; 4] = [0, 1_000, 10_000, 50_000];
    let mut table = String::from(
        "\
Payload per virtual time at 100 Gb/s and 10 us each way, 128 work requests at once: Gb/s without loss, and what is
left of that with losses in both directions.

           path MTU 1024                    path MTU 4096
           no loss    0.1 %    1 %    5 %   no loss    0.1 %    1 %    5 %
",
    );
    for op in [Op::Write, Op::Read, Op::Send] {
        writeln!(table, "{op:?}").unwrap();
        for (name, len, count) in SIZES {
            write!(table, "{name:>8}").unwrap();
            for mtu in [PathMtu::Mtu1024, PathMtu::Mtu4096] {
                let mut lossless = 0.0;
                for loss in LOSSES {
                    let mut pair = pair(u64::from(loss), mtu, loss);
                    let took = run(&mut pair, op, len, count);
                    let gigabits = (len * count * 8) as f64 / took.as_nanos() as f64;
                    if loss == 0 {
                        lossless = gigabits;
                        write!(table, "{gigabits:>10.2}").unwrap();
                    } else {
                        write!(table, "{:>7.1}%", 100.0 * gigabits / lossless).unwrap();
                    }
                }
            }
            table.push('\n');
        }
    }
    insta::assert_snapshot!(table);
}
