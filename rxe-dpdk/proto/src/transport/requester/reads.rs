//! The READs, atomics, FLUSHes and ATOMIC WRITEs of a queue pair that are outstanding, request by request.
//!
//! Each takes one of the responder's resources until it is answered, so that no more than `max_rd_atomic` may be under way.
//! A READ has one request, or several, each for a part of it, where long messages are limited. Where the parts end is remembered
//! until they are answered: a responder knows a repeated request only within one request of before, so that what is repeated
//! must not go across such an end.

use std::collections::VecDeque;

use crate::transport::seq::Seq;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Reads {
    /// Requests that were written since sending last went back, and are not answered.
    outstanding: u32,
    max: u32,
    /// Ends of the parts that are not answered, in order; the end of the READ is none of them. At most one for each resource.
    /// Made when a READ is first requested in parts.
    #[expect(clippy::box_collection, reason = "a pointer in each idle queue pair instead of four words")]
    part_ends: Option<Box<VecDeque<Seq>>>,
}

impl Reads {
    /// Nothing is outstanding, and `max` may be.
    pub(super) fn start(&mut self, max: u8) {
        *self = Reads { max: max.into(), ..Reads::default() };
    }

    pub(super) fn set_max(&mut self, max: u8) {
        self.max = max.into();
    }

    pub(super) fn max(&self) -> u32 {
        self.max
    }

    pub(super) fn outstanding(&self) -> u32 {
        self.outstanding
    }

    #[inline]
    pub(super) fn is_full(&self) -> bool {
        self.outstanding >= self.max
    }

    /// Where the request for what follows `cursor` must end, which was requested before: `end` or, within a READ in parts, where
    /// the part of then ended.
    pub(super) fn repeated_end(&self, cursor: Seq, end: Seq) -> Seq {
        let part_end = self.part_ends.iter().flat_map(|ends| ends.iter()).find(|&&part_end| part_end > cursor);
        part_end.map_or(end, |&part_end| part_end.min(end))
    }

    /// A request was written that ends at `end`. `is_part`: before the end of its READ, for the first time.
    #[inline]
    pub(super) fn requested(&mut self, end: Seq, is_part: bool) {
        self.outstanding += 1;
        if is_part {
            self.part_requested(end);
        }
    }

    #[cold]
    fn part_requested(&mut self, end: Seq) {
        let most = self.max as usize + 1;
        self.part_ends.get_or_insert_with(|| Box::new(VecDeque::with_capacity(most))).push_back(end);
    }

    /// Whether the oldest part that is not answered ends at `end`.
    #[inline]
    pub(super) fn is_part_end(&self, end: Seq) -> bool {
        self.part_ends.as_ref().is_some_and(|ends| ends.front() == Some(&end))
    }

    /// The part that ends at `end`, and before the end of its READ, is answered. `is_counted`: it was requested since sending last
    /// went back.
    pub(super) fn part_answered(&mut self, end: Seq, is_counted: bool) {
        if self.is_part_end(end)
            && let Some(ends) = &mut self.part_ends
        {
            ends.pop_front();
            self.answered(is_counted);
        }
    }

    /// The last request of a work request is answered.
    #[inline]
    pub(super) fn answered(&mut self, is_counted: bool) {
        self.outstanding = self.outstanding.saturating_sub(is_counted.into());
    }

    /// Sending goes back: what is not answered is requested again, in the same parts.
    pub(super) fn go_back(&mut self) {
        self.outstanding = 0;
    }

    /// Nothing is outstanding any more.
    pub(super) fn clear(&mut self) {
        self.outstanding = 0;
        self.part_ends = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Psn;

    #[test]
    fn a_repeated_request_ends_where_the_part_of_before_did() {
        let at = |psn: u32| Seq::start(Psn::new(7)).add(psn);
        let mut reads = Reads::default();
        reads.start(3);
        // A READ of 20 packets: parts of 5 and 8, and the rest.
        reads.requested(at(5), true);
        reads.requested(at(13), true);
        reads.requested(at(20), false);
        assert!(reads.is_full());
        reads.go_back();
        let ends = |reads: &Reads| [0, 4, 5, 12, 13, 19].map(|psn| reads.repeated_end(at(psn), at(20)).since(at(0)));
        assert_eq!((reads.outstanding(), ends(&reads)), (0, [5, 5, 13, 13, 20, 20]));
        reads.requested(at(5), false);
        reads.part_answered(at(4), true);
        assert_eq!(reads.outstanding(), 1, "no part ends there");
        reads.part_answered(at(5), true);
        // Answered although it was not requested again.
        reads.part_answered(at(13), false);
        assert_eq!((reads.outstanding(), reads.repeated_end(at(13), at(20))), (0, at(20)));
        // Another READ's parts do not matter.
        reads.requested(at(25), true);
        assert_eq!(reads.repeated_end(at(13), at(20)), at(20));
    }
}
