//! The tests of the program's memory again, where a filter forbids `process_vm_readv` and `process_vm_writev`, as that of Docker does.

use std::process::Command;

/// A filter of system calls.
mod filter {
    #![allow(unsafe_code)]

    use nix::errno::Errno;
    use nix::libc::{
        BPF_ABS, BPF_JEQ, BPF_JMP, BPF_JUMP, BPF_K, BPF_LD, BPF_RET, BPF_STMT, BPF_W, EPERM, PR_SET_NO_NEW_PRIVS,
        PR_SET_SECCOMP, SECCOMP_MODE_FILTER, SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO, SYS_process_vm_readv,
        SYS_process_vm_writev, c_ulong, prctl, sock_filter, sock_fprog,
    };

    /// Both calls fail with `EPERM` in this thread, and in those that it starts, from now on.
    pub fn forbid_process_vm() {
        // Offset 0 of the data is the number of the call.
        let load = BPF_LD | BPF_W | BPF_ABS;
        // SAFETY: these functions only fill in a structure.
        let mut filter: [sock_filter; 5] = unsafe {
            [
                BPF_STMT(load as u16, 0),
                BPF_JUMP((BPF_JMP | BPF_JEQ | BPF_K) as u16, SYS_process_vm_readv as u32, 2, 0),
                BPF_JUMP((BPF_JMP | BPF_JEQ | BPF_K) as u16, SYS_process_vm_writev as u32, 1, 0),
                BPF_STMT((BPF_RET | BPF_K) as u16, SECCOMP_RET_ALLOW),
                BPF_STMT((BPF_RET | BPF_K) as u16, SECCOMP_RET_ERRNO | EPERM as u32),
            ]
        };
        let program = sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        let one: c_ulong = 1;
        let none: c_ulong = 0;
        // SAFETY: no pointers are passed.
        Errno::result(unsafe { prctl(PR_SET_NO_NEW_PRIVS, one, none, none, none) }).unwrap();
        // SAFETY: the kernel copies the program, which lives as long as the call.
        Errno::result(unsafe { prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER as c_ulong, &raw const program) }).unwrap();
    }
}

/// Set in the process that has the filter.
const FILTERED: &str = "RXE_TEST_FILTERED";

#[test]
fn memory_is_accessed_by_its_file_where_a_filter_forbids_the_calls() {
    if std::env::var_os(FILTERED).is_some() {
        return;
    }
    // The calls are not tried again once they were refused, so the other tests have another process.
    let mut command = Command::new("/proc/self/exe");
    command.args(["uverbs::filtered::under_the_filter", "--exact", "--ignored"]).env(FILTERED, "1");
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    assert!(String::from_utf8_lossy(&output.stdout).contains("1 passed"));
}

#[test]
#[ignore = "memory_is_accessed_by_its_file_where_a_filter_forbids_the_calls runs it in a process of its own"]
fn under_the_filter() {
    filter::forbid_process_vm();
    // The file of the memory does not heed a page's protection, by which other tests make memory inaccessible.
    super::connected::rc_pingpong();
    super::long::messages_of_many_packets_arrive_whole();
    super::long::packets_that_are_sent_again_are_read_again();
    super::together::messages_of_one_doorbell_arrive_whole_and_in_order();
    super::together::short_payloads_of_one_doorbell_are_read_when_they_are_posted();
    super::together::short_writes_of_one_burst_are_there_before_a_read_or_an_atomic_operation_sees_the_memory();
}
