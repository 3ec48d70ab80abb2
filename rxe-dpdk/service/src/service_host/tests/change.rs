//! Named regions that come and go, and requests of management to services.

use std::sync::Arc;

use rxe_proto::mem::{KeyDomain, KeyTable, Memory, MemoryRegion, RegisterError};
use rxe_proto::verbs::{Access, Qpn, Rc};

use super::CAPS;
use super::env::{Call, SERVICE, WorkerEnv};
use crate::change::{Change, RegionHead};

/// A table of shared keys, and a worker.
struct RegionEnv {
    shared: KeyTable,
    worker: WorkerEnv,
}

impl RegionEnv {
    fn new() -> RegionEnv {
        RegionEnv { shared: KeyTable::new([1; 32], KeyDomain::Shared), worker: WorkerEnv::new() }
    }

    fn stage(&mut self, name: &str, domain: Option<&str>, keys: usize) -> Vec<MemoryRegion> {
        let pd = self.shared.alloc_pd();
        let access = Access::REMOTE_READ;
        let mrs: Vec<MemoryRegion> =
            (0..keys).map(|_| self.shared.register(pd, Memory::heap(64), 0, access).unwrap()).collect();
        let (name, domain) = (name.to_owned(), domain.map(str::to_owned));
        let head = Arc::new(RegionHead { name, is_numbered: keys > 1, domain, file: None });
        for part in mrs.chunks(2) {
            let head = Arc::clone(&head);
            let staged = self.worker.change(|reply| Change::StageRegion { head, part: part.to_vec(), reply });
            assert_eq!(staged, Ok(()));
        }
        mrs
    }

    fn add(&mut self, name: &str, domain: Option<&str>, keys: usize) -> Vec<MemoryRegion> {
        let mrs = self.stage(name, domain, keys);
        self.publish(9);
        mrs
    }

    fn publish(&mut self, at: usize) {
        self.worker.change(|reply| Change::PublishRegion { at, reply });
    }

    fn withdraw(&mut self, name: &str, force: bool) -> Result<(), u32> {
        self.worker.change(|reply| Change::WithdrawRegion { name: name.to_owned(), force, reply })
    }

    fn release(&mut self, most: usize) -> usize {
        self.worker.change(|reply| Change::ReleaseRegion { most, reply })
    }

    fn users(&mut self, name: &str) -> u32 {
        self.worker.change(|reply| Change::CountRegionUsers { name: name.to_owned(), reply })
    }

    /// Creates a queue pair in the protection domain of a region.
    fn use_region(&mut self, name: &str) -> Qpn {
        let WorkerEnv { env, engine, host, .. } = &mut self.worker;
        host.call(env.now, engine, SERVICE, |_, cx| {
            let pd = cx.regions().iter().find(|region| region.name == name).unwrap().pd;
            let attr = cx.qp_attr().with_caps(CAPS);
            cx.device().create_qp_in_init::<Rc>(pd.into(), attr, Access::REMOTE_READ).unwrap().qpn()
        })
    }

    fn destroy(&mut self, qpn: Qpn) {
        let WorkerEnv { env, engine, host, .. } = &mut self.worker;
        host.call(env.now, engine, SERVICE, |_, cx| {
            let mut dev = cx.device();
            let qp = dev.find_qp::<Rc>(qpn).unwrap();
            dev.destroy_qp(qp).unwrap();
        });
    }

    fn knows(&self, mr: &MemoryRegion) -> bool {
        self.worker.engine.keys().region(mr.rkey()).is_some()
    }
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

#[test]
fn a_region_is_published_with_all_of_its_keys_and_gone_with_the_last() {
    let mut env = RegionEnv::new();
    let mrs = env.stage("many", None, 5);
    assert!(mrs.iter().all(|mr| env.knows(mr)));
    assert_eq!(env.worker.calls(), [], "services do not know it yet");
    env.publish(9);
    assert_eq!(env.worker.calls(), [Call::Added("many".to_owned(), names(&["many"]))]);
    env.add("first", None, 1);
    assert_eq!(env.worker.calls(), [Call::Added("first".to_owned(), names(&["many", "first"]))]);

    assert_eq!(env.withdraw("many", false), Ok(()));
    assert_eq!(env.worker.calls(), [Call::Removed("many".to_owned(), names(&["first"]))]);
    assert!(mrs.iter().all(|mr| env.knows(mr)), "its keys are valid until they are released");
    assert_eq!(env.release(3), 2);
    assert_eq!(mrs.iter().filter(|mr| env.knows(mr)).count(), 2);
    assert_eq!((env.release(3), env.release(3)), (0, 0));
    assert!(!mrs.iter().any(|mr| env.knows(mr)));
    let counts = (env.worker.engine.keys().len(), env.worker.engine.keys().pd_count());
    assert_eq!(counts, (1, 1), "the other region");
    env.worker.host.count_left(&env.worker.engine);
    assert_eq!(env.worker.host.stats().regions_left.get(), 0, "a named region is no client's");
}

#[test]
fn a_withdrawn_region_returns_to_its_place() {
    let mut env = RegionEnv::new();
    for name in ["a", "b", "c"] {
        env.add(name, None, 1);
    }
    env.worker.calls();
    assert_eq!(env.withdraw("b", false), Ok(()));
    env.publish(1);
    let (removed, added) = (names(&["a", "c"]), names(&["a", "b", "c"]));
    assert_eq!(env.worker.calls(), [Call::Removed("b".to_owned(), removed), Call::Added("b".to_owned(), added)]);
    env.publish(0);
    assert_eq!(env.worker.calls(), [], "nothing is staged");
}

#[test]
fn a_region_with_users_is_withdrawn_by_force_only() {
    let mut env = RegionEnv::new();
    let region = env.add("r", None, 1).remove(0);
    let qpn = env.use_region("r");
    assert_eq!((env.users("r"), env.withdraw("r", false)), (1, Err(1)));
    assert_eq!(env.withdraw("r", true), Ok(()));
    assert_eq!(env.release(usize::MAX), 0);
    assert!(!env.knows(&region), "its users get remote access errors");
    assert_eq!(env.worker.engine.keys().pd_count(), 1, "its domain stays with its user");
    env.destroy(qpn);
    env.add("other", None, 1);
    assert_eq!(env.withdraw("other", false), Ok(()));
    assert_eq!(env.release(usize::MAX), 0);
    assert_eq!(env.worker.engine.keys().pd_count(), 0);
}

#[test]
fn regions_share_a_domain_by_its_name() {
    let mut env = RegionEnv::new();
    env.add("left", Some("pair"), 1);
    env.add("right", Some("pair"), 1);
    env.add("alone", None, 1);
    assert_eq!(env.worker.engine.keys().pd_count(), 2);
    let qpn = env.use_region("left");
    assert_eq!((env.users("right"), env.users("alone"), env.users("unknown")), (1, 0, 0));
    env.destroy(qpn);
    assert_eq!(env.withdraw("left", false), Ok(()));
    assert_eq!((env.release(usize::MAX), env.worker.engine.keys().pd_count()), (0, 2));
    assert_eq!(env.withdraw("right", false), Ok(()));
    assert_eq!((env.release(usize::MAX), env.worker.engine.keys().pd_count()), (0, 1));
}

#[test]
fn a_part_that_is_refused_is_released_with_the_rest() {
    let mut env = RegionEnv::new();
    let first = env.add("first", None, 1);
    let keys = env.stage("second", None, 2);
    let head = RegionHead { name: "second".to_owned(), is_numbered: true, domain: None, file: None };
    let staged = env.worker.change(|reply| Change::StageRegion { head: Arc::new(head), part: first.clone(), reply });
    assert_eq!(staged, Err(RegisterError::KeyInUse));
    assert_eq!(env.release(usize::MAX), 0);
    assert!(!keys.iter().any(|mr| env.knows(mr)) && env.knows(&first[0]));
}

#[test]
fn the_clients_of_a_service_are_disconnected() {
    let mut env = WorkerEnv::new();
    env.open_stream(8, super::env::TCP_PORT);
    env.run();
    assert_eq!(env.change(|reply| Change::DisconnectService { service: SERVICE + 1, reply }), 0);
    assert!(!env.stream(8).aborted);
    assert_eq!(env.change(|reply| Change::DisconnectService { service: SERVICE, reply }), 1);
    env.run();
    assert!(env.stream(8).aborted);
    assert_eq!(env.calls(), [Call::Closed(true)]);
}

#[test]
fn requests_of_management_reach_their_service() {
    let mut env = WorkerEnv::new();
    let mut manage =
        |service, request: &str| env.change(|reply| Change::ManageService { service, request: request.into(), reply });
    assert_eq!(manage(SERVICE, "yes"), Ok("YES".to_owned()));
    assert_eq!(manage(SERVICE, "no"), Err("I refuse".to_owned()));
    assert_eq!(manage(SERVICE + 1, "yes"), Err("there is no such service".to_owned()));
}
