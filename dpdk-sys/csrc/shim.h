/*
 * What the Rust side sees of DPDK: bindgen reads this file alone.
 *
 * DPDK keeps its data path `static inline`, some constants behind macros that bindgen cannot evaluate, and moves
 * fields of its structures between releases. Each of these gets a plain C name here; shim.c holds the definitions.
 * Written for 22.11 (Debian 12); what changed up to 24.11 is behind RTE_VERSION.
 */
#ifndef DPDK_SYS_SHIM_H
#define DPDK_SYS_SHIM_H

#include <stdint.h>

#include <rte_config.h>
#include <rte_version.h>
#include <rte_common.h>
#include <rte_alarm.h>
#include <rte_dev.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_launch.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_malloc.h>
#include <rte_mbuf.h>
#include <rte_mempool.h>
#include <rte_memzone.h>
#include <rte_ring.h>
#include <rte_telemetry.h>

#if RTE_VERSION < RTE_VERSION_NUM(21, 11, 0, 0)
#error "DPDK 21.11 or later is needed (RTE_ETH_* names)"
#endif

/*
 * The first cache line of struct rte_mbuf, by our own names: DPDK wraps these fields in anonymous unions from 23.11
 * on, which would change their Rust paths. shim.c asserts that every offset is the same.
 */
struct rxe_mbuf {
	void *buf_addr;
	uint64_t iova_or_next;
	uint16_t data_off;
	uint16_t refcnt;
	uint16_t nb_segs;
	uint16_t port;
	uint64_t ol_flags;
	uint32_t packet_type;
	uint32_t pkt_len;
	uint16_t data_len;
	uint16_t vlan_tci;
	uint32_t rss;
	uint32_t hash_hi;
	uint16_t vlan_tci_outer;
	uint16_t buf_len;
	struct rte_mempool *pool;
};

/* struct rte_eth_link without its bit fields. */
struct rxe_eth_link {
	uint32_t speed_mbps; /* RTE_ETH_SPEED_NUM_UNKNOWN when not known */
	uint8_t up;
	uint8_t full_duplex;
};

static const uint64_t RXE_RX_OFFLOAD_SCATTER = RTE_ETH_RX_OFFLOAD_SCATTER;
static const uint64_t RXE_TX_OFFLOAD_MULTI_SEGS = RTE_ETH_TX_OFFLOAD_MULTI_SEGS;
static const uint64_t RXE_TX_OFFLOAD_IPV4_CKSUM = RTE_ETH_TX_OFFLOAD_IPV4_CKSUM;
static const uint64_t RXE_RSS_IP = RTE_ETH_RSS_IP;
static const uint64_t RXE_RSS_UDP = RTE_ETH_RSS_UDP;
static const uint32_t RXE_MBUF_HEADROOM = RTE_PKTMBUF_HEADROOM;
static const uint32_t RXE_LCORE_ID_ANY = LCORE_ID_ANY;
static const uint32_t RXE_MAX_ETHPORTS = RTE_MAX_ETHPORTS;
static const uint32_t RXE_MAX_LCORE = RTE_MAX_LCORE;
static const int32_t RXE_SOCKET_ID_ANY = SOCKET_ID_ANY;
static const uint32_t RXE_RING_F_SP_ENQ = RING_F_SP_ENQ;
static const uint32_t RXE_RING_F_SC_DEQ = RING_F_SC_DEQ;
static const uint32_t RXE_RING_F_EXACT_SZ = RING_F_EXACT_SZ;
static const uint32_t RXE_ETH_MQ_RX_NONE = RTE_ETH_MQ_RX_NONE;
static const uint32_t RXE_ETH_MQ_RX_RSS = RTE_ETH_MQ_RX_RSS;
static const uint64_t RXE_ETH_DEV_NO_OWNER = RTE_ETH_DEV_NO_OWNER;
static const uint32_t RXE_ETH_SPEED_UNKNOWN = RTE_ETH_SPEED_NUM_UNKNOWN;

uint16_t rxe_eth_rx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **pkts, uint16_t count);
uint16_t rxe_eth_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **pkts, uint16_t count);
int rxe_eth_link_get(uint16_t port, struct rxe_eth_link *link);

int rxe_pktmbuf_alloc_bulk(struct rte_mempool *pool, struct rte_mbuf **mbufs, unsigned int count);
void rxe_pktmbuf_free(struct rte_mbuf *mbuf);
int rxe_pktmbuf_linearize(struct rte_mbuf *mbuf);

unsigned int rxe_ring_sp_enqueue_burst(struct rte_ring *ring, void *const *objs, unsigned int count);
unsigned int rxe_ring_mp_enqueue_burst(struct rte_ring *ring, void *const *objs, unsigned int count);
unsigned int rxe_ring_sc_dequeue_burst(struct rte_ring *ring, void **objs, unsigned int count);
unsigned int rxe_ring_count(const struct rte_ring *ring);

int rxe_tel_data_add_dict_u64(struct rte_tel_data *data, const char *name, uint64_t value);

void *rxe_memzone_addr(const struct rte_memzone *zone);
uint64_t rxe_rdtsc(void);
unsigned int rxe_lcore_id(void);
int rxe_errno(void);

#endif
