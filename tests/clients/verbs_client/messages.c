/* Messages both ways: SEND, WRITE and READ with all their options, shared receive queues, datagrams. */
#include <arpa/inet.h>
#include <inttypes.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "side.h"
#include "messages.h"

/* Message lengths around the packets of both path MTUs (1024 and 4096). */
static const uint32_t sizes[] = { 0, 1, 3, 1023, 1024, 1025, 4096, 4097, 12345, 65536 };
enum { SIZES = sizeof sizes / sizeof *sizes };
/* ---- messages, both ways ---- */

/* The same pieces with 40 bytes more in front, for the GRH of a datagram. */
static struct pieces with_grh(struct pieces pieces)
{
	pieces.p[0].off -= GRH;
	pieces.p[0].len += GRH;
	return pieces;
}

static int is_ud(int link)
{
	return links[link].qp->qp_type == IBV_QPT_UD;
}

/* Checks that a message from us has arrived in the peer's receive `id`. */
static void arrived_at_peer(struct work w, unsigned id)
{
	peer_completes(id, IBV_WC_SUCCESS);
	if (!field_is("op", w.op == IBV_WR_RDMA_WRITE_WITH_IMM ? "recv_write" : "recv") || field("qp") != (uint64_t)w.link ||
	    field("len") != total(w.ours) + (is_ud(w.link) ? GRH : 0))
		die("our message of %u bytes on link %d arrived as `%s`", total(w.ours), w.link, answer);
	if ((w.op == IBV_WR_SEND_WITH_IMM || w.op == IBV_WR_RDMA_WRITE_WITH_IMM) && field("imm") != w.imm)
		die("our immediate data 0x%x arrived as `%s`", w.imm, answer);
	if (w.op == IBV_WR_SEND_WITH_INV && field("inv") != w.imm)
		die("our SEND should have invalidated 0x%x: `%s`", w.imm, answer);
	if (is_ud(w.link) && field("src") != links[w.link].qp->qp_num)
		die("our datagram is not from queue pair %u: `%s`", links[w.link].qp->qp_num, answer);
}

void to_peer(struct work w, struct pieces theirs)
{
	unsigned id = next_id++;

	peer("recv qp=%d id=%u sge=%s", w.link, id, text(is_ud(w.link) ? with_grh(theirs) : theirs));
	fill(w.ours, id);
	completes(post(w), IBV_WC_SUCCESS);
	arrived_at_peer(w, id);
	peer("check sge=%s seed=%u", text(theirs), id);
}

struct ibv_wc to_us(int link, struct pieces theirs, struct pieces ours, const char *format, ...)
{
	char words[200];
	unsigned receive = post_recv(link, is_ud(link) ? with_grh(ours) : ours), id = next_id++;
	va_list list;

	va_start(list, format);
	vsnprintf(words, sizeof words, format, list);
	va_end(list);
	peer("fill sge=%s seed=%u", text(theirs), id);
	peer("post qp=%d id=%u sge=%s qkey=%u %s", link, id, text(theirs), QKEY, words);
	peer_completes(id, IBV_WC_SUCCESS);
	struct ibv_wc wc = completes(receive, IBV_WC_SUCCESS);
	if (wc.qp_num != links[link].qp->qp_num || wc.byte_len != total(theirs) + (is_ud(link) ? GRH : 0))
		die("the peer's message of %u bytes on link %d arrived with %u bytes at queue pair %u", total(theirs), link, wc.byte_len,
		    wc.qp_num);
	check(ours, id);
	return wc;
}

static void has_imm(struct ibv_wc wc, enum ibv_wc_opcode opcode, uint32_t imm)
{
	if (!(wc.wc_flags & IBV_WC_WITH_IMM) || wc.opcode != opcode || ntohl(wc.imm_data) != imm)
		die("immediate data 0x%x arrived as 0x%x, opcode %d, flags 0x%x", imm, ntohl(wc.imm_data), wc.opcode, wc.wc_flags);
}

static void send_all_sizes(enum ibv_qp_type type)
{
	open_link(type, 0);
	for (unsigned i = 0; i < SIZES; i++) {
		uint32_t n = sizes[i], imm = 0xA5000000 + i;
		if (type == IBV_QPT_UD && n > 128u << mtu)
			break;
		to_peer((struct work){ .op = IBV_WR_SEND, .ours = PIECE(OURS, n) }, PIECE(THEIRS, n));
		to_peer((struct work){ .op = IBV_WR_SEND_WITH_IMM, .ours = PIECE(OURS, n), .imm = imm }, PIECE(THEIRS, n));
		struct ibv_wc wc = to_us(0, PIECE(THEIRS, n), PIECE(OURS, n), "op=send");
		if (wc.wc_flags & (IBV_WC_WITH_IMM | WITH_INV))
			die("a plain SEND arrived with flags 0x%x", wc.wc_flags);
		has_imm(to_us(0, PIECE(THEIRS, n), PIECE(OURS, n), "op=send imm=%u", imm), IBV_WC_RECV, imm);
	}
}

static void rc_send(void)
{
	send_all_sizes(IBV_QPT_RC);
}

static void uc_send(void)
{
	send_all_sizes(IBV_QPT_UC);
}

static void ud_send(void)
{
	send_all_sizes(IBV_QPT_UD);
}

/* WRITEs, both ways. On UC a WRITE has arrived when a later message has been received. */
static void write_all_sizes(enum ibv_qp_type type)
{
	open_link(type, 0);
	for (unsigned i = 0; i < SIZES; i++) {
		uint32_t n = sizes[i], imm = 0x5A000000 + i;
		unsigned id = next_id++;

		fill(PIECE(OURS, n), id);
		completes(post((struct work){ .op = IBV_WR_RDMA_WRITE, .ours = PIECE(OURS, n), .at = THEIRS }), IBV_WC_SUCCESS);
		if (type == IBV_QPT_UC)
			to_peer((struct work){ .op = IBV_WR_SEND, .ours = PIECE(0, 8) }, PIECE(0, 8));
		peer("check sge=%s seed=%u", text(PIECE(THEIRS, n)), id);

		peer("fill sge=%s seed=%u", text(PIECE(THEIRS, n)), ++id);
		peer("post id=%u op=write at=%" PRIu64 " key=%u sge=%s", id, address(OURS), mr->rkey, text(PIECE(THEIRS, n)));
		peer_completes(id, IBV_WC_SUCCESS);
		if (type == IBV_QPT_UC)
			to_us(0, PIECE(0, 8), PIECE(0, 8), "op=send");
		check(PIECE(OURS, n), id);
		next_id = id + 1;

		/* With immediate data: the receive's own buffers stay as they are. */
		struct work w = { .op = IBV_WR_RDMA_WRITE_WITH_IMM, .ours = PIECE(OURS, n), .at = THEIRS, .imm = imm };
		unsigned untouched = next_id++;
		id = next_id++;
		peer("fill sge=0:64 seed=%u", untouched);
		peer("recv id=%u sge=0:64", id);
		fill(w.ours, id);
		completes(post(w), IBV_WC_SUCCESS);
		arrived_at_peer(w, id);
		peer("check sge=%s seed=%u", text(PIECE(THEIRS, n)), id);
		peer("check sge=0:64 seed=%u", untouched);

		fill(PIECE(0, 64), untouched);
		unsigned receive = post_recv(0, PIECE(0, 64));
		peer("fill sge=%s seed=%u", text(PIECE(THEIRS, n)), id = next_id++);
		peer("post id=%u op=write imm=%u at=%" PRIu64 " key=%u sge=%s", id, imm, address(OURS), mr->rkey, text(PIECE(THEIRS, n)));
		peer_completes(id, IBV_WC_SUCCESS);
		struct ibv_wc wc = completes(receive, IBV_WC_SUCCESS);
		has_imm(wc, IBV_WC_RECV_RDMA_WITH_IMM, imm);
		if (wc.byte_len != n)
			die("a WRITE of %u bytes arrived with length %u", n, wc.byte_len);
		check(PIECE(OURS, n), id);
		check(PIECE(0, 64), untouched);
	}
}

static void rc_write(void)
{
	write_all_sizes(IBV_QPT_RC);
}

static void uc_write(void)
{
	write_all_sizes(IBV_QPT_UC);
}

/* One READ by us and one by the peer. */
static void read_both_ways(struct pieces ours, struct pieces theirs)
{
	unsigned id = next_id++;

	peer("fill sge=%s seed=%u", text(PIECE(THEIRS, total(ours))), id);
	completes(post((struct work){ .op = IBV_WR_RDMA_READ, .ours = ours, .at = THEIRS }), IBV_WC_SUCCESS);
	check(ours, id);
	fill(PIECE(OURS, total(theirs)), id = next_id++);
	peer("post id=%u op=read at=%" PRIu64 " key=%u sge=%s", id, address(OURS), mr->rkey, text(theirs));
	peer_completes(id, IBV_WC_SUCCESS);
	peer("check sge=%s seed=%u", text(theirs), id);
}

static void rc_read(void)
{
	open_link(IBV_QPT_RC, 0);
	for (unsigned i = 0; i < SIZES; i++)
		read_both_ways(PIECE(OURS, sizes[i]), PIECE(THEIRS, sizes[i]));
}

/* Scattered and gathered, with different pieces on both sides. */
static void rc_pieces(void)
{
	struct pieces ours = { { { 1, 100 }, { 9000, 1 }, { 20001, 5000 }, { 407, 33 } } };
	struct pieces theirs = { { { 30000, 3 }, { 200, 1031 }, { 100000, 4100 } } };

	if (total(ours) != total(theirs))
		die("the pieces are not of the same length");
	open_link(IBV_QPT_RC, 0);
	to_peer((struct work){ .op = IBV_WR_SEND, .ours = ours }, theirs);
	to_us(0, theirs, ours, "op=send");
	unsigned id = next_id++;
	fill(ours, id);
	completes(post((struct work){ .op = IBV_WR_RDMA_WRITE, .ours = ours, .at = 200000 }), IBV_WC_SUCCESS);
	peer("check sge=%s seed=%u", text(PIECE(200000, total(ours))), id);
	peer("fill sge=%s seed=%u", text(theirs), id = next_id++);
	peer("post id=%u op=write at=%" PRIu64 " key=%u sge=%s", id, address(200000), mr->rkey, text(theirs));
	peer_completes(id, IBV_WC_SUCCESS);
	check(PIECE(200000, total(theirs)), id);
	read_both_ways((struct pieces){ { { 300000, 100 }, { 310000, 5000 } } },
		       (struct pieces){ { { 300000, 4096 }, { 310001, 1 } } });
}

/* Inline data may be changed as soon as the request is posted. */
static void rc_inline(void)
{
	static const uint32_t lengths[] = { 1, 64, INLINE };

	open_link(IBV_QPT_RC, 0);
	for (unsigned i = 0; i < 3; i++) {
		struct pieces ours = PIECE(OURS, lengths[i]), theirs = PIECE(THEIRS, lengths[i]);
		struct work works[] = {
			{ .op = IBV_WR_SEND, .ours = ours, .flags = IBV_SEND_INLINE },
			{ .op = IBV_WR_RDMA_WRITE, .ours = ours, .at = THEIRS, .flags = IBV_SEND_INLINE },
		};
		for (int k = 0; k < 2; k++) {
			unsigned id = next_id++;
			if (!k)
				peer("recv id=%u sge=%s", id, text(theirs));
			fill(ours, id);
			unsigned posted = post(works[k]);
			fill(ours, 0);
			completes(posted, IBV_WC_SUCCESS);
			if (!k)
				arrived_at_peer(works[k], id);
			peer("check sge=%s seed=%u", text(theirs), id);
		}
		to_us(0, theirs, ours, "op=send inline=1");
		unsigned id = next_id++;
		peer("fill sge=%s seed=%u", text(theirs), id);
		peer("post id=%u op=write inline=1 at=%" PRIu64 " key=%u sge=%s", id, address(OURS), mr->rkey, text(theirs));
		peer_completes(id, IBV_WC_SUCCESS);
		check(ours, id);
	}
}

/*
 * Waits for the completion of a fenced SEND. Linux 6.1's rxe sometimes misses the end of the READ that the fence waits for;
 * the next request resumes it.
 */
static void fenced_completes(unsigned id)
{
	struct ibv_wc wc;

	if (!poll_completion(&wc, 2000)) {
		unsigned wakes = post((struct work){ .op = IBV_WR_RDMA_WRITE });
		completes(id, IBV_WC_SUCCESS);
		completes(wakes, IBV_WC_SUCCESS);
		printf("our fenced SEND was left lying until the next request\n");
	} else if (wc.wr_id != id || wc.status != IBV_WC_SUCCESS) {
		die("our work request %" PRIu64 " completed with \"%s\", not request %u with success", wc.wr_id,
		    ibv_wc_status_str(wc.status), id);
	}
}

/* A fenced SEND carries the bytes of the READ before it. */
static void rc_fence(void)
{
	enum { LENGTH = 60000 };
	struct work read = { .op = IBV_WR_RDMA_READ, .ours = PIECE(OURS, LENGTH), .at = THEIRS };
	struct work send = { .op = IBV_WR_SEND, .ours = PIECE(OURS, LENGTH), .flags = IBV_SEND_FENCE };

	open_link(IBV_QPT_RC, 0);
	for (int i = 0; i < 3; i++) {
		unsigned id = next_id++, first, second;
		peer("fill sge=%s seed=%u", text(PIECE(THEIRS, LENGTH)), id);
		peer("recv id=%u sge=%s", id, text(PIECE(400000, LENGTH)));
		first = post(read);
		second = post(send);
		completes(first, IBV_WC_SUCCESS);
		fenced_completes(second);
		arrived_at_peer(send, id);
		peer("check sge=%s seed=%u", text(PIECE(400000, LENGTH)), id);

		fill(PIECE(OURS, LENGTH), id = next_id++);
		unsigned receive = post_recv(0, PIECE(400000, LENGTH));
		peer("post id=%u op=read at=%" PRIu64 " key=%u sge=%s", id, address(OURS), mr->rkey, text(PIECE(THEIRS, LENGTH)));
		peer("post id=%u op=send fence=1 sge=%s", id + 1, text(PIECE(THEIRS, LENGTH)));
		next_id = id + 2;
		peer_completes(id, IBV_WC_SUCCESS);
		peer_completes(id + 1, IBV_WC_SUCCESS);
		completes(receive, IBV_WC_SUCCESS);
		check(PIECE(400000, LENGTH), id);
	}
}

static void rc_atomics(void)
{
	uint64_t first = 0x1122334455667788, second = 0xFFFFFFFFFFFFFFF0, old;
	unsigned id;

	open_link(IBV_QPT_RC, 0);
	peer("store off=800 value=%" PRIu64, first);
	struct work add = { .op = IBV_WR_ATOMIC_FETCH_AND_ADD, .ours = PIECE(0, 8), .at = 800, .compare_add = 0x1000 };
	completes(post(add), IBV_WC_SUCCESS);
	if ((old = load(0)) != first)
		die("FETCH_ADD found 0x%" PRIx64 " at the peer", old);
	struct work swap = { .op = IBV_WR_ATOMIC_CMP_AND_SWP, .ours = PIECE(0, 8), .at = 800, .compare_add = first, .swap = 7 };
	completes(post(swap), IBV_WC_SUCCESS); /* not equal: nothing is stored */
	swap.compare_add = first + 0x1000;
	swap.swap = second;
	completes(post(swap), IBV_WC_SUCCESS);
	if ((old = load(0)) != first + 0x1000)
		die("COMPARE_SWAP found 0x%" PRIx64 " at the peer", old);
	add.compare_add = 0x20;
	completes(post(add), IBV_WC_SUCCESS); /* past 2^64 */
	peer("load off=800");
	if (field("value") != second + 0x20)
		die("after all atomics the peer holds `%s`", answer);

	memcpy(buffer + 800, &first, 8);
	static const char *ops[] = { "add add=4096", "cas compare=1 swap=7", NULL, "add add=32" };
	uint64_t found[] = { first, first + 4096, first + 4096, second };
	for (int i = 0; i < 4; i++) {
		char cas[80];
		sprintf(cas, "cas compare=%" PRIu64 " swap=%" PRIu64, first + 4096, second);
		id = next_id++;
		peer("post id=%u at=%" PRIu64 " key=%u sge=0:8 op=%s", id, address(800), mr->rkey, ops[i] ? ops[i] : cas);
		peer_completes(id, IBV_WC_SUCCESS);
		peer("load off=0");
		if (field("value") != found[i])
			die("the peer's atomic %d found `%s`, not 0x%" PRIx64, i, answer, found[i]);
	}
	if ((old = load(800)) != second + 32)
		die("after all of the peer's atomics we hold 0x%" PRIx64, old);
}

/* ---- shared receive queues, receivers that are not ready, events ---- */

static void srq_of_peer(void)
{
	unsigned id = next_id;

	peer("srq max=16");
	open_link(IBV_QPT_RC, 1);
	open_link(IBV_QPT_RC, 1);
	for (int i = 0; i < 4; i++, next_id++)
		peer("recv qp=0 id=%u sge=%u:5000", next_id, THEIRS + 5000 * (next_id - id));
	peer("limit n=3");
	for (unsigned i = 0; i < 4; i++, id++) { /* a message on either queue pair consumes the next receive */
		struct work w = { .op = IBV_WR_SEND, .link = (int)(i & 1), .ours = PIECE(OURS, 5000 - i) };
		fill(w.ours, id);
		completes(post(w), IBV_WC_SUCCESS);
		arrived_at_peer(w, id);
		peer("check sge=%u:%u seed=%u", THEIRS + 5000 * i, 5000 - i, id);
		if (i == 1)
			peer_event("srq_limit");
	}
	/* One queue pair goes to ERROR; the other one keeps the receives. */
	completes(post((struct work){ .op = IBV_WR_RDMA_WRITE, .ours = PIECE(0, 8), .at = remote_addr, .key = remote_key ^ 0x100 }),
		  IBV_WC_REM_ACCESS_ERR);
	peer_event("qp_error");
	peer_event("last_wqe");
	to_peer((struct work){ .op = IBV_WR_SEND, .link = 1, .ours = PIECE(OURS, 3000) }, PIECE(THEIRS, 3000));
}

static void srq_of_ours(void)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 16, .max_sge = 4 } };
	struct ibv_srq_attr limit = { .srq_limit = 3 };
	unsigned receives[4];

	srq = ibv_create_srq(pd, &init);
	need(srq != NULL, "ibv_create_srq");
	open_link(IBV_QPT_RC, 0);
	open_link(IBV_QPT_RC, 0);
	for (unsigned i = 0; i < 4; i++)
		receives[i] = post_recv(0, PIECE(OURS + 5000 * i, 5000));
	need(!ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT), "ibv_modify_srq");
	for (unsigned i = 0; i < 4; i++) {
		unsigned id = next_id++;
		peer("fill sge=%s seed=%u", text(PIECE(THEIRS, 5000 - i)), id);
		peer("post qp=%u id=%u op=send sge=%s", i & 1, id, text(PIECE(THEIRS, 5000 - i)));
		peer_completes(id, IBV_WC_SUCCESS);
		struct ibv_wc wc = completes(receives[i], IBV_WC_SUCCESS);
		if (wc.qp_num != links[i & 1].qp->qp_num || wc.byte_len != 5000 - i)
			die("message %u came by queue pair %u with %u bytes", i, wc.qp_num, wc.byte_len);
		check(PIECE(OURS + 5000 * i, 5000 - i), id);
		if (i == 1)
			our_event(IBV_EVENT_SRQ_LIMIT_REACHED);
	}
}

/* A SEND waits until a receive is posted. */
static void rc_rnr(void)
{
	struct work w = { .op = IBV_WR_SEND, .ours = PIECE(OURS, 9000) };
	unsigned id = next_id++, posted;
	struct ibv_wc wc;

	open_link(IBV_QPT_RC, 0);
	fill(w.ours, id);
	posted = post(w);
	if (poll_completion(&wc, 100))
		die("a SEND without a receive completed with \"%s\"", ibv_wc_status_str(wc.status));
	peer("recv id=%u sge=%s", id, text(PIECE(THEIRS, 9000)));
	completes(posted, IBV_WC_SUCCESS);
	arrived_at_peer(w, id);
	peer("check sge=%s seed=%u", text(PIECE(THEIRS, 9000)), id);

	peer("fill sge=%s seed=%u", text(PIECE(THEIRS, 9000)), id = next_id++);
	peer("post id=%u op=send sge=%s", id, text(PIECE(THEIRS, 9000)));
	usleep(100000);
	posted = post_recv(0, PIECE(OURS, 9000));
	peer_completes(id, IBV_WC_SUCCESS);
	completes(posted, IBV_WC_SUCCESS);
	check(PIECE(OURS, 9000), id);
}

/* Only a message with the solicited event flag raises an event armed for solicited completions. */
static void rc_solicited(void)
{
	struct pollfd p = { .fd = channel->fd, .events = POLLIN };
	struct ibv_cq *which;
	void *context;

	open_link(IBV_QPT_RC, 0);
	need(!ibv_req_notify_cq(cq, 1), "ibv_req_notify_cq");
	to_us(0, PIECE(THEIRS, 10), PIECE(OURS, 10), "op=send");
	if (poll(&p, 1, 200))
		die("an unsolicited message made an event");
	to_us(0, PIECE(THEIRS, 10), PIECE(OURS, 10), "op=send solicited=1");
	if (poll(&p, 1, WAIT_MS) != 1)
		die("a solicited message made no event");
	need(!ibv_get_cq_event(channel, &which, &context), "ibv_get_cq_event");
	ibv_ack_cq_events(which, 1);
	peer("recv id=%u sge=0:8", next_id++);
	completes(post((struct work){ .op = IBV_WR_SEND, .ours = PIECE(0, 8), .flags = IBV_SEND_SOLICITED }), IBV_WC_SUCCESS);
	peer("wc");
	if (field("solicited") != 1)
		die("our solicited message arrived as `%s`", answer);
}

/* ---- datagrams and unreliable connections: messages that must not arrive ---- */

static void uc_no_receive(void)
{
	struct work lost = { .op = IBV_WR_SEND, .ours = PIECE(OURS, 3000) };
	unsigned id = next_id++;

	open_link(IBV_QPT_UC, 0);
	completes(post(lost), IBV_WC_SUCCESS);
	to_peer((struct work){ .op = IBV_WR_SEND, .ours = PIECE(OURS, 3001) }, PIECE(THEIRS, 3001));
	peer("post id=%u op=send sge=%s", id, text(PIECE(THEIRS, 3000)));
	peer_completes(id, IBV_WC_SUCCESS);
	usleep(100000);
	to_us(0, PIECE(THEIRS, 3001), PIECE(OURS, 3001), "op=send");
}

static void ud_wrong_qkey(void)
{
	unsigned id = next_id++, receive;

	open_link(IBV_QPT_UD, 0);
	peer("recv id=%u sge=%s", id, text(with_grh(PIECE(THEIRS, 500))));
	completes(post((struct work){ .op = IBV_WR_SEND, .ours = PIECE(OURS, 400), .qkey = QKEY + 1 }), IBV_WC_SUCCESS);
	struct work w = { .op = IBV_WR_SEND, .ours = PIECE(OURS, 500) };
	fill(w.ours, id);
	completes(post(w), IBV_WC_SUCCESS);
	arrived_at_peer(w, id);
	peer("check sge=%s seed=%u", text(PIECE(THEIRS, 500)), id);

	receive = post_recv(0, with_grh(PIECE(OURS, 500)));
	peer("post id=%u op=send qkey=%u sge=%s", id = next_id++, QKEY + 1, text(PIECE(THEIRS, 400)));
	peer_completes(id, IBV_WC_SUCCESS);
	peer("fill sge=%s seed=%u", text(PIECE(THEIRS, 500)), id = next_id++);
	peer("post id=%u op=send qkey=%u sge=%s", id, QKEY, text(PIECE(THEIRS, 500)));
	peer_completes(id, IBV_WC_SUCCESS);
	completes(receive, IBV_WC_SUCCESS);
	check(PIECE(OURS, 500), id);
}

/* The 40 bytes in front of a datagram must hold the addresses of its packet. */
static void check_grh(const char *whose, const uint8_t *grh, union ibv_gid src, union ibv_gid dst)
{
	const uint8_t *header = ipv4 ? grh + 20 : grh;
	int version = ipv4 ? 4 : 6, length = ipv4 ? 4 : 16, at = ipv4 ? 12 : 8, skip = ipv4 ? 12 : 0;

	if (header[0] >> 4 != version || memcmp(header + at, src.raw + skip, length) ||
	    memcmp(header + at + length, dst.raw + skip, length))
		die("%s GRH is not that of a packet between the two GIDs", whose);
}

static void ud_grh(void)
{
	uint8_t grh[GRH];

	open_link(IBV_QPT_UD, 0);
	struct ibv_wc wc = to_us(0, PIECE(THEIRS, 77), PIECE(OURS, 77), "op=send");
	if (wc.src_qp != links[0].remote_qpn || !(wc.wc_flags & IBV_WC_GRH))
		die("a datagram from queue pair 0x%x came as one from 0x%x, flags 0x%x", links[0].remote_qpn, wc.src_qp, wc.wc_flags);
	check_grh("our", buffer + OURS - GRH, remote_gid, gid);
	to_peer((struct work){ .op = IBV_WR_SEND, .ours = PIECE(OURS, 77) }, PIECE(THEIRS, 77));
	peer("bytes off=%u len=%d", THEIRS - GRH, GRH);
	const char *hex = field_text("bytes");
	for (int i = 0; i < GRH; i++)
		if (sscanf(hex + 2 * i, "%2hhx", &grh[i]) != 1)
			die("the peer's bytes are `%s`", answer);
	check_grh("the peer's", grh, gid, remote_gid);
}

/* ---- the list ---- */

const struct test message_cases[] = {
	{ "rc-send", rc_send, "SEND, with and without immediate data, of many lengths" },
	{ "rc-write", rc_write, "WRITE, with and without immediate data, of many lengths" },
	{ "rc-read", rc_read, "READ of many lengths" },
	{ "rc-pieces", rc_pieces, "several buffers per work request" },
	{ "rc-inline", rc_inline, "inline data" },
	{ "rc-fence", rc_fence, "a fenced SEND behind a READ" },
	{ "rc-atomics", rc_atomics, "FETCH_ADD and COMPARE_SWAP" },
	{ "rc-rnr", rc_rnr, "a receiver that is not ready" },
	{ "rc-solicited", rc_solicited, "solicited events" },
	{ "rc-srq-of-peer", srq_of_peer, "the peer's shared receive queue, two queue pairs" },
	{ "rc-srq-of-ours", srq_of_ours, "a shared receive queue of ours, two queue pairs" },
	{ "uc-send", uc_send, "SEND, with and without immediate data, of many lengths" },
	{ "uc-write", uc_write, "WRITE, with and without immediate data, of many lengths" },
	{ "uc-no-receive", uc_no_receive, "a message without a receive is lost, the next one arrives" },
	{ "ud-send", ud_send, "datagrams, with and without immediate data" },
	{ "ud-grh", ud_grh, "addresses and queue pair of the sender" },
	{ "ud-wrong-qkey", ud_wrong_qkey, "a datagram with a wrong Q_Key is lost, the next one arrives" },
	{ 0 },
};
