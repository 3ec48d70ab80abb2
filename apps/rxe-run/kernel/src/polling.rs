//! Empty polls of a program, which give the CPU to the library's thread.
//!
//! `ibv_poll_cq` and `ibv_start_poll` call functions of the provider by pointers in structures of libibverbs. A program that polls without a
//! pause keeps its CPU, and the library's thread, which receives what it polls for, may wait for that CPU. So these pointers become
//! those of wrappers. The structures are found by a queue pair's, however libibverbs was loaded.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

use nix::sched::sched_getcpu;

use crate::user;

/// Functions that are called instead of the provider's, and how a pointer is replaced.
#[derive(Clone, Copy, Debug)]
pub struct Wrappers {
    /// Address of the function for `ibv_context.ops.poll_cq`.
    pub poll_cq: usize,
    /// Address of the function for `ibv_cq_ex.start_poll`.
    pub start_poll: usize,
    /// Stores a pointer at an address, at which the program has one.
    pub store: fn(u64, usize),
}

static WRAPPERS: OnceLock<Wrappers> = OnceLock::new();

/// The provider's function for `ibv_poll_cq`, once it is wrapped.
pub static POLL_CQ: AtomicUsize = AtomicUsize::new(0);
/// The provider's function for `ibv_start_poll`, once it is wrapped.
pub static START_POLL: AtomicUsize = AtomicUsize::new(0);

/// The CPU that the library's thread has run on last.
pub static THREAD_CPU: AtomicU32 = AtomicU32::new(u32::MAX);

/// Notes the CPU of this thread, the library's.
pub fn note_cpu() {
    // libc's function, and no other one: under valgrind there is no vDSO.
    THREAD_CPU.store(sched_getcpu().map_or(u32::MAX, |cpu| cpu as u32), Ordering::Relaxed);
}

/// Sets the wrappers, once for the process.
pub fn set_wrappers(wrappers: Wrappers) {
    WRAPPERS.get_or_init(|| wrappers);
}

/// Offsets in the public structures of `verbs.h`, on 64-bit systems.
mod offset {
    /// `ibv_qp`: context, send_cq, recv_cq, handle, qp_num; its first fields.
    pub const QP: [usize; 5] = [0, 24, 32, 48, 52];
    pub const QP_LEN: usize = 56;
    /// `ibv_cq.context`.
    pub const CQ_CONTEXT: u64 = 0;
    pub const POLL_CQ: u64 = 96;
    pub const START_POLL: u64 = 144;
}

/// Functions of one library are not farther apart.
const LIBRARY: usize = 1 << 20;

/// Wraps the functions by which the program polls the completion queues of a queue pair. `user_handle` is what the program has named it;
/// with libibverbs, the address of its `ibv_qp`.
pub(crate) fn wrap(user_handle: u64, handle: u32, qpn: u32) {
    let Some(wrappers) = WRAPPERS.get() else { return };
    let mut qp = [0; offset::QP_LEN];
    if user::read(user_handle, &mut qp).is_err() {
        return;
    }
    let long = |at: usize| u64::from_le_bytes(*qp[at..].first_chunk().unwrap_or(&[0; 8]));
    let word = |at: usize| u32::from_le_bytes(*qp[at..].first_chunk().unwrap_or(&[0; 4]));
    let [context, send_cq, recv_cq, of_handle, of_number] = offset::QP;
    // Whatever else a program may put there does not begin with these numbers of the queue pair.
    if (word(of_handle), word(of_number)) != (handle, qpn) {
        return;
    }
    let context = long(context);
    let poll_cq = context + offset::POLL_CQ;
    replace(poll_cq, &POLL_CQ, wrappers.poll_cq, wrappers.store, |_| true);
    let of_provider = POLL_CQ.load(Ordering::Relaxed);
    for cq in [long(send_cq), long(recv_cq)] {
        if pointer(cq + offset::CQ_CONTEXT) == Some(context as usize) {
            // One that is not extended has no such field, and anything there.
            let near = |function: usize| function.abs_diff(of_provider) < LIBRARY;
            replace(cq + offset::START_POLL, &START_POLL, wrappers.start_poll, wrappers.store, near);
        }
    }
}

/// Replaces a pointer of the program to the provider's function `real` by one to `wrapper`.
fn replace(at: u64, real: &AtomicUsize, wrapper: usize, store: fn(u64, usize), is_function: impl Fn(usize) -> bool) {
    let Some(function) = pointer(at).filter(|&function| function != 0 && function != wrapper && is_function(function))
    else {
        return;
    };
    // Another provider's functions stay as they are.
    if real.compare_exchange(0, function, Ordering::Relaxed, Ordering::Relaxed).is_ok()
        || real.load(Ordering::Relaxed) == function
    {
        store(at, wrapper);
    }
}

fn pointer(at: u64) -> Option<usize> {
    let mut bytes = [0; 8];
    user::read(at, &mut bytes).ok().map(|()| usize::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    static STORED: std::sync::Mutex<Vec<(u64, usize)>> = std::sync::Mutex::new(Vec::new());

    fn stored() -> Vec<(u64, usize)> {
        std::mem::take(&mut *STORED.lock().unwrap())
    }

    #[test]
    fn pointers_of_a_queue_pair_of_libibverbs_are_replaced() {
        let store = |at, function| STORED.lock().unwrap().push((at, function));
        set_wrappers(Wrappers { poll_cq: 0x77, start_poll: 0x88, store });
        let mut context = [0_u64; 16];
        context[12] = 0x70_0000;
        let mut cqs = [[0_u64; 20]; 2];
        for cq in &mut cqs {
            cq[0] = context.as_ptr() as u64;
        }
        // One extended queue, and one with anything behind its fields.
        (cqs[0][18], cqs[1][18]) = (0x70_0100, 0x1234_5678_9ABC);
        let address = |words: &[u64]| words.as_ptr() as u64;
        let qp = [address(&context), 0, 0, address(&cqs[0]), address(&cqs[1]), 0, 7 | 0x100_0021 << 32];
        let qp = std::hint::black_box(qp);
        wrap(address(&qp), 8, 0x100_0021);
        wrap(address(&qp), 7, 0x100_0022);
        wrap(16, 7, 0x100_0021);
        assert_eq!(stored(), []);
        wrap(address(&qp), 7, 0x100_0021);
        assert_eq!(stored(), [(address(&context) + 96, 0x77), (address(&cqs[0]) + 144, 0x88)]);
        assert_eq!((POLL_CQ.load(Ordering::Relaxed), START_POLL.load(Ordering::Relaxed)), (0x70_0000, 0x70_0100));
        // As they are now, and those of another provider.
        context[12] = 0x77;
        cqs[0][18] = 0x88;
        std::hint::black_box((&context, &cqs));
        wrap(address(&qp), 7, 0x100_0021);
        context[12] = 0x90_0000;
        std::hint::black_box(&context);
        wrap(address(&qp), 7, 0x100_0021);
        assert_eq!(stored(), []);
    }

    #[test]
    fn offsets_are_those_of_verbs_h() {
        let [context, send_cq, recv_cq, handle, qp_num] = offset::QP;
        let (context_of_cq, poll_cq, start_poll) = (offset::CQ_CONTEXT, offset::POLL_CQ, offset::START_POLL);
        let program = format!(
            "#include <infiniband/verbs.h>\n#include <stddef.h>\n\
             #define IS(type, field, value) _Static_assert(offsetof(struct type, field) == value, #field);\n\
             IS(ibv_qp, context, {context}) IS(ibv_qp, send_cq, {send_cq}) IS(ibv_qp, recv_cq, {recv_cq})\n\
             IS(ibv_qp, handle, {handle}) IS(ibv_qp, qp_num, {qp_num}) IS(ibv_cq, context, {context_of_cq})\n\
             IS(ibv_context, ops.poll_cq, {poll_cq}) IS(ibv_cq_ex, start_poll, {start_poll})\n"
        );
        let source = std::env::temp_dir().join(format!("rxe-uverbs-polling-{}.c", std::process::id()));
        std::fs::write(&source, program).unwrap();
        let output = std::process::Command::new("cc").arg("-fsyntax-only").arg(&source).output().unwrap();
        std::fs::remove_file(&source).unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        let is_missing = error.contains("infiniband/verbs.h: No such file");
        if is_missing && std::env::var_os("CI").is_none() {
            eprintln!("SKIPPED: apt install libibverbs-dev");
            return;
        }
        assert!(output.status.success(), "{error}");
    }
}
