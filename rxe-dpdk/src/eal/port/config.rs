//! The requested configuration of a port.

/// The requested configuration of a port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PortConfig {
    /// Receive queues; fewer where the device supports fewer.
    pub rx_queues: u16,
    /// Transmit queues; fewer where the device supports fewer.
    pub tx_queues: u16,
    /// Descriptors per receive queue; rounded to what the device supports.
    pub rx_descriptors: u16,
    /// Descriptors per transmit queue; rounded to what the device supports.
    pub tx_descriptors: u16,
    /// The IP MTU: the longest IP packet, its header included. [`Port::mtu`](super::Port::mtu) says what the port got.
    pub mtu: u16,
    /// Buffers in the port's pool beyond what its queues can hold: held by rings and services.
    pub extra_mbufs: usize,
    /// Promiscuous mode: receive frames to any address.
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
