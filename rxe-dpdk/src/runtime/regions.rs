//! The memory of named regions: registered once, under the same keys for every worker.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use rxe_proto::mem::{Access, KeyDomain, KeyTable, Memory, MemoryRegion, PdId};
use rxe_proto::transport::Engine;
use rxe_service::{NamedRegion, RegionNames, Which};

use super::error::RuntimeError;
use super::settings::RegionSettings;
use crate::eal::{Eal, FileMemory, HugeMemory};
use crate::manage::{RegionKeys, RegionMemory};

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

/// The regions of one setting, in the table of shared keys.
pub(super) struct SharedRegions {
    settings: RegionSettings,
    mrs: Vec<MemoryRegion>,
}

/// Allocates and registers the regions of `settings`. Their keys derive from `seed`.
pub(super) fn make(eal: &Eal, settings: &[RegionSettings], seed: [u8; 32]) -> Result<Vec<SharedRegions>, RuntimeError> {
    if let Some((_, name)) = RegionNames::given_twice(settings.iter().map(RegionSettings::names)) {
        return Err(RuntimeError::Region { name, problem: "the name is given twice".to_owned() });
    }
    let mut keys = KeyTable::new(seed, KeyDomain::Shared);
    let pd = keys.alloc_pd();
    let mut files = Files::default();
    let mut make = |settings: &RegionSettings| {
        let fail = |problem: String| RuntimeError::Region { name: settings.name.clone(), problem };
        if settings.name.is_empty() || settings.names().longest().len() > MAX_REGION_NAME {
            return Err(fail(format!("a name has 1 to {MAX_REGION_NAME} bytes, its number included")));
        }
        let (count, bytes) = match settings.count {
            None => (1, Some(settings.size)),
            Some(0) => return Err(fail("there is at least one region".to_owned())),
            Some(count) => {
                (count as usize, stride(settings.size).and_then(|stride| stride.checked_mul(count as usize)))
            }
        };
        let bytes = bytes.ok_or_else(|| fail("the size exceeds the address space".to_owned()))?;
        let memory = match &settings.file {
            Some(path) => {
                let file = FileMemory::open(path, bytes).map_err(|error| fail(error.to_string()))?;
                files.check(&settings.name, &file).map_err(fail)?;
                Memory::new(Arc::new(file))
            }
            None => {
                let huge = HugeMemory::new(eal, bytes).map_err(|error| fail(error.to_string()))?;
                Memory::new(Arc::new(huge))
            }
        };
        let stride = bytes / count;
        let register = |number: usize| {
            let outside = || fail("it lies outside of its memory".to_owned());
            let memory = memory.slice(number * stride, settings.size).ok_or_else(outside)?;
            let iova = memory.as_ptr() as u64;
            let access = if settings.read_only { READ_ONLY } else { REGION_ACCESS };
            keys.register(pd, memory, iova, access).map_err(|error| fail(error.to_string()))
        };
        let mrs = (0..count).map(register).collect::<Result<_, _>>()?;
        Ok(SharedRegions { settings: settings.clone(), mrs })
    };
    settings.iter().map(&mut make).collect()
}

/// Distance between numbered regions, in bytes.
fn stride(size: usize) -> Option<usize> {
    size.checked_next_multiple_of(LINE)
}

/// Adopts `regions` into a worker's engine, under the same keys, each in its protection domain.
pub(super) fn adopt(engine: &mut Engine, regions: &[SharedRegions]) -> Result<Vec<NamedRegion>, RuntimeError> {
    let mut domains: HashMap<&str, PdId> = HashMap::new();
    let mut named = Vec::with_capacity(regions.len());
    for SharedRegions { settings, mrs } in regions {
        let RegionSettings { name, count, domain, file, .. } = settings;
        let pd = match domain {
            Some(domain) => *domains.entry(domain).or_insert_with(|| engine.keys_mut().alloc_pd()),
            None => engine.keys_mut().alloc_pd(),
        };
        let mrs = mrs.iter().map(|mr| engine.keys_mut().adopt(pd, mr)).collect::<Result<_, _>>();
        let mrs = mrs.map_err(|error| RuntimeError::Region { name: name.clone(), problem: error.to_string() })?;
        named.push(NamedRegion { name: name.clone(), is_numbered: count.is_some(), pd, mrs, file: file.clone() });
    }
    Ok(named)
}

/// The regions of a runtime, also for other threads. They keep EAL in use, so they are given back when this is dropped, even
/// if others still have access to the list.
pub(super) struct OwnedRegions(Arc<Mutex<Vec<SharedRegions>>>);

impl OwnedRegions {
    pub(super) fn new(regions: Vec<SharedRegions>) -> OwnedRegions {
        OwnedRegions(Arc::new(Mutex::new(regions)))
    }

    /// Names and keys, for reports.
    pub(super) fn keys(&self) -> Vec<RegionKeys> {
        let keys = |shared: &SharedRegions| RegionKeys {
            name: shared.settings.name.clone(),
            count: shared.settings.count,
            keys: shared.mrs.iter().map(MemoryRegion::rkey).collect(),
        };
        self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().map(keys).collect()
    }

    /// Access for the [`Inspector`](crate::manage::Inspector). The lock makes the end of the runtime wait for a reader.
    pub(super) fn memory(&self) -> RegionMemory {
        let regions = Arc::clone(&self.0);
        Box::new(move |name, read| {
            let regions = regions.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(memory) = find(&regions, name) {
                read(memory);
            }
        })
    }
}

impl Drop for OwnedRegions {
    fn drop(&mut self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }
}

/// The memory of the region called `name`.
fn find<'a>(regions: &'a [SharedRegions], name: &str) -> Option<&'a Memory> {
    let number = |shared: &SharedRegions| match shared.settings.names().find(name) {
        Some(Which::Number(number)) => Some(number as usize),
        Some(Which::All) | None => None,
    };
    regions.iter().find_map(|shared| Some(shared.mrs.get(number(shared)?)?.memory()))
}

/// Region names, by device and inode of their files.
#[derive(Default)]
pub(super) struct Files(HashMap<(u64, u64), String>);

impl Files {
    /// Checks the file of a region, and logs whether it was extended and which other users may write it.
    ///
    /// # Errors
    ///
    /// Why the region cannot use the file.
    pub(super) fn check(&mut self, region: &str, file: &FileMemory) -> Result<(), String> {
        let path = file.path().display();
        if let Some(first) = self.0.insert(file.id(), region.to_owned()) {
            return Err(format!("{path} is the file of the region {first} under another name: give each its own"));
        }
        if let Some(len) = file.grown_from() {
            tracing::info!(region, "the file {path} had {len} bytes and has been made longer");
        }
        if let Some(others) = file.written_by_others() {
            tracing::warn!(
                region,
                "the file {path} may be changed by {others}: a process that truncates it takes the region from its \
                 clients; leave it to one user (chown, chmod 600)"
            );
        }
        Ok(())
    }
}
