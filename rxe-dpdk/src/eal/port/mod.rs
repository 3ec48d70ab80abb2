//! Ports: configuration, start, and queries of a running one.

mod config;
mod multicast;
mod set_up;

use std::fmt;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rxe_proto::wire::{MacAddr, PortId};

use super::error::EalError;
use super::info::{Link, PortInfo, PortStats, check, text};
use super::init::{Eal, lock};
use super::mempool::Mempool;
use super::mtu::Fallback;
use super::port_inner::PortInner;
use super::rx::RxQueue;
use super::tx::TxStage;
pub use config::PortConfig;
pub use multicast::MulticastFilter;
pub(super) use set_up::SetUp;

/// A configured port. It stops, and its device is closed for good, when this and all of its queues are gone.
pub struct Port {
    inner: Arc<PortInner>,
    config: PortConfig,
    info: PortInfo,
    fallbacks: Vec<Fallback>,
    rss: bool,
}

/// The queues of a started port, each to be given to the lcore that owns it.
#[derive(Debug)]
pub struct PortQueues {
    /// Receive queues, by number.
    pub rx: Vec<RxQueue>,
    /// Transmit queues, by number.
    pub tx: Vec<TxStage>,
}

impl Port {
    /// Configures port `id` and makes its pool. Whatever the device cannot do is done without where that is possible
    /// (see [`fallbacks`](Self::fallbacks)); one log line says so.
    ///
    /// # Errors
    ///
    /// [`EalError::NoSuchPort`], [`EalError::PortInUse`], [`EalError::PortLimits`], [`EalError::NoMemory`], or
    /// [`EalError::Port`] with the step that the device refused.
    pub fn configure(eal: &Eal, id: PortId, config: &PortConfig) -> Result<Port, EalError> {
        let guard = eal.guard();
        let info = PortInfo::of(id.0)?;
        if !guard.claim_port(id.0) {
            return Err(EalError::PortInUse(id.0));
        }
        let mut set_up = SetUp { id: id.0, info, config: config.clone(), fallbacks: Vec::new(), rss: false };
        let inner = set_up.run(guard).inspect_err(|_| guard.release_port(id.0))?;
        let SetUp { info, config, fallbacks, rss, .. } = set_up;
        Ok(Port { inner: Arc::new(inner), config, info, fallbacks, rss })
    }

    /// Starts the port and hands out its queues, once.
    ///
    /// # Errors
    ///
    /// [`EalError::Port`] when the device does not start, [`EalError::PortInUse`] when it is started already.
    pub fn start(&mut self) -> Result<PortQueues, EalError> {
        let id = self.inner.id;
        if self.inner.started.load(Ordering::Acquire) {
            return Err(EalError::PortInUse(id));
        }
        // SAFETY: the port is configured, its queues are set up, and `self` is the only one to control it.
        let ret = unsafe { dpdk_sys::rte_eth_dev_start(id) };
        check(id, "start", ret)?;
        self.inner.started.store(true, Ordering::Release);
        self.receive_groups();
        self.log();
        let rx = (0..self.config.rx_queues).map(|queue| RxQueue::new(Arc::clone(&self.inner), queue)).collect();
        let tx = (0..self.config.tx_queues).map(|queue| TxStage::new(Arc::clone(&self.inner), queue)).collect();
        Ok(PortQueues { rx, tx })
    }

    /// The port's number.
    pub fn id(&self) -> PortId {
        PortId(self.inner.id)
    }

    /// Device, driver and address, as before configuration.
    pub fn info(&self) -> &PortInfo {
        &self.info
    }

    /// The port's Ethernet address.
    pub fn mac(&self) -> MacAddr {
        self.info.mac
    }

    /// The IP MTU that the port really has: from it follows the path MTU.
    pub fn mtu(&self) -> u16 {
        self.inner.mtu
    }

    /// The longest frame, with Ethernet header and one VLAN tag.
    pub fn max_frame(&self) -> usize {
        self.inner.max_frame()
    }

    /// Whether received frames are spread over the queues by RSS.
    pub fn has_rss(&self) -> bool {
        self.rss
    }

    /// Features that were requested or useful and that the port lacks. Complete after [`start`](Self::start).
    pub fn fallbacks(&self) -> &[Fallback] {
        &self.fallbacks
    }

    /// The pool of the port's buffers.
    pub fn pool(&self) -> &Mempool {
        &self.inner.pool
    }

    /// The link's state now, without waiting for it.
    pub fn link(&self) -> Link {
        self.inner.link()
    }

    /// The device's counters.
    ///
    /// # Errors
    ///
    /// [`EalError::Port`] when it keeps none.
    pub fn stats(&self) -> Result<PortStats, EalError> {
        self.inner.stats()
    }

    pub(super) fn config(&self) -> &PortConfig {
        &self.config
    }

    pub(super) fn inner(&self) -> &Arc<PortInner> {
        &self.inner
    }

    /// The device's extended counters, by its own names. Empty when it has none.
    pub fn xstats(&self) -> Vec<(String, u64)> {
        let _control = lock(&self.inner.control);
        let id = self.inner.id;
        if self.inner.queues.is_closed() {
            return Vec::new();
        }
        // SAFETY: the port exists; a null pointer with size 0 asks for the count.
        let count = unsafe { dpdk_sys::rte_eth_xstats_get_names(id, ptr::null_mut(), 0) };
        let Ok(size) = u32::try_from(count) else {
            return Vec::new();
        };
        let mut names = vec![dpdk_sys::rte_eth_xstat_name { name: [0; 64] }; size as usize];
        let mut values = vec![dpdk_sys::rte_eth_xstat { id: 0, value: 0 }; size as usize];
        // SAFETY: both arrays hold `size` elements, the number that is passed to DPDK.
        let (named, valued) = unsafe {
            (
                dpdk_sys::rte_eth_xstats_get_names(id, names.as_mut_ptr(), size),
                dpdk_sys::rte_eth_xstats_get(id, values.as_mut_ptr(), size),
            )
        };
        // A result beyond the size means that nothing was written: the set grew meanwhile.
        let valid = |ret: i32| usize::try_from(ret).ok().filter(|n| *n <= size as usize).unwrap_or(0);
        names.truncate(valid(named));
        values.truncate(valid(valued));
        let pair = |value: &dpdk_sys::rte_eth_xstat| {
            let name = names.get(usize::try_from(value.id).ok()?)?;
            Some((text(name.name.as_ptr()), value.value))
        };
        values.iter().filter_map(pair).collect()
    }

    /// Receives all multicast (neighbour discovery needs it), by promiscuous mode if need be: foreign frames are
    /// dropped by the adapter anyway.
    fn receive_groups(&mut self) {
        let id = self.inner.id;
        // SAFETY: the port is started.
        let ret = unsafe { dpdk_sys::rte_eth_allmulticast_enable(id) };
        if ret == 0 && !self.config.promiscuous {
            return;
        }
        // SAFETY: the port is started.
        let promiscuous = unsafe { dpdk_sys::rte_eth_promiscuous_enable(id) } == 0;
        if ret != 0 {
            self.fallbacks.push(if promiscuous { Fallback::Promiscuous } else { Fallback::NoFilterControl });
        }
    }

    fn log(&self) {
        let without: Vec<String> = self.fallbacks.iter().map(ToString::to_string).collect();
        tracing::info!(
            "port {} ({}, {}): address {}, MTU {}, {} RX and {} TX queues, {}{}{}",
            self.inner.id,
            self.info.name,
            self.info.driver,
            self.info.mac,
            self.inner.mtu,
            self.config.rx_queues,
            self.config.tx_queues,
            self.inner.pool,
            if without.is_empty() { "" } else { "; " },
            without.join("; "),
        );
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Port({} {}, MTU {})", self.inner.id, self.info.name, self.inner.mtu)
    }
}
