//! Re-creates the device of a port whose kernel interface was deleted and exists again.
//!
//! A socket of net_af_packet is bound to an interface, not to its name, and cannot be bound again. So the device is
//! closed and re-created under the same name and number. That must not happen while a queue is in use: each queue is
//! parked by its owner first, and [`Reattach::detach`] refuses otherwise.

use std::ffi::CString;
use std::sync::Arc;

use super::error::EalError;
use super::info::{PortInfo, check};
use super::init::lock;
use super::port::{Port, PortConfig, SetUp};
use super::port_inner::PortInner;

/// Re-creates a port's device.
#[derive(Debug)]
pub struct Reattach {
    port: Arc<PortInner>,
    info: PortInfo,
    config: PortConfig,
    device: CString,
    arguments: CString,
}

impl Port {
    /// A handle to re-create the device; `None` for drivers that do not support that.
    pub fn reattach(&self) -> Option<Reattach> {
        let info = self.info();
        if info.driver != "net_af_packet" {
            return None;
        }
        let port = Arc::clone(self.inner());
        let arguments = port.vdev_arguments(&info.name)?;
        Some(Reattach {
            device: CString::new(info.name.as_str()).ok()?,
            arguments: CString::new(arguments).ok()?,
            config: self.config().clone(),
            info: info.clone(),
            port,
        })
    }
}

impl Reattach {
    /// Closes the device. False, and nothing is done, while a queue of it is in use.
    pub fn detach(&self) -> bool {
        let mut control = lock(self.port.control());
        let stats = self.port.device_stats(&control).unwrap_or_default();
        if self.port.queues().is_closed() {
            return true;
        }
        if !self.port.queues().close() {
            return false;
        }
        control.carried = stats;
        let id = self.port.id();
        // SAFETY: the device is there, no queue of it is in use or will be, and all other calls hold the lock.
        unsafe {
            dpdk_sys::rte_eth_dev_stop(id);
            dpdk_sys::rte_eth_dev_close(id);
        }
        self.remove();
        true
    }

    /// Re-creates the device after [`detach`](Self::detach): with the same number, queues, buffers and address.
    ///
    /// # Errors
    /// [`EalError::Port`] with the step that failed; it may be tried again.
    pub fn attach(&self) -> Result<(), EalError> {
        let _control = lock(self.port.control());
        if !self.port.queues().is_closed() {
            return Ok(());
        }
        let id = self.port.id();
        // DPDK gives a new device the lowest free number. Another port's number may be free because its device could not
        // be re-created yet; then this port waits for that one.
        if (0..id).any(|lower| !PortInfo::ids().any(|known| known == lower)) {
            return Err(EalError::PortInUse(id));
        }
        // SAFETY: C strings; EAL is initialised. EAL copies them.
        let ret =
            unsafe { dpdk_sys::rte_eal_hotplug_add(c"vdev".as_ptr(), self.device.as_ptr(), self.arguments.as_ptr()) };
        check(id, "open its interface again", ret)?;
        self.set_up().inspect_err(|_| {
            // SAFETY: no queue is in use. A number that is not ours is refused by DPDK.
            unsafe { dpdk_sys::rte_eth_dev_stop(id) };
            self.remove();
        })?;
        self.port.queues().open();
        Ok(())
    }

    fn remove(&self) {
        // SAFETY: C strings; the device is not in use.
        unsafe { dpdk_sys::rte_eal_hotplug_remove(c"vdev".as_ptr(), self.device.as_ptr()) };
    }

    fn set_up(&self) -> Result<(), EalError> {
        let id = self.port.id();
        let mut found = u16::MAX;
        // SAFETY: a C string; the number is written when there is such a port.
        let ret = unsafe { dpdk_sys::rte_eth_dev_get_port_by_name(self.device.as_ptr(), &raw mut found) };
        check(id, "find its device again", ret)?;
        if found != id {
            return Err(EalError::PortInUse(id));
        }
        let set_up = SetUp::again(id, self.info.clone(), self.config.clone());
        // The frame size of net_af_packet depends on its ring, not on its MTU.
        set_up.try_configure(None, 0)?;
        set_up.set_up_queues(self.port.pool(), None)?;
        // SAFETY: configured, and its queues are set up.
        let ret = unsafe { dpdk_sys::rte_eth_dev_start(id) };
        check(id, "start", ret)?;
        let mut promiscuous = self.config.promiscuous;
        // SAFETY: the port is started.
        promiscuous |= unsafe { dpdk_sys::rte_eth_allmulticast_enable(id) } != 0;
        if PortInfo::of(id)?.mac != self.info.mac {
            // Peers have cached the old address.
            let mut mac = dpdk_sys::rte_ether_addr { addr_bytes: self.info.mac.0 };
            // SAFETY: the port is started; the address is copied.
            promiscuous |= unsafe { dpdk_sys::rte_eth_dev_default_mac_addr_set(id, &raw mut mac) } != 0;
        }
        if promiscuous {
            // SAFETY: the port is started.
            unsafe { dpdk_sys::rte_eth_promiscuous_enable(id) };
        }
        Ok(())
    }
}
