//! The parts of a random program, and how they are drawn.

use proptest::prelude::*;
use rxe_proto::Duration;
use rxe_proto::transport::{CongestionControl, DelayControl, QpType, SendFlags};
use rxe_proto::wire::PathMtu;

use crate::harness::pair::Link;

/// Two ends, the link between them, and what both post.
#[derive(Clone, Debug)]
pub struct Program {
    /// For memory contents, cuts and the link.
    pub seed: u64,
    pub mtu: PathMtu,
    pub link: Link,
    pub recv_timing: RecvTiming,
    pub ends: [EndPlan; 2],
    pub connections: Vec<Connection>,
}

/// When receives are posted.
#[derive(Clone, Copy, Debug)]
pub enum RecvTiming {
    Early,
    /// All of them, late.
    Late(Duration),
    /// One at each end, again and again after this time.
    Trickle(Duration),
}

#[derive(Clone, Debug)]
pub struct EndPlan {
    pub credits: bool,
    pub window: u32,
    pub ack_every: u32,
    pub quantum: u32,
    pub congestion: CongestionControl,
    pub short_first: bool,
    /// More receives than messages.
    pub spare: usize,
}

/// A pair of queue pairs. Those of UD are no pair: datagrams go to any UD queue pair of the other end.
#[derive(Clone, Debug)]
pub struct Connection {
    pub qp_type: QpType,
    pub psn: [u32; 2],
    /// READs and atomics that each end may have outstanding.
    pub rd_atomic: [u8; 2],
    /// Send queue of each end: what does not fit is posted when something has completed.
    pub depth: [u32; 2],
    pub sig_all: bool,
    /// Whether its receives come from the queue that the end's queue pairs share.
    pub srq: [bool; 2],
    pub steps: [Vec<Step>; 2],
}

#[derive(Clone, Copy, Debug)]
pub struct Step {
    pub op: Op,
    pub size: Size,
    pub flags: SendFlags,
    /// With inline data, if it is not too long.
    pub inline: bool,
    /// How many buffers the message is cut into.
    pub cuts: usize,
    /// Time before the next one may be posted.
    pub pause: Duration,
}

/// Operation of a step. A new operation needs an arm here, one in `TestEnv::place`, which lays out its memory, one in
/// `TestEnv::post`, and one in `check::effects`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    /// SEND; with immediate data, the number of the step.
    Send {
        imm: bool,
    },
    /// To a part of the peer's memory that nothing else uses.
    Write {
        imm: bool,
    },
    /// To one of three places that other steps of this end write and read as well.
    WriteShared {
        place: usize,
    },
    /// From memory of the peer's that no step writes.
    Read,
    ReadShared {
        place: usize,
    },
    /// On one of three words that this end alone uses. Whether the comparison holds.
    CompareSwap {
        cell: usize,
        equal: bool,
    },
    FetchAdd {
        cell: usize,
        add: u64,
    },
    /// 8 bytes to a part of the peer's memory that nothing else uses.
    AtomicWrite,
    /// A FLUSH of the word that all count in.
    Flush,
    /// SEND that invalidates a fast-registration MR of its own at the peer.
    SendInvalidate,
    /// On a word that all queue pairs of the end use.
    Count {
        add: u32,
    },
    /// To the UD queue pair of this number (modulo how many there are), with its Q_Key: in the work request, or by the
    /// bit that says the sender's own, which is the same.
    Datagram {
        to: usize,
        imm: bool,
        own_qkey: bool,
    },
}

impl Op {
    pub fn takes_receive(self) -> bool {
        matches!(self, Op::Send { .. } | Op::SendInvalidate | Op::Write { imm: true } | Op::Datagram { .. })
    }

    pub fn is_atomic(self) -> bool {
        matches!(self, Op::CompareSwap { .. } | Op::FetchAdd { .. } | Op::Count { .. })
    }

    /// Whether bytes of the poster go to the peer.
    pub fn sends_data(self) -> bool {
        !self.is_atomic() && !matches!(self, Op::Read | Op::ReadShared { .. } | Op::Flush)
    }
}

/// Lengths, of which those around whole packets matter most.
#[derive(Clone, Copy, Debug)]
pub enum Size {
    Small(usize),
    Packets {
        n: usize,
        more: i8,
    },
    /// Of three packets, in 2^16ths.
    Part(u16),
}

impl Size {
    pub const MOST_PACKETS: usize = 12;

    pub fn bytes(self, mtu: usize) -> usize {
        match self {
            Size::Small(len) => len,
            Size::Packets { n, more } => (n * mtu).saturating_add_signed(more.into()).min(Size::MOST_PACKETS * mtu),
            Size::Part(part) => (usize::from(part) * 3 * mtu) >> 16,
        }
    }
}

pub const PLACES: usize = 3;
pub const CELLS: usize = 3;

fn op(qp_type: QpType) -> BoxedStrategy<Op> {
    let imm = any::<bool>;
    let message = prop_oneof![imm().prop_map(|imm| Op::Send { imm }), imm().prop_map(|imm| Op::Write { imm })];
    match qp_type {
        QpType::Rc => prop_oneof![
            4 => message,
            2 => (0..PLACES).prop_map(|place| Op::WriteShared { place }),
            1 => Just(Op::Read),
            2 => (0..PLACES).prop_map(|place| Op::ReadShared { place }),
            1 => (0..CELLS, any::<bool>()).prop_map(|(cell, equal)| Op::CompareSwap { cell, equal }),
            1 => (0..CELLS, any::<u64>()).prop_map(|(cell, add)| Op::FetchAdd { cell, add }),
            1 => (1..u32::MAX).prop_map(|add| Op::Count { add }),
            1 => Just(Op::AtomicWrite),
            1 => Just(Op::Flush),
            1 => Just(Op::SendInvalidate),
        ]
        .boxed(),
        QpType::Uc => message.boxed(),
        QpType::Ud => {
            let datagram = |(to, imm, own_qkey)| Op::Datagram { to, imm, own_qkey };
            (0..3usize, any::<bool>(), any::<bool>()).prop_map(datagram).boxed()
        }
    }
}

fn step(qp_type: QpType) -> impl Strategy<Value = Step> {
    let size = prop_oneof![
        4 => (0..40usize).prop_map(Size::Small),
        4 => (1..=4usize, -1..2i8).prop_map(|(n, more)| Size::Packets { n, more }),
        1 => (5..=Size::MOST_PACKETS, -1..2i8).prop_map(|(n, more)| Size::Packets { n, more }),
        4 => any::<u16>().prop_map(Size::Part),
    ];
    let flags = (any::<bool>(), prop::bool::weighted(0.2), prop::bool::weighted(0.2)).prop_map(
        |(signaled, fence, solicited)| {
            let mut flags = SendFlags::empty();
            flags.set(SendFlags::SIGNALED, signaled);
            flags.set(SendFlags::FENCE, fence);
            flags.set(SendFlags::SOLICITED, solicited);
            flags
        },
    );
    let cuts = prop_oneof![3 => Just(1), 2 => 1..5usize, 1 => 1..=16usize];
    let pause = prop_oneof![3 => Just(0), 1 => 0..60u64].prop_map(Duration::from_micros);
    (op(qp_type), size, flags, prop::bool::weighted(0.3), cuts, pause)
        .prop_map(|(op, size, flags, inline, cuts, pause)| Step { op, size, flags, inline, cuts, pause })
}

fn connection(qp_type: QpType) -> impl Strategy<Value = Connection> {
    let psn = || prop_oneof![0..0x100_0000u32, 0xFF_FF00..0x100_0000u32];
    let rd_atomic = || prop_oneof![1..5u8, 1..=128u8];
    let depth = || prop_oneof![1..6u32, Just(32)];
    let srq = || prop::bool::weighted(0.4);
    let steps = || prop::collection::vec(step(qp_type), 0..14);
    (
        [psn(), psn()],
        [rd_atomic(), rd_atomic()],
        [depth(), depth()],
        prop::bool::weighted(0.2),
        [srq(), srq()],
        [steps(), steps()],
    )
        .prop_map(move |(psn, rd_atomic, depth, sig_all, srq, steps)| Connection {
            qp_type,
            psn,
            rd_atomic,
            depth,
            sig_all,
            srq,
            steps,
        })
}

fn link() -> impl Strategy<Value = Link> {
    let ppm = |most: u32| prop_oneof![Just(0), 0..most];
    let micros = |range: std::ops::Range<u64>| range.prop_map(Duration::from_micros);
    let damage = (ppm(150_000), ppm(100_000), ppm(100_000), ppm(30_000));
    (damage, micros(0..20), any::<bool>(), bursty()).prop_map(
        |((loss, duplicate, reorder, corrupt), jitter, jitters, link)| Link {
            loss,
            duplicate,
            reorder,
            corrupt,
            jitter: if jitters { jitter } else { Duration::ZERO },
            mercy: Some(2),
            ..link
        },
    )
}

/// Time between two bursts that are reordered in which everything has been repeated that the first one cost.
pub const SETTLING: Duration = Duration::from_millis(1);

/// Nothing is lost, but frames change places within bursts, some come twice, some are marked, ports refuse frames for a while, and hosts pause.
fn bursty() -> impl Strategy<Value = Link> {
    let ppm = |most: u32| prop_oneof![Just(0), 0..most];
    let micros = |range: std::ops::Range<u64>| range.prop_map(Duration::from_micros);
    let burst = prop_oneof![2 => Just(64usize), 1 => 1..64usize];
    let poll = prop_oneof![1 => Just(0u64), 1 => 0..10u64].prop_map(Duration::from_micros);
    let shuffle_pause = prop_oneof![2 => Just(SETTLING), 1 => Just(Duration::ZERO)];
    let refuse = (ppm(300_000), micros(1..50));
    // Longer than the shortest retransmission timeout, and than the ACK timeout.
    let pause = (prop_oneof![3 => Just(0), 1 => 0..5_000u32], micros(1..2_000));
    let mark = prop_oneof![3 => Just(0), 1 => 0..100_000u32];
    (ppm(50_000), micros(1..11), burst, poll, (ppm(700_000), shuffle_pause), refuse, pause, mark).prop_map(
        |(duplicate, delay, burst, poll, (shuffle, shuffle_pause), (refuse, refuse_for), (pause, pause_for), mark)| {
            Link {
                duplicate,
                delay,
                burst,
                poll,
                shuffle,
                shuffle_pause,
                refuse,
                refuse_for,
                pause,
                pause_for,
                mark,
                ..Link::default()
            }
        },
    )
}

fn end() -> impl Strategy<Value = EndPlan> {
    let window = prop_oneof![Just(128u32), 1..128u32];
    let ack_every = prop_oneof![Just(64u32), 1..64u32];
    let target = Duration::from_micros(30);
    let congestion = prop_oneof![
        Just(CongestionControl::Off),
        Just(CongestionControl::default()),
        Just(CongestionControl::Delay(DelayControl { target, scaling: target })),
    ];
    ((any::<bool>(), prop::bool::weighted(0.8)), window, ack_every, 1..17u32, congestion, 0..3usize).prop_map(
        |((credits, short_first), window, ack_every, quantum, congestion, spare)| EndPlan {
            credits,
            window,
            ack_every,
            quantum,
            congestion,
            short_first,
            spare,
        },
    )
}

/// Programs whose queue pairs are of these types.
pub fn program(types: &'static [QpType]) -> impl Strategy<Value = Program> {
    let recv_timing = prop_oneof![
        3 => Just(RecvTiming::Early),
        1 => (0..3000u64).prop_map(|micros| RecvTiming::Late(Duration::from_micros(micros))),
        1 => (1..200u64).prop_map(|micros| RecvTiming::Trickle(Duration::from_micros(micros))),
    ];
    let connections = prop::collection::vec(prop::sample::select(types).prop_flat_map(connection), 1..4).prop_map(
        |mut connections| {
            // Three at once are shorter, so that all programs take about as long.
            let most = 28 / connections.len();
            for connection in &mut connections {
                connection.steps.iter_mut().for_each(|steps| steps.truncate(most));
            }
            connections
        },
    );
    let perfect = Link { delay: Duration::from_micros(2), ..Link::default() };
    let link = prop_oneof![5 => link(), 2 => bursty(), 1 => Just(perfect)];
    (any::<u64>(), prop::sample::select(&PathMtu::ALL[..]), link, recv_timing, [end(), end()], connections).prop_map(
        |(seed, mtu, link, recv_timing, ends, connections)| Program { seed, mtu, link, recv_timing, ends, connections },
    )
}
