//! State that the queues of a port share: the device runs while one of them lives.

use std::fmt;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use rxe_sync::UseCount;

use super::error::EalError;
use super::info::{DeviceLimits, Link, PortStats, check};
use super::init::{EalGuard, drain_interrupts, lock};
use super::mempool::Mempool;
use super::mtu::L2;

/// Held by the queues: the port runs while this lives.
pub(super) struct PortInner {
    pub(super) id: u16,
    pub(super) mtu: u16,
    pub(super) started: AtomicBool,
    /// Ethdev's control calls are not thread-safe.
    pub(super) control: Mutex<Control>,
    /// Queues in use; closed while the device is gone.
    pub(super) queues: UseCount,
    pub(super) pool: Mempool,
    pub(super) eal: Arc<EalGuard>,
}

/// State that control calls share.
#[derive(Debug, Default)]
pub(super) struct Control {
    /// Counters of the devices that this port had before; see [`Reattach`](super::Reattach).
    pub(super) carried: PortStats,
}

impl PortInner {
    pub(super) fn link(&self) -> Link {
        let _control = lock(&self.control);
        let mut link = dpdk_sys::rxe_eth_link::default();
        if !self.queues.is_closed() {
            // SAFETY: the port exists; `link` is written, or stays "down" when the driver cannot say.
            unsafe { dpdk_sys::rxe_eth_link_get(self.id, &raw mut link) };
        }
        let known = link.speed_mbps != 0 && link.speed_mbps != dpdk_sys::RXE_ETH_SPEED_UNKNOWN;
        Link { up: link.up != 0, speed_mbps: known.then_some(link.speed_mbps), full_duplex: link.full_duplex != 0 }
    }

    /// The index of the kernel interface below the device.
    pub(super) fn interface(&self) -> Option<u32> {
        let _control = lock(&self.control);
        if self.queues.is_closed() {
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
        if self.queues.is_closed() {
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

    pub(super) fn queues(&self) -> &UseCount {
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
        if !self.queues.is_closed() {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_removed_only_while_no_queue_is_in_use() {
        let queues = UseCount::default();
        assert!(queues.enter() && queues.enter());
        queues.leave();
        assert!(!queues.close() && !queues.is_closed());
        queues.leave();
        assert!(queues.close() && queues.is_closed());
        assert!(!queues.enter() && !queues.close());
        queues.open();
        assert!(queues.enter() && !queues.is_closed());
    }
}
