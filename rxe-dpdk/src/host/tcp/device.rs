//! The device that smoltcp sees: one IP packet in, one IP packet out, both in memory.

use rxe_proto::Instant;
use rxe_proto::wire::MacAddr;
use smoltcp::phy::{Checksum, ChecksumCapabilities, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::time::Instant as SmolInstant;

/// One packet that smoltcp has sent, kept until the port has room.
#[derive(Default)]
pub(super) struct Staging {
    packet: Vec<u8>,
    full: bool,
}

impl Staging {
    /// The packet, if there is one.
    pub(super) fn packet(&mut self) -> Option<&mut [u8]> {
        self.full.then_some(&mut self.packet)
    }

    /// The packet was passed to the port.
    pub(super) fn clear(&mut self) {
        self.full = false;
    }
}

/// The staged packet and its destination MAC address.
#[derive(Default)]
pub(super) struct Outlet {
    pub(super) staging: Staging,
    pub(super) to: MacAddr,
}

/// A [`Device`] for one call.
pub(super) struct PacketDevice<'a> {
    pub(super) received: Option<&'a [u8]>,
    pub(super) staging: &'a mut Staging,
    pub(super) mtu: u16,
}

impl Device for PacketDevice<'_> {
    type RxToken<'t>
        = Received<'t>
    where
        Self: 't;
    type TxToken<'t>
        = Stage<'t>
    where
        Self: 't;

    fn receive(&mut self, _: SmolInstant) -> Option<(Received<'_>, Stage<'_>)> {
        let packet = self.received.take()?;
        Some((Received(packet), Stage(self.staging)))
    }

    fn transmit(&mut self, _: SmolInstant) -> Option<Stage<'_>> {
        if self.staging.full { None } else { Some(Stage(self.staging)) }
    }

    fn capabilities(&self) -> DeviceCapabilities {
        let mut checksum = ChecksumCapabilities::default();
        // Received packets were checked before, as far as the configuration asks for it.
        checksum.ipv4 = Checksum::Tx;
        checksum.tcp = Checksum::Tx;
        let mut caps = DeviceCapabilities::default();
        caps.medium = Medium::Ip;
        caps.max_transmission_unit = self.mtu.into();
        caps.checksum = checksum;
        caps
    }
}

pub(super) struct Received<'a>(&'a [u8]);

impl RxToken for Received<'_> {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        f(self.0)
    }
}

pub(super) struct Stage<'a>(&'a mut Staging);

impl TxToken for Stage<'_> {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        self.0.packet.clear();
        self.0.packet.resize(len, 0);
        self.0.full = true;
        f(&mut self.0.packet)
    }
}

/// `now` on smoltcp's clock, rounded down to its microseconds.
pub(super) fn to_smoltcp(now: Instant) -> SmolInstant {
    SmolInstant::from_micros(i64::try_from(now.as_nanos() / 1000).unwrap_or(i64::MAX))
}

/// A time on smoltcp's clock as ours.
pub(super) fn from_smoltcp(at: SmolInstant) -> Instant {
    Instant::from_nanos(u64::try_from(at.total_micros()).unwrap_or(0).saturating_mul(1000))
}
