//! The named regions of an adapter: their memory, and their keys in the shared table.
//!
//! The list is the owner. Workers adopt the keys, so a region is added after its keys are here and discarded when no worker has
//! them any more. Only threads of management and the runtime take the lock, never an lcore.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rxe_proto::mem::{Access, KeyDomain, KeyTable, Memory, MemoryRegion, PdId};
use rxe_service::change::RegionHead;
use rxe_service::{RegionNames, Which};

use super::key_names::{KeyName, KeyNames};

/// Longest region name in bytes, as the region service sends it.
const MAX_REGION_NAME: usize = 32;
/// Numbered regions begin at multiples of this: no two of them share a cache line.
const LINE: usize = 64;

/// Rights of a named region.
const REGION_ACCESS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::FLUSH_GLOBAL);

/// Rights of one that peers may only READ.
const READ_ONLY: Access = Access::REMOTE_READ;

/// A region to export under a name, or several of one length.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionSettings {
    /// The name that clients ask for: 1 to 32 bytes.
    pub name: String,
    /// Length in bytes.
    pub size: usize,
    /// With a count: that many regions, named `NAME0`, `NAME1` and so on, in one piece of memory, each aligned to 64 bytes.
    pub count: Option<u32>,
    /// Peers may only READ it.
    pub read_only: bool,
    /// Its protection domain, which it shares with the regions that name the same; `None` for one of its own. A key is valid
    /// for queue pairs of its protection domain only.
    pub domain: Option<String>,
    /// A file on hugetlbfs or /dev/shm for the memory, so that other local processes can map it; `None` is anonymous
    /// hugepages.
    pub file: Option<PathBuf>,
}

impl RegionSettings {
    /// The names that clients ask for.
    pub fn names(&self) -> RegionNames<'_> {
        RegionNames { name: &self.name, count: self.count }
    }

    /// The region without its keys.
    pub fn head(&self) -> RegionHead {
        let RegionSettings { name, count, domain, file, .. } = self;
        RegionHead { name: name.clone(), is_numbered: count.is_some(), domain: domain.clone(), file: file.clone() }
    }
}

/// Makes the memory of regions.
pub trait RegionSource: Send {
    /// Memory of `bytes` zeroed bytes, or those of the region's file.
    ///
    /// # Errors
    /// Why there is none.
    fn make(&mut self, settings: &RegionSettings, bytes: usize) -> Result<Memory, String>;

    /// The region of this name is gone.
    fn forget(&mut self, name: &str);
}

/// The regions of one setting, in the table of shared keys.
pub struct SharedRegions {
    /// As configured.
    pub settings: RegionSettings,
    /// One per number, or the only one.
    pub mrs: Vec<MemoryRegion>,
}

impl SharedRegions {
    /// Whether some of its memory is lost.
    pub fn is_lost(&self) -> bool {
        self.mrs.iter().any(|mr| mr.memory().is_lost())
    }
}

/// The list of regions, for several threads.
pub struct RegionList(Mutex<Regions>);

/// A list without regions, to which none can be added.
impl Default for RegionList {
    fn default() -> RegionList {
        RegionList(Mutex::new(Regions { list: Vec::new(), names: KeyNames::default(), maker: None }))
    }
}

impl RegionList {
    /// An empty list. Keys derive from `seed`.
    pub fn new(source: Box<dyn RegionSource>, seed: [u8; 32]) -> RegionList {
        let mut keys = KeyTable::new(seed, KeyDomain::Shared);
        let pd = keys.alloc_pd();
        let maker = Some(Maker { keys, pd, source });
        RegionList(Mutex::new(Regions { list: Vec::new(), names: KeyNames::default(), maker }))
    }

    /// The list, for one thread at a time.
    pub fn lock(&self) -> MutexGuard<'_, Regions> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives all regions back; none can be made from now on.
    pub fn end(&self) {
        let mut regions = self.lock();
        regions.list.clear();
        regions.maker = None;
    }
}

/// The regions, in the order of the configuration.
pub struct Regions {
    list: Vec<SharedRegions>,
    names: KeyNames,
    /// `None` once the runtime has ended.
    maker: Option<Maker>,
}

struct Maker {
    keys: KeyTable,
    pd: PdId,
    source: Box<dyn RegionSource>,
}

impl Maker {
    fn discard(&mut self, region: SharedRegions) {
        for mr in &region.mrs {
            // Only plain regions have shared keys, and no windows are bound here.
            let _ = self.keys.deregister(mr.rkey());
        }
        self.source.forget(&region.settings.name);
    }
}

impl Regions {
    pub fn list(&self) -> &[SharedRegions] {
        &self.list
    }

    /// The name of a key.
    pub fn name_of(&self, key: u32) -> Option<KeyName> {
        self.names.get(key)
    }

    /// The position of the setting with this name.
    pub fn position(&self, name: &str) -> Option<usize> {
        self.list.iter().position(|region| region.settings.name == name)
    }

    /// The name that `settings` have in common with a region of the list.
    pub fn taken(&self, settings: &RegionSettings) -> Option<String> {
        let all = self.list.iter().map(|region| region.settings.names()).chain([settings.names()]);
        RegionNames::given_twice(all).map(|(_, name)| name)
    }

    /// The memory of the region called `name`.
    pub fn memory(&self, name: &str) -> Option<&Memory> {
        let number = |shared: &SharedRegions| match shared.settings.names().find(name) {
            Some(Which::Number(number)) => Some(number as usize),
            Some(Which::All) | None => None,
        };
        self.list.iter().find_map(|shared| Some(shared.mrs.get(number(shared)?)?.memory()))
    }

    /// Zeroed memory that is no region.
    ///
    /// # Errors
    /// Why there is none, in words.
    pub fn allocate(&mut self, bytes: usize) -> Result<Memory, String> {
        let maker = self.maker.as_mut().ok_or("the target is stopping")?;
        maker.source.make(&RegionSettings { size: bytes, ..RegionSettings::default() }, bytes)
    }

    /// Allocates and registers a region, which is not in the list.
    ///
    /// # Errors
    /// Why it cannot be made, in words.
    pub fn make(&mut self, settings: &RegionSettings) -> Result<SharedRegions, String> {
        let maker = self.maker.as_mut().ok_or("the target is stopping")?;
        if settings.name.is_empty() || settings.names().longest().len() > MAX_REGION_NAME {
            return Err(format!("a name has 1 to {MAX_REGION_NAME} bytes, its number included"));
        }
        let (count, bytes) = match settings.count {
            None => (1, Some(settings.size)),
            Some(0) => return Err("there is at least one region".to_owned()),
            Some(count) => {
                let stride = settings.size.checked_next_multiple_of(LINE);
                (count as usize, stride.and_then(|stride| stride.checked_mul(count as usize)))
            }
        };
        let bytes = bytes.ok_or("the size exceeds the address space")?;
        let memory = maker.source.make(settings, bytes)?;
        let stride = bytes / count;
        let mut region = SharedRegions { settings: settings.clone(), mrs: Vec::with_capacity(count) };
        for number in 0..count {
            let mr = match memory.slice(number * stride, settings.size) {
                Some(memory) => {
                    let iova = memory.as_ptr() as u64;
                    let access = if settings.read_only { READ_ONLY } else { REGION_ACCESS };
                    maker.keys.register(maker.pd, memory, iova, access).map_err(|error| error.to_string())
                }
                None => Err("it lies outside of its memory".to_owned()),
            };
            match mr {
                Ok(mr) => region.mrs.push(mr),
                Err(problem) => {
                    maker.discard(region);
                    return Err(problem);
                }
            }
        }
        Ok(region)
    }

    /// Appends a region that was made.
    pub fn push(&mut self, region: SharedRegions) {
        self.names.add(region.settings.names(), region.mrs.iter().map(MemoryRegion::rkey));
        self.list.push(region);
    }

    /// Takes the region at a position out of the list.
    pub fn take(&mut self, at: usize) -> SharedRegions {
        let region = self.list.remove(at);
        region.mrs.iter().for_each(|mr| self.names.remove(mr.rkey()));
        region
    }

    /// Forgets the keys of a region that is not in the list, and gives its memory back.
    pub fn discard(&mut self, region: SharedRegions) {
        if let Some(maker) = &mut self.maker {
            maker.discard(region);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::sync::{Arc, Mutex};

    use super::*;

    /// Memory of the process' heap, and the names of regions that have some.
    struct Heap(Arc<Mutex<HashSet<String>>>);

    impl RegionSource for Heap {
        fn make(&mut self, settings: &RegionSettings, bytes: usize) -> Result<Memory, String> {
            if bytes > 1 << 20 {
                return Err("no memory".to_owned());
            }
            self.0.lock().unwrap().insert(settings.name.clone());
            Ok(Memory::heap(bytes))
        }

        fn forget(&mut self, name: &str) {
            self.0.lock().unwrap().remove(name);
        }
    }

    fn settings(name: &str, size: usize, count: Option<u32>) -> RegionSettings {
        RegionSettings { name: name.to_owned(), size, count, ..RegionSettings::default() }
    }

    #[test]
    fn a_region_that_was_discarded_leaves_nothing() {
        let made = Arc::default();
        let list = RegionList::new(Box::new(Heap(Arc::clone(&made))), [1; 32]);
        let mut regions = list.lock();
        for settings in [settings("one", 100, None), settings("many", 100, Some(3))] {
            let region = regions.make(&settings).unwrap();
            regions.push(region);
        }
        assert_eq!(regions.position("many"), Some(1));
        let places: Vec<u64> =
            regions.list()[1].mrs.iter().map(|mr| mr.addr() - regions.list()[1].mrs[0].addr()).collect();
        assert_eq!(places, [0, 128, 256]);
        let last = regions.list()[1].mrs[2].rkey();
        assert_eq!(
            regions.name_of(last).map(|name| (name.name, name.numbered)),
            Some(("many2".into(), Some("many*".into())))
        );
        assert_eq!(regions.memory("many2").map(Memory::len), Some(100));
        assert_eq!(regions.taken(&settings("many1", 1, None)), Some("many1".to_owned()));
        assert_eq!(regions.taken(&settings("many3", 1, None)), None);

        let region = regions.take(1);
        let memory = region.mrs[2].memory().clone();
        regions.discard(region);
        assert_eq!((regions.name_of(last), regions.memory("many2").is_none()), (None, true));
        assert_eq!(regions.taken(&settings("many1", 1, None)), None);
        assert_eq!(made.lock().unwrap().iter().collect::<Vec<_>>(), ["one"]);
        let keys = &regions.maker.as_ref().unwrap().keys;
        assert_eq!(keys.len(), 1);
        memory.write(0, b"lives as long as its last handle").unwrap();
    }

    #[test]
    fn a_region_that_cannot_be_made_leaves_nothing() {
        let made = Arc::default();
        let list = RegionList::new(Box::new(Heap(Arc::clone(&made))), [1; 32]);
        let mut regions = list.lock();
        let long = "x".repeat(32);
        for (settings, problem) in [
            (settings("", 1, None), "a name has 1 to 32 bytes, its number included"),
            (settings(&long, 1, Some(1)), "a name has 1 to 32 bytes, its number included"),
            (settings("a", 1, Some(0)), "there is at least one region"),
            (settings("a", usize::MAX, Some(2)), "the size exceeds the address space"),
            (settings("a", 2 << 20, None), "no memory"),
        ] {
            assert_eq!(regions.make(&settings).err(), Some(problem.to_owned()));
        }
        let maker = regions.maker.as_mut().unwrap();
        maker.keys = KeyTable::new([1; 32], KeyDomain::Shared).with_room(2);
        maker.pd = maker.keys.alloc_pd();
        assert_eq!(regions.make(&settings("a", 64, Some(3))).err(), Some("too many keys".to_owned()));
        assert!(regions.maker.as_ref().unwrap().keys.is_empty() && made.lock().unwrap().is_empty());
        drop(regions);
        list.end();
        assert_eq!(list.lock().make(&settings("a", 64, None)).err(), Some("the target is stopping".to_owned()));
    }
}
