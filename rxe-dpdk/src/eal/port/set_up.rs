//! Configuration of a port: the steps of ethdev, each with a fallback where the device refuses.

use std::mem::MaybeUninit;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

use rxe_proto::wire::PortId;

use super::config::PortConfig;
use crate::eal::args::Vdev;
use crate::eal::burst::BURST;
use crate::eal::error::EalError;
use crate::eal::info::{DeviceLimits, PortInfo, check, raw_info};
use crate::eal::init::EalGuard;
use crate::eal::mempool::Mempool;
use crate::eal::mtu::{self, Fallback};
use crate::eal::port_inner::PortInner;
use crate::eal::sockets;
use crate::eal::tx::{SPARES, STAGE};
use rxe_sync::UseCount;

/// A configuration in progress.
pub(in crate::eal) struct SetUp {
    pub(super) id: u16,
    pub(super) info: PortInfo,
    pub(super) config: PortConfig,
    pub(super) fallbacks: Vec<Fallback>,
    pub(super) rss: bool,
}

impl SetUp {
    /// For a device that is re-created. `config` has the values that it got the first time.
    pub(in crate::eal) fn again(id: u16, info: PortInfo, config: PortConfig) -> SetUp {
        SetUp { id, info, config, fallbacks: Vec::new(), rss: false }
    }

    pub(super) fn run(&mut self, guard: &Arc<EalGuard>) -> Result<PortInner, EalError> {
        let limits = DeviceLimits::of(self.id)?;
        let problem = |problem: String| EalError::PortLimits { port: PortId(self.id), problem };
        let kernel_mtu = if self.info.driver.starts_with("net_af_") { interface_mtu(limits.if_index) } else { None };
        let vdev = guard.vdev(&self.info.name);
        let plan = mtu::plan(&self.info.driver, vdev, &limits, kernel_mtu, self.config.mtu).map_err(problem)?;
        // Again: net_vhost creates its socket now, and another process may have taken the path since EAL was started. The
        // other drivers have created theirs already.
        vdev.filter(|vdev| vdev.is("vhost")).map_or(Ok(()), sockets::make_way)?;
        self.queues()?;
        self.fallbacks.extend(plan.fallback);
        if limits.tx_offloads & dpdk_sys::RXE_TX_OFFLOAD_MULTI_SEGS == 0 {
            self.fallbacks.push(Fallback::NoMultiSegmentTx);
        }
        let mtu = self.configure(&limits, plan.mtu, plan.set_mtu)?;
        let id = self.id;

        // SAFETY: the port is configured; both numbers are written.
        let ret = unsafe {
            dpdk_sys::rte_eth_dev_adjust_nb_rx_tx_desc(
                id,
                &raw mut self.config.rx_descriptors,
                &raw mut self.config.tx_descriptors,
            )
        };
        check(id, "size its queues", ret)?;
        let pool = self.pool(guard, plan.buffer)?;
        // From here on the device may refer to the pool: dropping this closes the one before the other.
        let inner = PortInner {
            id,
            mtu,
            started: AtomicBool::new(false),
            control: Mutex::default(),
            queues: UseCount::default(),
            pool,
            eal: Arc::clone(guard),
        };
        self.set_up_queues(&inner.pool, vdev)?;
        Ok(inner)
    }

    /// Limits the numbers of queues to what the device supports.
    fn queues(&mut self) -> Result<(), EalError> {
        let (rx, tx) = (self.config.rx_queues, self.config.tx_queues);
        let limit = |asked: u16, max: u16| asked.clamp(1, max.max(1));
        self.config.rx_queues = limit(rx, self.info.max_rx_queues);
        self.config.tx_queues = limit(tx, self.info.max_tx_queues);
        if rx == 0 || tx == 0 {
            let problem = "at least one RX and one TX queue are needed".to_owned();
            return Err(EalError::PortLimits { port: PortId(self.id), problem });
        }
        if (self.config.rx_queues, self.config.tx_queues) != (rx, tx) {
            self.fallbacks.push(Fallback::Queues { rx: self.config.rx_queues, tx: self.config.tx_queues });
        }
        Ok(())
    }

    /// Calls rte_eth_dev_configure, with fewer features each time the device refuses. Returns the IP MTU.
    fn configure(&mut self, limits: &DeviceLimits, mtu: u16, set_mtu: bool) -> Result<u16, EalError> {
        let several = self.config.rx_queues > 1;
        let rss_types = limits.rss_types & (dpdk_sys::RXE_RSS_IP | dpdk_sys::RXE_RSS_UDP);
        let ask_rss = several && rss_types != 0;
        let mut last = Ok(());
        // RSS is given up before the MTU.
        for (set, rss) in [(set_mtu, ask_rss), (set_mtu, false), (false, ask_rss), (false, false)] {
            match self.try_configure(set.then_some(mtu), if rss { rss_types } else { 0 }) {
                Ok(()) => {
                    self.rss = rss;
                    if several && !rss {
                        self.fallbacks.push(Fallback::NoRss);
                    }
                    if set_mtu && !set && mtu > 1500 {
                        // It refused a value within its own limits, so only the default is safe.
                        let reason = "the device refused more".to_owned();
                        self.fallbacks.push(Fallback::Mtu { asked: self.config.mtu, got: 1500, reason });
                        return Ok(1500);
                    }
                    return Ok(mtu);
                }
                Err(error) => last = Err(error),
            }
        }
        last.map(|()| mtu)
    }

    pub(in crate::eal) fn try_configure(&self, mtu: Option<u16>, rss_types: u64) -> Result<(), EalError> {
        // Zeros mean "the default" in every field.
        let mut conf = MaybeUninit::<dpdk_sys::rte_eth_conf>::zeroed();
        // SAFETY: numbers, unions of numbers and pointers only, for which zeros are valid.
        let conf = unsafe { conf.assume_init_mut() };
        conf.rxmode.mtu = mtu.map_or(0, u32::from);
        if rss_types != 0 {
            conf.rxmode.mq_mode = dpdk_sys::RXE_ETH_MQ_RX_RSS;
            conf.rx_adv_conf.rss_conf.rss_hf = rss_types;
        } else {
            conf.rxmode.mq_mode = dpdk_sys::RXE_ETH_MQ_RX_NONE;
        }
        // SAFETY: the port exists and nobody else configures it (claimed); the structure is copied.
        let ret = unsafe {
            dpdk_sys::rte_eth_dev_configure(self.id, self.config.rx_queues, self.config.tx_queues, &raw const *conf)
        };
        check(self.id, "configure it", ret)
    }

    /// A pool that all queues together cannot empty.
    fn pool(&self, guard: &Arc<EalGuard>, buffer: usize) -> Result<Mempool, EalError> {
        const CACHE: usize = 256;
        let rx = usize::from(self.config.rx_queues) * (usize::from(self.config.rx_descriptors) + 2 * BURST);
        let tx = usize::from(self.config.tx_queues) * (usize::from(self.config.tx_descriptors) + STAGE + SPARES);
        // An lcore's cache holds up to one and a half times its size, which other lcores cannot use.
        let lcores = usize::from(self.config.rx_queues.max(self.config.tx_queues)) + 1;
        let count = rx + tx + lcores * CACHE * 3 / 2 + self.config.extra_mbufs;
        Mempool::with_guard(guard, &guard.unique_name("port"), count, buffer, CACHE, self.info.socket)
    }

    pub(in crate::eal) fn set_up_queues(&self, pool: &Mempool, vdev: Option<&Vdev>) -> Result<(), EalError> {
        let id = self.id;
        let info = raw_info(id)?;
        // -1 (no node) is SOCKET_ID_ANY here, too.
        let socket = self.info.socket as u32;
        for queue in 0..self.config.rx_queues {
            // SAFETY: the port is configured with this many queues; the pool lives in the PortInner, which stops and
            // closes the port before the pool goes.
            let ret = unsafe {
                dpdk_sys::rte_eth_rx_queue_setup(
                    id,
                    queue,
                    self.config.rx_descriptors,
                    socket,
                    &raw const info.default_rxconf,
                    pool.as_ptr(),
                )
            };
            check(id, "set up a receive queue", ret)?;
        }
        let mut tx_conf = info.default_txconf;
        let own_threshold = tx_conf.tx_free_thresh;
        if VIRTIO_DRIVERS.contains(&self.info.driver.as_str()) {
            // Reclaim buffers as soon as the peer is done with them, not when the ring is nearly full: the buffers
            // written next are then still in the cache.
            let ring = self.config.tx_descriptors.min(virtio_ring(vdev));
            tx_conf.tx_free_thresh = ring.saturating_sub(4 * BURST as u16);
        }
        for queue in 0..self.config.tx_queues {
            let descriptors = self.config.tx_descriptors;
            // SAFETY: as above.
            let set_up = |conf: &dpdk_sys::rte_eth_txconf| unsafe {
                dpdk_sys::rte_eth_tx_queue_setup(id, queue, descriptors, socket, &raw const *conf)
            };
            let mut ret = set_up(&tx_conf);
            if ret < 0 && tx_conf.tx_free_thresh != own_threshold {
                // A virtio device does not report its ring size. A ring shorter than requested is too small for this
                // threshold; the driver's own fits.
                tx_conf.tx_free_thresh = own_threshold;
                ret = set_up(&tx_conf);
            }
            check(id, "set up a transmit queue", ret)?;
        }
        Ok(())
    }
}

/// Drivers that reclaim transmit buffers once fewer descriptors than a threshold are free.
const VIRTIO_DRIVERS: [&str; 2] = ["net_virtio", "net_virtio_user"];

/// The ring size of a virtio port, as far as it is known: virtio_user has an argument for it.
fn virtio_ring(vdev: Option<&Vdev>) -> u16 {
    const DEFAULT: u32 = 256;
    let ring = vdev.filter(|vdev| vdev.is("virtio_user")).map(|vdev| vdev.number("queue_size").unwrap_or(DEFAULT));
    ring.and_then(|ring| u16::try_from(ring).ok()).unwrap_or(u16::MAX)
}

/// The MTU of a kernel interface.
fn interface_mtu(if_index: u32) -> Option<u16> {
    if if_index == 0 {
        return None;
    }
    // SAFETY: all zeros is a valid ifreq: bytes and numbers.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    // SAFETY: the name field holds IF_NAMESIZE bytes, which is what if_indextoname writes at most.
    if unsafe { libc::if_indextoname(if_index, request.ifr_name.as_mut_ptr()) }.is_null() {
        return None;
    }
    // SAFETY: an ordinary socket, closed below.
    let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, 0) };
    if socket < 0 {
        return None;
    }
    // SAFETY: the request names an interface; the kernel writes its MTU into the union.
    let mtu = unsafe {
        let ret = libc::ioctl(socket, libc::SIOCGIFMTU as _, &raw mut request);
        libc::close(socket);
        (ret == 0).then_some(request.ifr_ifru.ifru_mtu)
    }?;
    // The loopback interface has 65,536.
    Some(u16::try_from(mtu).unwrap_or(u16::MAX))
}
