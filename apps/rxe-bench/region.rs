//! The protocol of the `region` service: docs/region-protocol.md.

use rxe_proto::verbs::{Access, MemoryRegion, ProtectionDomain, QueuePair, Rc, RemoteAddr, WorkRequest};
use rxe_service::Context;

use crate::load::RemoteMemory;

/// Length of an entry of a directory.
const ENTRY: usize = 24;

/// Address, length and key of a region, from the private data of a REP or an entry of a directory.
pub fn place_of(bytes: &[u8]) -> Option<RemoteMemory> {
    let number = |at: usize| bytes.get(at..at + 8)?.try_into().ok().map(u64::from_be_bytes);
    let (addr, len) = (number(0)?, number(8)?);
    let rkey = u32::from_be_bytes(bytes.get(16..20)?.try_into().ok()?);
    (len > 0).then_some(RemoteMemory { addr, len, rkey })
}

/// A directory of numbered regions during its READ.
pub struct Directory {
    copy: MemoryRegion,
}

impl Directory {
    /// Posts a READ of the first `count` entries of the directory at `remote` on `qp`, a queue pair of `pd`.
    ///
    /// # Errors
    /// Why it cannot be read.
    pub fn read(
        cx: &mut Context<'_>,
        pd: ProtectionDomain,
        (qp, remote): (QueuePair<Rc>, RemoteMemory),
        count: u32,
    ) -> Result<Directory, String> {
        let there = remote.len / ENTRY as u64;
        if there < count.into() {
            return Err(format!(
                "--regions {count}: the target has {there} numbered regions of this name: choose a smaller number"
            ));
        }
        // The command line limits `count`.
        let length = count * ENTRY as u32;
        let memory = cx.alloc_memory(length as usize).map_err(|error| error.to_string())?;
        let mut dev = cx.device();
        let copy = dev.reg_mr(pd, memory, Access::LOCAL_WRITE).map_err(|error| error.to_string())?;
        let remote = RemoteAddr { addr: remote.addr, rkey: remote.rkey };
        let sges = [copy.sge(..).map_err(|error| error.to_string())?];
        dev.post_send(qp, WorkRequest::read(&sges, remote).signaled())
            .map_err(|error| format!("the directory cannot be read: {error}"))?;
        Ok(Directory { copy })
    }

    /// The regions, after completion of the READ. Deregisters the local memory.
    ///
    /// # Errors
    /// The bytes are not a directory.
    pub fn regions(self, cx: &mut Context<'_>) -> Result<Vec<RemoteMemory>, String> {
        let mut bytes = vec![0; self.copy.len() as usize];
        let read = self.copy.memory().read(0, &mut bytes);
        let _ = cx.device().dereg_mr(&self.copy);
        read.map_err(|error| error.to_string())?;
        entries(&bytes).ok_or_else(|| "an entry of the target's directory is empty".to_owned())
    }
}

/// The entries of a directory.
fn entries(bytes: &[u8]) -> Option<Vec<RemoteMemory>> {
    bytes.chunks_exact(ENTRY).map(place_of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(memory: RemoteMemory) -> Vec<u8> {
        let RemoteMemory { addr, len, rkey } = memory;
        [&addr.to_be_bytes()[..], &len.to_be_bytes(), &rkey.to_be_bytes(), &[0; 4]].concat()
    }

    #[test]
    fn a_region_is_read_from_the_private_data() {
        let memory = RemoteMemory { addr: 0x7F00_0000_1000, len: 0x10_0000, rkey: 0xAABB_CCDD };
        let mut data = bytes(memory);
        data.resize(196, 0);
        assert_eq!(place_of(&data), Some(memory));
        assert_eq!(place_of(&[0; 196]), None, "a service without regions");
        assert_eq!(place_of(&data[..19]), None);
    }

    #[test]
    fn a_directory_has_consecutive_entries() {
        let region = |n: u32| RemoteMemory { addr: 0x7F00_0000_0000 + u64::from(n) * 4096, len: 4096, rkey: 77 * n };
        let all: Vec<RemoteMemory> = (1..=1000).map(region).collect();
        let mut directory: Vec<u8> = all.iter().copied().flat_map(bytes).collect();
        assert_eq!(entries(&directory), Some(all));
        directory[ENTRY * 500..][..ENTRY].fill(0);
        assert_eq!(entries(&directory), None, "one is missing");
    }
}
