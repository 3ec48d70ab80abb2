//! Files behind regions: what is said of them at start, and when one is lost.

use std::collections::HashMap;

use rxe_service::NamedRegion;

use crate::eal::{FileMemory, files_lost};

/// The files of the regions made so far, by device and inode: the name of the region.
#[derive(Default)]
pub(super) struct Files(HashMap<(u64, u64), String>);

impl Files {
    /// Says what is worth knowing of the file of a region.
    ///
    /// # Errors
    ///
    /// Why the region cannot have it, in words.
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
                "the file {path} may be changed by {others}: who cuts it short takes the region from its clients; \
                 leave it to one user (chown, chmod 600)"
            );
        }
        Ok(())
    }
}

/// Finds regions whose files were cut short, for the one worker that says so.
#[derive(Default)]
pub(super) struct LostRegions {
    /// How many files had been lost in the process at the last look.
    files: usize,
    /// The positions of regions that are known to be lost.
    known: Vec<usize>,
}

impl LostRegions {
    /// Says which regions have been lost since the last look. Returns how many.
    #[inline]
    pub(super) fn look(&mut self, regions: &[NamedRegion]) -> u64 {
        let files = files_lost();
        if files == self.files {
            return 0;
        }
        self.files = files;
        self.tell(regions)
    }

    #[cold]
    fn tell(&mut self, regions: &[NamedRegion]) -> u64 {
        let before = self.known.len();
        for (at, region) in regions.iter().enumerate() {
            if self.known.contains(&at) || !region.mrs.iter().any(|mr| mr.memory().is_lost()) {
                continue;
            }
            self.known.push(at);
            let path = region.file.as_deref().unwrap_or_else(|| "".as_ref()).display();
            tracing::warn!(
                region = %region.names(),
                "the file {path} was cut short while clients used it: the region is lost until the next start, and \
                 requests for it are refused"
            );
        }
        (self.known.len() - before) as u64
    }
}
