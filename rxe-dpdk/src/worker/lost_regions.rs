//! Finds regions whose files were cut short while clients used them.

use rxe_service::NamedRegion;

use crate::eal::files_lost;

/// Finds regions whose files were cut short, for the one worker that says so.
#[derive(Default)]
pub(crate) struct LostRegions {
    /// How many files had been lost in the process at the last look.
    files: usize,
    /// The positions of regions that are known to be lost.
    known: Vec<usize>,
}

impl LostRegions {
    /// Says which regions have been lost since the last look. Returns how many.
    #[inline]
    pub(crate) fn look(&mut self, regions: &[NamedRegion]) -> u64 {
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
