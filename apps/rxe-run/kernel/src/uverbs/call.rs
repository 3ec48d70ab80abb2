//! One `write` to the device: the request's parts, and where the response goes.

use nix::errno::Errno;
use zerocopy::{FromBytes, Immutable, IntoBytes};

use super::abi::{COMMAND_MASK, CommandHeader, EXTENDED, ExtendedHeader};
use crate::user;

/// Sizes of a command's structures, as the kernel checks them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    request: usize,
    /// Size of the response; 0 for none.
    response: usize,
    /// The provider adds a part of its own behind request and response.
    provider: bool,
}

impl Shape {
    /// A command with request `Q` and response `R`; `()` for none.
    pub(super) const fn of<Q, R>() -> Shape {
        Shape { request: size_of::<Q>(), response: size_of::<R>(), provider: false }
    }

    /// The same with parts of the provider behind them.
    pub(super) const fn with_provider(self) -> Shape {
        Shape { provider: true, ..self }
    }

    /// An extended command that may leave out what follows the first `request` bytes.
    pub(super) const fn at_least(self, request: usize) -> Shape {
        Shape { request, ..self }
    }
}

/// The start of a command.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub(super) command: u32,
    pub(super) extended: bool,
    in_words: usize,
    out_words: usize,
}

impl Header {
    /// The header of a command.
    ///
    /// # Errors
    /// `EINVAL` when it is too short or has unknown flags.
    #[inline]
    pub(super) fn parse(bytes: &[u8]) -> Result<Header, Errno> {
        let (header, _) = CommandHeader::read_from_prefix(bytes).map_err(|_| Errno::EINVAL)?;
        if header.command & !(EXTENDED | COMMAND_MASK) != 0 {
            return Err(Errno::EINVAL);
        }
        Ok(Header {
            command: header.command & COMMAND_MASK,
            extended: header.command & EXTENDED != 0,
            in_words: usize::from(header.in_words),
            out_words: usize::from(header.out_words),
        })
    }
}

/// A buffer for a part of the response in the program's memory.
#[derive(Clone, Copy, Debug, Default)]
struct Room {
    at: u64,
    len: usize,
}

/// A command whose sizes have been checked.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call<'a> {
    request: &'a [u8],
    provider_request: &'a [u8],
    response: Room,
    provider_response: Room,
}

impl<'a> Call<'a> {
    /// Takes a command apart.
    ///
    /// # Errors
    /// `EINVAL` when lengths do not agree, `ENOSPC` when request or room for the response is too short: as the kernel.
    pub(super) fn parse(header: Header, bytes: &'a [u8], shape: Shape) -> Result<Call<'a>, Errno> {
        let body = bytes.get(size_of::<CommandHeader>()..).ok_or(Errno::EINVAL)?;
        if header.extended {
            Call::extended(header, body, shape)
        } else {
            Call::legacy(header, bytes.len(), body, shape)
        }
    }

    fn legacy(header: Header, written: usize, body: &'a [u8], shape: Shape) -> Result<Call<'a>, Errno> {
        if header.in_words * 4 != written {
            return Err(Errno::EINVAL);
        }
        let out_len = header.out_words * 4;
        if body.len() < shape.request || out_len < shape.response {
            return Err(Errno::ENOSPC);
        }
        let split = if shape.provider { shape.request } else { body.len() };
        let (request, provider_request) = body.split_at(split);
        let (mut response, mut provider_response) = (Room::default(), Room::default());
        if shape.response > 0 {
            // A request with a response begins with its address.
            let (at, _) = u64::read_from_prefix(request).map_err(|_| Errno::EINVAL)?;
            let split = if shape.provider { shape.response } else { out_len };
            response = Room { at, len: split };
            provider_response = Room { at: at.wrapping_add(split as u64), len: out_len - split };
        }
        Ok(Call { request, provider_request, response, provider_response })
    }

    fn extended(header: Header, body: &'a [u8], shape: Shape) -> Result<Call<'a>, Errno> {
        let (extended, body) = ExtendedHeader::read_from_prefix(body).map_err(|_| Errno::EINVAL)?;
        let (in_len, out_len) = (header.in_words * 8, header.out_words * 8);
        let provider_in_len = usize::from(extended.provider_in_words) * 8;
        let provider_out_len = usize::from(extended.provider_out_words) * 8;
        if in_len + provider_in_len != body.len() || extended.reserved != 0 {
            return Err(Errno::EINVAL);
        }
        if in_len < shape.request {
            return Err(Errno::ENOSPC);
        }
        let has_room = out_len + provider_out_len > 0;
        if has_room != (extended.response != 0) {
            return Err(Errno::EINVAL);
        }
        if has_room && out_len < shape.response {
            return Err(Errno::ENOSPC);
        }
        let (request, provider_request) = body.split_at(in_len);
        let provider_at = extended.response.wrapping_add(out_len as u64);
        Ok(Call {
            request,
            provider_request,
            response: Room { at: extended.response, len: out_len },
            provider_response: Room { at: provider_at, len: provider_out_len },
        })
    }

    /// The request. One that is shorter is continued with zeroes.
    ///
    /// # Errors
    /// `EOPNOTSUPP` when it is longer, and not with zeroes.
    pub(super) fn request<T: FromBytes + IntoBytes>(&self) -> Result<T, Errno> {
        let mut request = T::new_zeroed();
        let len = self.request.len().min(size_of::<T>());
        let (known, rest) = self.request.split_at(len);
        request.as_mut_bytes()[..len].copy_from_slice(known);
        if rest.iter().all(|&byte| byte == 0) { Ok(request) } else { Err(Errno::EOPNOTSUPP) }
    }

    /// The provider's part of the request.
    ///
    /// # Errors
    /// `EINVAL` when it is too short.
    pub(super) fn provider_request<T: FromBytes>(&self) -> Result<T, Errno> {
        T::read_from_prefix(self.provider_request).map(|(request, _)| request).map_err(|_| Errno::EINVAL)
    }

    /// The length that a response of type `T` says to have.
    pub(super) fn response_length<T>(&self) -> u32 {
        self.response.len.min(size_of::<T>()) as u32
    }

    /// Writes the response, as much of it as there is room for, and zeroes behind it.
    ///
    /// # Errors
    /// `EFAULT` when its address is not mapped and writable.
    pub(super) fn respond<T: IntoBytes + Immutable>(&self, response: &T) -> Result<(), Errno> {
        let Room { at, len } = self.response;
        let bytes = response.as_bytes();
        if len <= bytes.len() {
            return user::write(at, &bytes[..len]);
        }
        let mut padded = vec![0; len];
        padded[..bytes.len()].copy_from_slice(bytes);
        user::write(at, &padded)
    }

    /// Fails unless there is room for the provider's part `T` of the response.
    ///
    /// # Errors
    /// `EINVAL`.
    pub(super) fn check_provider_room<T>(&self) -> Result<(), Errno> {
        if self.has_provider_room::<T>() { Ok(()) } else { Err(Errno::EINVAL) }
    }

    /// Whether there is room for the provider's part `T` of the response.
    pub(super) fn has_provider_room<T>(&self) -> bool {
        self.provider_response.len >= size_of::<T>()
    }

    /// Writes the provider's part of the response, whose room was checked.
    ///
    /// # Errors
    /// `EFAULT` when its address is not mapped and writable.
    pub(super) fn respond_provider<T: IntoBytes + Immutable>(&self, response: &T) -> Result<(), Errno> {
        user::write(self.provider_response.at, response.as_bytes())
    }
}
