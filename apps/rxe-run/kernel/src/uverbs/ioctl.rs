//! The ioctl of the device: `RDMA_VERBS_IOCTL`, as `ib_user_ioctl_cmds.h` has it.
//!
//! libibverbs uses `write` for each method that is refused here. There is one that it has no `write` for and that programs use.

use nix::errno::Errno;
use rxe_proto::mem::Access;
use rxe_proto::transport::Engine;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout};

use super::Uverbs;
use super::table::ContextId;
use crate::user;

/// The number of the ioctl.
pub const RDMA_VERBS_IOCTL: u64 = 0xC018_1B01;

/// `UVERBS_OBJECT_MR`, `UVERBS_METHOD_ADVISE_MR`.
const ADVISE_MR: (u16, u16) = (7, 2);

/// Attributes of ADVISE_MR.
mod attribute {
    pub const PD_HANDLE: u16 = 0;
    pub const ADVICE: u16 = 1;
    pub const FLAGS: u16 = 2;
    pub const SGE_LIST: u16 = 3;
    pub const COUNT: u16 = 4;
}

/// Advice: all three are hints to bring memory in, the second one for writing.
const PREFETCH_WRITE: u64 = 1;
const LAST_ADVICE: u64 = 2;
/// `IB_UVERBS_ADVISE_MR_FLAG_FLUSH`
const FLUSH: u64 = 1;
/// Most buffers of one command.
const MAX_SGES: usize = 4096;

/// `ib_uverbs_ioctl_hdr`
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug)]
#[repr(C)]
struct Header {
    length: u16,
    object: u16,
    method: u16,
    attributes: u16,
    reserved1: u64,
    driver: u32,
    reserved2: u32,
}

/// `ib_uverbs_attr`
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug)]
#[repr(C)]
struct Attribute {
    id: u16,
    len: u16,
    flags: u16,
    reserved: u16,
    data: u64,
}

/// `ib_uverbs_sge`
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Clone, Copy, Debug)]
#[repr(C)]
struct Sge {
    addr: u64,
    length: u32,
    lkey: u32,
}

impl Uverbs {
    /// Executes the command at an address of the program.
    ///
    /// # Errors
    /// `EPROTONOSUPPORT` for a method that is not here, `EFAULT` for memory that is not mapped, others as the kernel's. `EBADF` when
    /// `handle` is no open context.
    pub fn ioctl(&self, engine: &Engine, handle: u32, at: u64) -> Result<(), Errno> {
        if !self.is_open(handle) {
            return Err(Errno::EBADF);
        }
        let header: Header = read(at)?;
        if (header.object, header.method) != ADVISE_MR {
            return Err(Errno::EPROTONOSUPPORT);
        }
        let expected = size_of::<Header>() + usize::from(header.attributes) * size_of::<Attribute>();
        if header.attributes > attribute::COUNT || usize::from(header.length) != expected {
            return Err(Errno::EINVAL);
        }
        let mut attributes = [Attribute::new_zeroed(); attribute::COUNT as usize];
        let attributes = &mut attributes[..usize::from(header.attributes)];
        user::read(at + size_of::<Header>() as u64, attributes.as_mut_bytes())?;
        self.advise_mr(engine, ContextId(handle), attributes)
    }

    /// ADVISE_MR. Nothing is to be done for the hint, as each access looks the memory up; what it names must be registered.
    fn advise_mr(&self, engine: &Engine, context: ContextId, attributes: &[Attribute]) -> Result<(), Errno> {
        let value = |id| attributes.iter().find(|attribute| attribute.id == id);
        let number = |id| value(id).map(|attribute| attribute.data).ok_or(Errno::EINVAL);
        let pd_handle = u32::try_from(number(attribute::PD_HANDLE)?).map_err(|_| Errno::ENOENT)?;
        let pd = self.pd(context, pd_handle).map_err(|_| Errno::ENOENT)?;
        let (advice, flags) = (number(attribute::ADVICE)?, value(attribute::FLAGS).map_or(0, |flags| flags.data));
        if advice > LAST_ADVICE || flags & !FLUSH != 0 {
            return Err(Errno::EINVAL);
        }
        let list = value(attribute::SGE_LIST).ok_or(Errno::EINVAL)?;
        let count = usize::from(list.len) / size_of::<Sge>();
        if count == 0 || count > MAX_SGES || usize::from(list.len) % size_of::<Sge>() != 0 {
            return Err(Errno::EINVAL);
        }
        let mut sges = vec![Sge::new_zeroed(); count];
        user::read(list.data, sges.as_mut_bytes())?;
        let access = if advice == PREFETCH_WRITE { Access::LOCAL_WRITE } else { Access::empty() };
        sges.iter().try_for_each(|sge| {
            let checked = engine.keys().check_local(sge.lkey, pd, sge.addr, sge.length.into(), access);
            checked.map(|_| ()).map_err(|_| Errno::EINVAL)
        })
    }
}

fn read<T: FromBytes + IntoBytes + FromZeros>(at: u64) -> Result<T, Errno> {
    let mut value = T::new_zeroed();
    user::read(at, value.as_mut_bytes()).map(|()| value)
}
