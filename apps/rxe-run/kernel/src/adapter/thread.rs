//! The adapter's thread: receives packets, handles timers.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{SigSet, SigmaskHow, pthread_sigmask};
use rxe_udp::UdpReceiver;

use super::Shared;

/// Starts the thread. It ends when the adapter is shut down.
///
/// # Errors
/// There are no more threads.
pub fn start(receiver: UdpReceiver, shared: Arc<Shared>) -> io::Result<JoinHandle<()>> {
    spawn_without_signals("rxe-verbs", move || {
        // A panic is a defect, which the panic hook reports, and one with the lock leaves a state that commands refuse.
        let _ = catch_unwind(AssertUnwindSafe(|| run(receiver, &shared)));
        shared.groups_changed.notify_all();
    })
}

/// Starts a thread that gets no signal: the program's are for its own threads.
///
/// # Errors
/// There are no more threads.
pub fn spawn_without_signals(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    // The thread inherits the mask.
    let mut before = SigSet::empty();
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), Some(&mut before))?;
    let thread = Builder::new().name(name.to_owned()).spawn(body);
    pthread_sigmask(SigmaskHow::SIG_SETMASK, Some(&before), None)?;
    thread
}

fn run(mut receiver: UdpReceiver, shared: &Shared) -> Result<(), Errno> {
    let (mut timeout, mut blocked) = (Some(Duration::ZERO), false);
    loop {
        if let Err(error) = receiver.wait(blocked, timeout) {
            tracing::error!("waiting for packets failed: {error}");
        }
        let mut burst = receiver.receive();
        let mut state = shared.lock()?;
        if state.has_ended() {
            return Ok(());
        }
        let now = shared.clock.now();
        while let Some(frame) = burst.next_frame() {
            state.handle_frame(now, frame);
        }
        state.turn(now);
        let change_groups = !state.groups().are_joined();
        (timeout, blocked) = (state.sleep(now), state.is_blocked());
        drop(state);
        if change_groups {
            shared.change_groups(&mut receiver)?;
        }
    }
}
