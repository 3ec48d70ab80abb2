//! Finds regions whose files were cut short while clients used them.

use rxe_proto::mem::MemoryRegion;
use rxe_service::NamedRegion;

use crate::memory::files_lost;

/// Finds and logs regions whose files were cut short.
#[derive(Default)]
pub struct LostRegions {
    /// Lost files of the process at the last check.
    files: usize,
    /// First keys of the regions that were logged.
    known: Vec<u32>,
}

impl LostRegions {
    /// Logs the regions that were lost since the last check. Returns how many.
    #[inline]
    pub fn check(&mut self, regions: &[NamedRegion]) -> u64 {
        let files = files_lost();
        if files == self.files {
            return 0;
        }
        self.files = files;
        self.log(regions)
    }

    #[cold]
    fn log(&mut self, regions: &[NamedRegion]) -> u64 {
        let before = self.known.len();
        for region in regions {
            let Some(key) = region.mrs.first().map(MemoryRegion::rkey) else { continue };
            if self.known.contains(&key) || !region.mrs.iter().any(|mr| mr.memory().is_lost()) {
                continue;
            }
            self.known.push(key);
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
