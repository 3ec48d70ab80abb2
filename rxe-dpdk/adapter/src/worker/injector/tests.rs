use std::net::Ipv4Addr;

use rxe_proto::transport::{Qpn, RequestRefusal};
use rxe_proto::wire::{BthFields, BthOpcode, DEFAULT_PKEY, Gid, HeaderTemplate, MacAddr, Opcode, Path, Psn};

use super::*;

/// A frame that is no RoCE packet: its number in the last bytes, zeros before.
type Numbered = Vec<u8>;

const LEN: usize = 100;

impl Packet for Numbered {
    fn bytes(&self) -> &[u8] {
        self
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        self
    }

    fn try_copy(&self) -> Option<Numbered> {
        Some(self.clone())
    }
}

fn numbered(number: u32) -> Numbered {
    let mut frame = vec![0; LEN];
    frame[LEN - 4..].copy_from_slice(&number.to_be_bytes());
    frame
}

fn number(frame: &Numbered) -> u32 {
    u32::from_be_bytes([frame[LEN - 4], frame[LEN - 3], frame[LEN - 2], frame[LEN - 1]])
}

fn rule(action: FaultAction) -> FaultRule {
    FaultRule::new(action, Direction::Rx)
}

/// The action for this share of all frames.
fn some(action: FaultAction, share: f64) -> FaultRule {
    let matches = FaultMatch { scope: FaultScope::All, ..FaultMatch::default() };
    FaultRule { matches, probability: Probability::from_share(share).unwrap(), ..rule(action) }
}

fn late(delay: Duration, jitter: Duration) -> FaultAction {
    FaultAction::Delay { delay, jitter }
}

fn seeded(seed: u64, rules: &[FaultRule]) -> Vec<Arc<ActiveFault>> {
    let rules = rules.iter().map(|rule| FaultRule { seed, ..rule.clone() });
    (1..).zip(rules).map(|(id, rule)| Arc::new(ActiveFault::new(id, rule))).collect()
}

fn injector_at<P: Packet>(direction: Direction, worker: usize, port: u16, faults: &[Arc<ActiveFault>]) -> Injector<P> {
    let mut injector = Injector::new(direction, worker, PortId(port), Room::WIDE, Arc::default());
    injector.set_rules(faults);
    injector
}

fn injector(seed: u64, worker: usize, rules: &[FaultRule]) -> Injector<Numbered> {
    injector_at(Direction::Rx, worker, 0, &seeded(seed, rules))
}

fn at(micros: u64) -> Instant {
    Instant::ZERO + Duration::from_micros(micros)
}

fn drain(injector: &mut Injector<Numbered>, now: Instant) -> Vec<Numbered> {
    std::iter::from_fn(|| injector.next(now)).collect()
}

/// Passes `count` frames, one per microsecond. Returns the frames that leave, with their times in microseconds.
fn pass(injector: &mut Injector<Numbered>, count: u32) -> Vec<(u64, Numbered)> {
    let mut out = Vec::new();
    let mut time = 0;
    while time < u64::from(count) || injector.held() > 0 {
        if time < u64::from(count) {
            injector.accept(at(time), numbered(time as u32));
        }
        out.extend(drain(injector, at(time)).into_iter().map(|frame| (time, frame)));
        time += 1;
    }
    out
}

fn numbers(out: &[(u64, Numbered)]) -> Vec<u32> {
    out.iter().map(|(_, frame)| number(frame)).collect()
}

/// Half to double: 20,000 frames at 1 % leave it once in more than 10^20 seeds.
fn about(count: u64, of: u32, share: f64) {
    let expected = f64::from(of) * share;
    assert!((expected / 2.0..expected * 2.0).contains(&(count as f64)), "{count} of {of} at {share}");
}

fn balanced(stats: &FaultStats) {
    let all = stats.frames.get() + stats.out_of_scope.get() + stats.duplicated.get();
    assert_eq!(all, stats.dropped.get() + stats.delivered.get(), "{stats:?}");
}

const COUNT: u32 = 20_000;

fn every_fault() -> Vec<FaultRule> {
    vec![
        some(FaultAction::Drop, 0.01),
        some(FaultAction::Duplicate, 0.02),
        some(FaultAction::Reorder, 0.03),
        some(FaultAction::Corrupt, 0.04),
        some(late(Duration::from_micros(50), Duration::from_micros(20)), 0.05),
    ]
}

#[test]
fn frames_that_pass_unchanged_need_not_enter_and_nothing_else_is_different() {
    // 4 frames arrive at once, every 100 us: often nothing is held.
    let (mut entering, mut judging) = (injector(1, 0, &every_fault()), injector(1, 0, &every_fault()));
    let mut passed = 0;
    for burst in 0..COUNT / 4 {
        let (frames, now) = (4 * burst..4 * burst + 4, at(100 * u64::from(burst)));
        let mut left = Vec::new();
        for frame in frames.map(numbered) {
            entering.accept(now, frame.clone());
            match judging.judge(&frame, &classify(&frame)) {
                Judged::Passes => {
                    passed += 1;
                    left.push(frame);
                }
                Judged::Dropped => {}
                Judged::Enters(entry) => judging.enter(now, frame, entry),
            }
        }
        left.extend(drain(&mut judging, now));
        assert_eq!(left, drain(&mut entering, now));
        assert_eq!(judging.held(), entering.held());
    }
    assert_eq!(drain(&mut judging, FOREVER), drain(&mut entering, FOREVER));
    assert_eq!(format!("{:?}", judging.stats()), format!("{:?}", entering.stats()));
    assert!(passed > COUNT / 2, "{passed}");
    balanced(judging.stats());
}

#[test]
fn rates_are_kept_and_every_frame_is_accounted_for() {
    let mut injector = injector(1, 0, &every_fault());
    let out = pass(&mut injector, COUNT);
    let stats = injector.stats();
    balanced(stats);
    assert_eq!((stats.frames.get(), stats.delivered.get()), (COUNT.into(), out.len() as u64));
    about(stats.dropped.get(), COUNT, 0.01);
    about(stats.duplicated.get(), COUNT, 0.02);
    about(stats.reordered.get(), COUNT, 0.03);
    about(stats.corrupted.get(), COUNT, 0.04);
    about(stats.delayed.get(), COUNT, 0.05);
    assert_eq!((stats.released_early.get(), stats.not_duplicated.get(), stats.out_of_scope.get()), (0, 0, 0));
    // The counters agree with the frames.
    let mut seen = vec![0u64; COUNT as usize];
    let mut damaged = 0;
    for (_, frame) in &out {
        let flipped: u32 = frame[..LEN - 4].iter().map(|byte| byte.count_ones()).sum();
        assert!(frame[..ETHERNET] == [0; ETHERNET] && flipped <= 1);
        damaged += u64::from(flipped);
        if let Some(count) = seen.get_mut(number(frame) as usize) {
            *count += 1;
        }
    }
    // Some of the bits hit are in the number.
    assert!((stats.corrupted.get() / 2..=stats.corrupted.get()).contains(&damaged));
    let lost = seen.iter().filter(|count| **count == 0).count() as u64;
    assert!((stats.dropped.get()..stats.dropped.get() + stats.corrupted.get()).contains(&lost));
}

#[test]
fn choices_depend_on_seed_worker_port_and_direction() {
    let run = |seed, worker| pass(&mut injector(seed, worker, &every_fault()), COUNT);
    let first = run(7, 0);
    assert!(first == run(7, 0));
    assert!(first != run(8, 0));
    assert!(first != run(7, 1));
    for (direction, port) in [(Direction::Tx, 0), (Direction::Rx, 1)] {
        let rules: Vec<FaultRule> = every_fault().into_iter().map(|rule| FaultRule { direction, ..rule }).collect();
        let mut other = injector_at(direction, 0, port, &seeded(7, &rules));
        assert!(first != pass(&mut other, COUNT), "{direction:?} {port}");
    }
}

#[test]
fn drops_and_duplicates_keep_the_order_of_the_rest() {
    let rules = [some(FaultAction::Drop, 0.2), some(FaultAction::Duplicate, 0.2)];
    let out = pass(&mut injector(3, 0, &rules), COUNT);
    assert!(numbers(&out).is_sorted());
    assert!(out.iter().all(|(time, frame)| *time == u64::from(number(frame))), "no frame is delayed");
}

#[test]
fn a_fixed_delay_keeps_the_order_and_is_exact() {
    let rules = [some(late(Duration::from_micros(300), Duration::ZERO), 1.0)];
    let out = pass(&mut injector(4, 0, &rules), COUNT);
    assert_eq!(numbers(&out), (0..COUNT).collect::<Vec<_>>());
    assert!(out.iter().all(|(time, frame)| *time == u64::from(number(frame)) + 300));
}

#[test]
fn jitter_stays_within_its_bounds_and_reorders() {
    let (delay, jitter) = (Duration::from_micros(100), Duration::from_micros(40));
    let out = pass(&mut injector(5, 0, &[some(late(delay, jitter), 1.0)]), COUNT);
    let waits: Vec<u64> = out.iter().map(|(time, frame)| time - u64::from(number(frame))).collect();
    // A frame that is due within a microsecond leaves at its end.
    assert_eq!((waits.iter().min(), waits.iter().max()), (Some(&100), Some(&140)));
    assert!(!numbers(&out).is_sorted());
}

#[test]
fn a_reordered_frame_is_overtaken_by_one_to_four_later_ones() {
    let mut injector = injector(6, 0, &[some(FaultAction::Reorder, 0.05)]);
    let order = numbers(&pass(&mut injector, COUNT));
    let mut behind = [0u64; 6];
    for (place, number) in order.iter().enumerate() {
        // Those before it in the output that came after it.
        let overtakers = order[place.saturating_sub(20)..place].iter().filter(|other| *other > number).count();
        behind[overtakers.min(5)] += 1;
    }
    assert_eq!(behind[5], 0, "{behind:?}");
    assert!(behind[1..5].iter().all(|count| *count > 100), "{behind:?}");
    // A frame whose every overtaker was reordered too keeps its place.
    let reordered = injector.stats().reordered.get();
    assert!((reordered * 9 / 10..=reordered).contains(&behind[1..].iter().sum()), "{behind:?} of {reordered}");
}

#[test]
fn a_reordered_frame_waits_at_most_a_millisecond() {
    let mut injector = injector(6, 0, &[some(FaultAction::Reorder, 1.0)]);
    injector.accept(at(0), numbered(0));
    assert!(drain(&mut injector, at(999)).is_empty());
    assert_eq!(drain(&mut injector, at(1000)).len(), 1);
}

#[test]
fn held_frames_are_bounded_and_keep_their_order() {
    const BATCH: usize = Room::WIDE.batch;
    let rules = [some(late(Duration::from_secs(1), Duration::ZERO), 1.0), some(FaultAction::Duplicate, 0.5)];
    let mut injector = injector(7, 0, &rules);
    let mut out = Vec::new();
    for batch in 0..40 {
        for number in 0..BATCH as u32 {
            injector.accept(at(0), numbered(batch * BATCH as u32 + number));
            assert!(injector.held() <= Room::WIDE.max_held());
        }
        out.extend(drain(&mut injector, at(1)).iter().map(number));
        assert!(injector.held() <= Room::WIDE.capacity);
    }
    assert_eq!(injector.stats().released_early.get(), out.len() as u64);
    let capacities = [injector.undelayed.capacity(), injector.delayed.capacity()];
    assert_eq!(capacities, [Room::WIDE.max_held(); 2], "the queues have not grown");
    out.extend(drain(&mut injector, FOREVER).iter().map(number));
    assert!(out.is_sorted());
    balanced(injector.stats());
}

/// Frames that a rule delays are due among those that none does.
#[test]
fn delayed_and_undelayed_frames_leave_in_the_order_in_which_they_are_due() {
    let mut injector = injector(8, 0, &[some(late(Duration::from_micros(5), Duration::ZERO), 0.5)]);
    let mut due = Vec::new();
    for number in 0..100 {
        let now = at(u64::from(number));
        let delayed = injector.delayed.len();
        injector.accept(now, numbered(number));
        let late = if injector.delayed.len() > delayed { 5 } else { 0 };
        due.push((u64::from(number) + late, number));
    }
    assert!(!injector.delayed.is_empty() && !injector.undelayed.is_empty());
    due.sort_unstable();
    let out: Vec<u32> = drain(&mut injector, FOREVER).iter().map(number).collect();
    assert_eq!(out, due.iter().map(|(_, number)| *number).collect::<Vec<_>>());
}

#[test]
fn at_forever_every_frame_is_due() {
    let rules = [some(late(Duration::from_secs(3), Duration::ZERO), 1.0), some(FaultAction::Reorder, 0.5)];
    let mut injector = injector(8, 0, &rules);
    for number in 0..100 {
        assert!(injector.accept(at(0), numbered(number)));
    }
    assert!(drain(&mut injector, at(10)).is_empty());
    let mut out: Vec<u32> = drain(&mut injector, FOREVER).iter().map(number).collect();
    assert_eq!(injector.held(), 0);
    out.sort_unstable();
    assert_eq!(out, (0..100).collect::<Vec<_>>());
}

#[test]
fn frames_that_are_not_roce_pass_unless_the_scope_is_all() {
    let faults = seeded(0, &[rule(FaultAction::Drop)]);
    let mut injector = injector_at(Direction::Rx, 0, 0, &faults);
    assert!(injector.accept(at(0), numbered(1)));
    assert_eq!(drain(&mut injector, at(0)).len(), 1);
    assert_eq!((injector.stats().out_of_scope.get(), injector.stats().frames.get()), (1, 0));
    assert_eq!(faults[0].matched_and_hits(), (0, 0));
    balanced(injector.stats());
    assert!(Injector::<Numbered>::is_wanted(Direction::Rx, &faults));
    assert!(!Injector::<Numbered>::is_wanted(Direction::Tx, &faults));
    let refusal = seeded(0, &[rule(FaultAction::Refuse(RequestRefusal::RemoteAccess))]);
    assert!(!Injector::<Numbered>::is_wanted(Direction::Rx, &refusal), "refusals need no injector");
}

#[test]
fn a_frame_without_a_body_is_not_corrupted() {
    let mut injector = injector(9, 0, &[some(FaultAction::Corrupt, 1.0)]);
    for len in [0, ETHERNET] {
        assert!(injector.accept(at(0), vec![0; len]));
    }
    injector.accept(at(0), vec![0; ETHERNET + 1]);
    let damaged = drain(&mut injector, at(0)).concat();
    assert_eq!((injector.stats().corrupted.get(), damaged.iter().filter(|byte| **byte != 0).count()), (1, 1));
}

/// A RoCE packet with `payload`.
fn roce(op: Opcode, qpn: u32, psn: u32, payload: &[u8]) -> Numbered {
    let path = Path {
        port: PortId(0),
        src_mac: MacAddr([2, 0, 0, 0, 0, 1]),
        dst_mac: MacAddr([2, 0, 0, 0, 0, 2]),
        vlan: None,
        src: Gid::from(Ipv4Addr::new(10, 0, 0, 1)),
        dst: Gid::from(Ipv4Addr::new(10, 0, 0, 2)),
        udp_src_port: 0xC000,
        traffic_class: 0,
        flow_label: 0,
        hop_limit: 64,
    };
    let opcode = BthOpcode::rc(op);
    let fields =
        BthFields { opcode, dest_qp: qpn, psn: Psn::new(psn), solicited: false, ack_req: false, pkey: DEFAULT_PKEY };
    let template = HeaderTemplate::new(&path);
    let mut frame = vec![0; template.frame_len(opcode, payload.len())];
    let mut packet = template.build(&mut frame, fields, payload.len());
    packet.payload_mut().copy_from_slice(payload);
    packet.finish();
    frame
}

/// Passes `frames` at once through an injector with one rule. Returns the frames that leave, matches and hits.
fn through(rule: FaultRule, frames: &[Numbered]) -> (Vec<Numbered>, u64, u64) {
    let faults = seeded(rule.seed, std::slice::from_ref(&rule));
    let mut injector = injector_at(Direction::Rx, 0, 0, &faults);
    for frame in frames {
        injector.accept(at(0), frame.clone());
    }
    let out = drain(&mut injector, at(0));
    balanced(injector.stats());
    let (matched, hits) = faults[0].matched_and_hits();
    (out, matched, hits)
}

fn packet(frame: &Numbered) -> RocePacket<'_> {
    let Ok(Frame::Roce(packet)) = classify(frame) else { panic!("not a RoCE frame") };
    packet
}

#[test]
fn rules_match_opcodes_queue_pairs_and_psns() {
    let all: Vec<Numbered> = [Opcode::SendOnly, Opcode::SendMiddle]
        .into_iter()
        .flat_map(|op| (0..3).flat_map(move |qpn| (0..10).map(move |psn| roce(op, 0x10 + qpn, psn, b"data"))))
        .collect();
    let left = |matches: FaultMatch| {
        let (out, matched, hits) = through(FaultRule { matches, ..rule(FaultAction::Drop) }, &all);
        assert_eq!((matched, hits), (hits, (all.len() - out.len()) as u64));
        out
    };
    let opcodes = Some("RC SEND_ONLY".parse().unwrap());
    let psn = Some(PsnRange { first: Psn::new(8), last: Psn::new(2) });
    let qpn = Some(Qpn::new(0x11));
    let gone = |frame: &Numbered| {
        let packet = packet(frame);
        (packet.opcode() == Opcode::SendOnly, packet.dest_qp() == 0x11, matches!(packet.psn().get(), 8 | 9 | 0 | 1 | 2))
    };
    let out = left(FaultMatch { opcodes: opcodes.clone(), ..FaultMatch::default() });
    assert!(out.len() == 30 && out.iter().all(|frame| !gone(frame).0));
    let out = left(FaultMatch { qpn, ..FaultMatch::default() });
    assert!(out.len() == 40 && out.iter().all(|frame| !gone(frame).1));
    let out = left(FaultMatch { psn, ..FaultMatch::default() });
    assert!(out.len() == 30 && out.iter().all(|frame| !gone(frame).2));
    let out = left(FaultMatch { opcodes, qpn, psn, ..FaultMatch::default() });
    assert!(out.len() == 55 && out.iter().all(|frame| gone(frame) != (true, true, true)));
    assert_eq!(left(FaultMatch::default()), Vec::<Numbered>::new());
}

#[test]
fn a_rule_ends_with_its_count() {
    let frames: Vec<Numbered> = (0..10).map(|psn| roce(Opcode::SendOnly, 1, psn, b"data")).collect();
    let (out, matched, hits) = through(FaultRule { count: Some(3), ..rule(FaultAction::Drop) }, &frames);
    assert_eq!((out, matched, hits), (frames[3..].to_vec(), 3, 3));
    let half = Probability::from_share(0.5).unwrap();
    let (out, matched, hits) =
        through(FaultRule { count: Some(3), probability: half, ..rule(FaultAction::Drop) }, &frames);
    assert_eq!((out.len(), hits), (7, 3));
    assert!((4..10).contains(&matched), "{matched}");
}

#[test]
fn payload_and_icrc_are_corrupted_separately() {
    for (action, len) in
        [(FaultAction::CorruptPayload, 301), (FaultAction::CorruptIcrc, 0), (FaultAction::CorruptIcrc, 5)]
    {
        let frames: Vec<Numbered> = (0..200).map(|psn| roce(Opcode::SendOnly, 1, psn, &vec![7; len])).collect();
        let (out, _, hits) = through(rule(action), &frames);
        assert_eq!((out.len(), hits), (200, 200));
        let mut bytes = std::collections::HashSet::new();
        for (before, after) in frames.iter().zip(&out) {
            let within = if action == FaultAction::CorruptIcrc {
                packet(before).icrc_range()
            } else {
                packet(before).payload_range()
            };
            let differ: Vec<usize> = (0..before.len()).filter(|at| before[*at] != after[*at]).collect();
            let [at] = differ[..] else { panic!("{differ:?}") };
            assert!(within.contains(&at) && (before[at] ^ after[at]).is_power_of_two());
            assert!(!packet(after).icrc_ok());
            bytes.insert(at);
        }
        assert!(bytes.len() >= if action == FaultAction::CorruptIcrc { 4 } else { 100 }, "{}", bytes.len());
    }
    let bare = [roce(Opcode::SendOnly, 1, 0, b"")];
    assert_eq!(through(rule(FaultAction::CorruptPayload), &bare), (bare.to_vec(), 0, 0), "no payload to corrupt");
}

#[test]
fn marked_frames_are_whole() {
    let frames: Vec<Numbered> = (0..3).map(|psn| roce(Opcode::SendOnly, 1, psn, b"data")).collect();
    let (out, _, hits) = through(rule(FaultAction::Ecn), &frames);
    assert!(hits == 3 && out.iter().all(|frame| packet(frame).is_congestion_marked() && packet(frame).icrc_ok()));
}

#[test]
fn two_rules_may_corrupt_one_frame() {
    let faults =
        seeded(1, &[rule(FaultAction::CorruptIcrc), rule(FaultAction::CorruptPayload), rule(FaultAction::Ecn)]);
    let mut injector = injector_at::<Numbered>(Direction::Rx, 0, 0, &faults);
    let frame = roce(Opcode::SendOnly, 1, 0, b"data");
    injector.accept(at(0), frame.clone());
    let [out] = &drain(&mut injector, at(0))[..] else { panic!() };
    assert!(packet(out).payload() != b"data" && packet(out).icrc() != packet(&frame).icrc());
    assert!(packet(out).is_congestion_marked());
    assert_eq!((injector.stats().corrupted.get(), injector.stats().marked.get()), (2, 1));
}

#[test]
fn without_rules_every_held_frame_is_due() {
    let mut injector = injector(1, 0, &[some(late(Duration::from_secs(9), Duration::ZERO), 1.0)]);
    injector.accept(at(0), numbered(0));
    assert!(drain(&mut injector, at(1)).is_empty() && !injector.is_off());
    injector.set_rules(&[]);
    assert!(injector.is_off());
    injector.accept(at(1), numbered(1));
    assert_eq!(drain(&mut injector, at(1)).iter().map(number).collect::<Vec<_>>(), [1, 0]);
    balanced(injector.stats());
}

#[test]
fn requests_are_refused_as_often_as_the_rule_says() {
    let refusal = |refusal, count| FaultRule { count, ..rule(FaultAction::Refuse(refusal)) };
    let mut second = refusal(RequestRefusal::RemoteAccess, None);
    second.matches.qpn = Some(Qpn::new(2));
    let rules = [refusal(RequestRefusal::NotReady { timer: 3 }, Some(2)), second, rule(FaultAction::Drop)];
    let stats = Arc::default();
    let faults = seeded(0, &rules);
    let mut refusals = Refusals::new(None, &faults, 0, &stats).expect("refusals");
    let frames = [1, 2, 2, 1].map(|qpn| roce(Opcode::SendOnly, qpn, 0, b""));
    let chosen: Vec<_> = frames.iter().map(|frame| refusals.choose(&packet(frame))).collect();
    let not_ready = Some(RequestRefusal::NotReady { timer: 3 });
    assert_eq!(chosen, [not_ready, not_ready, Some(RequestRefusal::RemoteAccess), None]);
    assert_eq!(stats.refused.get(), 3);
    assert_eq!(faults.iter().map(|fault| fault.matched_and_hits().1).collect::<Vec<_>>(), [2, 1, 0]);
    assert!(Refusals::new(Some(refusals), &faults[2..], 0, &stats).is_none());
}
