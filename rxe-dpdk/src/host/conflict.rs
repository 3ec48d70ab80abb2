//! Address conflict detection (RFC 5227, and RFC 4862 section 5.4 for IPv6): which of our addresses another station uses too.
//!
//! An operator configured our addresses, so the host uses them from the start, beside the probes, and keeps them in a
//! conflict (RFC 5227 section 2.4, option (c)): it defends an address once per [`DEFEND_INTERVAL`], by one announcement,
//! and otherwise counts the conflict. There is one entry per address, however many stations claim it.

use std::net::IpAddr;
use std::sync::Arc;

use rxe_proto::wire::MacAddr;
use rxe_proto::{Duration, Instant};

use super::{AddressConflicts, ConflictReports, HostStats};

/// Minimum interval between two defences of an address, and between two warnings about it (RFC 5227 section 1.1).
const DEFEND_INTERVAL: Duration = Duration::from_secs(10);

/// The state of one address.
#[derive(Default)]
struct Address {
    /// Probes are being sent: another station's probe is a conflict too.
    probing: bool,
    /// The last defence.
    defended: Option<Instant>,
    /// The last warning.
    warned: Option<Instant>,
}

/// The conflicts of one interface.
pub(super) struct Conflicts {
    addresses: Vec<Address>,
    /// In the same order.
    reports: ConflictReports,
    stats: Arc<HostStats>,
}

/// Whether `last` is less than [`DEFEND_INTERVAL`] before `now`.
fn is_recent(now: Instant, last: Option<Instant>) -> bool {
    last.is_some_and(|last| now.saturating_since(last) < DEFEND_INTERVAL)
}

impl Conflicts {
    pub(super) fn new(addresses: impl Iterator<Item = IpAddr>, stats: Arc<HostStats>) -> Conflicts {
        let mut conflicts = Conflicts { addresses: Vec::new(), reports: Arc::default(), stats };
        conflicts.set_addresses(addresses);
        conflicts
    }

    /// Watches `addresses` from now on, of which the new ones are to be probed; the others keep their state.
    pub(super) fn set_addresses(&mut self, addresses: impl Iterator<Item = IpAddr>) {
        let known = std::mem::take(&mut self.addresses).into_iter().zip(self.reports.iter().cloned());
        let mut known: Vec<(Address, Arc<AddressConflicts>)> = known.collect();
        let entry = |ip| match known.iter().position(|(_, report)| report.ip() == ip) {
            Some(at) => known.swap_remove(at),
            None => {
                let report = AddressConflicts::new(ip);
                (Address { probing: true, ..Address::default() }, Arc::new(report))
            }
        };
        let (addresses, reports): (_, Vec<_>) = addresses.map(entry).unzip();
        (self.addresses, self.reports) = (addresses, reports.into());
    }

    pub(super) fn reports(&self) -> &ConflictReports {
        &self.reports
    }

    fn find(&mut self, ip: IpAddr) -> Option<(&mut Address, &AddressConflicts)> {
        let index = self.reports.iter().position(|report| report.ip() == ip)?;
        Some((self.addresses.get_mut(index)?, &self.reports[index]))
    }

    /// Probes all addresses again.
    pub(super) fn start_probing(&mut self) {
        self.addresses.iter_mut().for_each(|address| address.probing = true);
    }

    /// Whether to probe `ip`: not after a conflict, as the answer is known.
    pub(super) fn wants_probe(&mut self, ip: IpAddr) -> bool {
        self.find(ip).is_some_and(|(address, _)| address.probing)
    }

    /// The probes of `ip` are over. Returns whether to announce it: not soon after a defence, which was an announcement.
    pub(super) fn wants_announcement(&mut self, now: Instant, ip: IpAddr) -> bool {
        self.find(ip).is_some_and(|(address, _)| {
            address.probing = false;
            !is_recent(now, address.defended)
        })
    }

    /// The station `mac` uses our address `ip`. Returns whether to defend it now: by one announcement, followed by a call of
    /// [`defended`](Self::defended).
    #[must_use]
    pub(super) fn claimed(&mut self, now: Instant, ip: IpAddr, mac: MacAddr) -> bool {
        self.record(now, ip, mac);
        // compliance.md [HOST-CONFLICT]: An address of ours that another station uses is kept, and defended by one
        // announcement in ten seconds at most.
        self.find(ip).is_some_and(|(address, _)| !is_recent(now, address.defended))
    }

    /// `ip` was defended.
    pub(super) fn defended(&mut self, now: Instant, ip: IpAddr) {
        if let Some((address, _)) = self.find(ip) {
            address.defended = Some(now);
            self.stats.address_defences.inc();
        }
    }

    /// The station `mac` probes our address `ip`; the answer defends it. While we probe it ourselves, neither of the two
    /// was there first, which is a conflict (RFC 5227 section 2.1.1, RFC 4862 section 5.4.3).
    pub(super) fn probed(&mut self, now: Instant, ip: IpAddr, mac: MacAddr) {
        if self.wants_probe(ip) {
            self.record(now, ip, mac);
        }
    }

    fn record(&mut self, now: Instant, ip: IpAddr, mac: MacAddr) {
        let Some((address, report)) = self.find(ip) else { return };
        let frames = report.count(mac);
        address.probing = false;
        if !is_recent(now, address.warned) {
            address.warned = Some(now);
            tracing::warn!(
                %ip, %mac, frames,
                "another station uses our address: remove it from that station, or give the target another one with --address"
            );
        }
        self.stats.address_conflicts.inc();
    }
}

#[cfg(test)]
mod tests {
    use std::fmt;
    use std::sync::Mutex;

    use tracing::field::{Field, Visit};
    use tracing::{Event, Metadata, Subscriber, span};

    use super::*;

    /// The fields of every event, as text.
    #[derive(Default)]
    struct Log(Arc<Mutex<Vec<String>>>);

    struct Line(String);

    impl Visit for Line {
        fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
            self.0 += &format!("{field}={value:?} ");
        }
    }

    impl Subscriber for Log {
        fn enabled(&self, _: &Metadata<'_>) -> bool {
            true
        }
        fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
            span::Id::from_u64(1)
        }
        fn record(&self, _: &span::Id, _: &span::Record<'_>) {}
        fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}
        fn event(&self, event: &Event<'_>) {
            let mut line = Line(event.metadata().level().to_string() + " ");
            event.record(&mut line);
            self.0.lock().unwrap().push(line.0);
        }
        fn enter(&self, _: &span::Id) {}
        fn exit(&self, _: &span::Id) {}
    }

    /// The lines that `action` logs.
    fn logged(action: impl FnOnce()) -> Vec<String> {
        let log = Log::default();
        let lines = Arc::clone(&log.0);
        tracing::subscriber::with_default(log, action);
        Arc::into_inner(lines).unwrap().into_inner().unwrap()
    }

    #[test]
    fn each_address_is_warned_about_once_in_ten_seconds() {
        let addresses: [IpAddr; 2] = ["10.0.0.1".parse().unwrap(), "fe80::1".parse().unwrap()];
        let mut conflicts = Conflicts::new(addresses.into_iter(), Arc::default());
        let at = |ms: u64| Instant::from_nanos(ms * 1_000_000);
        let lines = logged(|| {
            for now in (0..25_000).step_by(5) {
                for ip in addresses {
                    // Never defended, as for lack of room: the warnings have their own time.
                    assert!(conflicts.claimed(at(now), ip, MacAddr([2, 0, 0, 0, 0, 7])));
                }
            }
        });
        assert_eq!(lines.len(), 6, "{lines:?}");
        let v4 = "another station uses our address: remove it from that station, or give the target another one with \
                  --address";
        assert_eq!(lines[0], format!("WARN message={v4} ip=10.0.0.1 mac=02:00:00:00:00:07 frames=1 "));
        assert!(lines[1].contains("ip=fe80::1 "), "{lines:?}");
        assert!(lines[2].contains("ip=10.0.0.1") && lines[2].contains("frames=2001"), "{lines:?}");
    }

    #[test]
    fn foreign_addresses_are_no_conflict() {
        let mut conflicts = Conflicts::new(["10.0.0.1".parse().unwrap()].into_iter(), Arc::default());
        let (foreign, mac) = ("10.0.0.2".parse().unwrap(), MacAddr([2, 0, 0, 0, 0, 7]));
        assert!(!conflicts.claimed(Instant::ZERO, foreign, mac));
        assert!(!conflicts.wants_probe(foreign) && !conflicts.wants_announcement(Instant::ZERO, foreign));
        conflicts.probed(Instant::ZERO, foreign, mac);
        conflicts.defended(Instant::ZERO, foreign);
        assert_eq!((conflicts.reports()[0].frames(), conflicts.reports()[0].station()), (0, None));
        assert_eq!(conflicts.stats.address_defences.get(), 0);
    }
}
