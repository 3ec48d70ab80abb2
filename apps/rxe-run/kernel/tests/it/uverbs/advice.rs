//! ADVISE_MR, by the ioctl of the device.

use nix::errno::Errno;

use super::bytes::Bytes;
use super::program::Program;
use super::world::{Side, World};

/// PD, advice, flags, buffers: address, length, key.
type Advice<'a> = (u32, u64, u64, &'a [(u64, u32, u32)]);

/// Calls the ioctl with an object, a method and the attributes of ADVISE_MR.
fn ioctl(program: &Program, side: &Side, (object, method): (u16, u16), advice: Advice<'_>) -> Result<(), Errno> {
    let (pd, advice, flags, buffers) = advice;
    let list = buffers.iter().fold(Bytes::new(), |list, &(addr, len, key)| list.u64(addr).u32(len).u32(key));
    let list = list.0;
    let attribute = |to: Bytes, id: u16, len: usize, data: u64| to.u16(id).u16(len as u16).u32(1).u64(data);
    let mut command = Bytes::new();
    for word in [24 + 4 * 16, object, method, 4] {
        command = command.u16(word);
    }
    command = command.u64(0).u32(14).u32(0);
    command = attribute(command, 0, 0, pd.into());
    command = attribute(command, 1, 0, advice);
    command = attribute(command, 2, 4, flags);
    command = attribute(command, 3, list.len(), list.as_ptr() as u64);
    let command = command.0;
    side.uverbs.ioctl(&side.engine, program.context, command.as_ptr() as u64)
}

#[test]
fn advice_is_for_registered_memory() {
    const ADVISE_MR: (u16, u16) = (7, 2);
    let mut world = World::new();
    let side = &mut world.sides[0];
    let program = Program::open(side);
    let pd = program.alloc_pd(side);
    let memory = vec![0_u8; 8192];
    let addr = memory.as_ptr() as u64;
    let (_, readable) = program.reg_mr(side, pd, addr, 8192, 0).unwrap();
    let (_, writable) = program.reg_mr(side, pd, addr, 8192, 1).unwrap();
    let advise = |advice| ioctl(&program, side, ADVISE_MR, advice);
    let (read, write): (&[_], &[_]) =
        (&[(addr, 8192, readable)], &[(addr, 10, writable), (addr + 4096, 4096, writable)]);
    assert_eq!(
        (advise((pd, 0, 0, read)), advise((pd, 1, 1, write)), advise((pd, 2, 0, write))),
        (Ok(()), Ok(()), Ok(()))
    );
    for (why, advice, error) in [
        ("not writable", (pd, 1, 0, read), Errno::EINVAL),
        ("no such key", (pd, 0, 0, &[(addr, 1, readable ^ 0x100)][..]), Errno::EINVAL),
        ("beyond the region", (pd, 0, 0, &[(addr + 1, 8192, readable)]), Errno::EINVAL),
        ("no buffers", (pd, 0, 0, &[]), Errno::EINVAL),
        ("no such advice", (pd, 3, 0, read), Errno::EINVAL),
        ("no such flag", (pd, 0, 2, read), Errno::EINVAL),
        ("no such protection domain", (pd + 1, 0, 0, read), Errno::ENOENT),
    ] {
        assert_eq!(advise(advice), Err(error), "{why}");
    }
    // libibverbs writes a command where there is no method.
    assert_eq!(ioctl(&program, side, (7, 3), (pd, 0, 0, read)), Err(Errno::EPROTONOSUPPORT));
    assert_eq!(side.uverbs.ioctl(&side.engine, program.context, 8), Err(Errno::EFAULT));
    assert_eq!(side.uverbs.ioctl(&side.engine, program.context + 1, 8), Err(Errno::EBADF));
}
