//! The memory of named regions: made once, registered under the same keys for every worker.

use std::collections::HashMap;
use std::sync::Arc;

use rxe_proto::mem::{Memory, PdId};
use rxe_proto::transport::Engine;
use rxe_service::{NamedRegion, RegionNames};

use crate::error::BuildError;
use crate::manage::{RegionList, RegionSettings, RegionSource, SharedRegions};
use crate::memory::FileMemory;

/// Makes the memory of a region without a file; the error is a sentence.
pub type Allocate = Box<dyn FnMut(usize) -> Result<Memory, String> + Send>;

/// Allocates and registers the regions of `settings`. Their keys derive from `seed`.
///
/// # Errors
/// [`BuildError::Region`].
pub fn make(allocate: Allocate, settings: &[RegionSettings], seed: [u8; 32]) -> Result<RegionList, BuildError> {
    if let Some((_, name)) = RegionNames::given_twice(settings.iter().map(RegionSettings::names)) {
        return Err(BuildError::Region { name, problem: "the name is given twice".to_owned() });
    }
    let source = Source { allocate, files: Files::default() };
    let list = RegionList::new(Box::new(source), seed);
    let mut regions = list.lock();
    for settings in settings {
        let fail = |problem| BuildError::Region { name: settings.name.clone(), problem };
        let region = regions.make(settings).map_err(fail)?;
        regions.push(region);
    }
    drop(regions);
    Ok(list)
}

/// Adopts `regions` into a worker's engine, under the same keys, each in its protection domain.
///
/// # Errors
/// [`BuildError::Region`].
pub fn adopt(engine: &mut Engine, regions: &[SharedRegions]) -> Result<Vec<NamedRegion>, BuildError> {
    let mut domains: HashMap<&str, PdId> = HashMap::new();
    let mut named = Vec::with_capacity(regions.len());
    for SharedRegions { settings, mrs } in regions {
        let RegionSettings { name, count, domain, file, .. } = settings;
        let pd = match domain {
            Some(domain) => *domains.entry(domain).or_insert_with(|| engine.keys_mut().alloc_pd()),
            None => engine.keys_mut().alloc_pd(),
        };
        let mrs = mrs.iter().map(|mr| engine.keys_mut().adopt(pd, mr)).collect::<Result<_, _>>();
        let mrs = mrs.map_err(|error| BuildError::Region { name: name.clone(), problem: error.to_string() })?;
        let (name, domain, file) = (name.clone(), domain.clone(), file.clone());
        named.push(NamedRegion { name, is_numbered: count.is_some(), pd, mrs, domain, file });
    }
    Ok(named)
}

/// The regions of a runtime. Their memory belongs to the runtime, as hugepages do, so they are given back when this is dropped,
/// even if others still have access to the list. The lock makes the end of the runtime wait for a reader.
pub struct OwnedRegions(pub Arc<RegionList>);

impl Drop for OwnedRegions {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Memory of the host's allocator, or in files.
struct Source {
    allocate: Allocate,
    files: Files,
}

impl RegionSource for Source {
    fn make(&mut self, settings: &RegionSettings, bytes: usize) -> Result<Memory, String> {
        match &settings.file {
            Some(path) => {
                let file = FileMemory::open(path, bytes).map_err(|error| error.to_string())?;
                self.files.check(&settings.name, &file)?;
                Ok(Memory::new(Arc::new(file)))
            }
            None => (self.allocate)(bytes),
        }
    }

    fn forget(&mut self, name: &str) {
        self.files.forget(name);
    }
}

/// Region names, by device and inode of their files.
#[derive(Default)]
struct Files(HashMap<(u64, u64), String>);

impl Files {
    /// Forgets the file of a region.
    fn forget(&mut self, region: &str) {
        self.0.retain(|_, name| name != region);
    }

    /// Checks the file of a region, and logs whether it was extended and which other users may write it.
    ///
    /// # Errors
    ///
    /// Why the region cannot use the file.
    fn check(&mut self, region: &str, file: &FileMemory) -> Result<(), String> {
        let path = file.path().display();
        if let Some(first) = self.0.get(&file.id()) {
            return Err(format!("{path} is the file of the region {first} under another name: give each its own"));
        }
        self.0.insert(file.id(), region.to_owned());
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
