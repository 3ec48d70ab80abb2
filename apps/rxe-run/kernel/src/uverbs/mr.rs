//! Memory regions: memory of the program.

use std::sync::Arc;

use nix::errno::Errno;
use rxe_proto::mem::{Access, Fault, ForeignMemory, Memory, Part, RegisterError, Reregister};
use rxe_proto::transport::Engine;

use super::Uverbs;
use super::abi::{
    ACCESS_HUGETLB, ACCESS_KNOWN, ACCESS_ON_DEMAND, ACCESS_OPTIONAL, DeregMr, RegMr, RegMrResp, ReregMr, ReregMrResp,
    rereg,
};
use super::command::Command;
use super::maps::Mapped;
use super::staging::Staging;

/// A memory region.
#[derive(Debug)]
pub(super) struct Mr {
    key: u32,
    /// Whether its memory may be mapped later than it is registered.
    on_demand: bool,
}

/// Parameters of a registration.
#[derive(Debug, Clone, Copy)]
struct Rights {
    access: Access,
    on_demand: bool,
}

/// Memory of the program, which may unmap it at any time.
#[derive(Debug)]
struct ProgramMemory {
    start: u64,
    len: usize,
    staging: Arc<Staging>,
    /// Tells it from other memory at the same addresses.
    id: u64,
}

impl Drop for ProgramMemory {
    fn drop(&mut self) {
        self.staging.forget(self.id);
    }
}

impl ProgramMemory {
    /// The address of `len` bytes at an offset.
    fn address(&self, offset: usize, len: usize) -> Result<u64, Fault> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => Ok(self.start + offset as u64),
            _ => Err(Fault),
        }
    }
}

impl ForeignMemory for ProgramMemory {
    fn addr(&self) -> usize {
        self.start as usize
    }

    fn len(&self) -> usize {
        self.len
    }

    fn read(&self, offset: usize, dst: &mut [u8]) -> Result<(), Fault> {
        let from = self.address(offset, dst.len())?;
        self.staging.read(from, dst, self.len - offset - dst.len()).map_err(|_| Fault)
    }

    fn write(&self, offset: usize, src: &[u8]) -> Result<(), Fault> {
        self.staging.write(self.address(offset, src.len())?, src).map_err(|_| Fault)
    }

    fn write_part(&self, offset: usize, src: &[u8], part: Part) -> Result<(), Fault> {
        self.staging.write_part(self.id, self.address(offset, src.len())?, src, part).map_err(|_| Fault)
    }
}

/// The bytes of a range of the program.
///
/// Every access looks the memory up again, so a region that is paged on demand differs only in that it need not be mapped yet.
///
/// # Errors
/// `EINVAL` for an empty range or one beyond the address space, `EFAULT` when it is not all mapped, or not writable though
/// the device may write.
fn program_memory(
    start: u64,
    len: u64,
    rights: Rights,
    mapped: Mapped,
    staging: &Arc<Staging>,
) -> Result<Memory, Errno> {
    if len == 0 || len > isize::MAX as u64 || start.checked_add(len).is_none() {
        return Err(Errno::EINVAL);
    }
    if !rights.on_demand {
        mapped.check(rights.access.contains(Access::LOCAL_WRITE))?;
    }
    let (id, staging) = (staging.new_id(), Arc::clone(staging));
    Ok(Memory::foreign(Arc::new(ProgramMemory { start, len: len as usize, staging, id })))
}

/// Access rights of a registration's flags.
///
/// # Errors
/// `EINVAL` for rights that do not go together or do not exist.
fn rights(flags: u32) -> Result<Rights, Errno> {
    if flags & !ACCESS_KNOWN != 0 {
        return Err(Errno::EINVAL);
    }
    // Huge pages need no preparation here, and optional flags may be ignored.
    let ignored = ACCESS_OPTIONAL | ACCESS_HUGETLB | ACCESS_ON_DEMAND;
    let access = Access::from_bits(flags & !ignored).ok_or(Errno::EOPNOTSUPP)?;
    if !access.is_legal() {
        return Err(Errno::EINVAL);
    }
    Ok(Rights { access, on_demand: flags & ACCESS_ON_DEMAND != 0 })
}

/// Whether memory and the address that peers use for it begin at the same place of a page, as the kernel requires.
fn agree(start: u64, hca_va: u64) -> bool {
    (start ^ hca_va) & 0xFFF == 0
}

fn errno(error: RegisterError) -> Errno {
    match error {
        RegisterError::TooMany => Errno::ENOMEM,
        _ => Errno::EINVAL,
    }
}

impl Uverbs {
    /// REG_MR
    pub(super) fn reg_mr(&mut self, command: &mut Command<'_>) -> Result<(), Errno> {
        let request = command.call.request::<RegMr>()?;
        if !agree(request.start, request.hca_va) {
            return Err(Errno::EINVAL);
        }
        let rights = rights(request.access_flags)?;
        let pd = self.pd(command.context, request.pd_handle)?;
        self.mrs.check_room()?;
        let memory = program_memory(request.start, request.length, rights, command.mapped, &self.staging)?;
        let region = command.engine.keys_mut().register(pd, memory, request.hca_va, rights.access).map_err(errno)?;
        let mr = Mr { key: region.lkey(), on_demand: rights.on_demand };
        let mr_handle = self.mrs.insert(command.context, mr)?;
        command
            .call
            .respond(&RegMrResp { mr_handle, lkey: region.lkey(), rkey: region.rkey() })
            .inspect_err(|_| self.remove_mr(command.engine, mr_handle))
    }

    /// REREG_MR. The region keeps its key.
    pub(super) fn rereg_mr(&mut self, command: &mut Command<'_>) -> Result<(), Errno> {
        let request = command.call.request::<ReregMr>()?;
        let changes = |flag| request.flags & flag != 0;
        if request.flags == 0 || changes(rereg::TRANS) && !agree(request.start, request.hca_va) {
            return Err(Errno::EINVAL);
        }
        if changes(!rereg::ALL) {
            return Err(Errno::EOPNOTSUPP);
        }
        let &Mr { key, on_demand } = self.mrs.get(command.context, request.mr_handle).ok_or(Errno::ENOENT)?;
        let region = command.engine.keys().region(key).ok_or(Errno::EINVAL)?;
        let pd = if changes(rereg::PD) { Some(self.pd(command.context, request.pd_handle)?) } else { None };
        let rights = if changes(rereg::ACCESS) {
            rights(request.access_flags)?
        } else {
            Rights { access: region.access(), on_demand }
        };
        let translation = if changes(rereg::TRANS) {
            let memory = program_memory(request.start, request.length, rights, command.mapped, &self.staging)?;
            Some((memory, request.hca_va))
        } else {
            None
        };
        // The response says nothing new, so it comes first: a bad address changes nothing.
        command.call.respond(&ReregMrResp { lkey: key, rkey: key })?;
        let change = Reregister { translation, pd, access: changes(rereg::ACCESS).then_some(rights.access) };
        command.engine.keys_mut().reregister(key, change).map_err(|_| Errno::EINVAL)?;
        if let Some(mr) = self.mrs.get_mut(command.context, request.mr_handle) {
            mr.on_demand = rights.on_demand;
        }
        Ok(())
    }

    /// DEREG_MR
    pub(super) fn dereg_mr(&mut self, command: &mut Command<'_>) -> Result<(), Errno> {
        let request = command.call.request::<DeregMr>()?;
        let mr = self.mrs.get(command.context, request.mr_handle).ok_or(Errno::ENOENT)?;
        // Memory windows are bound to it.
        command.engine.keys_mut().deregister(mr.key).map_err(|_| Errno::EINVAL)?;
        self.mrs.remove(request.mr_handle);
        Ok(())
    }

    /// Deregisters a region that no window is bound to.
    pub(super) fn remove_mr(&mut self, engine: &mut Engine, handle: u32) {
        if let Some(mr) = self.mrs.remove(handle) {
            // Nothing is left to be done if a window were.
            let _ = engine.keys_mut().deregister(mr.key);
        }
    }
}
