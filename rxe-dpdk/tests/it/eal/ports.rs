//! Ports, bursts, stages, pools, rings and memory on net_ring devices: no root, no hugepages, no NIC.
//!
//! A net_ring device receives what it sent. Each test runs in a process of its own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use rxe_dpdk::eal::{
    BURST, Clock, Eal, EalError, Fallback, HugeAllocator, HugeMemory, MIN_FRAME, MbufRing, Mempool, Port, PortConfig,
    PortQueues, RxBurst, RxQueue, TxStage,
};
use rxe_dpdk::rxe_proto::mem::{Allocator, Backing, Memory};
use rxe_dpdk::rxe_proto::wire::PortId;
use rxe_testkit::child;

fn eal() -> &'static Eal {
    static EAL: OnceLock<Eal> = OnceLock::new();
    EAL.get_or_init(|| {
        let mut args: Vec<String> =
            ["--no-huge", "-m", "256", "--no-pci", "--no-telemetry", "--no-shconf"].map(str::to_owned).into();
        args.extend((0..8).map(|i| format!("--vdev=net_ring{i}")));
        Eal::init(&args).unwrap()
    })
}

/// The port of device `net_ring<n>`.
fn configure(n: u16, config: &PortConfig) -> Result<Port, EalError> {
    let name = format!("net_ring{n}");
    let info = eal().ports().into_iter().find(|info| info.name == name).unwrap();
    assert_eq!(info.driver, "net_ring");
    Port::configure(eal(), info.id, config)
}

fn small() -> PortConfig {
    PortConfig { rx_descriptors: 64, tx_descriptors: 64, ..PortConfig::default() }
}

fn started(n: u16, config: &PortConfig) -> (Port, RxQueue, TxStage) {
    let mut port = configure(n, config).unwrap();
    let PortQueues { mut rx, mut tx } = port.start().unwrap();
    (port, rx.remove(0), tx.remove(0))
}

/// Frame number `seq` of `len` bytes.
fn write_frame(frame: &mut [u8], seq: u32) {
    for (i, byte) in frame.iter_mut().enumerate() {
        *byte = (i as u32).wrapping_mul(31).wrapping_add(seq) as u8;
    }
    frame[..4].copy_from_slice(&seq.to_be_bytes());
}

fn frame(len: usize, seq: u32) -> Vec<u8> {
    let mut frame = vec![0; len];
    write_frame(&mut frame, seq);
    frame
}

fn seq_of(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[..4].try_into().unwrap())
}

#[test]
fn port_carries_frames_of_every_length() {
    child::alone(|| {
        let (port, mut rx, mut tx) = started(0, &small());
        assert_eq!(port.mtu(), 4200);
        assert_eq!(port.max_frame(), 4218);
        assert!(port.pool().frame_len() >= port.max_frame());
        assert_eq!(port.fallbacks(), []);

        let lengths = [MIN_FRAME, 61, 64, 1500, 4178, port.max_frame()];
        for (seq, len) in lengths.into_iter().enumerate() {
            write_frame(tx.push(len).unwrap(), seq as u32);
        }
        assert_eq!(tx.waiting(), lengths.len());
        assert_eq!(tx.flush(), 0);

        let mut burst = RxBurst::new();
        assert_eq!(rx.burst(&mut burst), lengths.len());
        for (seq, len) in lengths.into_iter().enumerate() {
            assert_eq!(burst.data(seq), frame(len, seq as u32));
            assert_eq!(burst.port(seq), port.id().0);
        }
        assert!(burst.data(lengths.len()).is_empty());

        assert!(tx.push(port.max_frame() + 1).is_none());
        assert_eq!(tx.stats().oversize.get(), 1);
        assert_eq!(tx.stats().frames.get(), lengths.len() as u64);
        assert_eq!(rx.stats().frames.get(), lengths.len() as u64);
        assert_eq!(rx.stats().bytes.get(), lengths.iter().sum::<usize>() as u64);
        let stats = port.stats().unwrap();
        assert_eq!((stats.rx_frames, stats.tx_frames), (lengths.len() as u64, lengths.len() as u64));
        assert!(port.xstats().iter().any(|(name, value)| name == "rx_good_packets" && *value == lengths.len() as u64));
        assert!(port.link().up);
    });
}

#[test]
fn short_frames_are_padded_with_zeros() {
    child::alone(|| {
        let (_port, mut rx, mut tx) = started(1, &small());
        let mut burst = RxBurst::new();
        // Fill the buffers with other bytes first.
        for _ in 0..2 * BURST {
            tx.push(200).unwrap().fill(0xFF);
        }
        tx.flush();
        while rx.burst(&mut burst) > 0 {}
        burst.clear();

        tx.push(42).unwrap().fill(1);
        tx.flush();
        assert_eq!(rx.burst(&mut burst), 1);
        // Also in a forwarded buffer.
        let mut mbuf = burst.take(0).unwrap();
        assert!(mbuf.resize(20));
        assert!(burst.data(0).is_empty() && burst.take(0).is_none());
        tx.push_mbuf(mbuf).unwrap();
        tx.push(42).unwrap().fill(1);
        tx.flush();
        assert_eq!(rx.burst(&mut burst), 2);
        for (i, len) in [20, 42].into_iter().enumerate() {
            let mut expected = [0; MIN_FRAME];
            expected[..len].fill(1);
            assert_eq!(burst.data(i), expected);
        }
    });
}

#[test]
fn back_pressure_loses_and_leaks_no_buffer() {
    child::alone(|| {
        let (port, mut rx, mut tx) = started(2, &PortConfig { extra_mbufs: 2048, ..small() });
        let mut burst = RxBurst::new();
        let (mut sent, mut received) = (0, 0);
        for round in 0..20 {
            // Until the port's ring and the stage are full.
            while let Some(room) = tx.push(100) {
                write_frame(room, sent);
                sent += 1;
            }
            let waiting = tx.flush();
            assert_eq!(waiting, 64, "the stage is full when push refuses");
            assert_eq!(sent - received, 1023 + 64);
            assert!(tx.push(100).is_none() && tx.room() == 0);
            // Accepted frames arrive in order.
            let floor = if round % 2 == 0 { 0 } else { 500 };
            while sent - received > floor {
                let count = rx.burst(&mut burst);
                for i in 0..count {
                    assert_eq!(burst.data(i), frame(100, received));
                    received += 1;
                }
                tx.flush();
            }
        }
        assert_eq!(tx.stats().pool_empty.get(), 0);
        assert!(tx.stats().stage_full.get() >= 20 && tx.stats().port_full.get() >= 20);

        let pool = port.pool().clone();
        while rx.burst(&mut burst) > 0 || tx.flush() > 0 {}
        // All buffers are free except those that the stage keeps for the next frames.
        assert!(pool.in_use() <= BURST, "{} of {} in use", pool.in_use(), pool.count());
        tx.push(100).unwrap();
        drop((burst, rx, tx));
        assert_eq!(pool.in_use(), 0);
        assert_eq!(pool.available(), pool.count());
    });
}

#[test]
fn empty_pool_refuses_and_recovers() {
    child::alone(|| {
        let (port, mut rx, mut tx) = started(3, &small());
        let hoard: Vec<_> = std::iter::from_fn(|| port.pool().alloc()).collect();
        assert_eq!(hoard.len(), port.pool().count());
        assert!(tx.push(100).is_none());
        assert_eq!(tx.stats().pool_empty.get(), 1);
        drop(hoard);
        write_frame(tx.push(100).unwrap(), 7);
        assert_eq!(tx.flush(), 0);
        let mut burst = RxBurst::new();
        assert_eq!(rx.burst(&mut burst), 1);
        assert_eq!(burst.data(0), frame(100, 7));
    });
}

#[test]
fn rings_keep_the_order_of_packets() {
    child::alone(|| {
        // Few threads: a producer preempted inside DPDK's ring blocks all others, which spin.
        // That is common with more threads than cores.
        const EACH: u32 = 2_000;
        for senders in [1, 3] {
            let given_up = AtomicBool::new(false);
            let pool = Mempool::create(eal(), &format!("handoff{senders}"), 1000, 256, 0, -1).unwrap();
            let MbufRing { senders: ends, mut receiver } = MbufRing::new(eal(), 100, senders).unwrap();
            assert_eq!(ends.len(), senders);
            thread::scope(|scope| {
                for (producer, mut end) in ends.into_iter().enumerate() {
                    let (pool, given_up) = (&pool, &given_up);
                    scope.spawn(move || {
                        let mut batch = RxBurst::new();
                        let mut seq = 0;
                        while (seq < EACH || !batch.is_empty()) && !given_up.load(Ordering::Relaxed) {
                            while seq < EACH && !batch.is_full() {
                                let Some(mut mbuf) = pool.alloc() else { break };
                                assert!(mbuf.resize(8) && !mbuf.resize(300));
                                mbuf.data_mut()[..4].copy_from_slice(&seq.to_be_bytes());
                                mbuf.data_mut()[4..].copy_from_slice(&(producer as u32).to_be_bytes());
                                batch.push(mbuf).unwrap();
                                seq += 1;
                            }
                            if end.send(&mut batch) == 0 {
                                thread::yield_now();
                            }
                        }
                    });
                }
                let mut next = vec![0; senders];
                let mut burst = RxBurst::new();
                let deadline = Instant::now() + Duration::from_secs(60);
                while next.iter().any(|next| *next < EACH) {
                    if Instant::now() > deadline {
                        given_up.store(true, Ordering::Relaxed);
                        panic!("stuck at {next:?}");
                    }
                    if receiver.receive(&mut burst) == 0 {
                        thread::yield_now();
                    }
                    for i in 0..burst.len() {
                        let producer = seq_of(&burst.data(i)[4..]) as usize;
                        assert_eq!(seq_of(burst.data(i)), next[producer]);
                        next[producer] += 1;
                    }
                }
            });
            assert!(receiver.is_empty());
            assert_eq!(pool.in_use(), 0);
        }
    });
}

#[test]
fn dropped_ring_frees_its_packets_and_partial_send_keeps_the_rest() {
    child::alone(|| {
        let pool = Mempool::create(eal(), "gaps", 63, 256, 0, -1).unwrap();
        let MbufRing { mut senders, mut receiver } = MbufRing::new(eal(), 10, 1).unwrap();
        let mut batch = RxBurst::new();
        while !batch.is_full() {
            let mut mbuf = pool.alloc().unwrap();
            mbuf.resize(4);
            mbuf.data_mut().copy_from_slice(&(batch.len() as u32).to_be_bytes());
            batch.push(mbuf).unwrap();
        }
        let extra = batch.push(pool.alloc().unwrap()).unwrap_err();
        drop(batch.take(0));
        drop(batch.take(5));
        assert_eq!(senders[0].send(&mut batch), 10, "as many as the ring holds");
        assert_eq!(batch.len(), BURST - 12);
        assert_eq!(seq_of(batch.data(0)), 12, "the rest moved to the front");
        assert_eq!(senders[0].send(&mut batch), 0);
        let mut out = RxBurst::new();
        assert_eq!(receiver.len(), 10);
        assert_eq!(receiver.receive(&mut out), 10);
        let seqs: Vec<u32> = (0..out.len()).map(|i| seq_of(out.data(i))).collect();
        assert_eq!(seqs, [1, 2, 3, 4, 6, 7, 8, 9, 10, 11]);
        assert_eq!(senders[0].send(&mut out), 10);
        assert_eq!(pool.in_use(), BURST - 2 + 1);
        drop((senders, receiver, batch, extra));
        assert_eq!(pool.in_use(), 0);
    });
}

#[test]
fn buffer_may_outlive_its_pool() {
    child::alone(|| {
        let pool = Mempool::create(eal(), "orphan", 63, 256, 0, -1).unwrap();
        let mut mbuf = pool.alloc().unwrap();
        drop(pool);
        assert!(mbuf.resize(100));
        mbuf.data_mut().fill(9);
        assert_eq!(mbuf.data(), [9; 100]);
        thread::spawn(move || drop(mbuf)).join().unwrap();
    });
}

#[test]
fn huge_memory_is_zeroed_aligned_and_returned() {
    child::alone(|| {
        for round in 0..3 {
            let memory = HugeMemory::new(eal(), 1 << 20).unwrap();
            assert_eq!(memory.base().as_ptr() as usize % 64, 0);
            let named = Memory::new(Arc::new(HugeMemory::named(eal(), "region", 100_000).unwrap()));
            let memory = Memory::new(Arc::new(memory));
            for memory in [&memory, &named] {
                let mut bytes = vec![1; memory.len()];
                memory.read(0, &mut bytes).unwrap();
                assert!(bytes.iter().all(|byte| *byte == 0), "round {round}");
                bytes.fill(0xEE);
                memory.write(0, &bytes).unwrap();
            }
            // A name is in use while its owner exists.
            let error = HugeMemory::named(eal(), "region", 1000).unwrap_err();
            assert!(error.to_string().contains("region region of 1000 bytes"), "{error}");
        }
        let allocator = HugeAllocator::new(eal());
        assert_eq!(allocator.allocate(12345).unwrap().len(), 12345);
        assert!(allocator.allocate(0).unwrap().is_empty());
        assert_eq!(allocator.allocate(1 << 40).unwrap_err().len, 1 << 40);
        let error = HugeMemory::new(eal(), 1 << 40).unwrap_err().to_string();
        assert!(error.starts_with("no DPDK memory for 1099511627776 bytes") && error.contains("hugepages"), "{error}");
    });
}

#[test]
fn invalid_ports_are_refused_with_an_explanation() {
    child::alone(|| {
        let message = |result: Result<Port, EalError>| result.unwrap_err().to_string();
        let missing = Port::configure(eal(), PortId(31), &small());
        assert!(matches!(missing, Err(EalError::NoSuchPort(31))));
        assert!(message(missing).contains("--vdev"));

        let none = configure(4, &PortConfig { rx_queues: 0, ..small() });
        assert!(message(none).contains("at least one RX and one TX queue"));
        let vast = configure(4, &PortConfig { extra_mbufs: 1 << 26, ..small() });
        assert!(message(vast).contains("no DPDK memory for"));
        // After a failure the port can be configured, once. (The device is closed after the last failure.)
        let mut port = configure(5, &small()).unwrap();
        assert!(matches!(configure(5, &small()), Err(EalError::PortInUse(_))));
        let queues = port.start().unwrap();
        assert!(matches!(port.start(), Err(EalError::PortInUse(_))));
        drop(port);
        assert!(matches!(configure(5, &small()), Err(EalError::PortInUse(_))), "its queues still exist");
        drop(queues);
    });
}

#[test]
fn port_has_several_queues_and_reports_fallbacks() {
    child::alone(|| {
        let mut port = configure(6, &PortConfig { rx_queues: 2, tx_queues: 40, ..small() }).unwrap();
        let mut queues = port.start().unwrap();
        assert_eq!((queues.rx.len(), queues.tx.len()), (2, 16));
        assert!(port.fallbacks().contains(&Fallback::Queues { rx: 2, tx: 16 }));
        assert!(port.fallbacks().contains(&Fallback::NoRss) && !port.has_rss());
        port.multicast_filter().set(&["33:33:00:00:00:01".parse().unwrap()]).unwrap();
        // Queue n of a net_ring device receives what its queue n sends.
        let mut burst = RxBurst::new();
        for n in [0, 1] {
            write_frame(queues.tx[n].push(64).unwrap(), n as u32);
            assert_eq!(queues.tx[n].flush(), 0);
            assert_eq!(queues.rx[n].burst(&mut burst), 1);
            assert_eq!(seq_of(burst.data(0)), n as u32);
            assert_eq!(queues.rx[1 - n].burst(&mut burst), 0);
        }
    });
}

#[test]
fn queues_move_between_threads_and_keep_their_port_alive() {
    child::alone(|| {
        let (port, mut rx, mut tx) = started(7, &small());
        let mac = port.mac();
        drop(port);
        let worker = thread::spawn(move || {
            let mut burst = RxBurst::new();
            write_frame(tx.push(128).unwrap(), 1);
            assert_eq!(tx.flush(), 0);
            assert_eq!(rx.burst(&mut burst), 1);
            burst.take(0).unwrap()
        });
        let mbuf = worker.join().unwrap();
        assert_eq!(mbuf.data(), frame(128, 1));
        // The port is stopped and closed by now.
        assert!(eal().ports().iter().all(|info| info.mac != mac || info.name != "net_ring7"));
    });
}

#[test]
fn eal_starts_once_and_runs_workers_from_its_own_thread_only() {
    child::alone(|| {
        assert!(Eal::version().starts_with("DPDK "));
        assert!(eal().port_count() > 0);
        assert!(matches!(Eal::init(&[]), Err(EalError::AlreadyInitialised)));
        let elsewhere = thread::spawn(|| eal().run_workers(Vec::new()).unwrap_err());
        assert!(matches!(elsewhere.join().unwrap(), EalError::NotMainLcore));
    });
}

#[test]
fn clock_follows_real_time() {
    child::alone(|| {
        let clock = Clock::new(eal());
        let (start, real) = (clock.now(), Instant::now());
        thread::sleep(Duration::from_millis(50));
        let (took, real) = (clock.now().saturating_since(start), real.elapsed());
        let error = took.as_secs_f64() / real.as_secs_f64() - 1.0;
        assert!(error.abs() < 0.05, "{took:?} by the clock, {real:?} in reality");
    });
}
