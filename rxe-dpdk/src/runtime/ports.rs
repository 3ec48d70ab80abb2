//! Starts the ports and distributes their queues, and the rings between workers.

use super::error::RuntimeError;
use crate::eal::{Eal, EalError, MbufReceiver, MbufRing, MbufSender, Port, PortConfig, TxStage};
use crate::worker::handoff::{HandOff, TxRing, TxRingEnd};
use crate::worker::ports::RxPort;
use crate::worker::tx_path::TxPath;
use rxe_adapter::settings::RuntimeConfig;
use rxe_adapter::worker::injector::Room;

/// The IP MTU asked of a port without a setting: what path MTU 4096 needs.
const DEFAULT_MTU: u16 = 4200;

/// Frames that a hand-off ring holds.
const RING_CAPACITY: usize = 1024;

/// The queues and rings of one worker.
#[derive(Default)]
pub(super) struct Queues {
    pub(super) rx: Vec<RxPort>,
    /// By port number.
    pub(super) tx: Vec<TxPath>,
    pub(super) tx_rings: Vec<TxRingEnd>,
    pub(super) outbound: Vec<Option<HandOff>>,
    pub(super) inbound: Option<MbufReceiver>,
}

/// Configures and starts every port that the program has not taken for itself, and distributes its queues among `workers`
/// workers.
pub(super) fn start(
    eal: &Eal,
    config: &RuntimeConfig,
    workers: usize,
) -> Result<(Vec<Port>, Vec<Queues>), RuntimeError> {
    let settings = &config.ports;
    let in_rings = if workers > 1 { 3 * RING_CAPACITY * workers } else { 0 };
    let in_injectors = 2 * injector_room(config).max_held() * workers;
    let mut shares: Vec<Queues> = (0..workers).map(|_| Queues::default()).collect();
    let mut ports = Vec::new();
    for info in eal.ports() {
        let number = ports.len();
        if eal.is_port_taken(info.id) {
            continue;
        }
        let own = settings.get(number).filter(|own| !own.addresses.is_empty());
        let own = own.ok_or_else(|| RuntimeError::NoAddress { port: number, name: info.name.clone() })?;
        let queue_count = u16::try_from(workers).unwrap_or(u16::MAX);
        let mut port = Port::configure(
            eal,
            info.id,
            &PortConfig {
                rx_queues: queue_count,
                tx_queues: queue_count,
                mtu: own.mtu.unwrap_or(DEFAULT_MTU),
                extra_mbufs: in_rings + in_injectors,
                ..PortConfig::default()
            },
        )?;
        let queues = port.start()?;
        for (index, queue) in queues.rx.into_iter().enumerate() {
            shares[index % workers].rx.push(RxPort { port: port.id(), queue, faults: None });
        }
        share_tx(eal, &port, queues.tx, &mut shares)?;
        ports.push(port);
    }
    if ports.is_empty() {
        return Err(RuntimeError::NoPort);
    }
    if settings.len() > ports.len() {
        return Err(RuntimeError::UnknownPort { port: settings.len() - 1, found: ports.len() });
    }
    connect_workers(eal, &mut shares)?;
    Ok((ports, shares))
}

/// Maximum number of frames that an injector may hold.
pub(super) fn injector_room(config: &RuntimeConfig) -> Room {
    if config.faults.is_empty() { Room::NARROW } else { Room::WIDE }
}

/// Gives each worker a transmit path to `port`: a queue of its own, or a ring to worker 0, which has one.
fn share_tx(eal: &Eal, port: &Port, stages: Vec<TxStage>, shares: &mut [Queues]) -> Result<(), EalError> {
    let without = shares.len().saturating_sub(stages.len());
    let mut stages = stages.into_iter();
    let mut senders = Vec::<MbufSender>::new();
    if without > 0 {
        let ring = MbufRing::new(eal, RING_CAPACITY, without)?;
        shares[0].tx_rings.push(TxRingEnd::new(port.id(), ring.receiver));
        senders = ring.senders;
    }
    for share in shares {
        if let Some(stage) = stages.next() {
            share.tx.push(TxPath::Queue(Box::new(stage)));
        } else if let Some(sender) = senders.pop() {
            share.tx.push(TxPath::Ring(Box::new(TxRing::new(port.pool().clone(), sender))));
        }
    }
    Ok(())
}

/// One ring into each worker, with a sender for each of the others.
fn connect_workers(eal: &Eal, shares: &mut [Queues]) -> Result<(), EalError> {
    let workers = shares.len();
    if workers == 1 {
        return Ok(());
    }
    for share in shares.iter_mut() {
        share.outbound = (0..workers).map(|_| None).collect();
    }
    for to in 0..workers {
        let ring = MbufRing::new(eal, RING_CAPACITY, workers - 1)?;
        shares[to].inbound = Some(ring.receiver);
        for (from, sender) in (0..workers).filter(|from| *from != to).zip(ring.senders) {
            shares[from].outbound[to] = Some(HandOff::new(sender));
        }
    }
    Ok(())
}
