//! `echo` and `reflect`: the performance of the port itself, with frames as long as those of WRITEs.
//!
//! `echo` keeps a number of frames in flight, and `reflect` sends every frame back. Both poll the port as a worker does: in
//! bursts, reading the clock once per iteration.

use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;
use rxe::{CliError, cli_error};
use rxe_dpdk::eal::{Clock, Eal, Port, PortConfig, PortQueues, RxBurst, RxQueue, TxStage};
use rxe_proto::Instant;
use rxe_proto::wire::{MacAddr, PathMtu};

use crate::frames::{self, Stamp, Template};
use crate::load::LONGEST;
use crate::plan::{Length, Plan};
use crate::progress::Progress;
use crate::report::{Latency, Outcome};
use crate::session::{OVERHEAD, path_mtu};

/// Timeout for finding a reflector.
const PATIENCE: Duration = Duration::from_secs(10);
/// Interval between attempts to find it.
const AGAIN: Duration = Duration::from_millis(50);
/// Without a reflected frame for this long, all frames in flight are lost.
const LOST: Duration = Duration::from_millis(20);
/// Transmit attempts for a frame before it is dropped.
const OFFERS: u32 = 1 << 16;

/// The one port of the process.
struct Link {
    clock: Clock,
    mac: MacAddr,
    mtu: u16,
    rx: RxQueue,
    tx: TxStage,
    burst: RxBurst,
    stop: Arc<AtomicBool>,
}

impl Link {
    fn open(eal: &Eal, stop: &Arc<AtomicBool>) -> Result<(Port, Link), CliError> {
        let cannot = |error: rxe_dpdk::eal::EalError| CliError::new(error.to_string());
        let Some(info) = eal.ports().into_iter().next() else {
            return cli_error!(
                "DPDK found no port: add one before `--`, for example --vdev=net_vhost0,iface=/tmp/sock"
            );
        };
        let config = PortConfig { promiscuous: true, ..PortConfig::default() };
        let mut port = Port::configure(eal, info.id, &config).map_err(cannot)?;
        let PortQueues { rx, tx } = port.start().map_err(cannot)?;
        let (Some(rx), Some(tx)) = (rx.into_iter().next(), tx.into_iter().next()) else {
            return cli_error!("port {} has no queues", info.name);
        };
        let (clock, stop) = (Clock::new(eal), Arc::clone(stop));
        let link = Link { clock, mac: port.mac(), mtu: port.mtu(), rx, tx, burst: RxBurst::new(), stop };
        Ok((port, link))
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Reflects received frames until stopped.
pub fn reflect(
    eal: &Eal,
    stop: &Arc<AtomicBool>,
    ready: impl FnOnce(&str) -> Result<(), CliError>,
) -> Result<String, CliError> {
    let (_port, mut link) = Link::open(eal, stop)?;
    ready(&format!("ready mac={} mtu={}\n", link.mac, link.mtu))?;
    let (mut reflected, mut refused) = (0u64, 0u64);
    while !link.stopped() {
        let count = link.rx.burst(&mut link.burst);
        for index in 0..count {
            if !frames::reflect(link.burst.data_mut(index), link.mac) {
                continue;
            }
            let Some(mut mbuf) = link.burst.take(index) else { continue };
            let mut offers = 0;
            while let Err(back) = link.tx.push_mbuf(mbuf) {
                offers += 1;
                if offers == OFFERS {
                    refused += 1;
                    break;
                }
                mbuf = back;
            }
            reflected += 1;
        }
        link.burst.clear();
        if count > 0 || link.tx.waiting() > 0 {
            link.tx.flush();
        }
    }
    Ok(format!("reflected={reflected} refused={refused}\n"))
}

/// Sends frames to a reflector and receives them back.
pub fn echo(eal: &Eal, plan: &Plan, stop: &Arc<AtomicBool>, progress: &Progress) -> Result<Vec<Outcome>, CliError> {
    let (_port, mut link) = Link::open(eal, stop)?;
    let carried = PathMtu::at_most(usize::from(link.mtu).saturating_sub(OVERHEAD)).unwrap_or(PathMtu::Mtu256);
    let path_mtu = path_mtu(plan, carried)?.bytes();
    let mut outcomes = Vec::new();
    let mut reflector = None;
    // Frames of an earlier process may still be on their way.
    let mut run = process::id().wrapping_mul(0x9E37_79B9);
    for &size in plan.sizes.iter().filter(|size| plan.sizes.len() == 1 || **size as usize <= path_mtu) {
        if size as usize > path_mtu {
            return cli_error!(
                "--size {size}: a frame of this port carries at most {path_mtu} bytes of a message: choose a smaller size"
            );
        }
        let mut template = Template::new(link.mac, plan.address.ip, plan.peer.ip(), size as usize);
        let mac = match reflector {
            Some(mac) => mac,
            None => find(&mut link, &template)?,
        };
        reflector = Some(mac);
        template.set_destination(mac);
        let mut window = Window {
            template,
            run,
            size: plan.depth() as usize * plan.qps as usize,
            in_flight: 0,
            returned: 0,
            lost: 0,
            heard: link.clock.now(),
        };
        let outcome = window.measure(&mut link, plan, size, path_mtu as u32, progress);
        run = window.run.wrapping_add(1);
        outcomes.extend(outcome);
    }
    Ok(outcomes)
}

/// Broadcasts single frames until one is reflected. Returns the MAC address of the reflector.
fn find(link: &mut Link, template: &Template) -> Result<MacAddr, CliError> {
    let began = link.clock.now();
    let mut next = began;
    loop {
        let now = link.clock.now();
        if link.stopped() || now.saturating_since(began) >= PATIENCE {
            return cli_error!("no frame was reflected: run `rxe-bench reflect` at the other end of the port");
        }
        if now >= next {
            next = now + AGAIN;
            if let Some(frame) = link.tx.push(template.frame_len()) {
                template.write(frame, Stamp { run: u32::MAX, sent: now });
            }
            link.tx.flush();
        }
        let count = link.rx.burst(&mut link.burst);
        for index in 0..count {
            let frame = link.burst.data(index);
            if template.read(frame).is_some()
                && let Some(mac) = frames::source(frame)
            {
                link.burst.clear();
                return Ok(mac);
            }
        }
        link.burst.clear();
    }
}

/// The frames in flight.
struct Window {
    template: Template,
    /// Number of the run, to tell its frames from lost ones that arrive late.
    run: u32,
    /// Maximum number of frames in flight.
    size: usize,
    in_flight: usize,
    returned: u64,
    lost: u64,
    /// When a frame was last received.
    heard: Instant,
}

impl Window {
    /// Measures one size. `None` when stopped before the end.
    fn measure(
        &mut self,
        link: &mut Link,
        plan: &Plan,
        size: u32,
        path_mtu: u32,
        progress: &Progress,
    ) -> Option<Outcome> {
        let mut round_trips = Histogram::<u64>::new_with_bounds(1, LONGEST, 3).ok()?;
        let warm = link.clock.now() + plan.warm_up;
        while link.clock.now() < warm {
            self.turn(link, None);
        }
        let (since, before, lost) = (link.clock.now(), self.returned, self.lost);
        let (enough, until) = match plan.length {
            Length::Messages(messages) => (before + messages * u64::from(plan.qps), None),
            Length::Time(time) => (u64::MAX, Some(since + time)),
        };
        loop {
            let now = self.turn(link, Some(&mut round_trips));
            progress.set_done(self.returned);
            if link.stopped() {
                return None;
            }
            if self.returned >= enough || until.is_some_and(|until| now >= until) {
                break;
            }
        }
        let seconds = link.clock.now().saturating_since(since).as_secs_f64();
        let outcome = Outcome::new(plan, size, path_mtu, self.returned - before, seconds);
        Some(Outcome { lat_us: Some(Latency::of(&round_trips)), lost: Some(self.lost - lost), ..outcome })
    }

    /// Counts a reflected frame, unless it is of another run or none is in flight: a reflector may duplicate frames.
    #[inline]
    fn takes(&mut self, stamp: Stamp) -> bool {
        if stamp.run != self.run || self.in_flight == 0 {
            return false;
        }
        self.in_flight -= 1;
        self.returned += 1;
        true
    }

    /// One iteration: receives reflected frames, and transmits up to the limit of frames in flight.
    #[inline]
    fn turn(&mut self, link: &mut Link, mut round_trips: Option<&mut Histogram<u64>>) -> Instant {
        let now = link.clock.now();
        let count = link.rx.burst(&mut link.burst);
        for index in 0..count {
            let stamp = self.template.read(link.burst.data(index)).filter(|stamp| self.takes(*stamp));
            let Some(stamp) = stamp else { continue };
            if let Some(round_trips) = &mut round_trips {
                round_trips.saturating_record(now.saturating_since(stamp.sent).as_nanos() as u64);
            }
            self.heard = now;
        }
        link.burst.clear();
        if self.in_flight > 0 && now.saturating_since(self.heard) >= LOST {
            self.lost += self.in_flight as u64;
            self.in_flight = 0;
            self.run = self.run.wrapping_add(1);
            self.heard = now;
        }
        while self.in_flight < self.size
            && let Some(frame) = link.tx.push(self.template.frame_len())
        {
            self.template.write(frame, Stamp { run: self.run, sent: now });
            self.in_flight += 1;
        }
        link.tx.flush();
        now
    }
}

#[cfg(test)]
mod tests {
    use rxe_proto::wire::MacAddr;

    use super::*;

    #[test]
    fn frames_of_another_run_and_duplicates_are_not_counted() {
        let own = [10, 0, 0, 2].into();
        let template = Template::new(MacAddr([2, 0, 0, 0, 0, 1]), own, [10, 0, 0, 1].into(), 64);
        let heard = Instant::ZERO;
        let mut window = Window { template, run: 7, size: 2, in_flight: 1, returned: 0, lost: 0, heard };
        let stamp = |run| Stamp { run, sent: Instant::ZERO };
        assert!(!window.takes(stamp(6)));
        assert!(window.takes(stamp(7)));
        assert!(!window.takes(stamp(7)), "none is in flight");
        assert_eq!((window.in_flight, window.returned), (0, 1));
    }
}
