//! Random frames: the host never panics, its tables stay bounded, and it always becomes idle again.

use super::net::{MAC_A, MAC_B, config, ip};
use proptest::collection::vec;
use proptest::prelude::*;
use rxe_dpdk::host::{Host, HostEvent, StreamEvent};
use rxe_proto::wire::TxFrames;
use rxe_proto::{Duration, Instant};
use rxe_testkit::pcap;

fn target() -> Host {
    let mut config = config(MAC_A, &["10.0.0.1/24", "fd00::1/64", "192.168.77.1/24", "fd00:77::1/64"]);
    config.verify_tcp_checksums = false;
    config.max_neighbours = 8;
    config.max_streams = 4;
    let mut host = Host::new(&config).expect("a good configuration");
    host.listen(7);
    host
}

/// Takes all events and reads all bytes: a stream ends for its user when everything is read.
fn read_all(host: &mut Host) {
    while let Some(event) = host.poll_event() {
        if let HostEvent::Stream(StreamEvent::Readable { stream }) = event {
            while host.recv(stream, &mut [0; 64]) > 0 {}
        }
    }
}

/// Feeds frames, with service calls and timers in between, and then waits until the host is idle.
fn survives(frames: &[Vec<u8>], steps: &[u16]) {
    let mut host = target();
    let mut now = Instant::from_nanos(1);
    for (n, frame) in frames.iter().enumerate() {
        let mut tx = TxFrames { room: Some(4), ..TxFrames::default() };
        let _ = host.handle_frame(now, frame, &mut tx);
        host.resolve(now, ip("10.0.0.9"));
        while let Some(event) = host.poll_event() {
            match event {
                HostEvent::Stream(StreamEvent::Readable { stream }) => {
                    let mut buffer = [0; 100];
                    let len = host.recv(stream, &mut buffer);
                    host.send(stream, &buffer[..len]);
                }
                HostEvent::Stream(StreamEvent::Opened { stream, .. }) if n % 3 == 0 => host.close(stream),
                _ => {}
            }
        }
        host.poll(now, &mut tx);
        assert!(host.neighbour_count() <= 8);
        assert!(host.stream_count() <= 4);
        assert!(tx.frames.iter().all(|(_, f)| f.len() <= 1514));
        now += Duration::from_millis(steps[n % steps.len()].into());
    }
    // An hour later everything has timed out: no stream is left, no neighbour, no timer.
    for _ in 0..20_000 {
        let Some(next) = host.next_timeout() else { break };
        now = next.max(now + Duration::from_micros(1));
        host.poll(now, &mut TxFrames::default());
        read_all(&mut host);
    }
    assert_eq!(host.next_timeout(), None);
    assert_eq!((host.stream_count(), host.neighbour_count()), (0, 0));
}

/// A TCP segment to the listening port, with fields that fit often enough.
fn tcp_frame() -> impl Strategy<Value = Vec<u8>> {
    let number = || prop_oneof![Just(0_u32), Just(1), Just(2), Just(u32::MAX), any::<u32>()];
    let flags = prop_oneof![Just(2_u8), Just(0x10), Just(0x18), Just(0x11), Just(4), Just(0x14), any::<u8>()];
    let options = prop_oneof![Just(vec![]), Just(vec![2, 4, 0, 0]), Just(vec![1, 3, 3, 14]), vec(any::<u8>(), 4)];
    (0..3_u8, number(), number(), flags, any::<u16>(), options, vec(any::<u8>(), 0..40)).prop_map(
        |(peer, seq, ack, flags, window, options, payload)| {
            let len = 40 + options.len() + payload.len();
            let mut frame = [&MAC_A.0[..], &MAC_B.0, &[8, 0]].concat();
            let mut ip = vec![0x45, 0, 0, len as u8, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1];
            let sum: u32 = ip.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
            let sum = !((sum & 0xFFFF) + (sum >> 16)) as u16;
            ip[10..12].copy_from_slice(&sum.to_be_bytes());
            frame.extend(ip);
            frame.extend([0x30, peer, 0, 7]);
            frame.extend(seq.to_be_bytes());
            frame.extend(ack.to_be_bytes());
            frame.extend([((5 + options.len() / 4) as u8) << 4, flags]);
            frame.extend(window.to_be_bytes());
            frame.extend([0; 4]);
            frame.extend(options);
            frame.extend(payload);
            frame
        },
    )
}

/// A peer that follows the host's sequence numbers, which random segments never hit, but makes errors.
fn peer_script(mistakes: &[(u8, u8, u16)]) {
    let mut host = target();
    host.learn(Instant::from_nanos(1), ip("10.0.0.2"), MAC_B);
    let mut now = Instant::from_nanos(1);
    let (mut seq, mut ack) = (100_u32, 0_u32);
    for (n, &(flags, len, step)) in mistakes.iter().enumerate() {
        let flags = if n == 0 { 2 } else { flags };
        let payload = vec![n as u8; usize::from(len)];
        let mut frame = [&MAC_A.0[..], &MAC_B.0, &[8, 0]].concat();
        let mut ip = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 2, 10, 0, 0, 1];
        ip[2..4].copy_from_slice(&(40 + payload.len() as u16).to_be_bytes());
        let sum: u32 = ip.chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
        let sum = !((sum & 0xFFFF) + (sum >> 16)) as u16;
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        frame.extend(ip);
        frame.extend([0x30, 1, 0, 7]);
        frame.extend(seq.wrapping_add(u32::from(step % 7 == 0)).to_be_bytes());
        frame.extend(ack.wrapping_sub(u32::from(step % 11 == 0)).to_be_bytes());
        frame.extend([0x50, flags]);
        frame.extend(step.to_be_bytes());
        frame.extend([0; 4]);
        frame.extend(&payload);
        seq = seq.wrapping_add(u32::from(len) + u32::from(flags & 2 != 0) + u32::from(flags & 1 != 0));
        let mut tx = TxFrames { room: Some(usize::from(step % 5)), ..TxFrames::default() };
        let _ = host.handle_frame(now, &frame, &mut tx);
        host.poll(now, &mut tx);
        while let Some(event) = host.poll_event() {
            if let HostEvent::Stream(StreamEvent::Readable { stream } | StreamEvent::Opened { stream, .. }) = event {
                let mut buffer = [0; 64];
                let mut len = host.recv(stream, &mut buffer);
                host.send(stream, &[7; 200][..len + 100]);
                while len > 0 {
                    len = host.recv(stream, &mut buffer);
                }
                match step % 29 {
                    3 => host.close(stream),
                    5 => host.abort(stream),
                    _ => {}
                }
            }
        }
        // The peer acknowledges what it saw.
        for (_, sent) in &tx.frames {
            if sent[12..14] == [8, 0] && sent[23] == 6 {
                let total = usize::from(u16::from_be_bytes([sent[16], sent[17]]));
                let carried =
                    total - 20 - usize::from(sent[46] >> 4) * 4 + usize::from((sent[47] & 1) + (sent[47] >> 1 & 1));
                let their = u32::from_be_bytes([sent[38], sent[39], sent[40], sent[41]]);
                ack = their.wrapping_add(carried as u32);
            }
        }
        now += Duration::from_millis(u64::from(step) / 8);
    }
    for _ in 0..20_000 {
        let Some(next) = host.next_timeout() else { break };
        now = next.max(now + Duration::from_micros(1));
        host.poll(now, &mut TxFrames::default());
        read_all(&mut host);
    }
    assert_eq!((host.next_timeout(), host.stream_count()), (None, 0));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn random_bytes(frames in vec(vec(any::<u8>(), 0..200), 1..20)) {
        survives(&frames, &[1]);
    }

    #[test]
    fn random_bytes_behind_good_headers(frames in vec((0..3_usize, vec(any::<u8>(), 0..200)), 1..20)) {
        let kinds: [&[u8]; 3] = [&[8, 6, 0, 1, 8, 0, 6, 4, 0, 1], &[8, 0, 0x45, 0], &[0x86, 0xDD, 0x60, 0]];
        let frames: Vec<Vec<u8>> =
            frames.into_iter().map(|(k, rest)| [&MAC_A.0[..], &MAC_B.0, kinds[k], &rest].concat()).collect();
        survives(&frames, &[1]);
    }

    #[test]
    fn recorded_frames_with_changed_bytes(changes in vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>()), 1..30)) {
        let captured: Vec<Vec<u8>> = ["cm-rping-ipv4.pcap", "cm-rping-ipv6.pcap"].iter().flat_map(|name| pcap::recorded(name)).collect();
        let frames: Vec<Vec<u8>> = changes
            .into_iter()
            .map(|(frame, at, value)| {
                let mut frame = captured[frame.index(captured.len())].clone();
                let at = at.index(frame.len());
                frame[at] = value;
                frame
            })
            .collect();
        survives(&frames, &[700]);
    }

    #[test]
    fn random_segments(frames in vec(tcp_frame(), 1..40), steps in vec(0..3000_u16, 1..8)) {
        survives(&frames, &steps);
    }

    #[test]
    fn peer_with_faulty_segments(
        mistakes in vec((prop_oneof![4 => Just(0x10_u8), 4 => Just(0x18), 1 => Just(0x11), 1 => any::<u8>()], 0..100_u8, any::<u16>()), 1..40),
    ) {
        peer_script(&mistakes);
    }
}
