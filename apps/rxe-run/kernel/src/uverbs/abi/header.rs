//! Headers of commands, and the numbers of the commands.

use super::abi;

abi! {
    /// `ib_uverbs_cmd_hdr`
    CommandHeader {
        command: u32,
        /// Length of the request, this header included, in 32-bit words; of an extended command without headers, in
        /// 64-bit words.
        in_words: u16,
        /// Room for the response, in the same words.
        out_words: u16,
    }

    /// `ib_uverbs_ex_cmd_hdr`: follows the header of an extended command.
    ExtendedHeader {
        /// Address of the response; 0 for none.
        response: u64,
        /// Length of the provider's part of the request, in 64-bit words.
        provider_in_words: u16,
        /// Room for the provider's part of the response, in 64-bit words.
        provider_out_words: u16,
        reserved: u32,
    }
}

/// `IB_USER_VERBS_CMD_FLAG_EXTENDED`
pub(in crate::uverbs) const EXTENDED: u32 = 0x8000_0000;
/// `IB_USER_VERBS_CMD_COMMAND_MASK`
pub(in crate::uverbs) const COMMAND_MASK: u32 = 0xFF;

/// `IB_USER_VERBS_CMD_*`
#[allow(missing_docs)]
pub(in crate::uverbs) mod command {
    pub(in crate::uverbs) const GET_CONTEXT: u32 = 0;
    pub(in crate::uverbs) const QUERY_DEVICE: u32 = 1;
    pub(in crate::uverbs) const QUERY_PORT: u32 = 2;
    pub(in crate::uverbs) const ALLOC_PD: u32 = 3;
    pub(in crate::uverbs) const DEALLOC_PD: u32 = 4;
    pub(in crate::uverbs) const CREATE_AH: u32 = 5;
    pub(in crate::uverbs) const DESTROY_AH: u32 = 8;
    pub(in crate::uverbs) const REG_MR: u32 = 9;
    pub(in crate::uverbs) const REREG_MR: u32 = 11;
    pub(in crate::uverbs) const DEREG_MR: u32 = 13;
    pub(in crate::uverbs) const ALLOC_MW: u32 = 14;
    pub(in crate::uverbs) const DEALLOC_MW: u32 = 16;
    pub(in crate::uverbs) const CREATE_COMP_CHANNEL: u32 = 17;
    pub(in crate::uverbs) const CREATE_CQ: u32 = 18;
    pub(in crate::uverbs) const RESIZE_CQ: u32 = 19;
    pub(in crate::uverbs) const DESTROY_CQ: u32 = 20;
    pub(in crate::uverbs) const REQ_NOTIFY_CQ: u32 = 23;
    pub(in crate::uverbs) const CREATE_QP: u32 = 24;
    pub(in crate::uverbs) const QUERY_QP: u32 = 25;
    pub(in crate::uverbs) const MODIFY_QP: u32 = 26;
    pub(in crate::uverbs) const DESTROY_QP: u32 = 27;
    pub(in crate::uverbs) const POST_SEND: u32 = 28;
    pub(in crate::uverbs) const ATTACH_MCAST: u32 = 30;
    pub(in crate::uverbs) const DETACH_MCAST: u32 = 31;
    pub(in crate::uverbs) const CREATE_SRQ: u32 = 32;
    pub(in crate::uverbs) const MODIFY_SRQ: u32 = 33;
    pub(in crate::uverbs) const QUERY_SRQ: u32 = 34;
    pub(in crate::uverbs) const DESTROY_SRQ: u32 = 35;
    pub(in crate::uverbs) const CREATE_XSRQ: u32 = 39;
    /// The highest number: `IB_USER_VERBS_CMD_OPEN_QP`.
    pub(in crate::uverbs) const LAST: u32 = 40;
}
