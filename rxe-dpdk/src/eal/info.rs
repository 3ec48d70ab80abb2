//! Driver, limits and capabilities of a port.

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;

use rxe_proto::wire::{MacAddr, PortId};

use super::error::{EalError, Errno};

/// A port as EAL found it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortInfo {
    /// DPDK's port number.
    pub id: PortId,
    /// The device: a `--vdev` name such as `net_vhost0`, or a PCI address.
    pub name: String,
    /// The driver, for example `net_vhost` or `net_ice`.
    pub driver: String,
    /// MAC address of the port.
    pub mac: MacAddr,
    /// Maximum number of receive queues.
    pub max_rx_queues: u16,
    /// Maximum number of transmit queues.
    pub max_tx_queues: u16,
    /// Its NUMA node, -1 when it has none.
    pub socket: i32,
}

/// The state of a port's link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Link {
    /// Whether there is one.
    pub up: bool,
    /// Megabits per second; `None` when unknown.
    pub speed_mbps: Option<u32>,
    /// Whether both sides can send at once.
    pub full_duplex: bool,
}

/// Counters of a port since it was started, over all queues.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PortStats {
    /// Frames received.
    pub rx_frames: u64,
    /// Frames sent.
    pub tx_frames: u64,
    /// Bytes received.
    pub rx_bytes: u64,
    /// Bytes sent.
    pub tx_bytes: u64,
    /// Frames that the device dropped because its receive queue was full.
    pub rx_missed: u64,
    /// Frames received with errors.
    pub rx_errors: u64,
    /// Frames that could not be sent.
    pub tx_errors: u64,
    /// Frames dropped because no buffer was free.
    pub rx_no_mbuf: u64,
}

/// The part of the device's own description that sizing needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct DeviceLimits {
    pub(super) max_mtu: u16,
    pub(super) max_rx_pktlen: u32,
    pub(super) min_rx_bufsize: u32,
    pub(super) if_index: u32,
    pub(super) tx_offloads: u64,
    pub(super) rss_types: u64,
}

impl PortInfo {
    /// The numbers of all ports.
    pub(super) fn ids() -> impl Iterator<Item = u16> {
        let next = |from: u16| {
            // SAFETY: EAL is initialised whenever a method of Eal calls this; DPDK checks the number.
            let id = unsafe { dpdk_sys::rte_eth_find_next_owned_by(from, dpdk_sys::RXE_ETH_DEV_NO_OWNER) };
            u16::try_from(id).ok().filter(|id| u32::from(*id) < dpdk_sys::RXE_MAX_ETHPORTS)
        };
        std::iter::successors(next(0), move |id| next(id + 1))
    }

    /// Queries port `id`.
    pub(super) fn of(id: u16) -> Result<PortInfo, EalError> {
        let raw = raw_info(id)?;
        let mut mac = dpdk_sys::rte_ether_addr::default();
        // SAFETY: the port exists; `mac` is written.
        let ret = unsafe { dpdk_sys::rte_eth_macaddr_get(id, &raw mut mac) };
        check(id, "read its address", ret)?;
        let mut name = [0 as c_char; NAME_LEN];
        // SAFETY: the port exists; DPDK writes a NUL-terminated name of at most RTE_ETH_NAME_MAX_LEN bytes.
        let ret = unsafe { dpdk_sys::rte_eth_dev_get_name_by_port(id, name.as_mut_ptr()) };
        check(id, "read its name", ret)?;
        Ok(PortInfo {
            id: PortId(id),
            name: text(name.as_ptr()),
            driver: text(raw.driver_name),
            mac: MacAddr(mac.addr_bytes),
            max_rx_queues: raw.max_rx_queues,
            max_tx_queues: raw.max_tx_queues,
            // SAFETY: the port exists.
            socket: unsafe { dpdk_sys::rte_eth_dev_socket_id(id) },
        })
    }
}

impl DeviceLimits {
    pub(super) fn of(id: u16) -> Result<DeviceLimits, EalError> {
        let raw = raw_info(id)?;
        Ok(DeviceLimits {
            max_mtu: raw.max_mtu,
            max_rx_pktlen: raw.max_rx_pktlen,
            min_rx_bufsize: raw.min_rx_bufsize,
            if_index: raw.if_index,
            tx_offloads: raw.tx_offload_capa,
            rss_types: raw.flow_type_rss_offloads,
        })
    }
}

/// RTE_ETH_NAME_MAX_LEN and some.
const NAME_LEN: usize = 256;

pub(super) fn raw_info(id: u16) -> Result<dpdk_sys::rte_eth_dev_info, EalError> {
    // DPDK would say the same, with a line on stderr in addition.
    if !PortInfo::ids().any(|known| known == id) {
        return Err(EalError::NoSuchPort(id));
    }
    let mut info = MaybeUninit::zeroed();
    // SAFETY: DPDK checks the number and writes the structure.
    match unsafe { dpdk_sys::rte_eth_dev_info_get(id, info.as_mut_ptr()) } {
        // SAFETY: zeroed and then written: numbers and pointers only, for which zeros are valid.
        0 => Ok(unsafe { info.assume_init() }),
        ret => Err(EalError::Port { port: PortId(id), action: "read its description", errno: Errno::of(ret) }),
    }
}

/// Turns the return value of an ethdev call into a result.
pub(super) fn check(id: u16, action: &'static str, ret: i32) -> Result<(), EalError> {
    if ret < 0 { Err(EalError::Port { port: PortId(id), action, errno: Errno::of(ret) }) } else { Ok(()) }
}

/// A C string of DPDK's, copied.
pub(super) fn text(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: not null, and DPDK's names are NUL-terminated and live while the port does.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
