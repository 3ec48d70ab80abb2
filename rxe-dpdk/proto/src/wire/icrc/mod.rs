//! The invariant CRC: CRC-32 (IEEE 802.3) over everything from the IP header to the pad, with the fields that routers
//! may change replaced by ones.
//!
//! On x86-64 it is computed in one pass over the packet where it lies, by carry-less multiplication (`fold.rs` says how
//! that works); elsewhere by a library, the head of the packet as a masked copy.

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod fold;
mod masks;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod pclmul;
mod portable;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod vpclmul;

use std::sync::atomic::{AtomicU8, Ordering};

/// Length of the ICRC in bytes. It is stored least significant byte first.
pub const ICRC_LEN: usize = 4;

/// CRC-32 of IEEE 802.3 without its highest power, not reflected.
const POLYNOMIAL: u32 = 0x04C1_1DB7;

/// Nothing shorter is a packet: IPv4, UDP and base transport header.
const SHORTEST: usize = 20 + 8 + 12;

/// The ICRC of a packet. `ip_and_up` starts with the IP header and ends in front of the ICRC; it holds at least IP, UDP
/// and base transport header (of anything shorter the result means nothing).
#[inline]
pub fn icrc(ip_and_up: &[u8], is_ipv4: bool) -> u32 {
    IcrcKernel::best().icrc(ip_and_up, is_ipv4)
}

/// A way to compute the ICRC that this processor has. [`icrc`] takes the best one; tests and benches compare them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IcrcKernel(Kernel);

/// In the order of their speed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
enum Kernel {
    Portable = 1,
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    Pclmul,
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    Vpclmul,
}

impl Kernel {
    const ALL: &[Kernel] = &[
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        Kernel::Vpclmul,
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        Kernel::Pclmul,
        Kernel::Portable,
    ];

    fn is_here(self) -> bool {
        match self {
            Kernel::Portable => true,
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Kernel::Pclmul => pclmul::is_here(),
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Kernel::Vpclmul => vpclmul::is_here(),
        }
    }
}

/// The [`Kernel`] that [`icrc`] takes, as its number; 0 before the processor was asked.
static BEST: AtomicU8 = AtomicU8::new(0);

impl IcrcKernel {
    /// Those that this processor has, the fastest first.
    pub fn all() -> impl Iterator<Item = IcrcKernel> {
        Kernel::ALL.iter().copied().filter(|kernel| kernel.is_here()).map(IcrcKernel)
    }

    /// The fastest that this processor has.
    #[inline]
    pub fn best() -> IcrcKernel {
        let best = BEST.load(Ordering::Relaxed);
        let known = Kernel::ALL.iter().copied().find(|&kernel| kernel as u8 == best);
        known.map_or_else(IcrcKernel::detect, IcrcKernel)
    }

    #[cold]
    fn detect() -> IcrcKernel {
        let best = IcrcKernel::all().next().unwrap_or(IcrcKernel(Kernel::Portable));
        BEST.store(best.0 as u8, Ordering::Relaxed);
        best
    }

    /// Name of the kernel.
    pub fn name(self) -> &'static str {
        match self.0 {
            Kernel::Portable => "portable",
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Kernel::Pclmul => "pclmulqdq",
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Kernel::Vpclmul => "vpclmulqdq",
        }
    }

    /// As [`icrc`].
    #[inline(always)]
    #[allow(unsafe_code)] // calls of kernels whose instructions were found to be there
    pub fn icrc(self, ip_and_up: &[u8], is_ipv4: bool) -> u32 {
        // The kernels rest on what every sound packet keeps, and cannot tell the others.
        if ip_and_up.len() < SHORTEST || !ip_and_up.len().is_multiple_of(4) {
            return portable::icrc(ip_and_up, is_ipv4);
        }
        match self.0 {
            Kernel::Portable => portable::icrc(ip_and_up, is_ipv4),
            // SAFETY: `all` and `detect` alone make values of IcrcKernel, of kernels that are here; the length is checked above.
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Kernel::Pclmul => unsafe { pclmul::icrc(ip_and_up, is_ipv4) },
            // SAFETY: as above.
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Kernel::Vpclmul => unsafe { vpclmul::icrc(ip_and_up, is_ipv4) },
        }
    }

    /// The change of an acknowledge packet's ICRC, to be XORed with it, when the packet's last eight covered bytes, PSN and
    /// AETH, are XORed with `last`. `None` where that takes longer than a new ICRC.
    #[inline]
    #[allow(unsafe_code)] // calls of a kernel whose instructions were found to be there
    pub(super) fn change_of_ack(self, last: u64) -> Option<u32> {
        match self.0 {
            Kernel::Portable => None,
            // SAFETY: as in `icrc`; what the smaller one needs the other one needs, too.
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Kernel::Pclmul | Kernel::Vpclmul => Some(unsafe { pclmul::change_of_ack(last) }),
        }
    }

    /// As [`change_of_ack`](Self::change_of_ack) for the last covered bytes, 16 in each element, as two numbers.
    #[inline(always)]
    #[allow(unsafe_code)] // calls of a kernel whose instructions were found to be there
    pub(super) fn change_of_end<const N: usize>(self, end: [[u64; 2]; N]) -> Option<u32> {
        match self.0 {
            Kernel::Portable => None,
            // SAFETY: as in `change_of_ack`.
            #[cfg(all(target_arch = "x86_64", not(miri)))]
            Kernel::Pclmul | Kernel::Vpclmul => Some(unsafe { pclmul::change_of_end(end) }),
        }
    }
}
