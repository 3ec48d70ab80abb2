/* Definitions for shim.h: one line each around what DPDK keeps inline. */
#include "shim.h"

#include <stddef.h>

#include <rte_cycles.h>

#define SAME_OFFSET(ours, theirs)                                                                                      \
	_Static_assert(offsetof(struct rxe_mbuf, ours) == offsetof(struct rte_mbuf, theirs),                           \
		       "struct rxe_mbuf must follow struct rte_mbuf: " #ours)

SAME_OFFSET(buf_addr, buf_addr);
SAME_OFFSET(data_off, data_off);
SAME_OFFSET(refcnt, refcnt);
SAME_OFFSET(nb_segs, nb_segs);
SAME_OFFSET(port, port);
SAME_OFFSET(ol_flags, ol_flags);
SAME_OFFSET(packet_type, packet_type);
SAME_OFFSET(pkt_len, pkt_len);
SAME_OFFSET(data_len, data_len);
SAME_OFFSET(vlan_tci, vlan_tci);
SAME_OFFSET(rss, hash.rss);
SAME_OFFSET(vlan_tci_outer, vlan_tci_outer);
SAME_OFFSET(buf_len, buf_len);
SAME_OFFSET(pool, pool);
_Static_assert(sizeof(void *) == 8, "only 64-bit machines");

uint16_t rxe_eth_rx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **pkts, uint16_t count)
{
	return rte_eth_rx_burst(port, queue, pkts, count);
}

uint16_t rxe_eth_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **pkts, uint16_t count)
{
	return rte_eth_tx_burst(port, queue, pkts, count);
}

int rxe_eth_link_get(uint16_t port, struct rxe_eth_link *link)
{
	struct rte_eth_link raw = {0};
	int ret = rte_eth_link_get_nowait(port, &raw);

	if (ret == 0) {
		link->speed_mbps = raw.link_speed;
		link->up = raw.link_status;
		link->full_duplex = raw.link_duplex;
	}
	return ret;
}

int rxe_pktmbuf_alloc_bulk(struct rte_mempool *pool, struct rte_mbuf **mbufs, unsigned int count)
{
	return rte_pktmbuf_alloc_bulk(pool, mbufs, count);
}

void rxe_pktmbuf_free(struct rte_mbuf *mbuf)
{
	rte_pktmbuf_free(mbuf);
}

int rxe_pktmbuf_linearize(struct rte_mbuf *mbuf)
{
	return rte_pktmbuf_linearize(mbuf);
}

unsigned int rxe_ring_sp_enqueue_burst(struct rte_ring *ring, void *const *objs, unsigned int count)
{
	return rte_ring_sp_enqueue_burst(ring, objs, count, NULL);
}

unsigned int rxe_ring_mp_enqueue_burst(struct rte_ring *ring, void *const *objs, unsigned int count)
{
	return rte_ring_mp_enqueue_burst(ring, objs, count, NULL);
}

unsigned int rxe_ring_sc_dequeue_burst(struct rte_ring *ring, void **objs, unsigned int count)
{
	return rte_ring_sc_dequeue_burst(ring, objs, count, NULL);
}

unsigned int rxe_ring_count(const struct rte_ring *ring)
{
	return rte_ring_count(ring);
}

int rxe_tel_data_add_dict_u64(struct rte_tel_data *data, const char *name, uint64_t value)
{
#if RTE_VERSION >= RTE_VERSION_NUM(23, 3, 0, 0)
	return rte_tel_data_add_dict_uint(data, name, value);
#else
	return rte_tel_data_add_dict_u64(data, name, value);
#endif
}

void *rxe_memzone_addr(const struct rte_memzone *zone)
{
	return zone->addr;
}

uint64_t rxe_rdtsc(void)
{
	return rte_rdtsc();
}

unsigned int rxe_lcore_id(void)
{
	return rte_lcore_id();
}

int rxe_errno(void)
{
	return rte_errno;
}
