//! `echo` and `reflect`: the performance of the port itself, with frames as long as those of WRITEs.
//!
//! `echo` keeps a number of frames in flight, and `reflect` sends every frame back. Both poll the port as a worker does: in
//! bursts, reading the clock once per iteration.

use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;
use rxe::{CliError, cli_error, lcores};
use rxe_dpdk::eal::{Clock, Eal, Port, PortConfig, PortQueues, RxBurst, RxQueue, TxStage};
use rxe_proto::Instant;
use rxe_proto::wire::{MacAddr, PathMtu};

use crate::frames::{self, Stamp, Template};
use crate::measurement::{Mark, Measurement, latencies};
use crate::outcome::{End, Outcome};
use crate::plan::Plan;
use crate::progress::Progress;
use crate::session::{Ended, OVERHEAD, path_mtu};

/// Timeout for finding a reflector, and for one that reflects no more frames.
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
    fn open(eal_args: &[String], stop: &Arc<AtomicBool>) -> Result<(Port, Link), CliError> {
        let cannot = |error: rxe_dpdk::eal::EalError| CliError::new(error.to_string());
        let eal = Eal::init(&lcores::or_one(eal_args)).map_err(cannot)?;
        let Some(info) = eal.ports().into_iter().next() else {
            return cli_error!(
                "DPDK found no port: add one before `--`, for example --vdev=net_vhost0,iface=/tmp/sock"
            );
        };
        let config = PortConfig { promiscuous: true, ..PortConfig::default() };
        let mut port = Port::configure(&eal, info.id, &config).map_err(cannot)?;
        let PortQueues { rx, tx } = port.start().map_err(cannot)?;
        let (Some(rx), Some(tx)) = (rx.into_iter().next(), tx.into_iter().next()) else {
            return cli_error!("port {} has no queues", info.name);
        };
        let (clock, stop) = (Clock::new(&eal), Arc::clone(stop));
        let link = Link { clock, mac: port.mac(), mtu: port.mtu(), rx, tx, burst: RxBurst::new(), stop };
        Ok((port, link))
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Reflects received frames until stopped.
pub fn reflect(
    eal_args: &[String],
    stop: &Arc<AtomicBool>,
    ready: impl FnOnce(&str) -> Result<(), CliError>,
) -> Result<String, CliError> {
    let (_port, mut link) = Link::open(eal_args, stop)?;
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
pub fn echo(plan: &Plan, stop: &Arc<AtomicBool>, progress: &Progress) -> Result<Ended, CliError> {
    let (_port, mut link) = Link::open(&plan.eal_args, stop)?;
    let carried = PathMtu::at_most(usize::from(link.mtu).saturating_sub(OVERHEAD)).unwrap_or(PathMtu::Mtu256);
    let path_mtu = path_mtu(plan.path_mtu, carried)?.bytes();
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
            arrived: link.clock.now(),
        };
        let outcome = window.measure(&mut link, plan, size, path_mtu as u32, progress);
        run = window.run.wrapping_add(1);
        let end = outcome.end;
        outcomes.push(outcome);
        if end != End::Complete {
            let gone = || CliError::failed(format!("no frame was reflected for {} seconds", PATIENCE.as_secs()));
            return Ok(Ended { outcomes, failure: (end == End::Failed).then(gone) });
        }
    }
    Ok(Ended { outcomes, failure: None })
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
    /// When a frame was last received, or lost ones were replaced.
    heard: Instant,
    /// When a frame was last received.
    arrived: Instant,
}

impl Window {
    fn mark(&self, at: Instant) -> Mark {
        Mark { at, done: self.returned, bulk: 0, lost: Some(self.lost), retransmissions: None }
    }

    /// Measures one size, to the end, until stopped, or until no frame is reflected any more.
    fn measure(&mut self, link: &mut Link, plan: &Plan, size: u32, path_mtu: u32, progress: &Progress) -> Outcome {
        let mut round_trips = latencies();
        let warm = link.clock.now() + plan.warm_up;
        while link.clock.now() < warm && !link.stopped() {
            self.turn(link, None);
        }
        let since = link.clock.now();
        self.arrived = since;
        let mut measurement = Measurement::start(plan, size, path_mtu, self.mark(since));
        loop {
            let now = self.turn(link, round_trips.as_mut());
            progress.set_done(self.returned);
            measurement.sample(now, self.returned);
            let end = if link.stopped() {
                End::Interrupted
            } else if measurement.has_enough(self.returned) || measurement.is_over(now) {
                End::Complete
            } else if now.saturating_since(self.arrived) >= PATIENCE {
                let last = self.mark(self.arrived);
                return measurement.outcome(plan, last, round_trips, End::Failed);
            } else {
                if measurement.is_interval_over(now) {
                    progress.show(measurement.interval(plan, self.mark(now), &mut round_trips));
                }
                continue;
            };
            return measurement.outcome(plan, self.mark(link.clock.now()), round_trips, end);
        }
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
            (self.heard, self.arrived) = (now, now);
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
        let mut window =
            Window { template, run: 7, size: 2, in_flight: 1, returned: 0, lost: 0, heard, arrived: heard };
        let stamp = |run| Stamp { run, sent: Instant::ZERO };
        assert!(!window.takes(stamp(6)));
        assert!(window.takes(stamp(7)));
        assert!(!window.takes(stamp(7)), "none is in flight");
        assert_eq!((window.in_flight, window.returned), (0, 1));
    }
}
