//! Gather from and scatter to the buffers of a work request.

use crate::mem::{Access, AccessError, KeyError, KeyTable, Part, PdId, Span};
use crate::wire::PacketBuilder;

use super::Sge;

/// The pieces that make up bytes `offset` to `offset + len` of the concatenated buffers: address, length, key.
#[inline]
fn pieces(sges: &[Sge], offset: usize, len: usize) -> impl Iterator<Item = (u64, usize, u32)> + '_ {
    let (mut skip, mut left) = (offset, len);
    sges.iter().filter_map(move |sge| {
        let length = sge.length as usize;
        if skip >= length {
            skip -= length;
            return None;
        }
        let piece = (length - skip).min(left);
        let addr = sge.addr.wrapping_add(skip as u64);
        skip = 0;
        left -= piece;
        (piece > 0).then_some((addr, piece, sge.lkey))
    })
}

/// The common case: a single buffer holds bytes `offset` to `offset + len`. Returns address and key.
#[inline]
fn only_piece(sges: &[Sge], offset: usize, len: usize) -> Option<(u64, u32)> {
    match sges {
        [sge] if len > 0 && offset + len <= sge.length as usize => {
            Some((sge.addr.wrapping_add(offset as u64), sge.lkey))
        }
        _ => None,
    }
}

/// Checks keys, rights and bounds of bytes `offset` to `offset + len`. Empty buffers need no key.
#[inline(always)]
pub(super) fn check(
    keys: &KeyTable,
    pd: PdId,
    sges: &[Sge],
    offset: usize,
    len: usize,
    need: Access,
) -> Result<(), KeyError> {
    match only_piece(sges, offset, len) {
        Some((addr, lkey)) => keys.check_local(lkey, pd, addr, len as u64, need).map(|_| ()),
        None => check_pieces(keys, pd, sges, offset, len, need),
    }
}

#[inline(never)]
fn check_pieces(
    keys: &KeyTable,
    pd: PdId,
    sges: &[Sge],
    offset: usize,
    len: usize,
    need: Access,
) -> Result<(), KeyError> {
    for (addr, piece, lkey) in pieces(sges, offset, len) {
        keys.check_local(lkey, pd, addr, piece as u64, need)?;
    }
    Ok(())
}

/// Copies bytes `offset` to `offset + dst.len()` of the buffers into `dst`.
#[inline]
pub(super) fn gather(keys: &KeyTable, pd: PdId, sges: &[Sge], offset: usize, dst: &mut [u8]) -> Result<(), KeyError> {
    let mut done = 0;
    for (addr, piece, lkey) in pieces(sges, offset, dst.len()) {
        let span = keys.check_local(lkey, pd, addr, piece as u64, Access::empty())?;
        let Some(to) = dst.get_mut(done..done + piece) else { break };
        span.read(0, to).map_err(copy_error)?;
        done += piece;
    }
    Ok(())
}

/// Where the payload of one packet comes from. Looked up and checked before room for the packet is reserved, because a
/// frame that was begun is sent.
pub(super) enum Source<'a> {
    /// Inline data of the work request.
    Inline(&'a [u8]),
    /// A piece of one buffer: the common case.
    Piece(Span<'a>),
    /// Several buffers, from this offset on.
    Pieces(&'a [Sge], usize),
}

impl<'a> Source<'a> {
    /// Bytes `offset` to `offset + len` of the buffers. Empty buffers need no key.
    ///
    /// # Errors
    /// A key is unknown, or its rights or bounds do not allow the access.
    #[inline(always)]
    pub(super) fn find(
        keys: &'a KeyTable,
        pd: PdId,
        sges: &'a [Sge],
        offset: usize,
        len: usize,
    ) -> Result<Source<'a>, KeyError> {
        if let Some((addr, lkey)) = only_piece(sges, offset, len) {
            return keys.check_local(lkey, pd, addr, len as u64, Access::empty()).map(Source::Piece);
        }
        check_pieces(keys, pd, sges, offset, len, Access::empty()).map(|()| Source::Pieces(sges, offset))
    }

    /// Fills the payload of `packet`, which has the length that was looked up. False when the memory was lost
    /// meanwhile or cannot be read: then the packet is made void.
    #[inline(always)]
    #[must_use]
    pub(super) fn fill(&self, keys: &KeyTable, pd: PdId, packet: &mut PacketBuilder<'_>) -> bool {
        let payload = packet.payload_mut();
        let filled = match self {
            Source::Inline(data) => {
                payload.copy_from_slice(data);
                true
            }
            Source::Piece(span) => span.read(0, payload).is_ok(),
            Source::Pieces(sges, offset) => gather(keys, pd, sges, *offset, payload).is_ok(),
        };
        if !filled {
            packet.make_void();
        }
        filled
    }
}

/// Copies `src` to bytes `offset` to `offset + src.len()` of the buffers. When a key or a copy fails, the pieces before it
/// have been written.
#[inline(always)]
pub(super) fn scatter(keys: &KeyTable, pd: PdId, sges: &[Sge], offset: usize, src: &[u8]) -> Result<(), KeyError> {
    if let Some((addr, lkey)) = only_piece(sges, offset, src.len()) {
        let span = keys.check_local(lkey, pd, addr, src.len() as u64, Access::LOCAL_WRITE)?;
        return span.write(0, src).map_err(copy_error);
    }
    scatter_pieces(keys, pd, sges, offset, src)
}

/// [`scatter`] of a part of a message, from its byte `offset` on. A single buffer has all parts, which may be written together.
#[inline(always)]
pub(super) fn scatter_part(
    keys: &KeyTable,
    pd: PdId,
    sges: &[Sge],
    offset: usize,
    src: &[u8],
    part: impl FnOnce() -> Part,
) -> Result<(), KeyError> {
    if let Some((addr, lkey)) = only_piece(sges, offset, src.len()) {
        let span = keys.check_local(lkey, pd, addr, src.len() as u64, Access::LOCAL_WRITE)?;
        return span.write_part(src, part).map_err(copy_error);
    }
    scatter_pieces(keys, pd, sges, offset, src)
}

#[inline(never)]
fn scatter_pieces(keys: &KeyTable, pd: PdId, sges: &[Sge], offset: usize, src: &[u8]) -> Result<(), KeyError> {
    let mut done = 0;
    for (addr, piece, lkey) in pieces(sges, offset, src.len()) {
        let span = keys.check_local(lkey, pd, addr, piece as u64, Access::LOCAL_WRITE)?;
        let Some(from) = src.get(done..done + piece) else { break };
        span.write(0, from).map_err(copy_error)?;
        done += piece;
    }
    Ok(())
}

#[cold]
fn copy_error(error: AccessError) -> KeyError {
    match error {
        AccessError::OutOfBounds => KeyError::OutOfRange,
        AccessError::Lost => KeyError::Lost,
        AccessError::Fault => KeyError::Fault,
    }
}

/// Total length of the buffers in bytes, or `None` beyond the longest message (2^31).
#[inline]
pub(super) fn total_len(sges: &[Sge]) -> Option<u32> {
    let total: u64 = match sges {
        [sge] => u64::from(sge.length),
        sges => sges.iter().map(|sge| u64::from(sge.length)).sum(),
    };
    u32::try_from(total).ok().filter(|&len| len <= 1 << 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mem::{KeyDomain, Memory};

    #[test]
    fn pieces_cross_buffers_and_skip_empty_ones() {
        let sge = |addr, length| Sge { addr, length, lkey: addr as u32 };
        let sges = [sge(0, 10), sge(100, 0), sge(200, 5), sge(300, 20)];
        let all = |offset, len| pieces(&sges, offset, len).map(|(addr, len, _)| (addr, len)).collect::<Vec<_>>();
        assert_eq!(all(0, 35), [(0, 10), (200, 5), (300, 20)]);
        assert_eq!(all(8, 4), [(8, 2), (200, 2)]);
        assert_eq!(all(12, 3), [(202, 3)]);
        assert_eq!(all(15, 1), [(300, 1)]);
        assert_eq!(all(0, 0), []);
    }

    #[test]
    fn gather_returns_what_scatter_wrote() {
        let mut keys = KeyTable::new([1; 32], KeyDomain::Local);
        let pd = keys.alloc_pd();
        let region = keys.register(pd, Memory::heap(4096), 0x1000, Access::LOCAL_WRITE).unwrap();
        let sges: Vec<Sge> = (0..16).map(|i| Sge { addr: 0x1000 + i * 200, length: 37, lkey: region.lkey() }).collect();
        let data: Vec<u8> = (0..500).map(|i| (i * 7) as u8).collect();
        scatter(&keys, pd, &sges, 50, &data).unwrap();
        let mut back = vec![0; 500];
        gather(&keys, pd, &sges, 50, &mut back).unwrap();
        assert_eq!(back, data);
        assert!(check(&keys, pd, &sges, 0, 16 * 37, Access::LOCAL_WRITE).is_ok());
        assert_eq!(check(&keys, pd, &sges, 0, 1, Access::REMOTE_READ), Err(KeyError::NoAccess));
        let read_only = keys.register(pd, Memory::heap(64), 0, Access::empty()).unwrap();
        let sge = [Sge { addr: 0, length: 64, lkey: read_only.lkey() }];
        assert_eq!(scatter(&keys, pd, &sge, 0, &[1]), Err(KeyError::NoAccess));
    }

    #[test]
    fn total_length_is_limited_to_2_to_the_31() {
        let sge = |length| Sge { addr: 0, length, lkey: 0 };
        assert_eq!(total_len(&[]), Some(0));
        assert_eq!(total_len(&[sge(1 << 30), sge(1 << 30)]), Some(1 << 31));
        assert_eq!(total_len(&[sge(1 << 31), sge(1)]), None);
    }
}
