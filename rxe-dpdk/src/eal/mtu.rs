//! Maximum length of frames on a port, and the size of its buffers.
//!
//! Drivers disagree with what they really do. Measured on DPDK 22.11:
//!
//! * net_tap stops at 1,522-byte frames whatever MTU is set.
//! * net_af_packet and net_memif refuse any MTU above 1,500, but never look at it afterwards: they carry what their
//!   own buffers (`framesz`) hold. So their MTU is not set.
//! * net_memif spreads a frame longer than its `bsize` over several buffers, and under load the receiver then sees old
//!   frames again, without end: 31,000 times as many as were sent. So frames are kept within one buffer.
//! * net_af_packet copies what the kernel gives it without looking at the size of the mbuf. A buffer smaller than
//!   `framesz` would be overrun by a frame that another program sends; the MTU does not protect it.
//! * net_af_xdp receives straight into the pool's memory, of which each element must fit into one page.

use std::fmt;

use super::args::Vdev;
use super::info::DeviceLimits;
use super::mempool::HEADROOM;

/// Ethernet header and one VLAN tag.
pub(super) const L2: usize = 14 + 4;

/// An ability that a port lacks and what is done instead, or a request that it could not meet.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Fallback {
    /// The MTU is smaller than requested.
    Mtu {
        /// The requested MTU.
        asked: u16,
        /// The MTU of the port.
        got: u16,
        /// Why, and what would help.
        reason: String,
    },
    /// The driver's MTU was not set, because the driver refuses values that it can in fact carry.
    MtuNotSet,
    /// Fewer queues than requested.
    Queues {
        /// Receive queues.
        rx: u16,
        /// Transmit queues.
        tx: u16,
    },
    /// Several receive queues, but no RSS that would spread frames over them: expect all in the first.
    NoRss,
    /// Frames are sent from one buffer each.
    NoMultiSegmentTx,
    /// Promiscuous mode instead of receiving all multicast.
    Promiscuous,
    /// Neither all-multicast nor promiscuous mode can be set: the device alone decides what arrives. A device
    /// without address filters (virtio_user without a control queue) passes everything; behind another one IPv6
    /// neighbour discovery may fail.
    NoFilterControl,
}

impl fmt::Display for Fallback {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fallback::Mtu { asked, got, reason } => write!(f, "MTU {got} instead of {asked}: {reason}"),
            Fallback::MtuNotSet => f.write_str("the driver's MTU is not set"),
            Fallback::Queues { rx, tx } => write!(f, "only {rx} RX and {tx} TX queues"),
            Fallback::NoRss => f.write_str("no RSS"),
            Fallback::NoMultiSegmentTx => f.write_str("no multi-segment TX"),
            Fallback::Promiscuous => f.write_str("promiscuous instead of all-multicast"),
            Fallback::NoFilterControl => f.write_str("no control over multicast filters"),
        }
    }
}

/// Frame sizes of a port.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct FramePlan {
    /// The IP MTU.
    pub(super) mtu: u16,
    /// Whether the driver's MTU is set to it.
    pub(super) set_mtu: bool,
    /// Bytes of data in each buffer, headroom not counted.
    pub(super) buffer: usize,
    pub(super) fallback: Option<Fallback>,
}

/// The longest data that an mbuf can describe, headroom taken off.
const MAX_BUFFER: usize = u16::MAX as usize - HEADROOM;

/// Plans frame sizes for `driver`. `vdev` created the device if it is virtual; `kernel_mtu` is the MTU of the kernel
/// interface below it, if there is one. An error is a sentence.
pub(super) fn plan(
    driver: &str,
    vdev: Option<&Vdev>,
    limits: &DeviceLimits,
    kernel_mtu: Option<u16>,
    asked: u16,
) -> Result<FramePlan, String> {
    let mut cap = Cap::new(asked);
    // The capacity of the largest buffer, less what rounding may add.
    cap.never_beyond(MAX_BUFFER - 1024 - L2, || "no buffer holds more".to_owned());
    // Bytes that the driver may write into a buffer, whatever the MTU.
    let mut writes = usize::try_from(limits.min_rx_bufsize).unwrap_or(0).min(MAX_BUFFER);
    let mut most = MAX_BUFFER;
    match driver {
        "net_tap" => cap.never_beyond(1500, || "net_tap carries no larger frames".to_owned()),
        "net_af_packet" => {
            // The kernel's packet ring puts 66 bytes of its own in front of every received frame.
            const RING_HEADER: usize = 66;
            let framesz = vdev.and_then(|vdev| vdev.number("framesz")).unwrap_or(2048) as usize;
            let carries = framesz.saturating_sub(RING_HEADER);
            // One VLAN tag is put back into the frame by the driver, in front.
            if carries > MAX_BUFFER {
                return Err(format!("framesz={framesz} is beyond what a packet buffer can hold; use 32768 or less"));
            }
            writes = writes.max(framesz.min(MAX_BUFFER));
            cap.at_most(carries.saturating_sub(L2), || {
                let (wanted, count) = larger_slots(usize::from(asked) + L2 + RING_HEADER);
                format!("framesz={framesz} holds no more; give --vdev framesz={wanted},blocksz=65536,framecnt={count}")
            });
        }
        "net_memif" => {
            // A longer frame would be spread over several buffers; the notes above say what comes of that.
            let bsize = vdev.and_then(|vdev| vdev.number("bsize")).unwrap_or(2048) as usize;
            cap.at_most(bsize.saturating_sub(L2), || {
                let (wanted, _) = larger_slots(usize::from(asked) + L2);
                format!("bsize={bsize} holds no more; give both ends' --vdev bsize={wanted}")
            });
        }
        "net_af_xdp" => {
            // The whole element (pool header 64, mbuf 128, headroom, data) in one page of 4,096. 63 cache lines: an
            // odd number, which DPDK does not grow to spread elements over memory channels.
            most = 63 * 64 - 64 - 128 - HEADROOM;
            cap.never_beyond(3542, || "a frame must fit into one page with net_af_xdp".to_owned());
        }
        _ => {
            // Some drivers count header and checksum, some also VLAN tags: leave room for all of them.
            let by_frame = (limits.max_rx_pktlen as usize).saturating_sub(L2 + 4);
            let by_frame = if by_frame < 1500 { 1500 } else { by_frame };
            let device = if limits.max_mtu == 0 { usize::from(u16::MAX) } else { usize::from(limits.max_mtu) };
            cap.never_beyond(by_frame.min(device), || "the device carries no larger frames".to_owned());
        }
    }
    if let Some(mtu) = kernel_mtu {
        let target = cap.within_reach;
        let interface = vdev.and_then(|vdev| vdev.args.get("iface")).map_or("INTERFACE", String::as_str);
        cap.at_most(usize::from(mtu), || {
            format!("{mtu} is the interface's own MTU; raise it (ip link set dev {interface} mtu {target})")
        });
    }
    let set_mtu = cap.mtu <= 1500 || !matches!(driver, "net_af_packet" | "net_memif");
    let fallback = cap.fallback().or((!set_mtu).then_some(Fallback::MtuNotSet));
    // NICs count their receive buffers in KiB and round down: a multiple is all used.
    let buffer = (usize::from(cap.mtu) + L2).max(writes).next_multiple_of(1024).min(most).min(MAX_BUFFER);
    Ok(FramePlan { mtu: cap.mtu, set_mtu, buffer, fallback })
}

/// Slots of `bytes` or more, as the rings of net_af_packet and net_memif have them: a power of two. How many of them fit the
/// memory that a ring of net_af_packet has with 512 slots of 8,192 bytes: two such rings are what a process without special
/// rights may lock.
fn larger_slots(bytes: usize) -> (usize, usize) {
    let size = bytes.next_power_of_two().clamp(4096, 32_768);
    (size, ((512 * 8192) / size).min(512))
}

/// The smallest of several limits, and the reasons: every limit below the requested MTU, as each has to be raised.
struct Cap {
    asked: u16,
    mtu: u16,
    /// Largest MTU once all limits that can be raised are raised.
    within_reach: u16,
    reasons: Vec<String>,
}

impl Cap {
    fn new(asked: u16) -> Cap {
        Cap { asked, mtu: asked, within_reach: asked, reasons: Vec::new() }
    }

    /// A limit that the user can raise.
    fn at_most(&mut self, limit: usize, reason: impl FnOnce() -> String) {
        let limit = u16::try_from(limit).unwrap_or(u16::MAX);
        if limit < self.within_reach {
            self.mtu = self.mtu.min(limit);
            self.reasons.push(reason());
        }
    }

    /// A limit that cannot be raised.
    fn never_beyond(&mut self, limit: usize, reason: impl FnOnce() -> String) {
        let limit = u16::try_from(limit).unwrap_or(u16::MAX);
        if limit < self.within_reach {
            (self.mtu, self.within_reach) = (self.mtu.min(limit), limit);
            self.reasons.push(reason());
        }
    }

    fn fallback(&self) -> Option<Fallback> {
        let reason = self.reasons.join("; ");
        (self.mtu < self.asked).then_some(Fallback::Mtu { asked: self.asked, got: self.mtu, reason })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPEN: DeviceLimits = DeviceLimits {
        max_mtu: u16::MAX,
        max_rx_pktlen: u32::MAX,
        min_rx_bufsize: 0,
        if_index: 0,
        tx_offloads: 0,
        rss_types: 0,
    };

    fn vdev(args: &[(&str, &str)]) -> Vdev {
        let args = args.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        Vdev { name: "net_af_packet0".to_owned(), args }
    }

    #[test]
    fn af_packet_is_bounded_by_framesz_and_never_overrun() {
        let small = plan("net_af_packet", Some(&vdev(&[])), &OPEN, None, 4200).unwrap();
        assert_eq!(small.mtu, 2048 - 66 - 18);
        assert!(small.buffer >= 2048);
        assert!(matches!(small.fallback, Some(Fallback::Mtu { asked: 4200, .. })));

        let large = plan("net_af_packet", Some(&vdev(&[("framesz", "8192")])), &OPEN, None, 4200).unwrap();
        assert_eq!((large.mtu, large.set_mtu), (4200, false));
        assert!(large.buffer >= 8192);
        assert_eq!(large.fallback, Some(Fallback::MtuNotSet));

        let kernel = plan("net_af_packet", Some(&vdev(&[("framesz", "8192")])), &OPEN, Some(1500), 4200).unwrap();
        assert_eq!((kernel.mtu, kernel.set_mtu), (1500, true));
        let hint = kernel.fallback.map(|fallback| fallback.to_string()).unwrap_or_default();
        assert!(hint.starts_with("MTU 1500 instead of 4200") && hint.contains("mtu 4200"), "{hint}");

        assert!(plan("net_af_packet", Some(&vdev(&[("framesz", "131072")])), &OPEN, None, 1500).is_err());
    }

    /// The words behind the fallback of a plan.
    fn hint(plan: &FramePlan) -> String {
        plan.fallback.as_ref().map(ToString::to_string).unwrap_or_default()
    }

    #[test]
    fn following_the_advice_yields_the_requested_mtu() {
        for asked in [1965, 2000, 4200, 8109, 9000, 9216] {
            // Both limits are named at once, with the interface.
            let small = vdev(&[("iface", "veth7")]);
            let first = plan("net_af_packet", Some(&small), &OPEN, Some(1500), asked).unwrap();
            let said = hint(&first);
            assert!(said.contains(&format!("(ip link set dev veth7 mtu {asked})")), "{said}");
            let advice = said.split("give --vdev ").nth(1).and_then(|rest| rest.split(';').next()).unwrap_or_default();
            let args: Vec<(&str, &str)> = advice.split(',').filter_map(|arg| arg.split_once('=')).collect();
            assert_eq!(args.len(), 3, "{said}");
            let followed = vdev(&args);
            assert_eq!(plan("net_af_packet", Some(&followed), &OPEN, Some(asked), asked).unwrap().mtu, asked, "{said}");
            // The driver requires whole frames in a block and whole blocks in a ring.
            let number = |key| followed.number(key).unwrap_or_default();
            assert_eq!((number("blocksz") % number("framesz"), number("blocksz") % 4096), (0, 0));
            assert_eq!((number("framecnt") * number("framesz")) % number("blocksz"), 0);
            assert!(number("framecnt") * number("framesz") <= 4 << 20, "two rings fit the memory that may be locked");

            let said = hint(&plan("net_memif", None, &OPEN, None, asked.max(2031)).unwrap());
            let bsize = said.split("bsize=").nth(2).unwrap_or_default();
            let followed = plan("net_memif", Some(&vdev(&[("bsize", bsize)])), &OPEN, None, asked.max(2031)).unwrap();
            assert_eq!(followed.mtu, asked.max(2031), "{said}");
        }
        // An MTU out of reach is not advised.
        let said = hint(&plan("net_af_xdp", None, &OPEN, Some(1500), 4200).unwrap());
        assert!(said.contains("mtu 3542") && said.contains("one page"), "{said}");
    }

    #[test]
    fn memif_frames_stay_within_one_buffer() {
        let small = plan("net_memif", None, &OPEN, None, 4200).unwrap();
        assert_eq!(small.mtu, 2048 - 18);
        assert!(matches!(small.fallback, Some(Fallback::Mtu { asked: 4200, .. })));
        let large = plan("net_memif", Some(&vdev(&[("bsize", "8192")])), &OPEN, None, 4200).unwrap();
        assert_eq!((large.mtu, large.set_mtu), (4200, false));
    }

    #[test]
    fn drivers_with_hard_limits_are_capped() {
        assert_eq!(plan("net_tap", None, &OPEN, None, 4200).unwrap().mtu, 1500);
        let xdp = plan("net_af_xdp", None, &OPEN, None, 4200).unwrap();
        assert_eq!(xdp.mtu, 3542);
        assert!(xdp.buffer >= 3542 + L2 && xdp.buffer + HEADROOM + 64 + 128 <= 4096);
    }

    #[test]
    fn a_device_limit_is_kept() {
        let limits = DeviceLimits { max_mtu: 2000, ..OPEN };
        assert_eq!(plan("net_x", None, &limits, None, 4200).unwrap().mtu, 2000);
        let limits = DeviceLimits { max_rx_pktlen: 9728, ..OPEN };
        assert_eq!(plan("net_virtio", None, &limits, None, 9000).unwrap().mtu, 9000);
        assert_eq!(plan("net_virtio", None, &limits, None, 9900).unwrap().mtu, 9706);
        // Drivers that count no VLAN tag still carry 1,500.
        let limits = DeviceLimits { max_rx_pktlen: 1514, ..OPEN };
        assert_eq!(plan("net_x", None, &limits, None, 4200).unwrap().mtu, 1500);
    }

    #[test]
    fn buffers_hold_the_frame_for_every_mtu() {
        for asked in 68..=u16::MAX {
            let plan = plan("net_ring", None, &OPEN, None, asked).unwrap();
            assert!(plan.buffer >= usize::from(plan.mtu) + L2 && plan.buffer <= MAX_BUFFER, "{asked}: {plan:?}");
        }
    }
}
