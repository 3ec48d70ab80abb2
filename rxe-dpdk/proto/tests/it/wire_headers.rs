//! Headers, tables and numbers, each by itself.

use std::collections::HashSet;
use std::time::Duration;

use proptest::prelude::*;
use rxe_proto::wire::{
    Aeth, AtomicAckEth, AtomicEth, Bth, BthFields, BthOpcode, Deth, DropCounters, DropReason, Feth, Headers, Ieth,
    ImmDt, NakCode, OPCODES, Opcode, Position, Psn, Reth, Syndrome, Transport, credit_count, rnr_timer,
    udp_source_port, udp_source_port_ud,
};
use zerocopy::{FromBytes, IntoBytes};

// [PKT-OPCODE-RESERVED]
#[test]
fn opcode_table_is_the_standards() {
    // Opcode byte, bytes up to the payload, and: s starts, e ends a message; R takes, C completes a receive work
    // request; r response; p payload.
    const RC: [(u8, usize, &str); 25] = [
        (0x00, 12, "sRp"),
        (0x01, 12, "p"),
        (0x02, 12, "eCp"),
        (0x03, 16, "eCp"),
        (0x04, 12, "seRCp"),
        (0x05, 16, "seRCp"),
        (0x06, 28, "sp"),
        (0x07, 12, "p"),
        (0x08, 12, "ep"),
        (0x09, 16, "eRCp"),
        (0x0A, 28, "sep"),
        (0x0B, 32, "seRCp"),
        (0x0C, 28, "se"),
        (0x0D, 16, "srp"),
        (0x0E, 12, "rp"),
        (0x0F, 16, "erp"),
        (0x10, 16, "serp"),
        (0x11, 16, "ser"),
        (0x12, 24, "ser"),
        (0x13, 40, "se"),
        (0x14, 40, "se"),
        (0x16, 16, "eCp"),
        (0x17, 16, "seRCp"),
        (0x1C, 32, "se"),
        (0x1D, 28, "sep"),
    ];
    let mut expected = Vec::from(RC);
    expected.extend(RC.iter().filter(|row| row.0 <= 0x0B).map(|row| (row.0 | 0x20, row.1, row.2)));
    expected.extend([(0x64, 20, "seRCp"), (0x65, 24, "seRCp"), (0x81, 28, "se")]);

    let mut names = HashSet::new();
    for (byte, len, flags) in &expected {
        let opcode = BthOpcode::from_byte(*byte).unwrap_or_else(|| panic!("{byte:#04x} is missing"));
        let info = opcode.info().unwrap();
        assert_eq!(opcode.byte(), *byte);
        assert_eq!((opcode.header_len(), usize::from(info.header_len)), (*len, *len), "{byte:#04x}");
        assert_eq!((info.opcode, info.headers), (opcode, opcode.headers()));
        let mut got = String::new();
        for (set, flag) in [
            (info.position.is_start(), 's'),
            (info.position.is_end(), 'e'),
            (info.takes_receive, 'R'),
            (info.completes_receive, 'C'),
            (info.response, 'r'),
            (info.payload, 'p'),
        ] {
            got.extend(set.then_some(flag));
        }
        assert_eq!(got, *flags, "{byte:#04x}");
        assert_eq!(info.is_request(), !info.response && opcode != BthOpcode::CNP);
        assert!(names.insert(info.name), "{} twice", info.name);
        assert_eq!(opcode.to_string(), info.name);
    }
    assert_eq!(OPCODES.iter().flatten().count(), expected.len());
    assert_eq!(BthOpcode::rc(Opcode::SendMiddle).info().unwrap().position, Position::Middle);
    assert_eq!(BthOpcode { transport: Transport::Ud, op: Opcode::ReadRequest }.info(), None);
    assert_eq!(BthOpcode::ud(Opcode::ReadRequest).to_string(), "opcode 0x6c");
}

// [PKT-EXT-ORDER]
#[test]
fn extension_headers_stand_in_the_standards_order() {
    let write_imm = BthOpcode::rc(Opcode::WriteOnlyImm).headers();
    assert_eq!((write_imm.offset_of(Headers::RETH), write_imm.offset_of(Headers::IMM)), (0, 16));
    let flush = BthOpcode::rc(Opcode::Flush).headers();
    assert_eq!((flush.offset_of(Headers::FETH), flush.offset_of(Headers::RETH)), (0, 4));
    let atomic_ack = BthOpcode::rc(Opcode::AtomicAcknowledge).headers();
    assert_eq!((atomic_ack.offset_of(Headers::AETH), atomic_ack.offset_of(Headers::ATOMIC_ACK)), (0, 4));
    let datagram = BthOpcode::ud(Opcode::SendOnlyImm).headers();
    assert_eq!((datagram.offset_of(Headers::DETH), datagram.offset_of(Headers::IMM)), (0, 8));
}

// [PKT-RNR-TIMER] [PKT-CREDIT-CODE]
#[test]
fn credits_and_rnr_timers() {
    let credits: Vec<u32> = (0..31).map(|code| credit_count(code).unwrap()).collect();
    assert_eq!(credits[..8], [0, 1, 2, 3, 4, 6, 8, 12]);
    // From code 4 on, two steps double.
    for code in 4..29 {
        assert_eq!(credits[code + 2], 2 * credits[code], "code {code}");
    }
    assert_eq!(credits[30], 32768);
    assert_eq!(credit_count(31), None);

    let micros: Vec<u64> = (0..32).map(|code| rnr_timer(code).as_micros() as u64).collect();
    assert_eq!(micros[..8], [655_360, 10, 20, 30, 40, 60, 80, 120]);
    for code in 4..30 {
        assert_eq!(micros[code + 2], 2 * micros[code], "code {code}");
    }
    assert_eq!(rnr_timer(25), Duration::from_micros(61_440));
    assert_eq!(rnr_timer(31), Duration::from_micros(491_520));
    assert_eq!(rnr_timer(12 | 0x20), rnr_timer(12));
}

// [PKT-SYNDROME]
#[test]
fn syndromes_round_trip() {
    for byte in 0..=255 {
        assert_eq!(Syndrome::from_byte(byte).to_byte(), byte);
        assert!(!Syndrome::from_byte(byte).to_string().is_empty());
    }
    assert_eq!(Syndrome::from_byte(0x1F), Syndrome::ACK);
    assert_eq!(Syndrome::from_byte(0x2C), Syndrome::Rnr { timer: 12 });
    assert_eq!(Syndrome::from_byte(0x41), Syndrome::Reserved(0x41));
    let codes = [
        NakCode::PsnSequence,
        NakCode::InvalidRequest,
        NakCode::RemoteAccess,
        NakCode::RemoteOperational,
        NakCode::InvalidRd,
        NakCode::Unknown(5),
    ];
    for (low, code) in (0x60..).zip(codes) {
        assert_eq!(Syndrome::from_byte(low), Syndrome::Nak(code));
    }
}

// [PKT-SOURCE-PORT]
#[test]
fn udp_source_ports() {
    assert_eq!(udp_source_port(0, 0x11, 0x11), 0xC121);
    assert_eq!(udp_source_port(0, 0x19, 0x19), 0xC271);
    assert_eq!(udp_source_port(0, 0x1234, 0x5678), 0xC01A);
    assert_eq!(udp_source_port(0, 0x5678, 0x1234), 0xC01A);
    assert_eq!(udp_source_port(0xF_FFFF, 1, 2), 0xC000 | (0x3FFF ^ 0x3F));
    assert_eq!(udp_source_port(0xFFF0_0000, 0x11, 0x11), 0xC121, "only 20 bits of the label count");
    assert_eq!(udp_source_port_ud(1), 0xD872);
    assert_eq!(udp_source_port_ud(0x13), 0xD078);
}

#[test]
fn drop_reasons_have_names_and_counters() {
    let mut names = HashSet::new();
    for (index, reason) in DropReason::ALL.iter().enumerate() {
        assert_eq!(*reason as usize, index);
        let name = reason.name();
        assert!(names.insert(name), "{name} twice");
        assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'), "{name}");
        assert_eq!(name.replace('_', ""), format!("{reason:?}").to_lowercase(), "name and variant differ");
        assert!(!reason.group().is_empty());
    }
    assert_eq!(names.len(), DropReason::COUNT);

    let counters = DropCounters::default();
    counters.count(DropReason::IcrcMismatch);
    counters.count(DropReason::IcrcMismatch);
    assert_eq!(counters.get(DropReason::IcrcMismatch), 2);
    let set: Vec<_> = counters.iter().filter(|(_, count)| *count != 0).collect();
    assert_eq!(set, [(DropReason::IcrcMismatch, 2)]);
    assert_eq!(counters.iter().count(), DropReason::COUNT);
}

proptest! {
    #[test]
    fn bth_round_trips(
        byte: u8, dest_qp in 0..1u32 << 24, psn: u32, solicited: bool, ack_req: bool, pkey: u16, pad in 0..4usize,
        migreq: bool, fecn: bool, becn: bool,
    ) {
        let opcode = BthOpcode::from_byte(byte).unwrap_or(BthOpcode::CNP);
        let psn = Psn::new(psn);
        let (first, last) = BthFields { opcode, dest_qp, psn, solicited, ack_req, pkey }.to_words(pad);
        let mut bth = Bth::read_from_bytes(&[&first[..], &last].concat()).unwrap();
        bth.set_migreq(migreq);
        bth.set_congestion(fecn, becn);
        let read = *Bth::ref_from_bytes(bth.as_bytes()).unwrap();
        prop_assert_eq!(BthOpcode::from_byte(read.opcode_byte()), Some(opcode));
        prop_assert_eq!((read.dest_qp(), read.psn(), read.pkey(), read.pad(), read.tver()), (dest_qp, psn, pkey, pad, 0));
        prop_assert_eq!((read.se(), read.ack_req(), read.migreq()), (solicited, ack_req, migreq));
        prop_assert_eq!((read.fecn(), read.becn()), (fecn, becn));
    }

    #[test]
    fn extension_headers_round_trip(a: u64, b: u64, c: u64, rkey: u32, word: u32) {
        let reth = Reth::new(a, rkey, word);
        prop_assert_eq!((reth.va(), reth.rkey(), reth.dma_len()), (a, rkey, word));
        prop_assert_eq!(&reth.as_bytes()[..8], &a.to_be_bytes());
        prop_assert_eq!(Reth::read_from_bytes(reth.as_bytes()).unwrap(), reth);

        let atomic = AtomicEth::new(a, rkey, b, c);
        prop_assert_eq!((atomic.va(), atomic.rkey(), atomic.swap_or_add(), atomic.compare()), (a, rkey, b, c));
        prop_assert_eq!(&atomic.as_bytes()[12..20], &b.to_be_bytes());
        prop_assert_eq!(AtomicEth::read_from_bytes(atomic.as_bytes()).unwrap(), atomic);

        let aeth = Aeth::new(Syndrome::from_byte(word as u8), rkey);
        prop_assert_eq!((aeth.syndrome().to_byte(), aeth.msn()), (word as u8, rkey & 0xFF_FFFF));
        prop_assert_eq!(Aeth::read_from_bytes(aeth.as_bytes()).unwrap(), aeth);

        let deth = Deth::new(rkey, word);
        prop_assert_eq!((deth.qkey(), deth.src_qp()), (rkey, word & 0xFF_FFFF));
        prop_assert_eq!(Deth::read_from_bytes(deth.as_bytes()).unwrap(), deth);

        let feth = Feth::new(word as u8, rkey as u8);
        prop_assert_eq!((feth.level(), feth.placement()), (word as u8 & 3, rkey as u8 & 15));
        prop_assert_eq!(Feth::read_from_bytes(feth.as_bytes()).unwrap(), feth);

        prop_assert_eq!(AtomicAckEth::new(a).original(), a);
        prop_assert_eq!(ImmDt::new(word).imm(), word);
        let ieth = Ieth::new(rkey);
        prop_assert_eq!(ieth.rkey(), rkey);
        prop_assert_eq!(ieth.as_bytes(), &rkey.to_be_bytes());
    }
}
