//! Settings of congestion control.

use crate::time::Duration;

/// What makes a queue pair send less than it could.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CongestionControl {
    /// Nothing but the window.
    Off,
    /// Congestion notifications of the peer, as in DCQCN. A peer that sends none is not affected.
    Notifications(Dcqcn),
    /// The measured round trip, as in Swift. For requests of reliable connections; READ responses are not limited.
    Delay(DelayControl),
}

impl Default for CongestionControl {
    fn default() -> CongestionControl {
        CongestionControl::Notifications(Dcqcn::default())
    }
}

/// Settings of the reaction point of DCQCN (Zhu and others, "Congestion Control for Large-Scale RDMA Deployments", SIGCOMM
/// 2015). The defaults are the paper's, but for growth of half as much per step, with which 64 queue pairs keep a queue
/// shorter. Rates in bits per second.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dcqcn {
    /// The rate that is no limit: a queue pair starts with it.
    pub line_rate: u64,
    /// The lowest rate.
    pub min_rate: u64,
    /// The weight of a notification in the congestion estimate (the paper's g) is 1 / 2^`gain_shift`.
    pub gain_shift: u32,
    /// Time without a notification after which the congestion estimate becomes smaller.
    pub alpha_interval: Duration,
    /// Time after which the rate grows.
    pub increase_interval: Duration,
    /// Bytes after which the rate grows.
    pub increase_bytes: u64,
    /// Steps of fast recovery, which halve the distance to the rate before the last notification.
    pub recovery_steps: u8,
    /// Growth of a step after fast recovery.
    pub additive: u64,
    /// The same when both time and bytes have passed that many steps.
    pub hyper: u64,
}

impl Default for Dcqcn {
    fn default() -> Dcqcn {
        Dcqcn {
            line_rate: 100_000_000_000,
            min_rate: 10_000_000,
            gain_shift: 8,
            alpha_interval: Duration::from_micros(55),
            increase_interval: Duration::from_micros(55),
            increase_bytes: 10_000_000,
            recovery_steps: 5,
            additive: 20_000_000,
            hyper: 200_000_000,
        }
    }
}

/// Settings of delay-based control, after Swift (Kumar and others, "Swift: Delay is Simple and Effective for Congestion
/// Control in the Datacenter", SIGCOMM 2020).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DelayControl {
    /// The round trip up to which the window grows: that of the idle network, and the queueing that is wanted.
    pub target: Duration,
    /// How much more a window of a tenth of a packet may have: many queue pairs on one link need a longer queue. A window of
    /// 100 packets has none of it.
    pub scaling: Duration,
}

impl Default for DelayControl {
    fn default() -> DelayControl {
        DelayControl { target: Duration::from_micros(50), scaling: Duration::from_micros(50) }
    }
}
