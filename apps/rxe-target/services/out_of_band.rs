//! Queue pairs whose peers send their numbers over a side channel, and neither type nor path MTU; and datagram queue pairs.

use std::net::IpAddr;

use rxe_proto::Duration;
use rxe_proto::verbs::{
    AddressHandle, AhError, AnyQueuePair, AnyWorkRequest, Connected, Device, MemoryRegion, Payload, ProtectionDomain,
    QpCaps, QpError, Qpn, QueuePair, RemoteAddr, RtrAttr, RtsAttr, Transition, Ud, UdAttr, WorkRequest,
};
use rxe_proto::wire::mad::RDMA_UDP_QKEY;
use rxe_proto::wire::{PathMtu, PortId, Psn, udp_source_port, udp_source_port_ud};
use rxe_service::{Context, PeerPath};

/// The Q_Key of perftest's and the pingpongs' datagrams.
pub const QKEY: u32 = 0x1111_1111;
/// How the queue pairs of perftest and the pingpongs are set: ACK timeout code (1.07 s), retries, retries without end of
/// a receiver that is not ready, and the wait that ours asks for (code of 0.64 ms). The clients take code 14, 67 ms,
/// but a peer in software on a busy host is away for longer than eight times that; rxe itself tries for ever with 7.
const TIMEOUT: u8 = 18;
const RETRY_CNT: u8 = 7;
const RNR_RETRY: u8 = 7;
const MIN_RNR_TIMER: u8 = 12;
/// Time from the transmission of a request that nobody answers to the error of its queue pair.
pub const RETRIED: Duration = Duration::from_nanos((RETRY_CNT as u64 + 1) * (4096 << TIMEOUT));

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
    /// Takes `qp` from INIT to RTS and lets it detect the peer's type. Its first PSN will be `sq_psn`.
    pub fn open<T: Connected>(
        &self,
        dev: &mut Device<'_>,
        qp: QueuePair<T>,
        sq_psn: Psn,
    ) -> Result<AnyQueuePair, QpError> {
        self.connect(dev, qp, sq_psn)?;
        dev.detect_peer_type(qp, QKEY, self.path.path_mtu)
    }

    /// Takes `qp` from INIT to RTS as the type that it was created with.
    pub fn connect<T: Connected>(&self, dev: &mut Device<'_>, qp: QueuePair<T>, sq_psn: Psn) -> Result<(), QpError> {
        let mut path = self.path.path.clone();
        path.udp_src_port = udp_source_port(path.flow_label, qp.qpn().get(), self.qpn.get());
        dev.modify_qp(
            qp,
            Transition::to_rtr(RtrAttr {
                path,
                path_mtu: self.path_mtu.min(self.path.path_mtu),
                dest_qpn: self.qpn,
                rq_psn: self.psn,
                max_dest_rd_atomic: self.rd_atomic,
                min_rnr_timer: MIN_RNR_TIMER,
            }),
        )?;
        dev.modify_qp(
            qp,
            Transition::to_rts(RtsAttr {
                sq_psn,
                timeout: TIMEOUT,
                retry_cnt: RETRY_CNT,
                rnr_retry: RNR_RETRY,
                max_rd_atomic: 1,
            }),
        )
    }
}

/// Destination of answers to datagrams.
#[derive(Debug)]
pub struct DatagramTo {
    ah: AddressHandle,
    qpn: Qpn,
    qkey: u32,
}

impl DatagramTo {
    /// The queue pair `qpn` at the end of `path`, for our queue pair `from`.
    pub fn new(
        dev: &mut Device<'_>,
        from: AnyQueuePair,
        path: &PeerPath,
        qpn: Qpn,
        qkey: u32,
    ) -> Result<DatagramTo, AhError> {
        let pd = dev.query_qp(from).map_err(|_| AhError::UnknownPd)?.pd;
        let mut path = path.path.clone();
        path.udp_src_port = udp_source_port_ud(from.qpn().get());
        Ok(DatagramTo { ah: dev.create_ah(pd.into(), &path)?, qpn, qkey })
    }

    /// The work request that sends one.
    pub fn send<'a>(&self, payload: impl Into<Payload<'a>>) -> AnyWorkRequest<'a> {
        WorkRequest::datagram(payload, self.ah, self.qpn, self.qkey).into()
    }

    /// Destroys the address handle.
    pub fn close(self, dev: &mut Device<'_>) {
        // It exists: no other code has it.
        let _ = dev.destroy_ah(self.ah);
    }
}

/// A datagram queue pair in RTS, for clients of rdma_cm at `port`.
pub fn datagram_qp(
    cx: &mut Context<'_>,
    pd: ProtectionDomain,
    caps: QpCaps,
    port: PortId,
) -> Result<QueuePair<Ud>, QpError> {
    let limit = (cx.ports().len() as u32).saturating_sub(1);
    let no_port = QpError::Limit { name: "port_num", value: port.0.into(), limit };
    let path_mtu = cx.port(port).ok_or(no_port)?.path_mtu;
    let (attr, sq_psn) = (cx.qp_attr().with_caps(caps), cx.random_psn());
    let mut dev = cx.device();
    let qp = dev.create_qp::<Ud>(pd, attr)?;
    match qp.open(&mut dev, UdAttr { port, qkey: RDMA_UDP_QKEY, path_mtu, sq_psn }) {
        Ok(()) => Ok(qp),
        Err(error) => {
            let _ = dev.destroy_qp(qp);
            Err(error)
        }
    }
}

/// Gives back a datagram queue pair and what only it used.
pub fn give_back(cx: &mut Context<'_>, pd: ProtectionDomain, qp: QueuePair<Ud>, region: &MemoryRegion) {
    let mut dev = cx.device();
    // They exist: no other code has their handles.
    let _ = (dev.destroy_qp(qp), dev.dereg_mr(region), dev.dealloc_pd(pd));
}
