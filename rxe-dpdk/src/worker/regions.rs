//! Named regions, which every worker knows under the same keys.
//!
//! A setting with a count stands for numbered regions: `NAME0`, `NAME1` and so on, each with a key of its own, one behind
//! the other in one piece of memory.

use std::collections::HashMap;
use std::sync::Arc;

use rxe_proto::mem::{Access, KeyDomain, KeyTable, Memory, MemoryRegion};
use rxe_proto::transport::Engine;
use rxe_service::{NamedRegion, RegionNames};

use super::region_files::Files;
use super::runtime::RuntimeError;
use super::settings::RegionSettings;
use crate::eal::{Eal, FileMemory, HugeMemory};

/// Longest region name, as the region service sends it.
const MAX_REGION_NAME: usize = 32;
/// Numbered regions begin at multiples of this: no two of them share a cache line.
const LINE: usize = 64;

/// Rights of a named region.
const REGION_ACCESS: Access = Access::LOCAL_WRITE
    .union(Access::REMOTE_WRITE)
    .union(Access::REMOTE_READ)
    .union(Access::REMOTE_ATOMIC)
    .union(Access::FLUSH_GLOBAL);

/// What one setting has named, in the table of shared keys.
pub(super) struct SharedRegions {
    settings: RegionSettings,
    mrs: Vec<MemoryRegion>,
}

/// Makes the regions that `settings` name, with keys that follow from `seed`.
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
        let bytes = bytes.ok_or_else(|| fail("no machine has so many bytes".to_owned()))?;
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
            keys.register(pd, memory, iova, REGION_ACCESS).map_err(|error| fail(error.to_string()))
        };
        let mrs = (0..count).map(register).collect::<Result<_, _>>()?;
        Ok(SharedRegions { settings: settings.clone(), mrs })
    };
    settings.iter().map(&mut make).collect()
}

/// From one numbered region to the next.
fn stride(size: usize) -> Option<usize> {
    size.checked_next_multiple_of(LINE)
}

/// Makes `regions` known to a worker's engine.
pub(super) fn adopt(engine: &mut Engine, regions: &[SharedRegions]) -> Result<Vec<NamedRegion>, RuntimeError> {
    let pd = engine.keys_mut().alloc_pd();
    let adopt = |SharedRegions { settings, mrs }: &SharedRegions| {
        let RegionSettings { name, count, file, .. } = settings;
        let mrs = mrs.iter().map(|mr| engine.keys_mut().adopt(pd, mr)).collect::<Result<_, _>>();
        let mrs = mrs.map_err(|error| RuntimeError::Region { name: name.clone(), problem: error.to_string() })?;
        Ok(NamedRegion { name: name.clone(), is_numbered: count.is_some(), pd, mrs, file: file.clone() })
    };
    regions.iter().map(adopt).collect()
}

/// The names of named regions by their keys, which are the same on all workers.
#[derive(Debug, Default)]
pub(crate) struct KeyNames {
    /// The settings' names and counts.
    settings: Vec<(String, Option<u32>)>,
    /// Setting and number of each key.
    keys: HashMap<u32, (usize, u32)>,
}

/// What a key is called.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct KeyName {
    /// The name that clients ask for.
    pub(crate) name: String,
    /// That of all regions numbered with it, together.
    pub(crate) numbered: Option<String>,
}

impl KeyNames {
    pub(super) fn new(regions: &[SharedRegions]) -> KeyNames {
        let keys = regions.iter().enumerate().flat_map(|(setting, shared)| {
            (0..).zip(&shared.mrs).map(move |(number, mr)| (mr.rkey(), (setting, number)))
        });
        let settings = regions.iter().map(|shared| (shared.settings.name.clone(), shared.settings.count));
        KeyNames { keys: keys.collect(), settings: settings.collect() }
    }

    /// What `key` is called, if it is that of a named region.
    pub(crate) fn get(&self, key: u32) -> Option<KeyName> {
        let (setting, number) = *self.keys.get(&key)?;
        let (name, count) = self.settings.get(setting)?;
        let names = RegionNames { name, count: *count };
        Some(KeyName { name: names.numbered(number), numbered: count.map(|_| names.all()) })
    }
}
