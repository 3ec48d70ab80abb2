//! The multicast filter of a port.

use std::fmt;
use std::sync::Arc;

use rxe_proto::wire::MacAddr;

use super::Port;
use crate::eal::error::EalError;
use crate::eal::info::check;
use crate::eal::init::lock;
use crate::eal::mtu::Fallback;
use crate::eal::port_inner::PortInner;

/// Sets the multicast groups that a started port receives. From [`Port::multicast_filter`]; the port runs while this
/// lives.
pub struct MulticastFilter {
    port: Arc<PortInner>,
    /// Whether the port may drop groups that were not set.
    needed: bool,
}

impl Port {
    /// A handle to set the multicast groups that the port receives.
    pub fn multicast_filter(&self) -> MulticastFilter {
        let needed = self.fallbacks.contains(&Fallback::NoFilterControl);
        MulticastFilter { port: Arc::clone(&self.inner), needed }
    }
}

impl MulticastFilter {
    /// Receives frames to the groups `macs` and no others, unless the port receives all groups anyway. A device without
    /// filter control returns no error: most of those filter nothing.
    ///
    /// # Errors
    ///
    /// [`EalError::Port`] when the device has filters and they do not take the groups.
    pub fn set(&self, macs: &[MacAddr]) -> Result<(), EalError> {
        if !self.needed {
            return Ok(());
        }
        let _control = lock(&self.port.control);
        if self.port.queues.is_closed() {
            return Ok(());
        }
        let mut raw: Vec<_> = macs.iter().map(|mac| dpdk_sys::rte_ether_addr { addr_bytes: mac.0 }).collect();
        // SAFETY: the port exists; as many addresses as told, which are copied.
        let ret = unsafe { dpdk_sys::rte_eth_dev_set_mc_addr_list(self.port.id, raw.as_mut_ptr(), raw.len() as u32) };
        if ret == -libc::ENOTSUP { Ok(()) } else { check(self.port.id, "join multicast groups", ret) }
    }
}

impl fmt::Debug for MulticastFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MulticastFilter({})", self.port.id)
    }
}
