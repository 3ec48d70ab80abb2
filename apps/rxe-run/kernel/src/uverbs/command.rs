//! Commands: which there are, and what executes them.

use std::mem::offset_of;

use nix::errno::Errno;
use rxe_proto::Instant;
use rxe_proto::transport::Engine;
use zerocopy::FromBytes;

use super::Uverbs;
use super::abi::{self, command};
use super::call::{Call, Header, Shape};
use super::maps::Mapped;
use super::table::ContextId;

/// A command in execution.
pub(super) struct Command<'a> {
    /// The context that it was written to.
    pub(super) context: ContextId,
    pub(super) engine: &'a mut Engine,
    pub(super) now: Instant,
    pub(super) call: Call<'a>,
    /// What the program can do with the memory that it registers.
    pub(super) mapped: Mapped,
}

/// Executes commands.
type Method = fn(&mut Uverbs, &mut Command<'_>) -> Result<(), Errno>;

impl Uverbs {
    /// Executes one `write` to the device: `buf` is what the program writes to a context, and `mapped` what [`Mapped::of_command`] has
    /// found of it.
    ///
    /// # Errors
    /// The error of `write`, as from the kernel's device. `EBADF` when `handle` is no open context.
    pub fn command(
        &mut self,
        engine: &mut Engine,
        now: Instant,
        handle: u32,
        buf: &[u8],
        mapped: Mapped,
    ) -> Result<(), Errno> {
        let context = ContextId(handle);
        if !self.is_open(handle) {
            return Err(Errno::EBADF);
        }
        let header = Header::parse(buf)?;
        if header.command == command::POST_SEND && !header.extended {
            let (request, _) =
                abi::PostSend::read_from_prefix(buf.get(size_of::<abi::CommandHeader>()..).unwrap_or(&[]))
                    .map_err(|_| Errno::ENOSPC)?;
            return self.post_send(engine, context, request.qp_handle);
        }
        let (shape, method) = if header.extended { extended(header.command) } else { legacy(header.command) }?;
        let call = Call::parse(header, buf, shape)?;
        if !self.is_initialized(context) && header.command != command::GET_CONTEXT {
            return Err(Errno::EINVAL);
        }
        method(self, &mut Command { context, engine, now, call, mapped })
    }

    /// Whether a command does nothing but give objects back.
    pub fn gives_back(buf: &[u8]) -> bool {
        use command::{
            DEALLOC_MW, DEALLOC_PD, DEREG_MR, DESTROY_AH, DESTROY_CQ, DESTROY_QP, DESTROY_SRQ, DETACH_MCAST,
        };
        let number = buf.first_chunk().map(|&number| u32::from_ne_bytes(number));
        let all = [DEALLOC_MW, DEALLOC_PD, DEREG_MR, DESTROY_AH, DESTROY_CQ, DESTROY_QP, DESTROY_SRQ, DETACH_MCAST];
        number.is_some_and(|number| all.contains(&number))
    }

    /// Whether a command does nothing but post work requests.
    pub fn is_doorbell(buf: &[u8]) -> bool {
        buf.first_chunk().is_some_and(|&number| u32::from_ne_bytes(number) == command::POST_SEND)
    }
}

/// The command of a number.
///
/// # Errors
/// `EINVAL` for an unknown number, `EOPNOTSUPP` for a command that Linux' rxe does not have either.
fn legacy(number: u32) -> Result<(Shape, Method), Errno> {
    use abi::*;
    Ok(match number {
        command::GET_CONTEXT => (Shape::of::<GetContext, GetContextResp>().with_provider(), Uverbs::get_context),
        command::QUERY_DEVICE => (Shape::of::<QueryDevice, QueryDeviceResp>(), Uverbs::query_device),
        command::QUERY_PORT => (Shape::of::<QueryPort, QueryPortResp>(), Uverbs::query_port),
        command::ALLOC_PD => (Shape::of::<AllocPd, AllocPdResp>().with_provider(), Uverbs::alloc_pd),
        command::DEALLOC_PD => (Shape::of::<DeallocPd, ()>(), Uverbs::dealloc_pd),
        command::CREATE_AH => (Shape::of::<CreateAh, CreateAhResp>().with_provider(), Uverbs::create_ah),
        command::DESTROY_AH => (Shape::of::<DestroyAh, ()>(), Uverbs::destroy_ah),
        command::REG_MR => (Shape::of::<RegMr, RegMrResp>().with_provider(), Uverbs::reg_mr),
        command::REREG_MR => (Shape::of::<ReregMr, ReregMrResp>().with_provider(), Uverbs::rereg_mr),
        command::DEREG_MR => (Shape::of::<DeregMr, ()>(), Uverbs::dereg_mr),
        command::ALLOC_MW => (Shape::of::<AllocMw, AllocMwResp>().with_provider(), Uverbs::alloc_mw),
        command::DEALLOC_MW => (Shape::of::<DeallocMw, ()>(), Uverbs::dealloc_mw),
        command::CREATE_COMP_CHANNEL => {
            (Shape::of::<CreateCompChannel, CreateCompChannelResp>(), Uverbs::create_comp_channel)
        }
        command::CREATE_CQ => (Shape::of::<CreateCq, CreateCqResp>().with_provider(), Uverbs::create_cq),
        command::RESIZE_CQ => (Shape::of::<ResizeCq, ResizeCqResp>().with_provider(), Uverbs::resize_cq),
        command::DESTROY_CQ => (Shape::of::<DestroyCq, DestroyCqResp>(), Uverbs::destroy_cq),
        command::REQ_NOTIFY_CQ => (Shape::of::<ReqNotifyCq, ()>(), Uverbs::req_notify_cq),
        command::CREATE_QP => (Shape::of::<CreateQp, CreateQpResp>().with_provider(), Uverbs::create_qp),
        command::QUERY_QP => (Shape::of::<QueryQp, QueryQpResp>(), Uverbs::query_qp),
        command::MODIFY_QP => (Shape::of::<ModifyQp, ()>(), Uverbs::modify_qp),
        command::DESTROY_QP => (Shape::of::<DestroyQp, DestroyQpResp>(), Uverbs::destroy_qp),
        command::ATTACH_MCAST => (Shape::of::<Mcast, ()>(), Uverbs::attach_mcast),
        command::DETACH_MCAST => (Shape::of::<Mcast, ()>(), Uverbs::detach_mcast),
        command::CREATE_SRQ => (Shape::of::<CreateSrq, CreateSrqResp>().with_provider(), Uverbs::create_srq),
        command::MODIFY_SRQ => (Shape::of::<ModifySrq, ()>().with_provider(), Uverbs::modify_srq),
        command::QUERY_SRQ => (Shape::of::<QuerySrq, QuerySrqResp>(), Uverbs::query_srq),
        command::DESTROY_SRQ => (Shape::of::<DestroySrq, DestroySrqResp>(), Uverbs::destroy_srq),
        command::CREATE_XSRQ => (Shape::of::<CreateXsrq, CreateSrqResp>().with_provider(), Uverbs::create_xsrq),
        _ if number <= command::LAST => return Err(Errno::EOPNOTSUPP),
        _ => return Err(Errno::EINVAL),
    })
}

/// The extended command of a number.
///
/// # Errors
/// `EOPNOTSUPP` when there is none.
fn extended(number: u32) -> Result<(Shape, Method), Errno> {
    use abi::*;
    // An older program's structures end earlier.
    let query_device = Shape::of::<ExQueryDevice, [u8; offset_of!(ExQueryDeviceResp, odp_general)]>();
    let create_qp = Shape::of::<ExCreateQp, ExCreateQpResp>().at_least(offset_of!(ExCreateQp, create_flags));
    let modify_qp = Shape::of::<ExModifyQp, ExModifyQpResp>().at_least(offset_of!(ExModifyQp, rate_limit));
    Ok(match number {
        command::QUERY_DEVICE => (query_device, Uverbs::ex_query_device),
        command::CREATE_CQ => (Shape::of::<ExCreateCq, ExCreateCqResp>(), Uverbs::ex_create_cq),
        command::CREATE_QP => (create_qp, Uverbs::ex_create_qp),
        command::MODIFY_QP => (modify_qp, Uverbs::ex_modify_qp),
        _ => return Err(Errno::EOPNOTSUPP),
    })
}
