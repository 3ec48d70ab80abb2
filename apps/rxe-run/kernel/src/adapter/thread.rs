//! The adapter's thread: receives packets, handles timers.

use std::collections::BTreeSet;
use std::io;
use std::net::IpAddr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use rxe_udp::UdpReceiver;

use super::Shared;
use super::port::{Half, Opened, reopen};
use super::share::Node;
use super::share::owner::Guests;
use crate::inside::spawn_without_signals;
use crate::polling::note_cpu;
use crate::uverbs::PortEvent;

/// How long the last packets of a process have to leave.
const LAST_PATIENCE: Duration = Duration::from_millis(100);

/// Bursts that an owner passes to its guests at its end, at most.
const LAST_BURSTS: usize = 64;

/// Starts the thread. It ends when the adapter is shut down.
///
/// # Errors
/// There are no more threads.
pub fn start(half: Half, shared: Arc<Shared>) -> io::Result<JoinHandle<()>> {
    spawn_without_signals("rxe-verbs", move || {
        // A panic is a defect, which the panic hook reports. Commands fail then.
        let _ = catch_unwind(AssertUnwindSafe(|| run(half, &shared)));
        shared.end();
    })
}

fn run(mut half: Half, shared: &Shared) -> Result<(), Errno> {
    let (mut timeout, mut blocked) = (Some(Duration::ZERO), false);
    loop {
        let waited = match &mut half {
            Half::Own(receiver, guests) => {
                receiver.wait(blocked, guests.as_ref().map(|guests| guests.descriptor()), timeout)
            }
            Half::Guest(receiver) => receiver.wait(&shared.waker, blocked, timeout),
        };
        note_cpu();
        if let Err(error) = waited {
            tracing::error!("waiting for packets failed: {error}");
        }
        let turned = match &mut half {
            Half::Own(receiver, guests) => turn_of_owner(receiver, guests.as_deref_mut(), shared)?,
            Half::Guest(receiver) => {
                let mut state = shared.lock_for_turn()?;
                let now = shared.clock.now();
                if receiver.receive(&mut *state, now).is_err() && !state.is_ending() {
                    let worker = state.worker();
                    drop(state);
                    match reopen_port(shared, worker)? {
                        Some(next) => half = next,
                        None => return Ok(()),
                    }
                    // The owner's last messages may have made something due.
                    (timeout, blocked) = (Some(Duration::ZERO), false);
                    continue;
                }
                state.serve_management(now);
                state.turn(now);
                shared.groups_changed.notify_all();
                if !state.groups().are_joined() {
                    receiver.ask_for_groups(state.groups().wanted());
                }
                Turned { ended: state.is_ending(), timeout: state.sleep(now), blocked: state.is_blocked() }
            }
        };
        if turned.ended {
            finish(shared)?;
            if let Half::Own(receiver, Some(guests)) = &mut half {
                pass_the_rest(receiver, guests, shared)?;
            }
            return Ok(());
        }
        (timeout, blocked) = (turned.timeout, turned.blocked);
    }
}

/// Ends all connections, and sends what is left.
fn finish(shared: &Shared) -> Result<(), Errno> {
    let begin = Instant::now();
    let mut state = shared.lock()?;
    state.shut_down(shared.clock.now());
    loop {
        state.turn(shared.clock.now());
        if !state.is_unfinished() || begin.elapsed() > LAST_PATIENCE {
            break;
        }
        drop(state);
        std::thread::sleep(LAST_PATIENCE / 100);
        state = shared.lock()?;
    }
    state.log_drops();
    Ok(())
}

/// Passes to guests what the socket still has for them, as what we have sent to the own address.
fn pass_the_rest(receiver: &mut UdpReceiver, guests: &mut Guests, shared: &Shared) -> Result<(), Errno> {
    if guests.is_empty() {
        return Ok(());
    }
    for _ in 0..LAST_BURSTS {
        let mut burst = receiver.receive();
        let mut state = shared.lock()?;
        let now = shared.clock.now();
        while let Some(frame) = burst.next_frame() {
            guests.route(&mut *state, now, frame);
        }
        guests.flush();
        drop(state);
        if receiver.is_drained() {
            break;
        }
    }
    Ok(())
}

/// Next step after a turn.
struct Turned {
    ended: bool,
    timeout: Option<Duration>,
    blocked: bool,
}

fn turn_of_owner(
    receiver: &mut UdpReceiver,
    mut guests: Option<&mut Guests>,
    shared: &Shared,
) -> Result<Turned, Errno> {
    let mut burst = receiver.receive();
    let mut state = shared.lock_for_turn()?;
    let now = shared.clock.now();
    while let Some(frame) = burst.next_frame() {
        match &mut guests {
            Some(guests) if !guests.is_empty() => guests.route(&mut *state, now, frame),
            _ => state.handle_frame(now, frame),
        }
    }
    if let Some(guests) = &mut guests {
        guests.serve(&mut *state, now);
        guests.flush();
    }
    state.serve_management(now);
    state.turn(now);
    let wanted = (!state.groups().are_joined()).then(|| state.groups().wanted().clone());
    let mut turned = Turned { ended: state.is_ending(), timeout: state.sleep(now), blocked: state.is_blocked() };
    if !turned.blocked && guests.as_ref().is_some_and(|guests| guests.has_unsent()) {
        turned.timeout = Some(Duration::ZERO);
    }
    drop(state);
    if let Some(wanted) = wanted {
        change_groups(receiver, &wanted);
        shared.lock()?.groups_mut().set_joined(wanted);
        shared.groups_changed.notify_all();
    }
    if let Some(guests) = guests {
        guests.groups_are_joined();
    }
    Ok(turned)
}

/// Joins and leaves groups.
fn change_groups(receiver: &mut UdpReceiver, wanted: &BTreeSet<IpAddr>) {
    let members: BTreeSet<IpAddr> = receiver.groups().collect();
    for &group in members.difference(wanted) {
        receiver.leave(group);
    }
    for &group in wanted.difference(&members) {
        if let Err(error) = receiver.join(group) {
            tracing::warn!("{error}");
        }
    }
}

/// Opens the port again after the end of its owner. `None` when it is not possible: the program gets an event that the port is down.
fn reopen_port(shared: &Shared, worker: u8) -> Result<Option<Half>, Errno> {
    let opened = reopen(shared.address, worker, &shared.waker);
    let mut state = shared.lock()?;
    match opened {
        Ok(Opened { half, tx, stats, .. }) => {
            tracing::info!("the process that had {} has ended: its UDP port was opened again", shared.address);
            state.set_tx(tx);
            *shared.port_stats.lock().unwrap_or_else(PoisonError::into_inner) = stats;
            Ok(Some(half))
        }
        Err(error) => {
            tracing::error!(
                "the process that had {} has ended, and its UDP port cannot be opened: {error}",
                shared.address
            );
            state.port_event(PortEvent::Error);
            Ok(None)
        }
    }
}
