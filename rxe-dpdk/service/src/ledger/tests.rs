//! The ledger's rules one by one, and random programs against a model that recounts everything.

use super::*;
use crate::local_port::Restrictions;
use rxe_proto::wire::{MacAddr, PathMtu, PortId};

const SHARES: Shares = Shares { address: 4, network: 7, unproven: 2 };

fn v4(n: u8) -> IpAddr {
    [10, 0, 0, n].into()
}

/// Host `host` of the routed network number `network`.
fn v6(network: u16, host: u16) -> IpAddr {
    [0x2001, 0xdb8, 0, network, 0, 0, 0, host].into()
}

fn ledger(limit: usize) -> (Ledger, BudgetId) {
    let port = LocalPort {
        id: PortId(0),
        mac: MacAddr::default(),
        vlan: None,
        addresses: vec![v4(1), v6(0xAAAA, 1)],
        restrictions: Restrictions::default(),
        mtu: 1500,
        path_mtu: PathMtu::Mtu1024,
    };
    let mut ledger = Ledger::new(&[port]);
    let budget = ledger.open("bytes", 0, limit, SHARES, None);
    (ledger, budget)
}

/// Charges one at a time until the ledger refuses.
fn fill(ledger: &mut Ledger, budget: BudgetId, owner: IpAddr, standing: Standing) -> (Vec<Charge>, Refusal) {
    let mut charges = Vec::new();
    loop {
        match ledger.charge(budget, owner, 1, standing) {
            Ok(charge) => charges.push(charge),
            Err(refusal) => return (charges, refusal),
        }
    }
}

#[test]
fn an_address_has_its_share_and_all_have_the_budget() {
    let (mut ledger, budget) = ledger(80);
    let (first, refusal) = fill(&mut ledger, budget, v4(2), Standing::Proven);
    assert_eq!((first.len(), refusal), (40, Refusal::Address(40)));
    let (second, _) = fill(&mut ledger, budget, v4(3), Standing::Proven);
    let third = fill(&mut ledger, budget, v4(4), Standing::Proven);
    assert_eq!((second.len(), third.0.len(), third.1), (40, 0, Refusal::Budget(80)));
    first.into_iter().chain(second).for_each(|charge| ledger.release(charge));
    assert_eq!((ledger.used(budget), ledger.held_by(budget, v4(2)), ledger.room(budget, v4(2))), (0, 0, 40));
}

#[test]
fn a_routed_network_has_a_larger_share_and_one_on_our_link_has_none() {
    let (mut ledger, budget) = ledger(80);
    let mut held = Vec::new();
    let mut refusal = None;
    for host in 0..100 {
        match ledger.charge(budget, v6(7, host), 1, Standing::Proven) {
            Ok(charge) => held.push(charge),
            Err(why) => refusal = Some(why),
        }
    }
    assert_eq!((held.len(), refusal), (70, Some(Refusal::Network(70))));
    held.push(ledger.charge(budget, v6(8, 1), 1, Standing::Proven).expect("another network has room"));
    held.drain(..).for_each(|charge| ledger.release(charge));
    held.extend((0..80).map(|host| ledger.charge(budget, v6(0xAAAA, host), 1, Standing::Proven).expect("on our link")));
    assert_eq!(ledger.charge(budget, v6(0xAAAA, 99), 1, Standing::Proven).err(), Some(Refusal::Budget(80)));
}

#[test]
fn forged_addresses_never_use_the_share_of_their_owner() {
    let (mut ledger, budget) = ledger(80);
    let (mut forged, refusal) = fill(&mut ledger, budget, v4(2), Standing::Unproven);
    assert_eq!((forged.len(), refusal), (20, Refusal::Unproven(20)));
    assert_eq!(ledger.held_by(budget, v4(2)), 0);
    let (real, refusal) = fill(&mut ledger, budget, v4(2), Standing::Proven);
    assert_eq!((real.len(), refusal), (40, Refusal::Address(40)));
    // One of them was real after all, and the address has no room for it.
    let mut one = forged.pop().expect("a charge");
    assert_eq!(ledger.prove(&mut one), Err(Refusal::Address(40)));
    real.into_iter().for_each(|charge| ledger.release(charge));
    assert_eq!(ledger.prove(&mut one), Ok(()));
    assert_eq!((ledger.held_by(budget, v4(2)), ledger.used(budget)), (1, 20));
    assert!(ledger.charge(budget, v4(9), 1, Standing::Unproven).is_ok_and(|charge| charge.amount() == 1));
}

#[test]
fn one_object_larger_than_the_budget_serves_one_client_at_a_time() {
    let (mut ledger, budget) = ledger(8);
    let large = ledger.charge(budget, v4(2), 100, Standing::Proven).expect("the first");
    assert_eq!(ledger.charge(budget, v4(3), 100, Standing::Proven).err(), Some(Refusal::Budget(8)));
    ledger.release(large);
    assert!(ledger.charge(budget, v4(3), 100, Standing::Unproven).is_ok_and(|charge| charge.owner() == v4(3)));
}

#[test]
fn a_part_of_a_budget_is_charged_to_the_whole() {
    let (mut ledger, all) = ledger(80);
    let [a, b] = [("a", 0), ("b", 1)].map(|(name, service)| ledger.open(name, service, 60, SHARES, Some(all)));
    let (held, refusal) = fill(&mut ledger, a, v4(2), Standing::Proven);
    assert_eq!((held.len(), refusal), (30, Refusal::Address(30)));
    let (more, refusal) = fill(&mut ledger, b, v4(2), Standing::Proven);
    assert_eq!((more.len(), refusal, ledger.used(all)), (10, Refusal::Address(40), 40));
    held.into_iter().chain(more).for_each(|charge| ledger.release(charge));
    assert_eq!((ledger.used(a), ledger.used(b), ledger.used(all)), (0, 0, 0));
    let (holdings, refused) = ledger.holdings();
    assert_eq!((holdings, refused), (vec![], vec![("bytes", 0), ("a", 1), ("b", 1)]));
}

#[test]
fn a_service_is_crowded_before_it_refuses() {
    let (mut ledger, budget) = ledger(160);
    let other = ledger.open("other", 1, 16, SHARES, None);
    let charges = (0..29).map(|_| ledger.charge(budget, v4(2), 1, Standing::Unproven).expect("room"));
    let mut charges: Vec<_> = charges.collect();
    assert!(!ledger.is_crowded(0));
    charges.push(ledger.charge(budget, v4(2), 1, Standing::Unproven).expect("room"));
    assert!(ledger.is_crowded(0) && !ledger.is_crowded(1));
    ledger.release(charges.swap_remove(0));
    charges.push(ledger.charge(other, v4(2), 3, Standing::Unproven).expect("room"));
    assert!(!ledger.is_crowded(0) && ledger.is_crowded(1));
}

/// Random charges, proofs and releases of a few addresses. After each step the sums over the live charges are those of the
/// ledger, no bound is exceeded, and a refusal names a bound that the charge would have exceeded.
#[test]
fn random_programs_agree_with_a_recount() {
    let mut state = 0x1234_5678_9ABC_DEF0_u64;
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let owners = [v4(2), v4(3), v6(7, 1), v6(7, 2), v6(8, 1), v6(0xAAAA, 5)];
    for _ in 0..50 {
        let (mut ledger, all) = ledger(200);
        let budgets = [all, ledger.open("part", 1, 120, SHARES, Some(all))];
        let mut live: Vec<Charge> = Vec::new();
        for _ in 0..300 {
            match random(4) {
                0 | 1 => {
                    let standing = if random(2) == 0 { Standing::Proven } else { Standing::Unproven };
                    let owner = owners[random(owners.len() as u64) as usize];
                    // Small ones: no first object exceeds a share.
                    let amount = 1 + random(9) as usize;
                    live.extend(ledger.charge(budgets[random(2) as usize], owner, amount, standing));
                }
                2 if !live.is_empty() => {
                    let at = random(live.len() as u64) as usize;
                    let before = live[at].standing;
                    let done = ledger.prove(&mut live[at]);
                    assert!(
                        done.is_ok() == (live[at].standing == Standing::Proven)
                            && (done.is_ok() || before == Standing::Unproven)
                    );
                }
                _ if !live.is_empty() => ledger.release(live.swap_remove(random(live.len() as u64) as usize)),
                _ => {}
            }
            for (number, &budget) in budgets.iter().enumerate() {
                let counts = |charge: &&Charge| number == 0 || charge.budget == budget;
                let sum = |of: &dyn Fn(&Charge) -> bool| {
                    live.iter().filter(counts).filter(|charge| of(charge)).map(|charge| charge.amount).sum::<usize>()
                };
                let limit = ledger.budgets[budget.0].limit;
                assert_eq!(ledger.used(budget), sum(&|_| true));
                assert_eq!(ledger.budgets[budget.0].unproven, sum(&|charge| charge.standing == Standing::Unproven));
                assert!(ledger.used(budget) <= limit && ledger.budgets[budget.0].unproven <= limit / 4);
                for owner in owners {
                    let proven = |charge: &Charge| charge.owner == owner && charge.standing == Standing::Proven;
                    assert_eq!(ledger.held_by(budget, owner), sum(&proven));
                    assert!(ledger.held_by(budget, owner) <= limit / 2);
                }
                let of_7 = |c: &Charge| network_of(c.owner) == network_of(v6(7, 1)) && c.standing == Standing::Proven;
                assert!(sum(&of_7) <= limit / 8 * 7);
            }
        }
        live.drain(..).for_each(|charge| ledger.release(charge));
        assert!(ledger.holdings().0.is_empty() && budgets.iter().all(|&budget| ledger.used(budget) == 0));
        assert!(ledger.budgets.iter().all(|budget| budget.by_network.0.is_empty() && budget.unproven == 0));
    }
}
