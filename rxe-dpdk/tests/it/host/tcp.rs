//! TCP between two hosts: open, messages, close, loss, limits.

use super::net::{MAC_A, MAC_B, Net, config, exchange, hex, host, ms, poll};
use rxe_dpdk::host::{ConnectError, Host, StreamEvent, TcpStreamId};
use rxe_proto::Duration;
use rxe_proto::wire::{DropReason, TxFrames};
use std::net::SocketAddr;

const PORT: u16 = 18515;
const FIN: u8 = 1;
const RST: u8 = 4;

fn pair(vlan: Option<u16>) -> Net {
    let mut a = config(MAC_A, &["10.0.0.1/24", "fd00::1/64"]);
    let mut b = config(MAC_B, &["10.0.0.2/24", "fd00::2/64"]);
    (a.vlan, b.vlan) = (vlan, vlan);
    let mut net = Net::new(&a, &b);
    net.hosts[0].listen(PORT);
    net.run(Duration::from_secs(5));
    net.seen.clear();
    net.drops.clear();
    net
}

fn addr(ip: &str) -> SocketAddr {
    SocketAddr::new(super::net::ip(ip), PORT)
}

/// Connects B to A and returns both ends.
fn open(net: &mut Net, to: &str) -> (TcpStreamId, TcpStreamId) {
    let now = net.now;
    let known = net.opened(0).len();
    let b = net.hosts[1].connect(now, addr(to)).expect("a stream");
    net.until(|net| net.opened(0).len() > known && net.opened(1).contains(&b));
    (*net.opened(0).last().expect("a stream"), b)
}

/// The TCP header and payload of a frame.
fn segment(frame: &[u8]) -> Option<&[u8]> {
    let at = if frame[12..14] == [0x81, 0] { 16 } else { 12 };
    match (&frame[at..at + 2], frame[at + 11], frame[at + 8]) {
        ([0x08, 0x00], 6, _) => Some(&frame[at + 22..]),
        ([0x86, 0xDD], _, 6) => Some(&frame[at + 42..]),
        _ => None,
    }
}

/// The non-empty payloads of the segments that host `n` received.
fn payloads(net: &Net, n: usize) -> Vec<Vec<u8>> {
    let to_host = net.seen.iter().filter(|(to, _)| *to == n).filter_map(|(_, frame)| segment(frame));
    to_host.map(|s| s[usize::from(s[12] >> 4) * 4..].to_vec()).filter(|p| !p.is_empty()).collect()
}

fn flags(net: &Net, n: usize) -> u8 {
    let to_host = net.seen.iter().filter(|(to, _)| *to == n).filter_map(|(_, frame)| segment(frame));
    to_host.fold(0, |all, s| all | s[13])
}

#[test]
fn open_echo_close() {
    for (vlan, address) in [
        (None, "10.0.0.1"),
        (None, "fd00::1"),
        (None, "fe80::5054:ff:fe00:a"),
        (Some(0x4003), "10.0.0.1"),
        (Some(3), "fd00::1"),
    ] {
        let mut net = pair(vlan);
        let (a, b) = open(&mut net, address);
        let [StreamEvent::Opened { local, peer, .. }] = net.stream_events(0)[..] else { panic!("{:?}", net.events) };
        assert_eq!((local, peer.ip() == local.ip()), (addr(address), false));
        assert_eq!(net.hosts[1].send(b, b"6.06\0\0\0\0\0\0\0\0\0\0\0\0"), 16);
        net.until(|net| net.bytes(0, a).len() == 16);
        assert_eq!(net.hosts[0].send(a, b"same to you"), 11);
        net.until(|net| net.bytes(1, b) == b"same to you");
        net.hosts[1].close(b);
        net.until(|net| net.closed(0, a).is_some() && net.closed(1, b).is_some());
        assert_eq!((net.closed(0, a), net.closed(1, b)), (Some(false), Some(false)));
        assert_eq!(net.drops, [], "{address}");
        assert_eq!(flags(&net, 0) & RST, 0);
        // Both ends are free after TIME-WAIT, and ids of ended streams have no effect.
        net.run(Duration::from_secs(11));
        assert_eq!((net.hosts[0].stream_count(), net.hosts[1].stream_count()), (0, 0));
        assert_eq!(net.hosts[0].send(a, b"late"), 0);
        assert_eq!(net.hosts[0].recv(a, &mut [0; 9]), 0);
        net.hosts[0].close(a);
        net.hosts[0].abort(a);
        let before = net.seen.len();
        net.run(Duration::from_secs(100));
        assert_eq!(net.seen.len(), before, "silence");
        let stats = net.hosts[0].stats();
        assert_eq!((stats.tcp_opened.get(), stats.tcp_closed.get(), stats.tcp_reset.get()), (1, 1, 0));
    }
}

#[test]
fn one_message_is_one_segment() {
    let mut net = pair(None);
    let (a, b) = open(&mut net, "10.0.0.1");
    // All queued before anything is sent, enough of them that the ring buffer wraps several times.
    let mut sent = Vec::new();
    for round in 0..40_usize {
        for n in 0..50_usize {
            let message = vec![(round ^ n) as u8; 1 + (round * 977 + n * 131) % 1460];
            let mut offset = 0;
            if net.hosts[0].send_room(a) < message.len() {
                net.run(Duration::from_millis(5));
            }
            while offset < message.len() {
                let taken = net.hosts[0].send(a, &message[offset..]);
                assert_eq!(taken, message.len());
                offset += taken;
            }
            sent.push(message);
        }
    }
    let total: usize = sent.iter().map(Vec::len).sum();
    net.until(|net| net.bytes(1, b).len() == total);
    let got = payloads(&net, 1);
    assert!(got.iter().all(|p| p.len() <= 1460));
    assert_eq!(got.len(), sent.len());
    assert!(got == sent, "segments do not match the messages");
    // A longer message takes several segments, but shares none with another message.
    net.seen.clear();
    for len in [3000, 10, 1461, 10] {
        assert_eq!(net.hosts[0].send(a, &vec![len as u8; len]), len);
    }
    net.until(|net| net.bytes(1, b).len() == total + 4481);
    let sizes: Vec<usize> = payloads(&net, 1).iter().map(Vec::len).collect();
    assert_eq!(sizes, [1460, 1460, 80, 10, 1460, 1, 10]);
}

#[test]
fn segments_fit_the_mtu() {
    let mut a = config(MAC_A, &["10.0.0.1/24", "fd00::1/64"]);
    let mut b = config(MAC_B, &["10.0.0.2/24", "fd00::2/64"]);
    (a.mtu, b.mtu) = (9000, 9000);
    for (smaller, address, mss) in
        [(9000, "10.0.0.1", 8960), (9000, "fd00::1", 8940), (1500, "10.0.0.1", 1460), (1280, "fd00::1", 1220)]
    {
        b.mtu = smaller;
        let mut net = Net::new(&a, &b);
        net.hosts[0].listen(PORT);
        let (a, b) = open(&mut net, address);
        assert_eq!(net.hosts[0].send(a, &[1; 60_000]), 60_000);
        assert_eq!(net.hosts[1].send(b, &[2; 60_000]), 60_000);
        net.until(|net| net.bytes(0, a).len() == 60_000 && net.bytes(1, b).len() == 60_000);
        for n in 0..2 {
            let largest = payloads(&net, n).iter().map(Vec::len).max();
            assert_eq!(largest, Some(mss), "{address} to {n}");
        }
    }
}

#[test]
fn sixty_four_streams_at_once() {
    for loss in [0, 50] {
        let mut net = pair(None);
        net.loss = loss;
        let now = net.now;
        let clients: Vec<TcpStreamId> =
            (0..64).map(|_| net.hosts[1].connect(now, addr("10.0.0.1")).expect("a stream")).collect();
        net.until(|net| net.opened(0).len() == 64 && net.opened(1).len() == 64);
        for (n, &client) in clients.iter().enumerate() {
            assert_eq!(net.hosts[1].send(client, &[n as u8; 108]), 108);
        }
        let servers = net.opened(0);
        net.until(|net| servers.iter().all(|&s| net.bytes(0, s).len() == 108));
        // Each receives its own bytes, and both sides close.
        for &server in &servers {
            let bytes = net.bytes(0, server);
            assert_eq!(net.hosts[0].send(server, &bytes), 108);
            net.hosts[0].close(server);
        }
        net.until(|net| clients.iter().all(|&c| net.closed(1, c) == Some(false)));
        for (n, &client) in clients.iter().enumerate() {
            assert_eq!(net.bytes(1, client), [n as u8; 108]);
        }
        net.until(|net| servers.iter().all(|&s| net.closed(0, s) == Some(false)));
        net.loss = 0;
        net.run(Duration::from_secs(60));
        assert_eq!((net.hosts[0].stream_count(), net.hosts[1].stream_count()), (0, 0));
    }
}

#[test]
fn lost_frames_are_retransmitted() {
    for loss in [10, 100, 200] {
        let mut net = pair(None);
        net.loss = loss;
        let (a, b) = open(&mut net, "fd00::1");
        let data: Vec<u8> = (0..50_000_u32).map(|n| (n * 7 / 3) as u8).collect();
        assert_eq!(net.hosts[1].send(b, &data), data.len());
        net.until(|net| net.bytes(0, a).len() == data.len());
        assert!(net.bytes(0, a) == data);
        net.hosts[1].close(b);
        net.until(|net| net.closed(0, a) == Some(false) && net.closed(1, b).is_some());
    }
}

#[test]
fn data_queued_before_close_arrives() {
    let mut net = pair(None);
    let (a, b) = open(&mut net, "10.0.0.1");
    assert_eq!(net.hosts[1].send(b, b"done\0"), 5);
    net.hosts[1].close(b);
    net.until(|net| net.closed(0, a).is_some());
    assert_eq!(net.bytes(0, a), b"done\0");
    assert_eq!(net.closed(0, a), Some(false));
    let events = net.stream_events(0);
    assert!(matches!(
        events[..],
        [StreamEvent::Opened { .. }, StreamEvent::Readable { .. }, StreamEvent::Closed { reset: false, .. }]
    ));
}

#[test]
fn bytes_queued_before_the_peers_close_are_delivered() {
    let mut net = pair(None);
    let (a, b) = open(&mut net, "10.0.0.1");
    // More than the peer's window at once; the peer closes right after.
    assert_eq!(net.hosts[0].send(a, &[9; 65_536]), 65_536);
    assert_eq!(net.hosts[0].send_room(a), 0);
    assert_eq!(net.hosts[0].send(a, &[9]), 0);
    net.hosts[0].close(a);
    net.until(|net| net.bytes(1, b).len() == 65_536 && net.closed(1, b) == Some(false));
}

#[test]
fn abort_resets_the_peer() {
    let mut net = pair(None);
    let (a, b) = open(&mut net, "10.0.0.1");
    net.hosts[0].abort(a);
    net.until(|net| net.closed(1, b).is_some());
    assert_eq!((net.closed(1, b), net.closed(0, a)), (Some(true), None));
    assert_eq!(flags(&net, 1) & (RST | FIN), RST);
    net.run(Duration::from_millis(1));
    assert_eq!((net.hosts[0].stream_count(), net.hosts[1].stream_count()), (0, 0));
}

#[test]
fn closed_ports_reset() {
    let mut net = pair(None);
    for address in ["10.0.0.1:1", "[fd00::1]:1"] {
        let now = net.now;
        let b = net.hosts[1].connect(now, address.parse().expect("an address")).expect("a stream");
        net.until(|net| net.closed(1, b).is_some());
        assert_eq!(net.closed(1, b), Some(true));
    }
    assert_eq!(net.hosts[0].stats().tcp_refused.get(), 2);
    let now = net.now;
    net.hosts[0].unlisten(PORT);
    let b = net.hosts[1].connect(now, addr("10.0.0.1")).expect("a stream");
    net.until(|net| net.closed(1, b) == Some(true));
    for nowhere in ["10.0.0.2:5", "8.8.8.8:5", "224.0.0.1:5", "10.0.0.1:0"] {
        let peer = nowhere.parse().expect("an address");
        assert_eq!(net.hosts[1].connect(now, peer), Err(ConnectError::NoRoute), "{nowhere}");
    }
}

#[test]
fn silent_peers_end_by_timeout() {
    let mut net = pair(None);
    let now = net.now;
    let b = net.hosts[1].connect(now, addr("10.0.0.77")).expect("a stream");
    net.until(|net| net.closed(1, b).is_some());
    assert_eq!(net.closed(1, b), Some(true));
    assert!(net.now >= now + Duration::from_secs(10) && net.now < now + Duration::from_secs(12));
    // An open stream with a silent peer ends too.
    let (a, _) = open(&mut net, "10.0.0.1");
    let now = net.now;
    net.loss = 1000;
    net.until(|net| net.closed(0, a).is_some());
    assert_eq!(net.closed(0, a), Some(true));
    assert!(net.now < now + Duration::from_secs(65));
    // An idle stream stays while its peer answers.
    net.loss = 0;
    let (a, b) = open(&mut net, "10.0.0.1");
    net.run(Duration::from_secs(600));
    assert_eq!((net.closed(0, a), net.closed(1, b)), (None, None));
}

#[test]
fn retransmitted_syn_finds_its_stream() {
    // The SYN|ACK is lost, so the client retransmits: two SYNs, one stream, one sequence number.
    let mut net = pair(None);
    let now = net.now;
    net.hosts[1].resolve(now, super::net::ip("10.0.0.1"));
    net.run(Duration::from_millis(1));
    let now = net.now;
    net.hosts[1].connect(now, addr("10.0.0.1")).expect("a stream");
    let mut syn = TxFrames::default();
    net.hosts[1].poll(now, &mut syn);
    let syn = syn.frames.remove(0).1;
    let (result, first) = exchange(&mut net.hosts[0], now, &syn);
    assert_eq!((result, first.len()), (Ok(()), 1));
    assert_eq!(net.hosts[0].stream_count(), 1);
    let (result, _) = exchange(&mut net.hosts[0], now + Duration::from_millis(1), &syn);
    assert_eq!(result, Ok(()));
    assert_eq!(net.hosts[0].stream_count(), 1);
    // The timer retransmits the SYN|ACK.
    net.run(Duration::from_secs(3));
    let answers: Vec<&[u8]> = net.seen.iter().filter(|(to, _)| *to == 1).filter_map(|(_, f)| segment(f)).collect();
    assert!(!answers.is_empty());
    let sequence = &segment(&first[0]).expect("a segment")[4..8];
    assert!(answers.iter().filter(|s| s[13] & 2 != 0).all(|s| &s[4..8] == sequence));
    assert_eq!(net.opened(0).len(), 1);
}

#[test]
fn streams_are_bounded() {
    let mut a = config(MAC_A, &["10.0.0.1/8"]);
    a.max_streams = 8;
    let b = config(MAC_B, &["10.0.0.2/8"]);
    let mut net = Net::new(&a, &b);
    net.hosts[0].listen(PORT);
    let streams: Vec<_> = (0..6).map(|_| open(&mut net, "10.0.0.1")).collect();
    assert_eq!(net.hosts[0].stream_count(), 6);
    // The seventh exceeds the share of one source. It is ignored until there is room; the client retransmits.
    let now = net.now;
    let seventh = net.hosts[1].connect(now, addr("10.0.0.1")).expect("a stream");
    net.run(Duration::from_millis(100));
    assert_eq!(net.hosts[0].stats().tcp_source_limited.get(), 1);
    assert_eq!(net.hosts[0].stream_count(), 6);
    let (server, _) = streams[3];
    net.hosts[0].close(server);
    net.run(Duration::from_millis(1));
    // B closed after A did; A's stream is in TIME-WAIT and is replaced.
    net.until(|net| net.opened(1).contains(&seventh));
    assert_eq!(net.hosts[0].stream_count(), 7);
    // The old id is invalid although its slot is in use again.
    assert_eq!(net.hosts[0].send(server, b"x"), 0);
}

/// A first SYN from `10.x.y.z` to 10.0.0.1, without TCP checksum.
fn syn(n: u32) -> Vec<u8> {
    let mut frame = hex("52540000000a 52540000000b 0800 4500 0028 0000 4000 4006 0000 0a000000 0a000001
         3039 4853 00000001 00000000 5002 ffff 0000 0000");
    frame[27..30].copy_from_slice(&n.to_be_bytes()[1..]);
    let sum: u32 = frame[14..34].chunks(2).map(|w| u32::from(w[0]) << 8 | u32::from(w[1])).sum();
    let sum = (sum & 0xFFFF) + (sum >> 16);
    frame[24..26].copy_from_slice(&(!(sum as u16)).to_be_bytes());
    frame
}

/// A host with a listening port and 32 streams at most, which ignores TCP checksums.
fn small_host() -> Host {
    let mut config = config(MAC_A, &["10.0.0.1/8"]);
    config.verify_tcp_checksums = false;
    config.max_streams = 32;
    let mut a = Host::new(&config).expect("a good configuration");
    a.listen(PORT);
    a
}

#[test]
fn syn_flood_takes_half_of_the_slots_and_evicts_the_oldest() {
    let mut a = small_host();
    for n in 2..2000 {
        assert_eq!(exchange(&mut a, ms(u64::from(n)), &syn(n)).0, Ok(()), "{n}");
        assert!(a.stream_count() <= 16);
    }
    assert_eq!(a.stats().tcp_half_open_evicted.get(), 1982);
    // The latest streams remain: a retransmitted SYN finds its stream.
    assert_eq!(exchange(&mut a, ms(2000), &syn(1999)).0, Ok(()));
    assert_eq!((a.stream_count(), a.stats().tcp_half_open_evicted.get()), (16, 1982));
    for second in 3..=11 {
        super::net::poll(&mut a, ms(second * 1000));
    }
    assert_eq!(a.stream_count(), 0, "half-open streams time out");
    assert_eq!(a.stats().tcp_open_failed.get(), 16);
    assert_eq!(a.poll_event(), None, "no event for a stream that never opened");
}

#[test]
fn half_open_streams_of_one_source_are_limited() {
    let mut a = small_host();
    for n in 0..200_u16 {
        let mut frame = syn(2);
        frame[34..36].copy_from_slice(&(1024 + n).to_be_bytes());
        let (result, _) = exchange(&mut a, ms(0), &frame);
        assert_eq!(result, if n < 8 { Ok(()) } else { Err(DropReason::HostUnsupported) }, "{n}");
    }
    assert_eq!((a.stream_count(), a.stats().tcp_source_limited.get()), (8, 192));
    assert_eq!(exchange(&mut a, ms(0), &syn(3)).0, Ok(()), "another source has its own share");
    assert_eq!(a.stats().tcp_half_open_evicted.get(), 0);
}

#[test]
fn tcp_checksums_are_verified_unless_configured_off() {
    let mut strict = host(MAC_A, &["10.0.0.1/8"]);
    strict.listen(PORT);
    assert_eq!(exchange(&mut strict, ms(0), &syn(2)), (Err(DropReason::HostChecksum), vec![]));
    let mut short = syn(2);
    short[46] = 0x40;
    assert_eq!(exchange(&mut strict, ms(0), &short).0, Err(DropReason::HostUnsupported));
    assert_eq!(strict.stats().tcp_malformed.get(), 1);
    let mut lax = config(MAC_A, &["10.0.0.1/8"]);
    lax.verify_tcp_checksums = false;
    let mut lax = Host::new(&lax).expect("a good configuration");
    lax.listen(PORT);
    assert_eq!(exchange(&mut lax, ms(0), &syn(2)), (Ok(()), vec![]));
    assert_eq!((strict.stats().tcp_checksum_unfinished.get(), lax.stats().tcp_checksum_unfinished.get()), (0, 1));
    // Its MAC address is unknown: the SYN|ACK follows after it is resolved.
    let arp = super::net::poll(&mut lax, ms(0));
    assert!(arp.iter().any(|f| f[12..14] == [8, 6] && f[38..42] == [10, 0, 0, 2]));
    let reply = hex("52540000000a 52540000000b 0806 0001080006040002 52540000000b 0a000002 52540000000a 0a000001");
    let (result, answers) = exchange(&mut lax, ms(1), &reply);
    assert_eq!((result, answers.len()), (Ok(()), 1));
    assert_eq!(segment(&answers[0]).expect("a segment")[13], 0x12);
}

#[test]
fn full_port_loses_no_segment() {
    let mut net = pair(None);
    let (a, b) = open(&mut net, "10.0.0.1");
    assert_eq!(net.hosts[0].send(a, &[1; 100]), 100);
    assert_eq!(net.hosts[0].send(a, &[2; 100]), 100);
    let mut tx = TxFrames { room: Some(0), ..TxFrames::default() };
    let now = net.now;
    for _ in 0..10 {
        net.hosts[0].poll(now, &mut tx);
        assert!(net.hosts[0].next_timeout().is_some_and(|at| at <= now), "it is due again");
    }
    assert_eq!(tx.frames.len(), 0);
    net.run(Duration::from_millis(10));
    assert_eq!(net.bytes(1, b).len(), 200);
    assert_eq!(payloads(&net, 1), [vec![1; 100], vec![2; 100]]);
}

#[test]
fn client_may_reconnect_from_the_same_port() {
    let mut net = pair(None);
    let (a, b) = open(&mut net, "10.0.0.1");
    let [StreamEvent::Opened { peer, .. }] = net.stream_events(0)[..] else { panic!("{:?}", net.events) };
    // A closes first, so it has the TIME-WAIT state.
    net.hosts[0].close(a);
    net.until(|net| net.closed(0, a).is_some() && net.closed(1, b).is_some());
    net.run(Duration::from_millis(100));
    assert_eq!((net.hosts[0].stream_count(), net.hosts[1].stream_count()), (1, 0));
    // A new B with the same seed starts with the same port.
    net.hosts[1] = host(MAC_B, &["10.0.0.2/24", "fd00::2/64"]);
    net.run(Duration::from_secs(3));
    let (again, _) = open(&mut net, "10.0.0.1");
    let opened = net.stream_events(0);
    let Some(StreamEvent::Opened { peer: second, .. }) = opened.last() else { panic!("{opened:?}") };
    assert_eq!(*second, peer);
    assert_ne!(again, a);
}

/// What a flood costs is counted by `valgrind --tool=callgrind --toggle-collect='*Host*handle_frame*'` on this test.
#[test]
fn a_flood_of_syns_on_a_port_of_default_size_leaves_room_for_streams() {
    let mut config = config(MAC_A, &["10.0.0.1/8"]);
    config.verify_tcp_checksums = false;
    let mut a = Host::new(&config).expect("a good configuration");
    a.listen(PORT);
    for n in 2..3002 {
        assert_eq!(exchange(&mut a, ms(u64::from(n)), &syn(n)).0, Ok(()), "{n}");
        assert!(a.stream_count() <= 128);
    }
    assert_eq!(a.stats().tcp_half_open_evicted.get(), 3000 - 128);
}

/// Streams of two addresses never take the places of all others.
#[test]
fn the_more_streams_there_are_the_fewer_one_address_gets() {
    let mut config = config(MAC_A, &["10.0.0.1/8"]);
    (config.verify_tcp_checksums, config.max_streams) = (false, 64);
    let mut a = Host::new(&config).expect("a good configuration");
    a.listen(PORT);
    let mut held = Vec::new();
    for source in 2..5u8 {
        let mut arp =
            hex("52540000000a 52540000000b 0806 0001 0800 0604 0001 52540000000b 0a000000 000000000000 0a000001");
        arp[31] = source;
        assert_eq!(exchange(&mut a, ms(0), &arp).0, Ok(()));
        let before = a.stream_count();
        for port in 1025..1090u16 {
            let mut opener = syn(source.into());
            opener[34..36].copy_from_slice(&port.to_be_bytes());
            let (result, answers) = exchange(&mut a, ms(0), &opener);
            let Some(answer) = answers.iter().find_map(|frame| segment(frame)) else {
                assert!(result.is_err(), "{source} {port}");
                continue;
            };
            let sequence = u32::from_be_bytes([answer[4], answer[5], answer[6], answer[7]]);
            let mut ack = opener;
            ack[38..42].copy_from_slice(&2u32.to_be_bytes());
            ack[42..46].copy_from_slice(&(sequence.wrapping_add(1)).to_be_bytes());
            ack[47] = 0x10;
            assert_eq!(exchange(&mut a, ms(0), &ack).0, Ok(()));
        }
        held.push(a.stream_count() - before);
    }
    assert_eq!(held, [48, 12, 3], "three quarters, and three quarters of what is left");
}

/// RFC 5961: a reset elsewhere in the window is answered by an ACK, once a second; one outside of it not at all.
#[test]
fn only_a_reset_at_the_next_expected_sequence_number_ends_a_stream() {
    let mut unchecked = config(MAC_A, &["10.0.0.1/24"]);
    unchecked.verify_tcp_checksums = false;
    let mut net = Net::new(&unchecked, &config(MAC_B, &["10.0.0.2/24"]));
    net.hosts[0].listen(PORT);
    net.run(Duration::from_secs(5));
    let (a, b) = open(&mut net, "10.0.0.1");
    assert_eq!(net.hosts[0].send(a, b"hello"), 5);
    net.until(|net| net.bytes(1, b) == b"hello");
    net.run(Duration::from_millis(1));
    let ack = net.seen.iter().rfind(|(to, frame)| *to == 0 && segment(frame).is_some()).expect("an ACK").1.clone();
    let next = u32::from_be_bytes([ack[38], ack[39], ack[40], ack[41]]);
    let reset = |offset: u32| {
        let mut frame = ack.clone();
        frame[38..42].copy_from_slice(&next.wrapping_add(offset).to_be_bytes());
        frame[42..46].fill(0);
        frame[47] = RST;
        frame
    };
    let answers = |net: &mut Net, offset| {
        let now = net.now;
        let (_, answers) = exchange(&mut net.hosts[0], now, &reset(offset));
        answers.iter().map(|frame| segment(frame).expect("a segment")[4..14].to_vec()).collect::<Vec<_>>()
    };
    let challenge = [[&ack[42..46], &next.to_be_bytes(), &[5 << 4, 0x10]].concat()];
    assert_eq!(answers(&mut net, 1), challenge);
    let none: [Vec<u8>; 0] = [];
    for offset in [1, 60_000, 1 << 17, u32::MAX] {
        assert_eq!(answers(&mut net, offset), none, "{offset}");
    }
    net.run(Duration::from_secs(2));
    assert_eq!(answers(&mut net, 60_000), challenge);
    assert_eq!(net.hosts[0].stats().tcp_resets_ignored.get(), 4);
    assert_eq!(net.hosts[1].send(b, b"seven b"), 7);
    net.until(|net| net.bytes(0, a) == b"seven b");
    assert_eq!((answers(&mut net, 0), net.closed(0, a)), (none.to_vec(), None), "it was the next one before");
    assert_eq!(answers(&mut net, 7), none);
    net.poll();
    assert_eq!(net.closed(0, a), Some(true));
}

/// Its bytes and its reset behind them are on their way, and the bytes get lost: the answer makes it send another reset.
#[test]
fn a_peer_that_resets_behind_lost_bytes_ends_the_stream() {
    let mut net = pair(None);
    let (a, b) = open(&mut net, "10.0.0.1");
    net.loss = 1000;
    assert_eq!(net.hosts[1].send(b, b"lost"), 4);
    net.run(Duration::from_millis(1));
    net.loss = 0;
    net.hosts[1].abort(b);
    net.run(Duration::from_millis(10));
    assert_eq!((net.closed(0, a), net.hosts[0].stats().tcp_resets_ignored.get()), (Some(true), 1));
}

/// A half-open stream answers no forged reset, and ends by one at the next expected sequence number.
#[test]
fn a_reset_within_the_window_does_not_end_a_half_open_stream() {
    let mut a = small_host();
    let arp = hex("52540000000a 52540000000b 0806 0001 0800 0604 0001 52540000000b 0a000002 000000000000 0a000001");
    assert_eq!(exchange(&mut a, ms(0), &arp).0, Ok(()));
    let opener = syn(2);
    assert_eq!(exchange(&mut a, ms(0), &opener).1.len(), 1, "a SYN|ACK");
    let mut reset = opener;
    reset[47] = RST;
    for (sequence, streams) in [(9u32, 1), (2, 0)] {
        reset[38..42].copy_from_slice(&sequence.to_be_bytes());
        assert_eq!(exchange(&mut a, ms(1), &reset).1.len(), 0, "{sequence}");
        poll(&mut a, ms(1));
        assert_eq!(a.stream_count(), streams, "{sequence}");
    }
}
