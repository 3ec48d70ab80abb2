//! The device's limits: those of Linux' rxe, as far as the engine has them.

use rxe_proto::transport::EngineConfig;

/// Limits of the device, as QUERY_DEVICE reports them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) contexts: usize,
    pub(super) pds: u32,
    pub(super) mrs: u32,
    pub(super) mws: u32,
    pub(super) ahs: u32,
    pub(super) cqs: u32,
    pub(super) cqe: u32,
    pub(super) srqs: u32,
    pub(super) srq_wr: u32,
    pub(super) qps: u32,
    pub(super) qp_wr: u32,
    pub(super) sge: u32,
    pub(super) inline_data: u32,
    /// The longest message whose payload may be read before it is sent: the engine keeps as many bytes for each entry of a send
    /// queue.
    pub(super) early_data: u32,
    pub(super) rd_atomic: u32,
    pub(super) mcast_groups: u32,
    pub(super) mcast_qps: u32,
    pub(super) atomic_write: bool,
}

impl Limits {
    pub(super) fn new(config: &EngineConfig) -> Limits {
        // Regions and windows share the engine's keys.
        let keys = config.max_mr / 2;
        Limits {
            contexts: 512,
            pds: 0x7FFC,
            mrs: keys.min(1 << 18),
            mws: keys.min(1 << 18),
            ahs: config.max_ah.min(1 << 15),
            cqs: config.max_cq.min(1 << 14),
            // More than Linux' rxe has, 0x7FFF: libfabric's rxm creates queues for 256 peers.
            cqe: queue_limit(0xF_FFFF, config.max_cqe),
            srqs: config.max_srq.min(1 << 12),
            srq_wr: queue_limit(1 << 14, config.max_srq_wr),
            qps: config.max_qp.min(1 << 16),
            qp_wr: queue_limit(1 << 14, config.max_qp_wr),
            sge: config.max_sge.min(32),
            inline_data: config.max_inline_data.min(512),
            early_data: config.max_inline_data.min(256),
            rd_atomic: config.max_rd_atomic.into(),
            // The port is a member of each.
            mcast_groups: config.max_mcast_grp.min(rxe_udp::MAX_GROUPS as u32),
            mcast_qps: config.max_mcast_qp_attach,
            atomic_write: config.atomic_write,
        }
    }
}

/// The most entries, up to `wanted`, for which a queue, whose size is rounded up to one less than a power of two, still
/// fits a queue of the engine.
fn queue_limit(wanted: u32, engine: u32) -> u32 {
    let rounded = (wanted + 1).next_power_of_two() - 1;
    if rounded <= engine {
        return wanted;
    }
    // The largest power of two that is at most `engine + 1`, less one.
    let fits = engine.saturating_add(1);
    (1 << fits.ilog2()) - 1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_of_the_limit_fits_the_engines() {
        for wanted in [1, 7, 8, 0x4000, 0x7FFF] {
            for engine in [1, 2, 3, 100, 127, 128, 0x3FFF, 0x4000, 0x7FFE, 0x7FFF, 0x8000, 1 << 20] {
                let limit = queue_limit(wanted, engine);
                assert!(limit >= 1 && limit <= wanted.max(1));
                assert!((limit + 1).next_power_of_two() - 1 <= engine, "{wanted} {engine}: {limit}");
            }
        }
        assert_eq!(queue_limit(0x4000, 1 << 16), 0x4000);
    }
}
