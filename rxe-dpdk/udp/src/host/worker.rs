//! The loop of the adapter's only worker: receive, dispatch, transmit, services, control; and sleep, when there is nothing to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rxe_adapter::worker::burst::Due;
use rxe_adapter::worker::capture::{Recorders, TxRecorders};
use rxe_adapter::worker::dispatch::Dispatcher;
use rxe_adapter::worker::injector::{ActiveFault, Direction, FOREVER, FaultStats, Injector, Refusals, Room};
use rxe_adapter::worker::lost_regions::LostRegions;
use rxe_adapter::worker::orders::{FaultChange, Orders};
use rxe_adapter::worker::progress::{Progress, Step};
use rxe_adapter::worker::{TurnTimes, WorkerStats};
use rxe_proto::{Duration, Instant};

use super::clock::Clock;
use super::frame::HeldFrame;
use super::ip_host::{PORT, UdpHost};
use crate::port::UdpReceiver;

/// How long peers have to answer DREQs, and operations of services to complete, when the adapter stops: together.
const STOP_PATIENCE: Duration = Duration::from_millis(1500);

/// How long the last frames have to leave when the adapter stops.
const LAST_PATIENCE: Duration = Duration::from_millis(100);

/// Turns in a row without work before the worker sleeps. A message of a service is answered by control in the same turn, and
/// the answer is read in the next one.
const IDLE_TURNS: u32 = 3;

/// Longest sleep: limits that have no timer of their own are checked that often.
const LONGEST_SLEEP: Duration = Duration::from_millis(100);

/// Longest sleep while the engine or an injector waits for room or for a time.
const SHORT_SLEEP: Duration = Duration::from_micros(500);

/// The loop and everything that it owns.
pub(super) struct Worker {
    pub(super) sockets: UdpReceiver,
    pub(super) dispatcher: Dispatcher<UdpHost>,
    pub(super) orders: Orders,
    pub(super) lost_regions: LostRegions,
    /// The injector behind the sockets, while a rule needs one.
    pub(super) rx_faults: Option<Box<Injector<HeldFrame>>>,
    pub(super) rx_fault_stats: Arc<FaultStats>,
    pub(super) clock: Clock,
    /// Whether the worker polls without a pause.
    pub(super) spins: bool,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) stats: Arc<WorkerStats>,
    pub(super) turn_times: Arc<TurnTimes>,
    pub(super) progress: Arc<Progress>,
}

/// Ends the watchdog's interest in the worker when it returns or panics.
struct OutsideOnDrop(Arc<Progress>);

impl Drop for OutsideOnDrop {
    fn drop(&mut self) {
        self.0.enter(Step::Outside);
    }
}

impl Worker {
    /// Runs until the adapter is to stop and the peers have answered.
    pub(super) fn run(mut self) {
        let _outside = OutsideOnDrop(Arc::clone(&self.progress));
        self.progress.note_thread();
        self.progress.enter(Step::Start);
        let mut now = self.clock.now();
        self.dispatcher.services.start(now, &mut self.dispatcher.engine);
        // A capture ordered before the start records from the first frame on.
        self.read_mail(now);
        self.apply_capture_order();
        let (mut busy, mut idle_turns, mut finishing) = (false, 0, false);
        loop {
            let begun = now;
            now = self.clock.now();
            if busy {
                self.turn_times.record(now.as_nanos().saturating_sub(begun.as_nanos()));
            }
            busy = self.turn(now);
            self.stats.turns.inc();
            if !busy {
                self.stats.idle_turns.inc();
            }
            if self.stop.load(Ordering::Relaxed)
                && let Some(control) = &mut self.dispatcher.control
            {
                control.begin_stop(now);
                let is_finished = finishing && self.dispatcher.services.is_finished();
                if is_finished || control.is_stop_overdue(now, STOP_PATIENCE) {
                    break;
                }
                // The next turn reads what control has sent to the services.
                finishing = control.is_stopped(now, STOP_PATIENCE);
            }
            self.apply_capture_order();
            let stays_awake = busy || finishing || !self.dispatcher.services.outstanding().is_none();
            idle_turns = if stays_awake { 0 } else { idle_turns + 1 };
            if idle_turns >= IDLE_TURNS && !self.spins {
                self.progress.enter(Step::Idle);
                self.sleep();
                // The event that ended the sleep may take several turns.
                idle_turns = 0;
                // So that the sleep counts for no turn.
                now = self.clock.now();
            }
        }
        self.progress.enter(Step::Shutdown);
        self.shut_down();
    }

    /// One turn. Returns whether there was anything to do.
    fn turn(&mut self, now: Instant) -> bool {
        let mut busy = self.receive(now);
        let Dispatcher { engine, tx, .. } = &mut self.dispatcher;
        if engine.next_timeout().is_some_and(|at| at <= now) {
            self.progress.enter(Step::Timers);
            engine.handle_timeout(now);
            busy = true;
        }
        self.progress.enter(Step::Transmit);
        // Before the services: replies to this burst leave first, and a queue pair in error gets its NAK out before its
        // service and the runtime release it.
        if engine.transmit(now, tx) > 0 {
            tx.flush(now);
        }
        self.progress.enter(Step::Messages);
        busy |= self.read_mail(now);
        self.progress.enter(Step::Services);
        let Dispatcher { engine, services, control, tx, .. } = &mut self.dispatcher;
        busy |= services.poll(now, engine);
        self.progress.enter(Step::Control);
        if let Some(control) = control {
            busy |= control.poll(now, tx);
        }
        self.progress.enter(Step::Transmit);
        if engine.wants_transmit() {
            engine.transmit(now, tx);
        }
        tx.port_mut().note_retransmissions(engine.stats().retransmitted_pkts.get());
        busy |= tx.has_frames();
        self.stats.tx_frames.add(tx.take_frames());
        if tx.flush(now) {
            self.stats.tx_stalls.inc();
        }
        self.progress.enter(Step::Orders);
        self.change_groups();
        if self.orders.faults.is_some() {
            self.apply_fault_change(now);
        }
        self.dispatcher.apply(now, &mut self.orders);
        busy
    }

    /// Dispatches one burst of the sockets, or what the injector releases.
    fn receive(&mut self, now: Instant) -> bool {
        self.progress.enter(Step::Receive);
        let Worker { sockets, dispatcher, rx_faults, stats, progress, .. } = self;
        let mut burst = sockets.receive();
        progress.enter(Step::Dispatch);
        let (frames, bytes, released) = match rx_faults {
            None => {
                let (frames, bytes) = dispatcher.dispatch_all(now, PORT, &mut burst);
                (frames, bytes, 0)
            }
            Some(injector) => {
                let (frames, bytes) =
                    dispatcher.dispatch_all_through(now, PORT, injector, HeldFrame::copy_of, &mut burst);
                let (released, _) = dispatcher.dispatch_all(now, PORT, &mut Due::new(injector, now));
                (frames, bytes, released)
            }
        };
        if frames > 0 {
            stats.rx_bursts.inc();
            stats.rx_frames.add(frames);
            stats.rx_bytes.add(bytes);
        }
        frames + released > 0
    }

    /// Reads messages of the control side and orders of other threads. Returns whether there were any.
    fn read_mail(&mut self, now: Instant) -> bool {
        let Dispatcher { engine, services, .. } = &mut self.dispatcher;
        let busy = services.read_mail(now, engine) | self.orders.read();
        services.stats().regions_lost.add(self.lost_regions.check(services.regions()));
        busy
    }

    /// Joins and leaves multicast groups as control wants.
    fn change_groups(&mut self) {
        let Worker { sockets, dispatcher, .. } = self;
        let Some(host) = dispatcher.control.as_mut().and_then(|control| control.host_mut(PORT)) else { return };
        while let Some((group, joined)) = host.next_group_change() {
            if !joined {
                sockets.leave(group);
            } else if let Err(error) = sockets.join(group) {
                tracing::warn!(%group, "{error}");
            }
        }
    }

    /// Starts or stops recording, if that was ordered.
    #[inline]
    fn apply_capture_order(&mut self) {
        let Some(order) = self.orders.capture.take() else { return };
        let (rx, tx) = order.recorders.map(|Recorders { rx, tx }| (rx, tx)).unzip();
        self.dispatcher.recorder = rx;
        let tx: Option<TxRecorders> = tx.and_then(|ports| ports.into_iter().next());
        self.dispatcher.tx.set_recorders(tx);
        if let Some(done) = order.done {
            // The sender of the order may have timed out.
            let _ = done.try_send(());
        }
    }

    /// Places injectors and refusals for the rules of the start.
    pub(super) fn begin_faults(&mut self, rules: &[Arc<ActiveFault>]) {
        self.dispatcher.refusals = Refusals::new(None, rules, 0, &self.rx_fault_stats);
        self.place_rx_faults(rules);
        self.dispatcher.tx.set_faults(Instant::ZERO, rules);
    }

    /// Places an injector behind the sockets if a rule needs one, and sets its rules. One without rules stays: it may hold
    /// frames.
    fn place_rx_faults(&mut self, rules: &[Arc<ActiveFault>]) {
        let direction = Direction::Rx;
        if Injector::<HeldFrame>::is_wanted(direction, rules) && self.rx_faults.is_none() {
            let stats = Arc::clone(&self.rx_fault_stats);
            self.rx_faults = Some(Box::new(Injector::new(direction, 0, PORT, Room::WIDE, stats)));
        }
        if let Some(injector) = &mut self.rx_faults {
            injector.set_rules(rules);
        }
    }

    /// Applies another list of fault rules.
    #[cold]
    fn apply_fault_change(&mut self, now: Instant) {
        let Some(FaultChange { rules, reply }) = self.orders.faults.take() else { return };
        let before = self.dispatcher.refusals.take();
        self.dispatcher.refusals = Refusals::new(before, &rules, 0, &self.rx_fault_stats);
        self.place_rx_faults(&rules);
        if let Some(mut injector) = self.rx_faults.take_if(|injector| injector.is_off()) {
            self.dispatcher.dispatch_all(now, PORT, &mut Due::new(&mut injector, FOREVER));
        }
        let settled = self.dispatcher.tx.set_faults(now, &rules);
        if let Some(reply) = reply {
            // The sender of the order may have timed out.
            let _ = reply.try_send(());
        }
        if !settled {
            self.orders.faults = Some(FaultChange { rules, reply: None });
        }
    }

    /// Sleeps until something arrives or is due.
    fn sleep(&mut self) {
        let now = self.clock.now();
        let Dispatcher { engine, services, control, tx, .. } = &mut self.dispatcher;
        let Some(control) = control else { return };
        let times = [engine.next_timeout(), services.next_timeout(), control.next_timeout(now)];
        let until = times.into_iter().flatten().min();
        let mut time = until.map_or(LONGEST_SLEEP, |until| until.saturating_since(now)).min(LONGEST_SLEEP);
        let waits =
            engine.wants_transmit() || tx.holds_frames() || self.rx_faults.is_some() || self.orders.faults.is_some();
        if waits {
            time = time.min(SHORT_SLEEP);
        }
        let Some(host) = control.host_mut(PORT) else { return };
        if host.has_waiting_connections() {
            time = time.min(SHORT_SLEEP);
        }
        if let Err(error) = self.sockets.wait(tx.waiting() > 0, Some(host.descriptor()), Some(time)) {
            tracing::error!("the worker cannot wait for packets: {error}");
            thread::sleep(time.min(SHORT_SLEEP));
        }
        host.poll_streams_next();
    }

    /// Delivers and sends what is left.
    fn shut_down(&mut self) {
        let now = self.clock.now();
        let until = now + LAST_PATIENCE;
        if let Some(mut injector) = self.rx_faults.take() {
            self.dispatcher.dispatch_all(now, PORT, &mut Due::new(&mut injector, FOREVER));
        }
        self.change_groups();
        let Dispatcher { engine, services, tx, .. } = &mut self.dispatcher;
        tx.finish();
        services.count_left(engine);
        let mut now = now;
        // A READ response may be gigabytes long.
        while now < until && engine.transmit(now, tx) > 0 {
            tx.finish();
            now = self.clock.now();
        }
        while tx.finish() && self.clock.now() < until {
            thread::yield_now();
        }
        self.stats.tx_frames.add(tx.take_frames());
    }
}
