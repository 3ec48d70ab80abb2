//! Ports: configuration, start, and what can be asked of a running one.

use std::fmt;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use rxe_proto::wire::{MacAddr, PortId};

use super::args::Vdev;
use super::burst::BURST;
use super::error::EalError;
use super::info::{DeviceLimits, Link, PortInfo, PortStats, check, raw_info, text};
use super::init::{Eal, EalGuard, drain_interrupts, lock};
use super::mempool::Mempool;
use super::mtu::{self, Fallback, L2};
use super::reattach::QueuesInUse;
use super::rx::RxQueue;
use super::sockets;
use super::tx::{SPARES, STAGE, TxStage};

/// What a port should be.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortConfig {
    /// Receive queues; fewer when the device has not so many.
    pub rx_queues: u16,
    /// Transmit queues; fewer when the device has not so many.
    pub tx_queues: u16,
    /// Descriptors per receive queue; the nearest number that the device can have.
    pub rx_descriptors: u16,
    /// Descriptors per transmit queue; the nearest number that the device can have.
    pub tx_descriptors: u16,
    /// The IP MTU: the longest IP packet, its header included. [`Port::mtu`] says what became of it.
    pub mtu: u16,
    /// Buffers in the port's pool beyond what its queues can hold: what rings and services may keep.
    pub extra_mbufs: usize,
    /// Receive frames to any address.
    pub promiscuous: bool,
}

impl Default for PortConfig {
    fn default() -> PortConfig {
        PortConfig {
            rx_queues: 1,
            tx_queues: 1,
            rx_descriptors: 1024,
            tx_descriptors: 1024,
            mtu: 4200,
            extra_mbufs: 0,
            promiscuous: false,
        }
    }
}

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

/// Which multicast frames a started port lets in. From [`Port::multicast_filter`]; the port runs while this lives.
pub struct MulticastFilter {
    port: Arc<PortInner>,
    /// Whether the port may be dropping groups that nobody asked for.
    needed: bool,
}

/// What queues hold: the port runs while this lives.
pub(super) struct PortInner {
    id: u16,
    mtu: u16,
    started: AtomicBool,
    /// Ethdev's control calls are not thread-safe.
    control: Mutex<Control>,
    queues: QueuesInUse,
    pool: Mempool,
    eal: Arc<EalGuard>,
}

/// What control calls share.
#[derive(Debug, Default)]
pub(super) struct Control {
    /// What devices counted that this port had before; see [`Reattach`](super::Reattach).
    pub(super) carried: PortStats,
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

    /// What the port lacks of what was asked for or would have been used. Complete after [`start`](Self::start).
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
        if self.inner.queues.is_gone() {
            return Vec::new();
        }
        // SAFETY: the port exists; a null pointer with size 0 asks for the count.
        let count = unsafe { dpdk_sys::rte_eth_xstats_get_names(id, ptr::null_mut(), 0) };
        let Ok(size) = u32::try_from(count) else {
            return Vec::new();
        };
        let mut names = vec![dpdk_sys::rte_eth_xstat_name { name: [0; 64] }; size as usize];
        let mut values = vec![dpdk_sys::rte_eth_xstat { id: 0, value: 0 }; size as usize];
        // SAFETY: both arrays hold `size` elements, which is what DPDK is told.
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

    /// A handle that says which multicast frames to let in.
    pub fn multicast_filter(&self) -> MulticastFilter {
        let needed = self.fallbacks.contains(&Fallback::NoFilterControl);
        MulticastFilter { port: Arc::clone(&self.inner), needed }
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

impl MulticastFilter {
    /// Asks for frames to the groups `macs` and no others, where the port does not receive all groups anyway. A device
    /// that can be asked for nothing ([`Fallback::NoFilterControl`]) is left alone: most of those filter nothing.
    ///
    /// # Errors
    ///
    /// [`EalError::Port`] when the device has filters and they do not take the groups.
    pub fn set(&self, macs: &[MacAddr]) -> Result<(), EalError> {
        if !self.needed {
            return Ok(());
        }
        let _control = lock(&self.port.control);
        if self.port.queues.is_gone() {
            return Ok(());
        }
        let mut raw: Vec<_> = macs.iter().map(|mac| dpdk_sys::rte_ether_addr { addr_bytes: mac.0 }).collect();
        // SAFETY: the port exists; as many addresses as told, which are copied.
        let ret = unsafe { dpdk_sys::rte_eth_dev_set_mc_addr_list(self.port.id, raw.as_mut_ptr(), raw.len() as u32) };
        if ret == -libc::ENOTSUP { Ok(()) } else { check(self.port.id, "join multicast groups", ret) }
    }
}

impl PortInner {
    pub(super) fn link(&self) -> Link {
        let _control = lock(&self.control);
        let mut link = dpdk_sys::rxe_eth_link::default();
        if !self.queues.is_gone() {
            // SAFETY: the port exists; `link` is written, or stays "down" when the driver cannot say.
            unsafe { dpdk_sys::rxe_eth_link_get(self.id, &raw mut link) };
        }
        let known = link.speed_mbps != 0 && link.speed_mbps != dpdk_sys::RXE_ETH_SPEED_UNKNOWN;
        Link { up: link.up != 0, speed_mbps: known.then_some(link.speed_mbps), full_duplex: link.full_duplex != 0 }
    }

    /// The index of the kernel interface that the device stands for.
    pub(super) fn interface(&self) -> Option<u32> {
        let _control = lock(&self.control);
        if self.queues.is_gone() {
            return None;
        }
        DeviceLimits::of(self.id).ok().map(|limits| limits.if_index).filter(|index| *index != 0)
    }

    pub(super) fn stats(&self) -> Result<PortStats, EalError> {
        self.device_stats(&lock(&self.control))
    }

    /// The counters of all devices that the port has had.
    pub(super) fn device_stats(&self, control: &Control) -> Result<PortStats, EalError> {
        let carried = control.carried;
        if self.queues.is_gone() {
            return Ok(carried);
        }
        let mut raw = MaybeUninit::<dpdk_sys::rte_eth_stats>::zeroed();
        // SAFETY: the port exists; the structure is numbers only and was zeroed.
        let (ret, raw) = unsafe {
            let ret = dpdk_sys::rte_eth_stats_get(self.id, raw.as_mut_ptr());
            (ret, raw.assume_init())
        };
        check(self.id, "read its counters", ret)?;
        Ok(PortStats {
            rx_frames: carried.rx_frames + raw.ipackets,
            tx_frames: carried.tx_frames + raw.opackets,
            rx_bytes: carried.rx_bytes + raw.ibytes,
            tx_bytes: carried.tx_bytes + raw.obytes,
            rx_missed: carried.rx_missed + raw.imissed,
            rx_errors: carried.rx_errors + raw.ierrors,
            tx_errors: carried.tx_errors + raw.oerrors,
            rx_no_mbuf: carried.rx_no_mbuf + raw.rx_nombuf,
        })
    }

    pub(super) fn id(&self) -> u16 {
        self.id
    }

    pub(super) fn control(&self) -> &Mutex<Control> {
        &self.control
    }

    pub(super) fn queues(&self) -> &QueuesInUse {
        &self.queues
    }

    /// The arguments of the `--vdev` that made the device of this name, as EAL takes them.
    pub(super) fn vdev_arguments(&self, name: &str) -> Option<String> {
        let vdev = self.eal.vdev(name)?;
        let argument = |(key, value): (&String, &String)| {
            if value.is_empty() { key.clone() } else { format!("{key}={value}") }
        };
        Some(vdev.args.iter().map(argument).collect::<Vec<_>>().join(","))
    }

    pub(super) fn pool(&self) -> &Mempool {
        &self.pool
    }

    pub(super) fn max_frame(&self) -> usize {
        usize::from(self.mtu) + L2
    }
}

impl Drop for PortInner {
    fn drop(&mut self) {
        // A device that is gone is closed, and its number may be another's.
        if !self.queues.is_gone() {
            // SAFETY: no queue and no Port refers to the device any more.
            unsafe {
                if self.started.load(Ordering::Acquire) {
                    dpdk_sys::rte_eth_dev_stop(self.id);
                }
                dpdk_sys::rte_eth_dev_close(self.id);
            }
        }
        drain_interrupts();
        self.eal.release_port(self.id);
    }
}

impl fmt::Debug for PortInner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PortInner({})", self.id)
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Port({} {}, MTU {})", self.inner.id, self.info.name, self.inner.mtu)
    }
}

impl fmt::Debug for MulticastFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MulticastFilter({})", self.port.id)
    }
}

/// Configuration on its way.
pub(super) struct SetUp {
    id: u16,
    info: PortInfo,
    config: PortConfig,
    fallbacks: Vec<Fallback>,
    rss: bool,
}

impl SetUp {
    /// For a device that is made again as `config` says what came of it the first time.
    pub(super) fn again(id: u16, info: PortInfo, config: PortConfig) -> SetUp {
        SetUp { id, info, config, fallbacks: Vec::new(), rss: false }
    }

    fn run(&mut self, guard: &Arc<EalGuard>) -> Result<PortInner, EalError> {
        let limits = DeviceLimits::of(self.id)?;
        let problem = |problem: String| EalError::PortLimits { port: PortId(self.id), problem };
        let kernel_mtu = if self.info.driver.starts_with("net_af_") { interface_mtu(limits.if_index) } else { None };
        let vdev = guard.vdev(&self.info.name);
        let plan = mtu::plan(&self.info.driver, vdev, &limits, kernel_mtu, self.config.mtu).map_err(problem)?;
        // Again: net_vhost makes its socket now, and another process may have been faster since EAL was started. The other
        // drivers have made theirs.
        vdev.filter(|vdev| vdev.is("vhost")).map_or(Ok(()), sockets::make_way)?;
        self.queues()?;
        self.fallbacks.extend(plan.fallback);
        if limits.tx_offloads & dpdk_sys::RXE_TX_OFFLOAD_MULTI_SEGS == 0 {
            self.fallbacks.push(Fallback::NoMultiSegmentTx);
        }
        let mtu = self.configure(&limits, plan.mtu, plan.tell)?;
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
            queues: QueuesInUse::default(),
            pool,
            eal: Arc::clone(guard),
        };
        self.set_up_queues(&inner.pool, vdev)?;
        Ok(inner)
    }

    /// Limits the queues to what there is.
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

    /// Calls rte_eth_dev_configure, asking for less each time the device refuses. Returns the IP MTU.
    fn configure(&mut self, limits: &DeviceLimits, mtu: u16, tell: bool) -> Result<u16, EalError> {
        let several = self.config.rx_queues > 1;
        let rss_types = limits.rss_types & (dpdk_sys::RXE_RSS_IP | dpdk_sys::RXE_RSS_UDP);
        let ask_rss = several && rss_types != 0;
        let mut last = Ok(());
        // RSS is given up before the MTU.
        for (told, rss) in [(tell, ask_rss), (tell, false), (false, ask_rss), (false, false)] {
            match self.try_configure(told.then_some(mtu), if rss { rss_types } else { 0 }) {
                Ok(()) => {
                    self.rss = rss;
                    if several && !rss {
                        self.fallbacks.push(Fallback::NoRss);
                    }
                    if tell && !told && mtu > 1500 {
                        // It refused a value within its own limits: believe in nothing above the default.
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

    pub(super) fn try_configure(&self, mtu: Option<u16>, rss_types: u64) -> Result<(), EalError> {
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
        // An lcore's cache holds up to one and a half times its size, out of everybody else's reach.
        let lcores = usize::from(self.config.rx_queues.max(self.config.tx_queues)) + 1;
        let count = rx + tx + lcores * CACHE * 3 / 2 + self.config.extra_mbufs;
        Mempool::with_guard(guard, &guard.unique_name("port"), count, buffer, CACHE, self.info.socket)
    }

    pub(super) fn set_up_queues(&self, pool: &Mempool, vdev: Option<&Vdev>) -> Result<(), EalError> {
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
            // Take buffers back as soon as the other end is through with them, not when the ring is nearly full: what
            // is written next then lies in the cache.
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
                // A virtio device does not say how long its rings are. One that is shorter than what was asked for has
                // no room for our threshold; the driver knows one that fits.
                tx_conf.tx_free_thresh = own_threshold;
                ret = set_up(&tx_conf);
            }
            check(id, "set up a transmit queue", ret)?;
        }
        Ok(())
    }
}

/// Drivers with a threshold of free descriptors below which a transmit queue takes its buffers back.
const VIRTIO_DRIVERS: [&str; 2] = ["net_virtio", "net_virtio_user"];

/// How long the rings of a virtio port are, as far as that is known: those of virtio_user follow from its argument.
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
