use rxe_proto::cm::{ConnectParams, MadPath, write_mad};
use rxe_proto::transport::Qpn;
use rxe_proto::wire::{DropReason, Frame, PathMtu, PortId, Psn, classify};

use crate::service::Listen;
use crate::test_env::{OneFrame, TestEnv, peer_path};

/// The frame of a REQ on `path`.
fn req(env: &mut TestEnv, path: MadPath) -> Vec<u8> {
    let params = ConnectParams::new(path, (1, 7174), Qpn::new(0x11), Psn::new(5), PathMtu::Mtu1024);
    env.peer.connect(env.now, params).unwrap();
    let mad = env.peer.poll_transmit().unwrap();
    let mut frame = OneFrame(Vec::new());
    assert!(write_mad(&mut frame, &mad.path, 1, Psn::new(0), &mad.mad));
    frame.0
}

/// The reason why a frame is dropped, if it is.
fn dropped(env: &mut TestEnv, frame: &[u8]) -> Option<DropReason> {
    let Ok(Frame::Roce(packet)) = classify(frame) else { panic!("not a RoCE frame") };
    let before: Vec<u64> = env.control.drops().iter().map(|(_, count)| count).collect();
    env.control.handle_gsi(env.now, PortId(0), &packet);
    let mut changed = env.control.drops().iter().zip(before).filter(|((_, now), before)| now != before);
    changed.next().map(|((reason, _), _)| reason)
}

#[test]
fn only_packets_of_hosts_to_our_own_address_with_a_good_icrc_are_processed() {
    let mut env = TestEnv::new(1, vec![(0, Listen::cm(7174))]);
    let good = req(&mut env, peer_path());
    let ip = |last: u8| std::net::IpAddr::from([10, 0, 0, last]).into();
    let foreign = req(&mut env, MadPath { peer: ip(9), ..peer_path() });
    assert_eq!(dropped(&mut env, &foreign), Some(DropReason::ForeignAddress));
    let broadcast = req(&mut env, MadPath { local: ip(255), ..peer_path() });
    assert_eq!(dropped(&mut env, &broadcast), Some(DropReason::GsiSource));
    let mut broken = good.clone();
    *broken.last_mut().unwrap() ^= 1;
    assert_eq!(dropped(&mut env, &broken), Some(DropReason::IcrcMismatch));
    env.control.poll(env.now, &mut ());
    assert!(env.mail(0).is_empty());
    assert_eq!(dropped(&mut env, &good), None);
    env.control.poll(env.now, &mut ());
    assert_eq!(env.mail(0).len(), 1);
}
