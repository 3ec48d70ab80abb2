//! Packets as text: one line each, for logs of the control path, tests and tools.

use std::fmt;

use super::{Feth, NakCode, RocePacket, Syndrome};

impl fmt::Display for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Syndrome::Ack { credits: Syndrome::NO_CREDIT_LIMIT } => f.write_str("ack"),
            Syndrome::Ack { credits } => write!(f, "ack credits {credits}"),
            Syndrome::Rnr { timer } => write!(f, "rnr timer {timer}"),
            Syndrome::Nak(code) => write!(f, "nak {code}"),
            Syndrome::Reserved(byte) => write!(f, "reserved {byte:#04x}"),
        }
    }
}

impl fmt::Display for NakCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NakCode::PsnSequence => "PSN sequence error",
            NakCode::InvalidRequest => "invalid request",
            NakCode::RemoteAccess => "remote access error",
            NakCode::RemoteOperational => "remote operational error",
            NakCode::InvalidRd => "invalid RD request",
            NakCode::Unknown(code) => return write!(f, "code {code}"),
        })
    }
}

/// See [`RocePacket::without_rkeys`].
struct WithoutRkeys<'a>(&'a RocePacket<'a>);

impl fmt::Display for WithoutRkeys<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.describe(f, false)
    }
}

impl fmt::Display for RocePacket<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.describe(f, true)
    }
}

impl RocePacket<'_> {
    /// The packet as text without its remote keys: a reader of the log must not learn keys to memory.
    pub fn without_rkeys(&self) -> impl fmt::Display {
        WithoutRkeys(self)
    }

    fn describe(&self, f: &mut fmt::Formatter<'_>, rkeys: bool) -> fmt::Result {
        let rkey = |key: u32| if rkeys { format!(" rkey {key:#010x}") } else { String::new() };
        let bth = self.bth();
        let (src, dst) = (self.src_gid().ip(), self.dst_gid().ip());
        write!(f, "{} {src} > {dst} qp {:#x} psn {}", self.info().name, bth.dest_qp(), bth.psn())?;
        let flags = [
            (bth.ack_req(), "ackreq"),
            (bth.se(), "se"),
            (bth.migreq(), "migreq"),
            (bth.fecn(), "fecn"),
            (bth.becn(), "becn"),
        ];
        for (_, name) in flags.iter().filter(|(set, _)| *set) {
            write!(f, " {name}")?;
        }
        if bth.pkey() != super::DEFAULT_PKEY {
            write!(f, " pkey {:#06x}", bth.pkey())?;
        }
        if let Some(tci) = self.vlan() {
            write!(f, " vlan {}", tci & 0xFFF)?;
        }
        if let Some(deth) = self.deth() {
            write!(f, " deth(qkey {:#010x} from qp {:#x})", deth.qkey(), deth.src_qp())?;
        }
        if let Some(feth) = self.feth() {
            let level = if feth.level() == Feth::LEVEL_RANGE { "range" } else { "region" };
            write!(f, " feth({level} placement {})", feth.placement())?;
        }
        if let Some(reth) = self.reth() {
            write!(f, " reth(va {:#x}{} len {})", reth.va(), rkey(reth.rkey()), reth.dma_len())?;
        }
        if let Some(eth) = self.atomic_eth() {
            let (va, rkey, swap, compare) = (eth.va(), rkey(eth.rkey()), eth.swap_or_add(), eth.compare());
            write!(f, " atomiceth(va {va:#x}{rkey} swap/add {swap:#x} compare {compare:#x})")?;
        }
        if let Some(aeth) = self.aeth() {
            write!(f, " aeth({} msn {})", aeth.syndrome(), aeth.msn())?;
        }
        if let Some(original) = self.atomic_ack() {
            write!(f, " atomicack({original:#x})")?;
        }
        if let Some(imm) = self.imm() {
            write!(f, " imm {imm:#010x}")?;
        }
        if let Some(key) = self.invalidate_rkey() {
            write!(f, " invalidate")?;
            if rkeys {
                write!(f, " {key:#010x}")?;
            }
        }
        if self.info().payload {
            write!(f, " {} bytes", self.payload().len())?;
        }
        Ok(())
    }
}

impl fmt::Debug for RocePacket<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
