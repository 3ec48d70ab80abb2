/* See side.h. */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <inttypes.h>
#include <netdb.h>
#include <poll.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "side.h"

#define PORT "4799"

enum { DEPTH = 32 };

struct ibv_context *device;
struct ibv_pd *pd;
struct ibv_comp_channel *channel;
struct ibv_cq *cq;
struct ibv_srq *srq;
struct ibv_mr *mr;
uint8_t *buffer;
enum ibv_mtu mtu;
union ibv_gid gid, remote_gid;
int ipv4;
struct link links[MAX_LINKS];
unsigned next_id = 1;
char answer[4096];
uint64_t remote_addr;
uint32_t remote_key;

static int sock, gid_index, link_count;
static struct ibv_ah *ah;

void die(const char *format, ...)
{
	va_list list;

	va_start(list, format);
	fprintf(stderr, "verbs_client: ");
	vfprintf(stderr, format, list);
	fprintf(stderr, "\n");
	exit(1);
}

void need(int ok, const char *what)
{
	if (!ok)
		die("%s: %s", what, strerror(errno));
}

/* ---- the peer ---- */

void peer(const char *format, ...)
{
	char line[1024];
	size_t got = 0;
	va_list list;

	va_start(list, format);
	int n = vsnprintf(line, sizeof line - 1, format, list);
	va_end(list);
	if (n < 0 || n >= (int)sizeof line - 1)
		die("a line for the peer is too long");
	line[n++] = '\n';
	if (write(sock, line, (size_t)n) != n)
		die("the peer takes no more lines: %s", strerror(errno));
	line[n - 1] = 0;
	do {
		ssize_t more = read(sock, answer + got, sizeof answer - 1 - got);
		if (more <= 0)
			die("no answer to `%s`: %s", line, more ? strerror(errno) : "the peer has closed the stream");
		got += (size_t)more;
	} while (answer[got - 1] != '\n');
	answer[got - 1] = 0;
	if (strncmp(answer, "ok", 2))
		die("peer: `%s`: %s", line, answer);
}

const char *field_text(const char *name)
{
	size_t length = strlen(name);

	for (const char *at = answer; (at = strchr(at, ' ')) != NULL;)
		if (!strncmp(++at, name, length) && at[length] == '=')
			return at + length + 1;
	die("the peer's answer `%s` lacks %s", answer, name);
}

uint64_t field(const char *name)
{
	return strtoull(field_text(name), NULL, 0);
}

int field_is(const char *name, const char *value)
{
	const char *at = field_text(name);
	size_t length = strlen(value);

	return !strncmp(at, value, length) && (!at[length] || at[length] == ' ');
}

const char *text(struct pieces pieces)
{
	static char texts[4][128];
	static int turn;
	char *out = texts[turn++ % 4], *end = out;

	*out = 0;
	for (int i = 0; i < 4 && pieces.p[i].len; i++)
		end += sprintf(end, "%s%u:%u", i ? "," : "", pieces.p[i].off, pieces.p[i].len);
	return out;
}

void peer_completes(unsigned id, enum ibv_wc_status status)
{
	peer("wc");
	if (field("id") != id || field("status") != status)
		die("the peer's work request %" PRIu64 " completed with \"%s\", not request %u with \"%s\"", field("id"),
		    ibv_wc_status_str((enum ibv_wc_status)field("status")), id, ibv_wc_status_str(status));
}

void peer_event(const char *name)
{
	peer("event");
	if (!field_is("event", name))
		die("the peer's event is `%s`, not %s", answer, name);
}

/* ---- our memory ---- */

uint32_t total(struct pieces pieces)
{
	uint32_t sum = 0;

	for (int i = 0; i < 4 && pieces.p[i].len; i++)
		sum += pieces.p[i].len;
	return sum;
}

/* xorshift64* */
static uint8_t random_byte(uint64_t *x)
{
	*x ^= *x >> 12;
	*x ^= *x << 25;
	*x ^= *x >> 27;
	return (uint8_t)((*x * 0x2545F4914F6CDD1Du) >> 56);
}

static uint64_t random_start(unsigned seed)
{
	return seed * 0x9E3779B97F4A7C15u + 1;
}

void fill(struct pieces pieces, unsigned seed)
{
	uint64_t x = random_start(seed);

	for (int i = 0; i < 4 && pieces.p[i].len; i++)
		for (uint32_t k = 0; k < pieces.p[i].len; k++)
			buffer[pieces.p[i].off + k] = random_byte(&x);
}

void check(struct pieces pieces, unsigned seed)
{
	uint64_t x = random_start(seed);
	uint32_t at = 0;

	for (int i = 0; i < 4 && pieces.p[i].len; i++)
		for (uint32_t k = 0; k < pieces.p[i].len; k++, at++) {
			uint8_t want = random_byte(&x), have = buffer[pieces.p[i].off + k];
			if (have != want)
				die("our byte %u of message %u is 0x%02x, not 0x%02x", at, seed, have, want);
		}
}

uint64_t load(uint32_t off)
{
	uint64_t value;

	memcpy(&value, buffer + off, 8);
	return value;
}

uint64_t address(uint32_t off)
{
	return (uintptr_t)buffer + off;
}

/* ---- our queue pairs ---- */

static void modify(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask, const char *what)
{
	int error = ibv_modify_qp(qp, attr, mask);

	if (error)
		die("ibv_modify_qp to %s: %s", what, strerror(error));
}

void open_link(enum ibv_qp_type type, int peer_srq)
{
	static const char *names[] = { [IBV_QPT_RC] = "rc", [IBV_QPT_UC] = "uc", [IBV_QPT_UD] = "ud" };
	if (link_count == MAX_LINKS)
		die("too many links");
	struct link *l = &links[link_count++];
	uint32_t psn = 0xFFFFF0 + (uint32_t)link_count; /* soon wraps around */
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .srq = srq, .qp_type = type,
		.cap = { .max_send_wr = DEPTH, .max_recv_wr = DEPTH, .max_send_sge = 4, .max_recv_sge = 4, .max_inline_data = INLINE },
	};
	char hex[33] = "";

	l->qp = ibv_create_qp(pd, &init);
	need(l->qp != NULL, "ibv_create_qp");
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = QKEY,
				    .qp_access_flags = IBV_ACCESS_LOCAL_WRITE | REMOTE };
	int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
	modify(l->qp, &attr, mask | (type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS), "INIT");
	for (int i = 0; i < 16; i++)
		sprintf(hex + 2 * i, "%02x", gid.raw[i]);
	peer("open type=%s gid=%s qpn=%u psn=%u mtu=%u qkey=%u srq=%d", names[type], hex, l->qp->qp_num, psn, 128u << mtu, QKEY,
	     peer_srq);
	l->remote_qpn = (uint32_t)field("qpn");
	remote_addr = field("addr");
	remote_key = (uint32_t)field("rkey");
	const char *text = field_text("gid");
	for (int i = 0; i < 16; i++)
		if (sscanf(text + 2 * i, "%2hhx", &remote_gid.raw[i]) != 1)
			die("the peer's GID `%s` is none", text);
	struct ibv_ah_attr way = { .is_global = 1, .port_num = 1,
				   .grh = { .dgid = remote_gid, .sgid_index = (uint8_t)gid_index, .hop_limit = 64 } };
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTR, .path_mtu = mtu, .dest_qp_num = l->remote_qpn,
				     .rq_psn = (uint32_t)field("psn"), .max_dest_rd_atomic = 16, .min_rnr_timer = 12, .ah_attr = way };
	mask = IBV_QP_STATE;
	if (type != IBV_QPT_UD)
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (type == IBV_QPT_RC)
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	modify(l->qp, &attr, mask, "RTR");
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .sq_psn = psn, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7,
				     .max_rd_atomic = 16 };
	mask = IBV_QP_STATE | IBV_QP_SQ_PSN;
	if (type == IBV_QPT_RC)
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	modify(l->qp, &attr, mask, "RTS");
	if (type == IBV_QPT_UD && !ah) {
		ah = ibv_create_ah(pd, &way);
		need(ah != NULL, "ibv_create_ah");
	}
}

static int sges(struct pieces pieces, struct ibv_sge *sge)
{
	int n = 0;

	for (; n < 4 && pieces.p[n].len; n++)
		sge[n] = (struct ibv_sge){ .addr = address(pieces.p[n].off), .length = pieces.p[n].len, .lkey = mr->lkey };
	return n;
}

unsigned post_wr(int link, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;

	wr->wr_id = next_id++;
	wr->send_flags |= IBV_SEND_SIGNALED;
	int error = ibv_post_send(links[link].qp, wr, &bad);
	if (error)
		die("ibv_post_send: %s", strerror(error));
	return (unsigned)wr->wr_id;
}

unsigned post(struct work w)
{
	struct ibv_sge sge[4];
	struct ibv_send_wr wr = { .opcode = w.op, .sg_list = sge, .num_sge = sges(w.ours, sge), .send_flags = w.flags };
	struct link *l = &links[w.link];
	uint64_t at = w.key ? w.at : remote_addr + w.at;
	uint32_t key = w.key ? w.key : remote_key;

	if (w.op == IBV_WR_SEND_WITH_INV || w.op == IBV_WR_LOCAL_INV)
		wr.invalidate_rkey = w.imm;
	else
		wr.imm_data = htonl(w.imm);
	if (w.op == IBV_WR_ATOMIC_CMP_AND_SWP || w.op == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = at;
		wr.wr.atomic.rkey = key;
		wr.wr.atomic.compare_add = w.compare_add;
		wr.wr.atomic.swap = w.swap;
	} else if (l->qp->qp_type == IBV_QPT_UD) {
		wr.wr.ud.ah = ah;
		wr.wr.ud.remote_qpn = l->remote_qpn;
		wr.wr.ud.remote_qkey = w.qkey ? w.qkey : QKEY;
	} else {
		wr.wr.rdma.remote_addr = at;
		wr.wr.rdma.rkey = key;
	}
	return post_wr(w.link, &wr);
}

unsigned post_recv(int link, struct pieces pieces)
{
	struct ibv_sge sge[4];
	struct ibv_recv_wr wr = { .wr_id = next_id++, .sg_list = sge, .num_sge = sges(pieces, sge) }, *bad;
	int error = srq ? ibv_post_srq_recv(srq, &wr, &bad) : ibv_post_recv(links[link].qp, &wr, &bad);

	if (error)
		die("posting a receive: %s", strerror(error));
	return (unsigned)wr.wr_id;
}

int poll_completion(struct ibv_wc *wc, int limit)
{
	for (int waited = 0;; waited++) {
		int got = ibv_poll_cq(cq, 1, wc);
		if (got < 0)
			die("ibv_poll_cq failed");
		if (got || waited >= limit)
			return got;
		usleep(1000);
	}
}

struct ibv_wc completes(unsigned id, enum ibv_wc_status status)
{
	struct ibv_wc wc;

	if (!poll_completion(&wc, WAIT_MS))
		die("no completion of our work request %u within %d s", id, WAIT_MS / 1000);
	if (wc.wr_id != id || wc.status != status)
		die("our work request %" PRIu64 " completed with \"%s\", not request %u with \"%s\"", wc.wr_id,
		    ibv_wc_status_str(wc.status), id, ibv_wc_status_str(status));
	return wc;
}

void our_event(enum ibv_event_type want)
{
	struct pollfd p = { .fd = device->async_fd, .events = POLLIN };
	struct ibv_async_event event;

	if (poll(&p, 1, WAIT_MS) != 1 || ibv_get_async_event(device, &event))
		die("no event \"%s\"", ibv_event_type_str(want));
	ibv_ack_async_event(&event);
	if (event.event_type != want)
		die("event \"%s\", not \"%s\"", ibv_event_type_str(event.event_type), ibv_event_type_str(want));
}

void our_state_becomes(int link, enum ibv_qp_state want)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	for (int waited = 0; waited < WAIT_MS; waited++) {
		need(!ibv_query_qp(links[link].qp, &attr, IBV_QP_STATE, &init), "ibv_query_qp");
		if (attr.qp_state == want)
			return;
		usleep(1000);
	}
	die("our queue pair is in state %d, not %d", attr.qp_state, want);
}

/* ---- start and end ---- */

void connect_to(const char *where)
{
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM }, *info;
	struct sockaddr_storage local;
	socklen_t length = sizeof local;
	struct ibv_port_attr port;

	if (getaddrinfo(where, PORT, &hints, &info)) {
		fprintf(stderr, "verbs_client: %s is no address\n", where);
		exit(2); /* usage */
	}
	sock = socket(info->ai_family, SOCK_STREAM, 0);
	need(sock >= 0 && !connect(sock, info->ai_addr, info->ai_addrlen), "connect");
	struct timeval limit = { .tv_sec = 2 * WAIT_MS / 1000 };
	need(!setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), "SO_RCVTIMEO");
	need(!getsockname(sock, (struct sockaddr *)&local, &length), "getsockname");
	ipv4 = info->ai_family == AF_INET;
	freeaddrinfo(info);
	if (ipv4) {
		gid.raw[10] = gid.raw[11] = 0xff;
		memcpy(gid.raw + 12, &((struct sockaddr_in *)&local)->sin_addr, 4);
	} else {
		memcpy(gid.raw, &((struct sockaddr_in6 *)&local)->sin6_addr, 16);
	}

	struct ibv_device **devices = ibv_get_device_list(NULL);
	need(devices && devices[0], "ibv_get_device_list");
	device = ibv_open_device(devices[0]);
	need(device != NULL, "ibv_open_device");
	ibv_free_device_list(devices);
	need(!ibv_query_port(device, 1, &port), "ibv_query_port");
	mtu = port.active_mtu;
	union ibv_gid entry;
	for (gid_index = 0; gid_index < port.gid_tbl_len; gid_index++)
		if (!ibv_query_gid(device, 1, gid_index, &entry) && !memcmp(&entry, &gid, sizeof gid))
			break;
	if (gid_index == port.gid_tbl_len)
		die("the device has no GID for our address");
	pd = ibv_alloc_pd(device);
	need(pd != NULL, "ibv_alloc_pd");
	channel = ibv_create_comp_channel(device);
	need(channel != NULL, "ibv_create_comp_channel");
	cq = ibv_create_cq(device, 4 * DEPTH, NULL, channel, 0);
	need(cq != NULL, "ibv_create_cq");
	buffer = aligned_alloc(4096, BUFFER);
	need(buffer != NULL, "aligned_alloc");
	memset(buffer, 0, BUFFER);
	mr = ibv_reg_mr(pd, buffer, BUFFER, IBV_ACCESS_LOCAL_WRITE | REMOTE | IBV_ACCESS_MW_BIND);
	need(mr != NULL, "ibv_reg_mr");
}

void end(void)
{
	struct ibv_wc wc;

	if (poll_completion(&wc, 0))
		die("one completion too many: work request %" PRIu64 ", \"%s\"", wc.wr_id, ibv_wc_status_str(wc.status));
	peer("end");
	for (int i = 0; i < link_count; i++)
		need(!ibv_destroy_qp(links[i].qp), "ibv_destroy_qp");
	if (srq)
		need(!ibv_destroy_srq(srq), "ibv_destroy_srq");
	if (ah)
		need(!ibv_destroy_ah(ah), "ibv_destroy_ah");
	need(!ibv_dereg_mr(mr), "ibv_dereg_mr");
	need(!ibv_destroy_cq(cq), "ibv_destroy_cq");
	need(!ibv_destroy_comp_channel(channel), "ibv_destroy_comp_channel");
	need(!ibv_dealloc_pd(pd), "ibv_dealloc_pd");
	need(!ibv_close_device(device), "ibv_close_device");
}
