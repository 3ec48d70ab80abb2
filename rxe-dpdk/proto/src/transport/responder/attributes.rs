//! Attributes of the responder: set for INIT and RTR, and changed later.

use crate::mem::Access;
use crate::transport::seq::Seq;
use crate::transport::{QpAttrChange, RtrAttr};

use super::{Resources, Responder};

/// READs and atomics that are held for an agreed number.
fn depth_of(max_dest_rd_atomic: u8) -> usize {
    // rxe uses the next power of two of the agreed depth.
    // compliance.md [RC-RSP-DEPTH-POW2]: A responder holds as many READs and atomics as the next power of two of the
    // agreed number.
    let depth = usize::from(max_dest_rd_atomic);
    if depth == 0 { 0 } else { depth.next_power_of_two() }
}

impl Responder {
    pub(in crate::transport) fn set_access(&mut self, access: Access) {
        self.access = access;
    }

    pub(in crate::transport) fn access(&self) -> Access {
        self.access
    }

    /// Starts at the PSN and with the attributes of RTR.
    pub(in crate::transport) fn start(&mut self, attr: &RtrAttr) {
        self.expected = Seq::start(attr.rq_psn);
        self.msn = 0;
        self.acknowledges = (self.expected.prev(), 0);
        self.min_rnr_timer = attr.min_rnr_timer;
        self.max_dest_rd_atomic = attr.max_dest_rd_atomic;
        self.resources = Resources::new(depth_of(attr.max_dest_rd_atomic));
    }

    /// Changes the attributes that are the responder's.
    pub(in crate::transport) fn change(&mut self, change: &QpAttrChange) {
        if let Some(min_rnr_timer) = change.min_rnr_timer {
            self.min_rnr_timer = min_rnr_timer;
        }
        if let Some(max_dest_rd_atomic) = change.max_dest_rd_atomic {
            self.max_dest_rd_atomic = max_dest_rd_atomic;
            self.resources.resize(depth_of(max_dest_rd_atomic));
        }
    }

    pub(in crate::transport) fn min_rnr_timer(&self) -> u8 {
        self.min_rnr_timer
    }

    pub(in crate::transport) fn max_dest_rd_atomic(&self) -> u8 {
        self.max_dest_rd_atomic
    }
}
