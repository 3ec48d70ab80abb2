//! The run-to-completion loop of one lcore.
//!
//! [`Worker::turn`] is one pass: receive, dispatch, transmit, services, control. [`orders`] applies what other threads
//! order between two turns; [`stop`] is what a worker does in addition once the adapter is to stop, [`shutdown`] the end of the
//! loop.

mod orders;
mod shutdown;
pub(crate) mod stop;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crossbeam_utils::CachePadded;
use rxe_adapter::worker::dispatch::Dispatcher;
use rxe_adapter::worker::lost_regions::LostRegions;
use rxe_adapter::worker::orders::Orders;
use rxe_adapter::worker::progress::{Progress, Step};
use rxe_adapter::worker::{Idler, TurnTimes, WorkerStats};
use rxe_proto::{Duration, Instant};
use rxe_sync::Arrivals;

use super::faults::FaultPlaces;
use super::handoff::{HandOff, TxRingEnd};
use super::origin::{FromPort, FromWorkers, PortDispatcher, dispatch_due, flush_rings};
use super::port_orders::PortOrders;
use super::ports::RxPort;
use super::tx_path::TxPath;
use crate::eal::{Clock, MbufReceiver, RxBurst};
use stop::Finish;

/// Minimum interval between mailbox and control polls. A message exchange between a worker and control takes up to two of
/// them; in return an idle worker polls its port sooner.
const HOUSEKEEPING_INTERVAL: Duration = Duration::from_micros(2);

/// Flags that all workers read once per turn. The counters, which the workers write, have cache lines of their own.
#[derive(Debug, Default)]
pub(crate) struct StopFlags {
    /// A stop was requested: control disconnects the peers, then sets `finish`.
    pub(crate) stop: Arc<AtomicBool>,
    /// The peers are gone: the workers finish the operations of their services, then worker 0 sets `halt`.
    pub(crate) finish: AtomicBool,
    /// Leave the loop.
    pub(crate) halt: AtomicBool,
    /// Number of workers that have finished their operations since `finish`.
    pub(crate) finished: CachePadded<Arrivals>,
    /// Number of workers that have left the loop and flushed the rings towards the others.
    pub(crate) received_all: CachePadded<Arrivals>,
    /// Number of those that have also passed their last frames to the ports, or to the worker with the transmit queue.
    pub(crate) sent_all: CachePadded<Arrivals>,
}

/// One lcore's loop and everything that it owns.
pub(crate) struct Worker {
    pub(crate) rx: Vec<RxPort>,
    pub(crate) burst: RxBurst,
    /// Rings towards the other workers, by worker number; `None` at this worker's own index.
    pub(crate) outbound: Vec<Option<HandOff>>,
    /// The ring into this worker; `None` if there are no others.
    pub(crate) inbound: Option<MbufReceiver>,
    /// Frames of workers without a transmit queue, for the queue of this one.
    pub(crate) tx_rings: Vec<TxRingEnd>,
    pub(crate) dispatcher: PortDispatcher,
    pub(crate) orders: Orders,
    pub(crate) port_orders: PortOrders,
    /// `Some` on worker 0, which logs for all.
    pub(crate) lost_regions: Option<LostRegions>,
    pub(crate) faults: FaultPlaces,
    pub(crate) clock: Clock,
    pub(crate) idler: Idler,
    /// When the mailbox and the control side are polled next.
    pub(crate) housekeeping_at: Instant,
    pub(crate) flags: Arc<StopFlags>,
    pub(crate) finish: Finish,
    pub(crate) stats: Arc<WorkerStats>,
    pub(crate) turn_times: Arc<TurnTimes>,
    pub(crate) progress: Arc<Progress>,
}

/// Halts the other workers when this one returns or panics, and ends the watchdog's interest in it.
struct HaltOnDrop {
    flags: Arc<StopFlags>,
    progress: Arc<Progress>,
}

impl Drop for HaltOnDrop {
    fn drop(&mut self) {
        self.flags.halt.store(true, Ordering::Relaxed);
        self.progress.enter(Step::Outside);
    }
}

impl Worker {
    /// Runs until [`StopFlags::halt`].
    pub(crate) fn run(mut self) {
        let _halt = HaltOnDrop { flags: Arc::clone(&self.flags), progress: Arc::clone(&self.progress) };
        self.progress.note_thread();
        self.progress.enter(Step::Start);
        let mut now = self.clock.now();
        self.dispatcher.services.start(now, &mut self.dispatcher.engine);
        // A capture ordered before the start records from the first frame on.
        self.read_mail(now);
        self.apply_capture_order();
        let mut busy = false;
        while !self.flags.halt.load(Ordering::Relaxed) {
            let begun = now;
            now = self.clock.now_after(begun);
            if busy {
                self.turn_times.record(now.as_nanos().wrapping_sub(begun.as_nanos()));
            }
            busy = self.turn(now);
            self.stats.turns.inc();
            if !busy {
                self.stats.idle_turns.inc();
            }
            if self.flags.stop.load(Ordering::Relaxed) {
                self.follow_stop(now);
            }
            self.apply_capture_order();
            self.progress.enter(Step::Idle);
            self.idler.turn(now, busy, self.dispatcher.services.outstanding());
        }
        self.progress.enter(Step::Shutdown);
        self.shut_down();
    }

    /// One turn: receive, execute, transmit, timers, services, control. Returns whether there was anything to do.
    fn turn(&mut self, now: Instant) -> bool {
        let housekeeping = now >= self.housekeeping_at || self.flags.stop.load(Ordering::Relaxed);
        if housekeeping {
            self.housekeeping_at = now + HOUSEKEEPING_INTERVAL;
        }
        let mut busy = self.receive(now);
        self.progress.enter(Step::HandOff);
        busy |= self.receive_handed_over(now);
        busy |= self.forward();
        let Dispatcher { engine, tx, .. } = &mut self.dispatcher;
        if engine.next_timeout().is_some_and(|t| t <= now) {
            self.progress.enter(Step::Timers);
            engine.handle_timeout(now);
        }
        self.progress.enter(Step::Transmit);
        // Before the services: replies to this burst leave first, and a queue pair in error gets its NAK out before its
        // service and the runtime release it.
        if engine.transmit(now, tx) > 0 {
            tx.flush(now);
        }
        if housekeeping {
            self.progress.enter(Step::Messages);
            busy |= self.read_mail(now);
        }
        self.progress.enter(Step::Services);
        let Dispatcher { engine, services, control, tx, .. } = &mut self.dispatcher;
        busy |= services.poll(now, engine);
        self.progress.enter(Step::Transmit);
        if engine.wants_transmit() {
            engine.transmit(now, tx);
        }
        let mut waiting = tx.flush(now);
        if housekeeping && let Some(control) = control {
            self.progress.enter(Step::Control);
            let before = tx.frames;
            control.poll(now, tx);
            if tx.frames > before {
                waiting = tx.flush(now);
            }
        }
        busy |= tx.frames > 0;
        self.stats.tx_frames.add(std::mem::take(&mut tx.frames));
        if waiting {
            self.stats.tx_stalls.inc();
        }
        self.progress.enter(Step::Orders);
        if !self.port_orders.parks.is_empty() {
            self.apply_port_orders();
        }
        if self.orders.faults.is_some() {
            self.apply_fault_change(now);
        }
        self.dispatcher.apply(now, &mut self.orders);
        busy
    }

    /// Reads messages of the control side and orders of other threads. Returns whether there were any.
    fn read_mail(&mut self, now: Instant) -> bool {
        let Dispatcher { engine, services, .. } = &mut self.dispatcher;
        let mut busy = services.read_mail(now, engine);
        busy |= self.orders.read();
        busy |= self.port_orders.read();
        if let Some(lost) = &mut self.lost_regions {
            services.stats().regions_lost.add(lost.check(services.regions()));
        }
        if !self.port_orders.links_up.is_empty() {
            self.announce_links(now);
        }
        busy
    }

    /// Dispatches frames from this worker's receive queues.
    fn receive(&mut self, now: Instant) -> bool {
        let Worker { rx, burst, outbound, dispatcher, stats, progress, .. } = self;
        let mut busy = false;
        for RxPort { port, queue, faults } in rx {
            progress.enter(Step::Receive);
            let count = queue.burst(burst);
            progress.enter(Step::Dispatch);
            if count > 0 {
                busy = true;
                stats.rx_bursts.inc();
                stats.rx_frames.add(count as u64);
            }
            let mut origin = FromPort { port: *port, rings: outbound, pool: queue.pool() };
            if let Some(injector) = faults {
                stats.rx_bytes.add(dispatcher.dispatch_through(now, &mut origin, injector, burst));
                busy |= dispatch_due(dispatcher, now, now, &mut origin, injector, burst);
            } else if count > 0 {
                stats.rx_bytes.add(dispatcher.dispatch(now, &mut origin, burst));
            }
        }
        flush_rings(dispatcher, now, outbound);
        busy
    }

    /// Dispatches frames that other workers received for this one.
    fn receive_handed_over(&mut self, now: Instant) -> bool {
        let Some(ring) = &mut self.inbound else { return false };
        let count = ring.receive(&mut self.burst);
        self.stats.handoff_in.add(count as u64);
        if count > 0 {
            self.dispatcher.dispatch(now, &mut FromWorkers, &mut self.burst);
        }
        count > 0
    }

    /// Moves frames of workers without a transmit queue into this worker's queues. Returns whether there were any.
    fn forward(&mut self) -> bool {
        let mut forwarded = 0;
        for ring in &mut self.tx_rings {
            let path = self.dispatcher.tx.paths.get_mut(usize::from(ring.port.0));
            if let Some(stage) = path.and_then(TxPath::queue) {
                forwarded += ring.drain(stage);
            }
        }
        self.stats.tx_forwarded.add(forwarded as u64);
        forwarded > 0
    }
}
