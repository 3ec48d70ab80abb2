//! Queue pairs whose peers say their numbers over a side channel, and neither type nor path MTU.

use std::net::IpAddr;

use rxe_dpdk::service::{Context, PeerPath};
use rxe_proto::transport::{AhError, AhId, QpError, QpTransition, Qpn, RemoteAddr, RtrAttr, RtsAttr, SendOp};
use rxe_proto::wire::{PathMtu, Psn, udp_source_port, udp_source_port_ud};

/// The Q_Key of perftest's and the pingpongs' datagrams.
pub const QKEY: u32 = 0x1111_1111;
/// How the queue pairs of perftest and the pingpongs are set: ACK timeout code (1.07 s), retries, retries without end of
/// a receiver that is not ready, and the wait that ours asks for (code of 0.64 ms). The clients take code 14, 67 ms,
/// but a peer in software on a busy host is away for longer than eight times that; rxe itself tries for ever with 7.
const TIMEOUT: u8 = 18;
const RETRY_CNT: u8 = 7;
const RNR_RETRY: u8 = 7;
const MIN_RNR_TIMER: u8 = 12;

/// Why a client at `from` that names `named` as its address gets no queue pair, when no path was found.
pub fn no_way(from: IpAddr, named: IpAddr) -> String {
    if from == named {
        format!("there is no way to its address {named}")
    } else {
        // The queue pair would send there, and only the stream's other end has asked for that.
        format!("its GID is not the address that it connects from but {named}")
    }
}

/// A peer's queue pair and the way to it.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The way.
    pub path: PeerPath,
    /// The queue pair.
    pub qpn: Qpn,
    /// The first PSN that it will send.
    pub psn: Psn,
    /// The path MTU, if it was said; else what is assumed until its first packet.
    pub path_mtu: PathMtu,
    /// READs and atomics that it may have outstanding here.
    pub rd_atomic: u8,
    /// Its memory, where it has told of some.
    pub remote: RemoteAddr,
}

impl Peer {
    /// Takes `qp` from Init to RTS, ready for whatever type the peer turns out to be. Its first PSN will be `sq_psn`.
    pub fn open(&self, cx: &mut Context<'_>, qp: Qpn, sq_psn: Psn) -> Result<(), QpError> {
        self.connect(cx, qp, sq_psn)?;
        cx.follow_peer(qp, QKEY)
    }

    /// Takes `qp` from Init to RTS as the type that it was made with.
    pub fn connect(&self, cx: &mut Context<'_>, qp: Qpn, sq_psn: Psn) -> Result<(), QpError> {
        let mut path = self.path.path.clone();
        path.udp_src_port = udp_source_port(path.flow_label, qp.get(), self.qpn.get());
        cx.modify_qp(
            qp,
            QpTransition::ToRtr(RtrAttr {
                path,
                path_mtu: self.path_mtu.min(self.path.path_mtu),
                dest_qpn: self.qpn,
                rq_psn: self.psn,
                max_dest_rd_atomic: self.rd_atomic,
                min_rnr_timer: MIN_RNR_TIMER,
            }),
        )?;
        cx.modify_qp(
            qp,
            QpTransition::ToRts(RtsAttr {
                sq_psn,
                timeout: TIMEOUT,
                retry_cnt: RETRY_CNT,
                rnr_retry: RNR_RETRY,
                max_rd_atomic: 1,
            }),
        )
    }
}

/// Where answers to datagrams go.
#[derive(Debug)]
pub struct DatagramTo {
    ah: AhId,
    qpn: Qpn,
    qkey: u32,
}

impl DatagramTo {
    /// The queue pair `qpn` at the end of `path`, for our queue pair `from`.
    pub fn new(cx: &mut Context<'_>, from: Qpn, path: &PeerPath, qpn: Qpn, qkey: u32) -> Result<DatagramTo, AhError> {
        let pd = cx.query_qp(from).ok_or(AhError::UnknownPd)?.pd;
        let mut path = path.path.clone();
        path.udp_src_port = udp_source_port_ud(from.get());
        Ok(DatagramTo { ah: cx.create_ah(pd, &path)?, qpn, qkey })
    }

    /// The operation that sends one.
    pub fn op(&self) -> SendOp {
        SendOp::Datagram { ah: self.ah, qpn: self.qpn, qkey: self.qkey, imm: None }
    }

    /// Gives the address handle back.
    pub fn close(self, cx: &mut Context<'_>) {
        // It exists: nobody else knows it.
        let _ = cx.destroy_ah(self.ah);
    }
}
