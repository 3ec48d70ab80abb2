//! The memory of an engine: regions, a fast-registration MR and memory windows in one span, with bytes between them that no
//! key opens.
//!
//! Bytes that peers may not read have the value [`SECRET`], those of the second protection domain [`FOREIGN`]; payloads of
//! peers have neither. So a response that brings many of them leaks memory.

use std::ops::Range;

use rxe_proto::mem::{Access, KeyKind, KeyTable, Memory, PdId, WindowBind, WindowKind};
use rxe_proto::transport::Sge;

use crate::input::Input;

/// A byte that peers may not read.
pub const SECRET: u8 = 0xEE;
/// A byte that only peers in the second protection domain may read.
pub const FOREIGN: u8 = 0xDD;

/// Bytes of the whole span.
const SPAN: usize = 13 << 10;
/// Bytes between regions.
const GAP: usize = 64;
/// The region whose bytes are less aligned than its addresses.
const MISALIGNED: usize = 6;

const REMOTE: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);
const FULL: Access = REMOTE.union(Access::LOCAL_WRITE).union(Access::FLUSH_GLOBAL).union(Access::FLUSH_PERSISTENT);

/// Each region: its length, protection domain, address and rights.
const REGIONS: [(usize, usize, u64, Access); 8] = [
    (4096, 0, 0x1_0000, FULL.union(Access::MW_BIND)),
    (1024, 0, 0x2_0000, Access::REMOTE_READ),
    // Up to the last address.
    (1024, 0, u64::MAX - 1023, Access::LOCAL_WRITE.union(Access::REMOTE_WRITE)),
    (2048, 0, 0x4_0000, Access::LOCAL_WRITE),
    (512, 0, 0x5_0000, Access::empty()),
    (1024, 1, 0x6_0000, FULL),
    (256, 0, 0, Access::ZERO_BASED.union(Access::LOCAL_WRITE).union(REMOTE)),
    // For windows only.
    (1024, 0, 0x8_0000, Access::LOCAL_WRITE.union(Access::MW_BIND)),
];
/// The region that windows are bound to.
const BOUND: usize = 7;
/// Bytes of the fast-registration MR, and the addresses that it gets.
const FAST_LEN: usize = 1024;
const FAST_ADDRS: [u64; 2] = [0x9_0000, 0];

/// The bindings of each window: offset in its region, length, rights.
const BINDS: [[(u64, u64, Access); 2]; 2] = [
    [(256, 256, Access::REMOTE_READ.union(Access::REMOTE_WRITE)), (256, 128, Access::REMOTE_ATOMIC)],
    [(800, 200, REMOTE.union(Access::ZERO_BASED)), (800, 100, Access::REMOTE_WRITE)],
];
const WINDOW_KINDS: [WindowKind; 2] = [WindowKind::Type1, WindowKind::Type2];

/// Bytes that a key opens, as the local side made it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grant {
    pub key: u32,
    pub pd: PdId,
    /// Place in the span.
    start: usize,
    pub len: usize,
    /// Address of the first byte, for peers and work requests.
    pub addr: u64,
    pub access: Access,
    /// The queue pairs that a type 2 window was bound on; `None` for all other keys.
    only: Option<Vec<u32>>,
    /// Whether it is a local key, too.
    local: bool,
}

impl Grant {
    /// The bytes from address `va` on, at most `len`, that lie inside.
    fn clip(&self, va: u64, len: usize) -> Range<usize> {
        let Some(offset) = va.checked_sub(self.addr).and_then(|offset| usize::try_from(offset).ok()) else {
            return 0..0;
        };
        if offset >= self.len {
            return 0..0;
        }
        self.start + offset..self.start + self.len.min(offset.saturating_add(len))
    }

    fn readable(&self) -> bool {
        self.access.intersects(Access::REMOTE_READ | Access::REMOTE_ATOMIC)
    }
}

/// The span, the keys to it, and its bytes as they should be.
pub struct Bytes {
    memory: Memory,
    expected: Vec<u8>,
    pds: [PdId; 2],
    starts: [usize; REGIONS.len()],
    /// The newest key of each region.
    regions: [u32; REGIONS.len()],
    fast: u32,
    fast_start: usize,
    windows: [u32; 2],
    /// The queue pairs that the type 2 window was bound on.
    bound_on: Vec<u32>,
    /// The keys that are valid now.
    live: Vec<Grant>,
}

impl Bytes {
    pub fn new(keys: &mut KeyTable) -> Bytes {
        let memory = Memory::heap(SPAN);
        memory.fill(0, SPAN, SECRET).expect("all of it");
        let pds = [keys.alloc_pd(), keys.alloc_pd()];
        let mut next = GAP;
        let mut starts = REGIONS.map(|(len, ..)| {
            let start = next;
            next += len + GAP;
            start
        });
        starts[MISALIGNED] += 4;
        let fast = keys.alloc_fast_reg_mr(pds[0], FAST_LEN).expect("a key");
        keys.map_fast_reg_mr(fast, memory.slice(next, FAST_LEN).expect("inside")).expect("free");
        keys.fast_register(fast, pds[0], FAST_ADDRS[0], FULL).expect("mapped");
        let windows = WINDOW_KINDS.map(|kind| keys.alloc_window(pds[0], kind).expect("a key"));
        let mut bytes = Bytes {
            memory,
            expected: vec![SECRET; SPAN],
            pds,
            starts,
            regions: [0; REGIONS.len()],
            fast,
            fast_start: next,
            windows,
            bound_on: Vec::new(),
            live: Vec::new(),
        };
        for region in 0..REGIONS.len() {
            bytes.register(keys, region);
        }
        bytes.refresh(keys);
        bytes
    }

    pub fn pd(&self, number: usize) -> PdId {
        self.pds[number % self.pds.len()]
    }

    fn register(&mut self, keys: &mut KeyTable, region: usize) {
        let (len, pd, addr, access) = REGIONS[region];
        let memory = self.memory.slice(self.starts[region], len).expect("inside");
        self.regions[region] = keys.register(self.pds[pd], memory, addr, access).expect("a key").lkey();
    }

    /// A key and the address of its first byte and its length; the last one is no key.
    pub fn key(&self, number: u8) -> (u32, u64, usize) {
        let all = REGIONS.len() + 4;
        match usize::from(number) % all {
            n if n < REGIONS.len() => (self.regions[n], REGIONS[n].2, REGIONS[n].0),
            n if n == REGIONS.len() => {
                let registered = self.live.iter().find(|grant| grant.key == self.fast);
                (self.fast, registered.map_or(FAST_ADDRS[0], |grant| grant.addr), FAST_LEN)
            }
            n if n < REGIONS.len() + 3 => {
                let window = n - REGIONS.len() - 1;
                let bound = self.live.iter().find(|grant| grant.key == self.windows[window]);
                let (addr, len) = bound.map_or((0, 16), |grant| (grant.addr, grant.len));
                (self.windows[window], addr, len)
            }
            _ => (0x1234_5678, 0, 64),
        }
    }

    /// The parameters to bind a window.
    pub fn bind(&self, window: usize, variant: usize) -> (u32, WindowBind) {
        let (offset, len, access) = BINDS[window % 2][variant % 2];
        let addr = REGIONS[BOUND].2 + offset;
        (self.windows[window % 2], WindowBind { region_key: self.regions[BOUND], addr, len, access })
    }

    /// Remembers that queue pair `qpn` may bind the type 2 window.
    pub fn may_bind(&mut self, qpn: u32) {
        self.bound_on.push(qpn);
    }

    /// The key of the fast-registration MR, the address to register it at, and its rights.
    pub fn fast(&self, variant: usize) -> (u32, u64, Access) {
        let access = if variant.is_multiple_of(2) { FULL } else { FULL | Access::ZERO_BASED };
        (self.fast, FAST_ADDRS[0], access)
    }

    /// A command for the keys: what, number, variant. `qpn` binds the windows.
    pub fn command(&mut self, keys: &mut KeyTable, qpn: u32, input: &mut Input<'_>) {
        let (what, number, variant) = (input.u8() % 7, usize::from(input.u8()), usize::from(input.u8()));
        let region = number % REGIONS.len();
        let window = number % 2;
        match what {
            0 => {
                let _windows_bound = keys.deregister(self.regions[region]);
            }
            1 if keys.region(self.regions[region]).is_none() => self.register(keys, region),
            2 => {
                let outcome = keys.invalidate_local(self.fast, self.pds[variant % 2]);
                assert!(outcome.is_err() || keys.region(self.fast).is_none());
            }
            3 => {
                let (key, addr, access) = self.fast(variant);
                let _not_free = keys.fast_register(key, self.pds[0], addr, access);
            }
            4 => {
                let (key, bind) = self.bind(window, variant);
                if keys.bind_window(key, self.pds[0], qpn, &bind).is_ok() {
                    self.may_bind(qpn);
                }
            }
            5 => {
                let _not_bound = keys.invalidate_local(self.windows[window], self.pds[0]);
            }
            6 if variant.is_multiple_of(2) => {
                if let Ok(fresh) = keys.renew_key(self.windows[window]) {
                    self.windows[window] = fresh;
                }
            }
            6 => {
                if let Ok(fresh) = keys.renew_key(self.fast) {
                    self.fast = fresh;
                }
            }
            _ => {}
        }
    }

    /// Takes over the keys that are valid now, each of which the local side must have made. Bytes that peers may not read
    /// any more become secret, and those that they may read again do not.
    pub fn refresh(&mut self, keys: &KeyTable) {
        let live: Vec<Grant> = keys.list(0..keys.slots()).filter_map(|info| self.grant(keys, &info)).collect();
        if live == self.live {
            return;
        }
        let before = std::mem::replace(&mut self.live, live);
        for grant in before.iter().filter(|grant| grant.readable() && !self.live.contains(grant)) {
            self.memory.fill(grant.start, grant.len, SECRET).expect("inside");
        }
        for grant in self.live.iter().filter(|grant| grant.readable() && !before.contains(grant)) {
            let foreign = grant.pd == self.pds[1];
            let pattern: Vec<u8> = (0..grant.len).map(|i| if foreign { FOREIGN } else { i as u8 | 1 }).collect();
            self.memory.write(grant.start, &pattern).expect("inside");
        }
        self.memory.read(0, &mut self.expected).expect("all of it");
    }

    fn grant(&self, keys: &KeyTable, info: &rxe_proto::mem::KeyInfo) -> Option<Grant> {
        let grant = |start: usize, only, local| {
            let (key, pd, addr, access) = (info.key, info.pd, info.addr, info.access);
            Some(Grant { key, pd, start, len: info.len as usize, addr, access, only, local })
        };
        let what = (info.pd, info.addr, info.len, info.access);
        match info.kind {
            KeyKind::FreeFastRegMr | KeyKind::UnboundWindow => None,
            KeyKind::Region => {
                let region = self.regions.iter().position(|key| *key == info.key).expect("a region of ours");
                let (len, pd, addr, access) = REGIONS[region];
                assert_eq!(what, (self.pds[pd], addr, len as u64, access), "region {region}");
                grant(self.starts[region], None, true)
            }
            KeyKind::FastRegMr => {
                assert_eq!(info.key, self.fast);
                let variants = [0, 1].map(|variant| self.fast(variant).2);
                assert!(variants.contains(&info.access) && FAST_ADDRS.contains(&info.addr), "{info:?}");
                assert_eq!((info.pd, info.len), (self.pds[0], FAST_LEN as u64));
                grant(self.fast_start, None, true)
            }
            KeyKind::Window => {
                let window = self.windows.iter().position(|key| *key == info.key).expect("a window of ours");
                let of = |(_, len, access): &&(u64, u64, Access)| (*len, *access) == (info.len, info.access);
                let (offset, ..) = BINDS[window].iter().find(of).expect("a binding of ours");
                assert!(keys.region(self.regions[BOUND]).is_some(), "a window without its region");
                let only = (window == 1).then(|| self.bound_on.clone());
                grant(self.starts[BOUND] + *offset as usize, only, false)
            }
        }
    }

    /// The bytes that a peer of queue pair `qpn` in `pd` reaches by `rkey` with this right.
    pub fn remote(&self, rkey: u32, pd: PdId, qpn: u32, va: u64, len: usize, need: Access) -> Range<usize> {
        let opens = |grant: &&Grant| {
            let on_it = grant.only.as_ref().is_none_or(|qpns| qpns.contains(&qpn));
            grant.key == rkey && grant.pd == pd && grant.access.contains(need) && on_it
        };
        self.live.iter().find(opens).map_or(0..0, |grant| grant.clip(va, len))
    }

    /// The bytes of buffers that a queue pair in `pd` may write.
    pub fn local(&self, sges: &[Sge], pd: PdId) -> Vec<Range<usize>> {
        let opens = |sge: &Sge| {
            let with_key = |grant: &&Grant| grant.key == sge.lkey && grant.local && grant.pd == pd;
            let grant = self.live.iter().find(with_key).filter(|grant| grant.access.contains(Access::LOCAL_WRITE));
            grant.map(|grant| grant.clip(sge.addr, sge.length as usize))
        };
        sges.iter().filter_map(opens).collect()
    }

    /// The bytes at this place.
    pub fn read(&self, range: Range<usize>) -> Vec<u8> {
        let mut bytes = vec![0; range.len()];
        self.memory.read(range.start, &mut bytes).expect("inside");
        bytes
    }

    /// Checks that a peer's SEND has invalidated a key.
    pub fn check_invalidated(&self, keys: &KeyTable, rkey: u32) {
        let valid = keys.list(0..keys.slots()).any(|info| info.key == rkey && self.grant(keys, &info).is_some());
        assert!(!valid, "key {rkey:#x} is valid after a peer has invalidated it");
    }

    /// Checks that no byte has changed but those in `allowed`.
    pub fn check(&mut self, allowed: &[Range<usize>], why: impl FnOnce() -> String) {
        let now = self.read(0..SPAN);
        if now == self.expected {
            return;
        }
        let changed = |at: &usize| now[*at] != self.expected[*at];
        let stray = (0..SPAN).filter(changed).find(|at| !allowed.iter().any(|range| range.contains(at)));
        if let Some(at) = stray {
            panic!("byte {at} of the span was written without permission: {}; allowed: {allowed:?}", why());
        }
        self.expected = now;
    }

    /// Deregisters everything.
    pub fn close(mut self, keys: &mut KeyTable) {
        for window in self.windows {
            keys.dealloc_window(window).expect("a window");
        }
        keys.deregister(self.fast).expect("no window is bound to it");
        for region in self.regions {
            let _unknown = keys.deregister(region);
        }
        assert!(keys.is_empty(), "{} keys", keys.len());
        for pd in self.pds {
            keys.dealloc_pd(pd).expect("an empty protection domain");
        }
        self.check(&[], || "the end".to_owned());
    }
}
