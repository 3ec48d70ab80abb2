//! The global route header in front of a received datagram.

use zerocopy::FromBytes;

use crate::mem::{AccessError, Memory};
use crate::wire::Gid;
use crate::wire::net::{IPV4_LEN, IPV6_LEN, Ipv4Header, Ipv6Header};

/// Where a datagram came from and where it was sent to (`ibv_grh`).
///
/// The first [`Grh::LEN`] bytes of every buffer that a datagram was received into are the IP header it came with: an
/// IPv6 header, or 20 zero bytes and an IPv4 header. The message follows, and `byte_len` of the completion counts both.
///
/// With `src` and the completion's `src_qpn` the sender can be answered, as `ibv_create_ah_from_wc` does: the way back
/// leads to `src`. Its Ethernet address is not in here; the host's neighbours know it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grh {
    /// The sender's address.
    pub src: Gid,
    /// The address it was sent to: ours, or a multicast group's.
    pub dst: Gid,
    /// DSCP and ECN bits.
    pub traffic_class: u8,
    /// IPv6 flow label, 20 bits; 0 for IPv4.
    pub flow_label: u32,
    /// IPv6 hop limit or IPv4 time to live.
    pub hop_limit: u8,
}

/// Why there is no global route header to be found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GrhError {
    /// Fewer than [`Grh::LEN`] bytes from there on.
    #[error("no room for a global route header")]
    OutOfBounds,
    /// The memory is lost.
    #[error("the memory is lost")]
    Lost,
    /// The memory is not mapped, or protected.
    #[error("the memory is not mapped, or protected")]
    Fault,
    /// The bytes are neither an IPv6 nor an IPv4 header.
    #[error("no IP header where the global route header should be")]
    NoIpHeader,
}

impl From<AccessError> for GrhError {
    fn from(error: AccessError) -> GrhError {
        match error {
            AccessError::OutOfBounds => GrhError::OutOfBounds,
            AccessError::Lost => GrhError::Lost,
            AccessError::Fault => GrhError::Fault,
        }
    }
}

impl Grh {
    /// Its length in bytes in front of a datagram.
    pub const LEN: usize = 40;

    /// The one at `offset` of `memory`, where the buffers of a receive begin.
    ///
    /// # Errors
    /// [`GrhError`].
    #[inline]
    pub fn read(memory: &Memory, offset: usize) -> Result<Grh, GrhError> {
        let mut bytes = [0; Grh::LEN];
        memory.read(offset, &mut bytes)?;
        Grh::parse(&bytes)
    }

    /// The one that these bytes are.
    ///
    /// # Errors
    /// [`GrhError::NoIpHeader`].
    pub fn parse(bytes: &[u8; Grh::LEN]) -> Result<Grh, GrhError> {
        if bytes[0] >> 4 == 6 {
            let ip = Ipv6Header::ref_from_bytes(bytes).map_err(|_| GrhError::NoIpHeader)?;
            let word = ip.version_class_flow.get();
            return Ok(Grh {
                src: Gid(ip.src),
                dst: Gid(ip.dst),
                traffic_class: (word >> 20) as u8,
                flow_label: word & 0xF_FFFF,
                hop_limit: ip.hop_limit,
            });
        }
        let (zeros, header) = bytes.split_at(IPV6_LEN - IPV4_LEN);
        let ip = Ipv4Header::ref_from_bytes(header).map_err(|_| GrhError::NoIpHeader)?;
        // Version 4 without options: no other packet gets as far as a queue pair.
        if ip.version_ihl != 0x45 || zeros.iter().any(|&byte| byte != 0) {
            return Err(GrhError::NoIpHeader);
        }
        Ok(Grh {
            src: Gid::from(std::net::Ipv4Addr::from(ip.src)),
            dst: Gid::from(std::net::Ipv4Addr::from(ip.dst)),
            traffic_class: ip.tos,
            flow_label: 0,
            hop_limit: ip.ttl,
        })
    }
}
