//! Errors of the set-up, each as one sentence that says what to do.

use std::ffi::CStr;
use std::fmt;

use rxe_proto::wire::PortId;

/// An error of EAL or of something made with it. All of them arise in set-up, none on the data path.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EalError {
    /// DPDK was started in this process before, and it starts once per process.
    #[error("DPDK was already started in this process; it can be started only once")]
    AlreadyInitialised,
    /// EAL did not understand its arguments.
    #[error("bad EAL arguments: {detail}")]
    BadArguments {
        /// EAL's messages about them.
        detail: String,
    },
    /// No hugepages to run on.
    #[error(
        "no hugepages for DPDK: {detail}; reserve some as root (echo 512 > /proc/sys/vm/nr_hugepages; mount -t hugetlbfs none \
         /dev/hugepages), or give EAL --no-huge -m MEGABYTES; a container needs /dev/hugepages and the capability SYS_NICE, or \
         RXE_NO_HUGE=1"
    )]
    NoHugepages {
        /// The missing requirement.
        detail: String,
    },
    /// Another process runs under the same file prefix.
    #[error("another DPDK process runs under the same file prefix; give EAL another --file-prefix NAME")]
    PrefixInUse,
    /// The socket that a port is to make belongs to another process, or cannot be replaced.
    #[error("the device {name} cannot make its socket {path}: {problem}")]
    Socket {
        /// The device.
        name: String,
        /// The socket.
        path: String,
        /// The obstacle, and what to do.
        problem: String,
    },
    /// EAL failed for another reason.
    #[error("DPDK did not start ({errno}): {detail}")]
    Init {
        /// EAL's error number.
        errno: Errno,
        /// The last lines of EAL's log.
        detail: String,
    },
    /// EAL started, but a device named with `--vdev` or `-a` did not.
    #[error("the device {name} did not start: {detail}")]
    Device {
        /// Name of the device.
        name: String,
        /// The last lines of EAL's log.
        detail: String,
    },
    /// A call that only the thread that started EAL may make came from another.
    #[error("only the thread that started DPDK may run workers")]
    NotMainLcore,
    /// EAL does not know this lcore, or it was named twice, or it is busy.
    #[error("lcore {lcore} {problem}")]
    Lcore {
        /// The lcore.
        lcore: u32,
        /// What is wrong with the lcore.
        problem: &'static str,
    },
    /// A worker panicked. The others ended before this was returned.
    #[error("the worker on lcore {lcore} panicked: {message}")]
    WorkerPanicked {
        /// Number of the worker's lcore.
        lcore: u32,
        /// Message of the panic.
        message: String,
    },
    /// There is no such port.
    #[error("there is no DPDK port {0}; name one with --vdev, or bind a NIC to vfio-pci")]
    NoSuchPort(u16),
    /// The port was configured before and that [`Port`](super::Port) or one of its queues is still alive.
    #[error("DPDK port {0} is in use already")]
    PortInUse(u16),
    /// A port refused something.
    #[error("DPDK port {port}: cannot {action}: {errno}", port = .port.0)]
    Port {
        /// The port.
        port: PortId,
        /// The step that failed.
        action: &'static str,
        /// Why not.
        errno: Errno,
    },
    /// A port cannot meet its configuration.
    #[error("DPDK port {port}: {problem}", port = .port.0)]
    PortLimits {
        /// The port.
        port: PortId,
        /// The requirement that is not met.
        problem: String,
    },
    /// DPDK has no room for an object.
    #[error("no DPDK memory for {what} ({errno}): give it more hugepages, or a larger -m with --no-huge")]
    NoMemory {
        /// The object and its size.
        what: String,
        /// Why not.
        errno: Errno,
    },
}

/// A DPDK error number, printed as DPDK words it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub i32);

impl Errno {
    /// The calling thread's `rte_errno`.
    pub(super) fn last() -> Errno {
        // SAFETY: reads a thread-local integer.
        Errno(unsafe { dpdk_sys::rxe_errno() })
    }

    /// Of the return value of a call that returns `-errno`.
    pub(super) fn of(ret: i32) -> Errno {
        Errno(ret.wrapping_neg())
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // SAFETY: rte_strerror returns a NUL-terminated text in a thread-local buffer or a literal for any number;
        // it is copied out before the next call.
        let text = unsafe { CStr::from_ptr(dpdk_sys::rte_strerror(self.0)) };
        f.write_str(&text.to_string_lossy())
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Errno({}: {self})", self.0)
    }
}
