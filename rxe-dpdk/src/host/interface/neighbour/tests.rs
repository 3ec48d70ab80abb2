//! The states of a neighbour, and the bounds of the table.

use super::*;

const A: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xA]);
const B: MacAddr = MacAddr([2, 0, 0, 0, 0, 0xB]);

fn ip(n: u16) -> IpAddr {
    let [a, b] = n.to_be_bytes();
    [10, 0, a, b].into()
}

fn at(secs: u64) -> Instant {
    Instant::from_nanos(secs * 1_000_000_000)
}

/// Sends the solicitations due at `now` and returns their destinations.
fn solicit(table: &mut Neighbours, now: Instant) -> Vec<Option<MacAddr>> {
    table.expire(now);
    let due = table.due_solicitations(now);
    for solicitation in &due {
        table.solicited(now, solicitation.ip);
    }
    due.iter().map(|solicitation| solicitation.to).collect()
}

#[test]
fn neighbour_fails_after_three_solicitations_and_is_tried_again_later() {
    let mut table = Neighbours::new(4);
    assert_eq!(table.lookup(at(0), ip(1)), Lookup::Pending);
    for second in 0..3 {
        assert_eq!(table.next_timeout(), Some(at(second)));
        assert_eq!(solicit(&mut table, at(second)), [None]);
        assert_eq!(solicit(&mut table, at(second)), []);
        assert_eq!(table.lookup(at(second), ip(1)), Lookup::Pending);
    }
    assert_eq!(table.expire(at(3)), 1);
    assert_eq!(table.lookup(at(3), ip(1)), Lookup::Failed);
    assert_eq!(table.lookup(at(7), ip(1)), Lookup::Failed);
    assert_eq!(table.lookup(at(8), ip(1)), Lookup::Pending);
    assert_eq!(solicit(&mut table, at(8)), [None]);
    assert_eq!(table.update(at(8), ip(1), A, Evidence::Reply), Update::Learned);
    assert_eq!(table.lookup(at(9), ip(1)), Lookup::Ready(A));
}

#[test]
fn stale_neighbour_is_probed_when_used() {
    let mut table = Neighbours::new(4);
    assert_eq!(table.update(at(0), ip(1), A, Evidence::Request), Update::Learned);
    assert_eq!(table.lookup(at(29), ip(1)), Lookup::Ready(A));
    assert_eq!(solicit(&mut table, at(29)), []);
    assert_eq!(table.lookup(at(30), ip(1)), Lookup::Ready(A));
    assert_eq!(solicit(&mut table, at(30)), [Some(A)]);
    assert_eq!(solicit(&mut table, at(31)), [Some(A)]);
    assert_eq!(solicit(&mut table, at(32)), [None], "the last one goes to all");
    assert_eq!(table.lookup(at(32), ip(1)), Lookup::Ready(A));
    assert_eq!(table.expire(at(33)), 1);
    assert_eq!(table.peek(ip(1)), None);
    assert_eq!(table.update(at(34), ip(1), B, Evidence::Overheard), Update::Changed);
    assert_eq!(table.peek(ip(1)), Some(B));
}

#[test]
fn weak_evidence_creates_and_replaces_nothing() {
    let mut table = Neighbours::new(4);
    assert_eq!(table.update(at(0), ip(1), A, Evidence::Overheard), Update::Ignored);
    assert_eq!(table.update(at(0), ip(1), A, Evidence::Reply), Update::Ignored);
    assert_eq!(table.update(at(0), ip(1), A, Evidence::Trusted), Update::Learned);
    assert_eq!(table.update(at(1), ip(1), A, Evidence::Request), Update::Confirmed);
    // A packet from another MAC address is no proof: the neighbour is solicited, and its answer decides.
    assert_eq!(table.update(at(2), ip(1), B, Evidence::Trusted), Update::Ignored);
    assert_eq!(table.lookup(at(2), ip(1)), Lookup::Ready(A));
    assert_eq!(solicit(&mut table, at(2)), [Some(A)]);
    assert_eq!(table.update(at(2), ip(1), A, Evidence::Reply), Update::Confirmed);
    assert_eq!(table.update(at(3), ip(1), B, Evidence::Hint), Update::Ignored);
    assert_eq!(table.update(at(3), ip(1), B, Evidence::Overheard), Update::Changed);
    assert_eq!(table.lookup(at(3), ip(1)), Lookup::Ready(B));
}

#[test]
fn mac_changes_once_per_lock_time() {
    let mut table = Neighbours::new(4);
    table.update(at(0), ip(1), A, Evidence::Request);
    assert_eq!(table.update(at(10), ip(1), B, Evidence::Reply), Update::Changed);
    for (evidence, mac) in [Evidence::Reply, Evidence::Overheard, Evidence::Request].into_iter().zip([A, A, A]) {
        assert_eq!(table.update(at(10), ip(1), mac, evidence), Update::Locked);
    }
    assert_eq!(table.update(at(10), ip(1), B, Evidence::Overheard), Update::Confirmed);
    assert_eq!(table.lookup(at(10), ip(1)), Lookup::Ready(B));
    // A solicitation decides which MAC address is right.
    assert_eq!(solicit(&mut table, at(10)), []);
    assert_eq!(solicit(&mut table, at(11)), [Some(B)]);
    assert_eq!(table.update(at(11), ip(1), A, Evidence::Reply), Update::Changed);
    assert_eq!(table.lookup(at(11), ip(1)), Lookup::Ready(A));
}

#[test]
fn remote_neighbour_is_never_solicited() {
    let mut table = Neighbours::new(4);
    assert_eq!(table.update(at(0), ip(1), A, Evidence::TrustedRemote), Update::Learned);
    assert_eq!(table.lookup(at(1000), ip(1)), Lookup::Ready(A));
    assert_eq!(solicit(&mut table, at(1000)), []);
    assert_eq!(table.update(at(1001), ip(1), B, Evidence::TrustedRemote), Update::Changed);
}

#[test]
fn table_is_bounded_and_keeps_used_entries() {
    let mut table = Neighbours::new(8);
    for n in 0..4 {
        table.update(at(0), ip(n), A, Evidence::Request);
        table.lookup(at(0), ip(n));
    }
    for n in 100..10_100 {
        table.update(at(1), ip(n), B, Evidence::Request);
        assert!(table.len() <= 8);
    }
    for n in 0..4 {
        assert_eq!(table.peek(ip(n)), Some(A));
    }
    assert!(table.evicted() > 9_000);
    // Lookups evict entries never looked up, but not one another, and take half of the table at most.
    for n in 0..4 {
        assert_eq!(table.lookup(at(2), ip(20_000 + n)), Lookup::Pending);
    }
    assert_eq!(table.lookup(at(2), ip(30_000)), Lookup::Failed);
    assert_eq!(table.update(at(2), ip(30_001), A, Evidence::Request), Update::Refused);
    for n in 0..4 {
        assert_eq!(table.peek(ip(n)), Some(A));
    }
    assert_eq!(table.len(), 8);
    // Failed entries are evicted for neighbours that are heard.
    for second in 2..=5 {
        solicit(&mut table, at(second));
    }
    assert_eq!(table.lookup(at(5), ip(20_000)), Lookup::Failed);
    assert_eq!(table.update(at(5), ip(30_001), A, Evidence::Request), Update::Learned);
    assert_eq!(table.len(), 8);
}

/// Requests from addresses that nobody has, 8 in each millisecond: as from 8,000 forged ones in a second.
#[test]
fn lookups_of_addresses_that_nobody_has_leave_what_is_known_and_room_for_others() {
    let mut table = Neighbours::new(1024);
    let millis = |ms: u64| Instant::from_nanos(1_000_000_000 + ms * 1_000_000);
    // Neighbours that have asked for our address, and are not used yet.
    for n in 0..10 {
        table.update(millis(0), ip(n), A, Evidence::Request);
    }
    let mut answered = 0;
    for ms in 1..5000 {
        for n in 0..8 {
            table.lookup(millis(ms), ip(1000 + (8 * ms + n) as u16 % 60_000));
        }
        // One that answers after a millisecond.
        if ms % 100 == 50 {
            let cold = ip(100 + (ms / 100) as u16);
            if table.lookup(millis(ms), cold) == Lookup::Pending {
                answered += usize::from(table.update(millis(ms + 1), cold, B, Evidence::Reply) == Update::Learned);
            }
        }
        solicit(&mut table, millis(ms));
        assert!(table.len() <= 1024);
    }
    for n in 0..10 {
        assert_eq!(table.peek(ip(n)), Some(A), "neighbour {n} was known");
    }
    assert!(answered >= 45, "{answered} of 50 were resolved");
}

#[test]
fn old_entries_are_removed() {
    let mut table = Neighbours::new(8);
    table.update(at(0), ip(1), A, Evidence::Request);
    table.update(at(600), ip(2), A, Evidence::Request);
    table.expire(at(1199));
    assert_eq!(table.len(), 2);
    assert_eq!(table.next_timeout(), Some(at(1259)));
    table.expire(at(1259));
    assert_eq!((table.peek(ip(1)), table.peek(ip(2))), (None, Some(A)));
    table.expire(at(2000));
    assert_eq!((table.len(), table.next_timeout()), (0, None));
}
