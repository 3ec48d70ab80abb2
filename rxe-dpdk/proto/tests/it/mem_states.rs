//! Every kind of key in every state, every call, and its outcome: as a table.

use std::fmt::Write;

use rxe_proto::mem::{Access, KeyDomain, KeyTable, Memory, PdId, Reregister, WindowBind, WindowKind};

const A: u32 = 0x31;
const B: u32 = 0x32;
const ALL: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::MW_BIND);
const BASE: u64 = 0x1000;

/// A table with the key in question, and something of each other kind to use with it.
struct Setup {
    keys: KeyTable,
    pd: PdId,
    other: PdId,
    /// The key of the call.
    key: u32,
    /// The key afterwards.
    now: u32,
    /// A plain region.
    region: u32,
    /// An unbound type 2 window.
    window: u32,
}

const STATES: [&str; 12] = [
    "plain region",
    "plain region with a window",
    "adopted region",
    "fast-registration MR, FREE, not mapped",
    "fast-registration MR, FREE, mapped",
    "fast-registration MR, VALID",
    "fast-registration MR, VALID, with a window",
    "type 1 window, unbound",
    "type 1 window, bound",
    "type 2 window, unbound",
    "type 2 window, bound on A",
    "no key",
];

fn in_state(state: &str) -> Setup {
    let mut keys = KeyTable::new([8; 32], KeyDomain::Local);
    let (pd, other) = (keys.alloc_pd(), keys.alloc_pd());
    let region = keys.register(pd, Memory::heap(64), BASE, ALL).unwrap().rkey();
    let window = keys.alloc_window(pd, WindowKind::Type2).unwrap();
    let key = match state.split([' ', ',']).next().unwrap() {
        "plain" => keys.register(pd, Memory::heap(64), BASE, ALL).unwrap().rkey(),
        "adopted" => {
            let mut shared = KeyTable::new([9; 32], KeyDomain::Shared);
            let shared_pd = shared.alloc_pd();
            keys.adopt(pd, &shared.register(shared_pd, Memory::heap(64), BASE, ALL).unwrap()).unwrap().rkey()
        }
        "fast-registration" => keys.alloc_fast_reg_mr(pd, 64).unwrap(),
        "type" if state.contains('1') => keys.alloc_window(pd, WindowKind::Type1).unwrap(),
        "type" => keys.alloc_window(pd, WindowKind::Type2).unwrap(),
        _ => region ^ window,
    };
    if state.contains(", mapped") || state.contains("VALID") {
        keys.map_fast_reg_mr(key, Memory::heap(64)).unwrap();
    }
    if state.contains("VALID") {
        keys.fast_register(key, pd, BASE, ALL).unwrap();
    }
    if state.contains(", bound") {
        keys.bind_window(key, pd, A, &bind(region, 64)).unwrap();
    }
    if state.contains("with a window") {
        let bound = keys.alloc_window(pd, WindowKind::Type1).unwrap();
        keys.bind_window(bound, pd, A, &bind(key, 64)).unwrap();
    }
    Setup { keys, pd, other, key, now: key, region, window }
}

fn bind(region_key: u32, len: u64) -> WindowBind {
    WindowBind { region_key, addr: BASE, len, access: Access::REMOTE_READ }
}

/// The accesses that the key admits.
fn opens(on: &Setup) -> String {
    let (keys, key, pd, need) = (&on.keys, on.now, on.pd, Access::REMOTE_READ);
    let mut open = Vec::new();
    let mut note = |who, found: bool| {
        if found {
            open.push(who);
        }
    };
    note("lkey", keys.check_local(key, pd, BASE, 8, Access::LOCAL_WRITE).is_ok());
    note("rkey on A", keys.check_remote(key, pd, A, BASE, 8, need).is_ok());
    note("rkey on B", keys.check_remote(key, pd, B, BASE, 8, need).is_ok());
    assert!(keys.check_local(key, on.other, BASE, 8, need).is_err());
    assert!(keys.check_remote(key, on.other, A, BASE, 8, need).is_err());
    open.join(", ")
}

fn told<T, E: std::fmt::Debug>(result: Result<T, E>) -> String {
    match result {
        Ok(_) => "ok".to_owned(),
        Err(error) => format!("{error:?}"),
    }
}

type Call = (&'static str, fn(&mut Setup) -> String);

const CALLS: [Call; 27] = [
    ("check_local", |on| told(on.keys.check_local(on.key, on.pd, BASE, 8, Access::empty()))),
    ("check_local, other pd", |on| told(on.keys.check_local(on.key, on.other, BASE, 8, Access::empty()))),
    ("check_remote on A", |on| told(on.keys.check_remote(on.key, on.pd, A, BASE, 8, Access::REMOTE_READ))),
    ("check_remote on B", |on| told(on.keys.check_remote(on.key, on.pd, B, BASE, 8, Access::REMOTE_READ))),
    ("check_remote on B, other pd", |on| told(on.keys.check_remote(on.key, on.other, B, BASE, 8, Access::REMOTE_READ))),
    ("region", |on| on.keys.region(on.key).map_or("none", |_| "some").to_owned()),
    ("map_fast_reg_mr", |on| told(on.keys.map_fast_reg_mr(on.key, Memory::heap(64)))),
    ("map_fast_reg_mr, too long", |on| told(on.keys.map_fast_reg_mr(on.key, Memory::heap(65)))),
    ("fast_register", |on| told(on.keys.fast_register(on.key, on.pd, BASE, ALL))),
    ("fast_register, other pd", |on| told(on.keys.fast_register(on.key, on.other, BASE, ALL))),
    ("bind_window on A", |on| told(on.keys.bind_window(on.key, on.pd, A, &bind(on.region, 64)))),
    ("bind_window on B", |on| told(on.keys.bind_window(on.key, on.pd, B, &bind(on.region, 64)))),
    ("bind_window, other pd", |on| told(on.keys.bind_window(on.key, on.other, A, &bind(on.region, 64)))),
    ("bind_window, too long", |on| told(on.keys.bind_window(on.key, on.pd, A, &bind(on.region, 65)))),
    ("bind_window to nothing", |on| told(on.keys.bind_window(on.key, on.pd, A, &bind(on.region, 0)))),
    ("bind_window to it", |on| told(on.keys.bind_window(on.window, on.pd, A, &bind(on.key, 64)))),
    ("invalidate_local", |on| told(on.keys.invalidate_local(on.key, on.pd))),
    ("invalidate_local, other pd", |on| told(on.keys.invalidate_local(on.key, on.other))),
    ("invalidate_remote on A", |on| told(on.keys.invalidate_remote(on.key, on.pd, A))),
    ("invalidate_remote on B", |on| told(on.keys.invalidate_remote(on.key, on.pd, B))),
    ("renew_key", |on| {
        let renewed = on.keys.renew_key(on.key);
        on.now = renewed.unwrap_or(on.key);
        assert_eq!(on.now != on.key, renewed.is_ok());
        told(renewed)
    }),
    ("unbind_windows_of A", |on| on.keys.unbind_windows_of(A).to_string()),
    ("deregister", |on| told(on.keys.deregister(on.key))),
    ("dealloc_window", |on| told(on.keys.dealloc_window(on.key))),
    ("bind_window_as", |on| told(on.keys.bind_window_as(on.key, Some(1), on.pd, A, &bind(on.region, 64)))),
    ("reregister, access", |on| {
        let access = Some(Access::REMOTE_READ);
        told(on.keys.reregister(on.key, Reregister { access, ..Reregister::default() }))
    }),
    ("reregister, pd", |on| {
        let pd = Some(on.other);
        let outcome = told(on.keys.reregister(on.key, Reregister { pd, ..Reregister::default() }));
        if outcome == "ok" {
            std::mem::swap(&mut on.pd, &mut on.other);
        }
        outcome
    }),
];

#[test]
fn every_call_in_every_state() {
    let mut text = String::new();
    for state in STATES {
        let before = opens(&in_state(state));
        writeln!(text, "{state}: opens {}", if before.is_empty() { "nothing" } else { &before }).unwrap();
        for (name, call) in CALLS {
            let mut on = in_state(state);
            let outcome = call(&mut on);
            let after = opens(&on);
            // The admitted accesses are only mentioned when they change.
            let change = match () {
                () if after == before => String::new(),
                () if after.is_empty() => " -> opens nothing".to_owned(),
                () => format!(" -> opens {after}"),
            };
            writeln!(text, "    {name:<28} {outcome}{change}").unwrap();
        }
    }
    insta::assert_snapshot!(text);
}
