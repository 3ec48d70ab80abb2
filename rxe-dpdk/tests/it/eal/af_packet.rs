//! Jumbo frames over net_af_packet on a veth pair. Needs root, for a network namespace.

use std::time::{Duration, Instant};

use rxe_dpdk::eal::{Eal, EalError, Fallback, Port, PortConfig, RxBurst, RxQueue, TxStage};
use rxe_dpdk::rxe_proto::wire::PortId;

use rxe_testkit::child::{self, ip};

#[test]
fn jumbo_frames_pass_and_the_mtu_fits_ring_and_interface() {
    child::in_namespace(inside);
}

fn inside() {
    for (pair, mtu) in [("a", 9000), ("b", 9000), ("c", 1500)] {
        ip(&format!("link add {pair}0 type veth peer name {pair}1"));
        for end in [0, 1] {
            // Keeps the kernel's neighbour discovery off the link.
            ip(&format!("link set {pair}{end} mtu {mtu} addrgenmode none up"));
        }
    }
    let ring = "blocksz=65536,framesz=8192,framecnt=512";
    let args = format!(
        "--no-huge -m 256 --no-pci --no-telemetry --no-shconf \
         --vdev=net_af_packet0,iface=a0,{ring} --vdev=net_af_packet1,iface=a1,{ring} \
         --vdev=net_af_packet2,iface=b0 --vdev=net_af_packet3,iface=c0,{ring} \
         --vdev=net_af_packet4,iface=c1,framesz=131072,blocksz=131072,framecnt=8"
    );
    let args: Vec<String> = args.split_whitespace().map(str::to_owned).collect();
    let eal = Eal::init(&args).unwrap();
    let (_p0, mut rx0, mut tx0) = jumbo(&eal, 0);
    let (p1, mut rx1, mut tx1) = jumbo(&eal, 1);
    assert!(p1.pool().frame_len() >= 8192, "a frame as long as the driver's ring allows must fit");

    let mut burst = RxBurst::new();
    for len in [60, 1514, 4178, 4218] {
        carry(&mut tx0, &mut rx1, &mut burst, len);
        carry(&mut tx1, &mut rx0, &mut burst, len);
    }

    // The MTU is reduced to what ring and interface can carry, with a hint.
    assert_eq!(limited(&eal, 2, 2048 - 66 - 18), "framesz=2048");
    assert_eq!(limited(&eal, 3, 1500), "mtu 4200");
    let vast = configure(&eal, 4).unwrap_err().to_string();
    assert!(vast.contains("use 32768 or less"), "{vast}");
}

fn configure(eal: &Eal, n: u16) -> Result<Port, EalError> {
    let id = eal.ports().into_iter().find(|info| info.name == format!("net_af_packet{n}")).unwrap().id;
    Port::configure(eal, id, &PortConfig { rx_descriptors: 512, tx_descriptors: 512, ..PortConfig::default() })
}

fn jumbo(eal: &Eal, n: u16) -> (Port, RxQueue, TxStage) {
    let mut port = configure(eal, n).unwrap();
    let mut queues = port.start().unwrap();
    assert_eq!((port.id(), port.mtu()), (PortId(n), 4200));
    assert!(port.fallbacks().contains(&Fallback::MtuNotSet));
    (port, queues.rx.remove(0), queues.tx.remove(0))
}

/// Checks the MTU of device `n` and returns the essential part of its hint.
fn limited(eal: &Eal, n: u16, mtu: u16) -> &'static str {
    let port = configure(eal, n).unwrap();
    let found = port.fallbacks().iter().find_map(|fallback| match fallback {
        Fallback::Mtu { asked: 4200, got, reason } => Some((*got, reason.clone())),
        _ => None,
    });
    let (got, reason) = found.unwrap();
    assert_eq!((got, port.mtu()), (mtu, mtu));
    ["framesz=2048", "mtu 4200"].into_iter().find(|hint| reason.contains(hint)).unwrap_or("no hint")
}

/// Sends 100 frames of `len` bytes and expects them all, in order and intact.
fn carry(tx: &mut TxStage, rx: &mut RxQueue, burst: &mut RxBurst, len: usize) {
    const COUNT: u8 = 100;
    for seq in 0..COUNT {
        let frame = tx.push(len).unwrap();
        frame.fill(seq);
        // Broadcast, with an EtherType for experiments.
        frame[..6].fill(0xFF);
        frame[12..14].copy_from_slice(&[0x88, 0xB5]);
    }
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut next = 0;
    while next < COUNT {
        assert!(Instant::now() < deadline, "{next} of {COUNT} frames of {len} bytes arrived");
        tx.flush();
        rx.burst(burst);
        for i in 0..burst.len() {
            let frame = burst.data(i);
            assert_eq!(frame.len(), len);
            assert!(frame[14..].iter().all(|byte| *byte == next), "frame {next} of {len} bytes");
            next += 1;
        }
    }
}
