/* Keys: accesses that each side grants or refuses to the other. Memory windows, fast regions, invalidation. */
#include <inttypes.h>

#include "messages.h"
#include "side.h"

/* The peer's access to our memory, which must complete with `status`. */
static void peer_access(int link, const char *op, uint64_t at, uint32_t key, enum ibv_wc_status status)
{
	unsigned id = next_id++;

	peer("post qp=%d id=%u op=%s at=%" PRIu64 " key=%u sge=0:8", link, id, op, at, key);
	peer_completes(id, status);
	if (status != IBV_WC_SUCCESS) {
		peer_event("qp_error");
		our_state_becomes(link, IBV_QPS_ERR);
	}
}

/* Our access to the peer's memory. */
static void our_access(int link, enum ibv_wr_opcode op, uint64_t at, uint32_t key, enum ibv_wc_status status)
{
	completes(post((struct work){ .op = op, .link = link, .ours = PIECE(0, 8), .at = at, .key = key }), status);
	if (status != IBV_WC_SUCCESS)
		peer_event("qp_error");
}

static void bad_keys(void)
{
	open_link(IBV_QPT_RC, 0);
	open_link(IBV_QPT_RC, 0);
	our_access(0, IBV_WR_RDMA_WRITE, remote_addr, remote_key ^ 0x100, IBV_WC_REM_ACCESS_ERR);
	peer_access(1, "write", address(OURS), mr->rkey ^ 1, IBV_WC_REM_ACCESS_ERR);
}

static void bad_range(void)
{
	open_link(IBV_QPT_RC, 0);
	open_link(IBV_QPT_RC, 0);
	our_access(0, IBV_WR_RDMA_READ, remote_addr + BUFFER - 7, remote_key, IBV_WC_REM_ACCESS_ERR);
	peer_access(1, "read", address(BUFFER - 7), mr->rkey, IBV_WC_REM_ACCESS_ERR);
}

static struct ibv_mw *new_window(enum ibv_mw_type type)
{
	struct ibv_mw *mw = ibv_alloc_mw(pd, type);

	need(mw != NULL, "ibv_alloc_mw");
	return mw;
}

/* Binds a type 2 window of ours on a link to [off, off+len); returns its key. */
static uint32_t bind(struct ibv_mw *mw, int link, uint32_t off, uint32_t len, unsigned access)
{
	struct ibv_send_wr wr = { .opcode = IBV_WR_BIND_MW };

	wr.bind_mw.mw = mw;
	wr.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
	wr.bind_mw.bind_info = (struct ibv_mw_bind_info){ .mr = mr, .addr = address(off), .length = len, .mw_access_flags = access };
	struct ibv_wc wc = completes(post_wr(link, &wr), IBV_WC_SUCCESS);
	if (wc.opcode != IBV_WC_BIND_MW)
		die("a bind completed with opcode %d", wc.opcode);
	return mw->rkey = wr.bind_mw.rkey;
}

/* A type 2 window of ours: accessible through its key until the peer's SEND invalidates it. */
static void window_of_ours(void)
{
	struct ibv_mw *mw = new_window(IBV_MW_TYPE_2);
	unsigned id;

	open_link(IBV_QPT_RC, 0);
	uint32_t key = bind(mw, 0, OURS, 5000, REMOTE);
	peer("fill sge=%s seed=%u", text(PIECE(THEIRS, 5000)), id = next_id++);
	peer("post id=%u op=write at=%" PRIu64 " key=%u sge=%s", id, address(OURS), key, text(PIECE(THEIRS, 5000)));
	peer_completes(id, IBV_WC_SUCCESS);
	check(PIECE(OURS, 5000), id);
	fill(PIECE(OURS, 5000), id = next_id++);
	peer("post id=%u op=read at=%" PRIu64 " key=%u sge=%s", id, address(OURS), key, text(PIECE(THEIRS, 5000)));
	peer_completes(id, IBV_WC_SUCCESS);
	peer("check sge=%s seed=%u", text(PIECE(THEIRS, 5000)), id);
	struct ibv_wc wc = to_us(0, PIECE(THEIRS, 100), PIECE(OURS, 100), "op=send inv=%u", key);
	if (!(wc.wc_flags & WITH_INV) || wc.invalidated_rkey != key)
		die("SEND with invalidate of 0x%x arrived with flags 0x%x, key 0x%x", key, wc.wc_flags, wc.invalidated_rkey);
	peer_access(0, "write", address(OURS), key, IBV_WC_REM_ACCESS_ERR);
	need(!ibv_dealloc_mw(mw), "ibv_dealloc_mw");
}

static void window_of_ours_local(void)
{
	struct ibv_mw *mw = new_window(IBV_MW_TYPE_2);

	open_link(IBV_QPT_RC, 0);
	uint32_t first = bind(mw, 0, OURS, 16, REMOTE);
	peer_access(0, "read", address(OURS + 8), first, IBV_WC_SUCCESS);
	struct ibv_wc wc = completes(post((struct work){ .op = IBV_WR_LOCAL_INV, .imm = first }), IBV_WC_SUCCESS);
	if (wc.opcode != IBV_WC_LOCAL_INV)
		die("a local invalidate completed with opcode %d", wc.opcode);
	uint32_t second = bind(mw, 0, OURS, 16, REMOTE); /* binding it again changes its key */
	peer_access(0, "read", address(OURS + 8), second, IBV_WC_SUCCESS);
	peer_access(0, "read", address(OURS + 8), first, IBV_WC_REM_ACCESS_ERR);
	need(!ibv_dealloc_mw(mw), "ibv_dealloc_mw");
}

/*
 * Rights and queue pair of type 2 windows of ours. (Not their range: rxe checks a window's key, and then the range of the
 * region behind it.)
 */
static void window_of_ours_limits(void)
{
	struct ibv_mw *mw[2];

	for (int i = 0; i < 2; i++) {
		open_link(IBV_QPT_RC, 0);
		mw[i] = new_window(IBV_MW_TYPE_2);
	}
	uint32_t reading = bind(mw[0], 0, OURS, 16, IBV_ACCESS_REMOTE_READ);
	uint32_t all = bind(mw[1], 0, OURS, 16, REMOTE);
	peer_access(0, "read", address(OURS + 8), reading, IBV_WC_SUCCESS);
	peer_access(0, "write", address(OURS + 8), all, IBV_WC_SUCCESS);
	peer_access(1, "write", address(OURS + 8), all, IBV_WC_REM_ACCESS_ERR);
	peer_access(0, "write", address(OURS + 8), reading, IBV_WC_REM_ACCESS_ERR);
	for (int i = 0; i < 2; i++)
		need(!ibv_dealloc_mw(mw[i]), "ibv_dealloc_mw");
}

/* A type 1 window of ours: every queue pair can access it, and binding it elsewhere changes its key. */
static void window_of_ours_type_1(void)
{
	struct ibv_mw *mw = new_window(IBV_MW_TYPE_1);
	struct ibv_mw_bind where = { .bind_info = { .mr = mr, .addr = address(OURS), .length = 16, .mw_access_flags = REMOTE },
				     .send_flags = IBV_SEND_SIGNALED };

	open_link(IBV_QPT_RC, 0);
	open_link(IBV_QPT_RC, 0);
	where.wr_id = next_id++;
	need(!ibv_bind_mw(links[0].qp, mw, &where), "ibv_bind_mw");
	completes((unsigned)where.wr_id, IBV_WC_SUCCESS);
	uint32_t first = mw->rkey;
	peer_access(0, "write", address(OURS + 8), first, IBV_WC_SUCCESS);
	peer_access(1, "read", address(OURS), first, IBV_WC_SUCCESS);
	where.bind_info.addr = address(200000);
	where.wr_id = next_id++;
	need(!ibv_bind_mw(links[0].qp, mw, &where), "ibv_bind_mw");
	completes((unsigned)where.wr_id, IBV_WC_SUCCESS);
	peer_access(1, "read", address(200000), mw->rkey, IBV_WC_SUCCESS);
	peer_access(0, "read", address(200000), mw->rkey, IBV_WC_SUCCESS);
	peer_access(1, "read", address(OURS), first, IBV_WC_REM_ACCESS_ERR);
	need(!ibv_dealloc_mw(mw), "ibv_dealloc_mw");
}

/* ---- the peer's windows and fast regions ---- */

/* Allocates a window at the peer and binds it on a link to [THEIRS, THEIRS+len); returns its key. */
static uint32_t peer_window(int type, int link, uint32_t len, unsigned access)
{
	unsigned id = next_id++;

	peer("window type=%d", type);
	uint32_t key = (uint32_t)field("key");
	peer("post qp=%d id=%u op=bind key=%u sge=%s access=%u", link, id, key, text(PIECE(THEIRS, len)), access);
	peer_completes(id, IBV_WC_SUCCESS);
	return key;
}

/* 5000 bytes at the peer's address `at` are accessible through `key` until our SEND invalidates it. */
static void reach_and_take_back(uint32_t key, uint64_t at, uint32_t off)
{
	unsigned id = next_id++;

	fill(PIECE(OURS, 5000), id);
	completes(post((struct work){ .op = IBV_WR_RDMA_WRITE, .ours = PIECE(OURS, 5000), .at = at, .key = key }), IBV_WC_SUCCESS);
	peer("check sge=%s seed=%u", text(PIECE(off, 5000)), id);
	peer("fill sge=%s seed=%u", text(PIECE(off, 5000)), id = next_id++);
	completes(post((struct work){ .op = IBV_WR_RDMA_READ, .ours = PIECE(OURS, 5000), .at = at, .key = key }), IBV_WC_SUCCESS);
	check(PIECE(OURS, 5000), id);
	to_peer((struct work){ .op = IBV_WR_SEND_WITH_INV, .ours = PIECE(OURS, 100), .imm = key }, PIECE(THEIRS, 100));
	our_access(0, IBV_WR_RDMA_WRITE, at, key, IBV_WC_REM_ACCESS_ERR);
}

static void window_of_peer(void)
{
	open_link(IBV_QPT_RC, 0);
	reach_and_take_back(peer_window(2, 0, 5000, REMOTE), remote_addr + THEIRS, THEIRS);
}

static void fast_region_of_peer(void)
{
	unsigned id = next_id++;

	open_link(IBV_QPT_RC, 0);
	peer("fast sge=%s", text(PIECE(THEIRS, 5000)));
	uint32_t key = (uint32_t)field("key");
	peer("post id=%u op=reg key=%u at=%u access=%u", id, key, 0x77000000, REMOTE | IBV_ACCESS_LOCAL_WRITE);
	peer_completes(id, IBV_WC_SUCCESS);
	reach_and_take_back(key, 0x77000000, THEIRS);
}

static void window_of_peer_local(void)
{
	unsigned id;

	open_link(IBV_QPT_RC, 0);
	uint32_t key = peer_window(2, 0, 16, REMOTE);
	our_access(0, IBV_WR_RDMA_READ, remote_addr + THEIRS + 8, key, IBV_WC_SUCCESS);
	peer("post id=%u op=local_inv key=%u", id = next_id++, key);
	peer_completes(id, IBV_WC_SUCCESS);
	our_access(0, IBV_WR_RDMA_READ, remote_addr + THEIRS + 8, key, IBV_WC_REM_ACCESS_ERR);
}

static void window_of_peer_limits(void)
{
	for (int i = 0; i < 3; i++)
		open_link(IBV_QPT_RC, 0);
	uint64_t at = remote_addr + THEIRS + 8;
	uint32_t reading = peer_window(2, 0, 16, IBV_ACCESS_REMOTE_READ), all = peer_window(2, 1, 16, REMOTE);
	uint32_t other = peer_window(2, 0, 16, REMOTE);
	our_access(0, IBV_WR_RDMA_READ, at, reading, IBV_WC_SUCCESS);
	our_access(1, IBV_WR_RDMA_WRITE, at, all, IBV_WC_SUCCESS);
	our_access(0, IBV_WR_RDMA_WRITE, at, other, IBV_WC_SUCCESS);
	our_access(2, IBV_WR_RDMA_WRITE, at, other, IBV_WC_REM_ACCESS_ERR);
	our_access(1, IBV_WR_RDMA_WRITE, at + 1, all, IBV_WC_REM_ACCESS_ERR);
	our_access(0, IBV_WR_RDMA_WRITE, at, reading, IBV_WC_REM_ACCESS_ERR);
}

static void window_of_peer_type_1(void)
{
	open_link(IBV_QPT_RC, 0);
	open_link(IBV_QPT_RC, 0);
	uint32_t key = peer_window(1, 0, 16, REMOTE);
	our_access(0, IBV_WR_RDMA_WRITE, remote_addr + THEIRS + 8, key, IBV_WC_SUCCESS);
	our_access(1, IBV_WR_RDMA_READ, remote_addr + THEIRS, key, IBV_WC_SUCCESS);
	our_access(1, IBV_WR_RDMA_READ, remote_addr + THEIRS + 16, key, IBV_WC_REM_ACCESS_ERR);
}

/*
 * ---- ATOMIC WRITE: rdma-core 44 has no verb for it, but newer kernels execute the peer's. (FLUSH too, but rxe computes its
 * ICRC over the headers twice, which the peer does not.)
 */

static void atomic_write(void)
{
	uint64_t value = 0xFEDCBA9876543210;
	unsigned id;

	open_link(IBV_QPT_RC, 0);
	for (uint32_t at = 800; at < 832; at += 8, value ^= 0x5555) {
		peer("store off=64 value=%" PRIu64, value);
		peer("post id=%u op=atomic_write at=%" PRIu64 " key=%u sge=64:8", id = next_id++, address(at), mr->rkey);
		peer_completes(id, IBV_WC_SUCCESS);
		if (load(at) != value)
			die("an ATOMIC WRITE of 0x%" PRIx64 " left 0x%" PRIx64, value, load(at));
	}
	peer_access(0, "atomic_write", address(801), mr->rkey, IBV_WC_REM_INV_REQ_ERR); /* not aligned */
}

/* ---- the list ---- */

const struct test key_cases[] = {
	{ "bad-key", bad_keys, "wrong keys are refused" },
	{ "bad-range", bad_range, "ranges beyond the region are refused" },
	{ "window-of-ours", window_of_ours, "WRITE and READ through a type 2 window, SEND with invalidate" },
	{ "window-of-ours-local", window_of_ours_local, "local invalidation, and binding again" },
	{ "window-of-ours-limits", window_of_ours_limits, "rights and queue pair of type 2 windows" },
	{ "window-of-ours-type-1", window_of_ours_type_1, "a type 1 window, bound twice" },
	{ "window-of-peer", window_of_peer, "WRITE and READ through a type 2 window, SEND with invalidate" },
	{ "window-of-peer-local", window_of_peer_local, "local invalidation" },
	{ "window-of-peer-limits", window_of_peer_limits, "rights, range and queue pair of type 2 windows" },
	{ "window-of-peer-type-1", window_of_peer_type_1, "a type 1 window" },
	{ "fast-region-of-peer", fast_region_of_peer, "a fast region, SEND with invalidate" },
	{ "atomic-write", atomic_write, "the peer's ATOMIC WRITE (newer kernels)" },
	{ 0 },
};
