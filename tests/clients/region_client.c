/*
 * Accesses a memory region that rxe-target's `region` service exports; or exports one itself, for comparison.
 *
 * usage: region_client [-p PORT] [-r REGION] [-t ACK_TIMEOUT_CODE] [-w BYTES] [-q COUNT] ADDRESS COMMAND...
 *        region_client [-p PORT] [-r REGION] [-t ACK_TIMEOUT_CODE] ADDRESS serve LENGTH
 *
 * -w: bytes per work request (1 MiB); -q: work requests outstanding at once (1, at most 16).
 *
 * One connection, then the commands in order (numbers decimal or 0x...; offsets from the region's start):
 *   info                          print the region's name, address, length and key
 *   write OFFSET TEXT             WRITE the text (without its NUL)
 *   writefile OFFSET FILE         WRITE a file's bytes
 *   read OFFSET LENGTH            READ and print the bytes, in hex and as text
 *   readfile OFFSET LENGTH FILE   READ into a file
 *   fadd OFFSET N                 FETCH_ADD; prints the old value
 *   cas OFFSET COMPARE SWAP       COMPARE_SWAP; prints the old value
 *   pattern OFFSET LENGTH SEED    WRITE pseudo-random bytes, READ them back, compare
 *   fill OFFSET LENGTH SEED       WRITE the pattern only
 *   verify OFFSET LENGTH SEED     READ and compare with the pattern
 *   bad read|write|atomic|key     an access that the target must refuse (it ends the connection)
 *   hold SECONDS                  wait for the target to disconnect
 * fill and verify print the time of their transfers. `serve` accepts connections, of which only the newest is used, until
 * it is killed.
 *
 * Exit codes: 0 success, 1 a command failed, 2 usage, 3 the target rejected the connection, 4 no connection.
 */
#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <netdb.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { FAILED = 1, USAGE = 2, REJECTED = 3, UNREACHABLE = 4 };
enum { CONNECT_MS = 20000, COMPLETE_MS = 60000, MAX_OUTSTANDING = 16 };

/* The private data of the REP, big endian. */
struct grant {
	uint64_t address, length;
	uint32_t key, reserved;
	char name[32];
} __attribute__((packed));

static struct rdma_event_channel *events;
static struct rdma_cm_id *id;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_mr *buffer_mr;
static uint8_t *buffer;
static size_t buffer_length;
static uint64_t region_address, region_length;
static uint32_t region_key;
static uint64_t piece = 1 << 20, outstanding = 1;
static int disconnected;

static void __attribute__((noreturn, format(printf, 2, 3))) die(int code, const char *format, ...)
{
	va_list list;

	fflush(stdout);
	va_start(list, format);
	fprintf(stderr, "region_client: ");
	vfprintf(stderr, format, list);
	fprintf(stderr, "\n");
	exit(code);
}

static void need(int ok, const char *what)
{
	if (!ok)
		die(UNREACHABLE, "%s: %s", what, strerror(errno));
}

/* Waits up to `limit` ms for the channel's descriptor. */
static int readable(int fd, int limit)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	return poll(&p, 1, limit) == 1;
}

static void print_text(const uint8_t *data, size_t length)
{
	putchar('"');
	for (size_t i = 0; i < length; i++)
		putchar(data[i] >= 0x20 && data[i] < 0x7f ? data[i] : '.');
	putchar('"');
}

/* The next CM event must be `want`; its private data is copied to `data` unless that is NULL. */
static void expect_event(enum rdma_cm_event_type want, void *data, size_t length)
{
	struct rdma_cm_event *event;

	if (!readable(events->fd, CONNECT_MS))
		die(UNREACHABLE, "no answer while waiting for %s", rdma_event_str(want));
	need(!rdma_get_cm_event(events, &event), "rdma_get_cm_event");
	if (event->event == RDMA_CM_EVENT_REJECTED) {
		const char *text = event->param.conn.private_data;
		printf("rejected: reason %d, private data ", event->status);
		print_text((const uint8_t *)text, text ? strnlen(text, event->param.conn.private_data_len) : 0);
		printf("\n");
		exit(REJECTED);
	}
	if (event->event != want)
		die(UNREACHABLE, "%s (status %d) instead of %s", rdma_event_str(event->event), event->status,
		    rdma_event_str(want));
	if (data) {
		if (event->param.conn.private_data_len < length)
			die(UNREACHABLE, "the REP's private data has only %u bytes", event->param.conn.private_data_len);
		memcpy(data, event->param.conn.private_data, length);
	}
	rdma_ack_cm_event(event);
}

static void use_buffer(size_t length)
{
	if (length <= buffer_length)
		return;
	if (buffer_mr)
		ibv_dereg_mr(buffer_mr);
	free(buffer);
	buffer_length = (length + 4095) & ~(size_t)4095;
	buffer = aligned_alloc(4096, buffer_length);
	if (!buffer)
		die(FAILED, "out of memory");
	memset(buffer, 0, buffer_length);
	buffer_mr = ibv_reg_mr(id->pd, buffer, buffer_length, IBV_ACCESS_LOCAL_WRITE);
	if (!buffer_mr)
		die(FAILED, "ibv_reg_mr of %zu bytes: %s", buffer_length, strerror(errno));
}

static void post(struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;

	wr->send_flags = IBV_SEND_SIGNALED;
	if (ibv_post_send(id->qp, wr, &bad))
		die(FAILED, "ibv_post_send: %s", strerror(errno));
}

/* Waits for the next completion and returns its status. */
static enum ibv_wc_status complete(void)
{
	struct ibv_wc wc;
	int got;

	while ((got = ibv_poll_cq(cq, 1, &wc)) == 0) {
		struct ibv_cq *which;
		void *context;

		if (ibv_req_notify_cq(cq, 0))
			die(FAILED, "ibv_req_notify_cq failed");
		if ((got = ibv_poll_cq(cq, 1, &wc)) != 0)
			break;
		if (!readable(channel->fd, COMPLETE_MS))
			die(FAILED, "no completion within %d s", COMPLETE_MS / 1000);
		if (ibv_get_cq_event(channel, &which, &context))
			die(FAILED, "ibv_get_cq_event: %s", strerror(errno));
		ibv_ack_cq_events(which, 1);
	}
	if (got < 0)
		die(FAILED, "ibv_poll_cq failed");
	return wc.status;
}

static enum ibv_wc_status execute(struct ibv_send_wr *wr)
{
	post(wr);
	return complete();
}

static void post_transfer(enum ibv_wr_opcode opcode, uint64_t local, uint64_t remote, uint32_t key, uint32_t length)
{
	struct ibv_sge sge = { .addr = (uintptr_t)buffer + local, .length = length, .lkey = buffer_mr->lkey };
	struct ibv_send_wr wr = { .opcode = opcode, .sg_list = &sge, .num_sge = length ? 1 : 0 };

	wr.wr.rdma.remote_addr = remote;
	wr.wr.rdma.rkey = key;
	post(&wr);
}

static enum ibv_wc_status transfer(enum ibv_wr_opcode opcode, uint64_t local, uint64_t remote, uint32_t key, uint32_t length)
{
	post_transfer(opcode, local, remote, key, length);
	return complete();
}

/* READs or WRITEs buffer[0..length] at `offset` of the region, in pieces that complete in order. */
static void move(enum ibv_wr_opcode opcode, uint64_t offset, uint64_t length)
{
	const char *name = opcode == IBV_WR_RDMA_READ ? "READ" : "WRITE";

	uint64_t pieces = length ? (length + piece - 1) / piece : 1, posted = 0, done = 0;

	while (done < pieces) {
		while (posted < pieces && posted - done < outstanding) {
			uint64_t at = posted++ * piece, left = length - at;
			post_transfer(opcode, at, region_address + offset + at, region_key, (uint32_t)(left < piece ? left : piece));
		}
		enum ibv_wc_status status = complete();
		if (status != IBV_WC_SUCCESS)
			die(FAILED, "%s at offset %" PRIu64 ": %s", name, offset + done * piece, ibv_wc_status_str(status));
		done++;
	}
}

static int64_t now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Does a `move`, and prints its time. */
static void move_timed(enum ibv_wr_opcode opcode, uint64_t offset, uint64_t length)
{
	int64_t began = now_ms();

	move(opcode, offset, length);
	printf("%s of %" PRIu64 " bytes took %" PRId64 " ms\n", opcode == IBV_WR_RDMA_READ ? "READ" : "WRITE", length,
	       now_ms() - began);
}

static uint64_t atomic_at(enum ibv_wr_opcode opcode, uint64_t remote, uint64_t operand, uint64_t swap, enum ibv_wc_status *status)
{
	struct ibv_sge sge = { .length = 8 };
	struct ibv_send_wr wr = { .opcode = opcode, .sg_list = &sge, .num_sge = 1 };
	uint64_t old;

	use_buffer(8);
	sge.addr = (uintptr_t)buffer;
	sge.lkey = buffer_mr->lkey;
	wr.wr.atomic.remote_addr = remote;
	wr.wr.atomic.compare_add = operand;
	wr.wr.atomic.swap = swap;
	wr.wr.atomic.rkey = region_key;
	*status = execute(&wr);
	memcpy(&old, buffer, 8);
	return old;
}

static void do_atomic(const char *name, enum ibv_wr_opcode opcode, uint64_t offset, uint64_t operand, uint64_t swap)
{
	enum ibv_wc_status status;
	uint64_t old = atomic_at(opcode, region_address + offset, operand, swap, &status);

	if (status != IBV_WC_SUCCESS)
		die(FAILED, "%s at offset %" PRIu64 ": %s", name, offset, ibv_wc_status_str(status));
	printf("%s %" PRIu64 ": was %" PRIu64 "\n", name, offset, old);
}

/* Pseudo-random bytes from a seed: the little-endian words of xorshift64*. */
static void fill_pattern(uint8_t *data, uint64_t length, uint64_t seed)
{
	uint64_t x = seed * 0x9E3779B97F4A7C15u + 1;

	for (uint64_t i = 0; i < length; i += 8) {
		x ^= x >> 12;
		x ^= x << 25;
		x ^= x >> 27;
		uint64_t word = htole64(x * 0x2545F4914F6CDD1Du);
		memcpy(data + i, &word, length - i < 8 ? length - i : 8);
	}
}

static void compare_pattern(const char *name, uint64_t offset, uint64_t length, uint64_t seed)
{
	uint8_t *want = malloc(length + 1);

	if (!want)
		die(FAILED, "out of memory");
	fill_pattern(want, length, seed);
	if (memcmp(want, buffer, length)) {
		uint64_t i = 0;
		while (want[i] == buffer[i])
			i++;
		die(FAILED, "%s: offset %" PRIu64 " holds 0x%02x, not 0x%02x", name, offset + i, buffer[i], want[i]);
	}
	free(want);
	printf("%s ok: offset %" PRIu64 ", %" PRIu64 " bytes, seed %" PRIu64 "\n", name, offset, length, seed);
}

static void do_bad(const char *kind)
{
	enum ibv_wc_status status;

	use_buffer(4096);
	if (!strcmp(kind, "read"))	/* the last byte and one behind it */
		status = transfer(IBV_WR_RDMA_READ, 0, region_address + region_length - 1, region_key, 2);
	else if (!strcmp(kind, "write"))
		status = transfer(IBV_WR_RDMA_WRITE, 0, region_address + region_length - 1, region_key, 2);
	else if (!strcmp(kind, "key"))
		status = transfer(IBV_WR_RDMA_READ, 0, region_address, region_key ^ 0x100, 8);
	else if (!strcmp(kind, "atomic"))
		atomic_at(IBV_WR_ATOMIC_FETCH_AND_ADD, region_address + region_length, 1, 0, &status);
	else
		die(USAGE, "bad read, bad write, bad key or bad atomic");
	if (status != IBV_WC_REM_ACCESS_ERR)
		die(FAILED, "bad %s: completed with \"%s\", not with a remote access error", kind, ibv_wc_status_str(status));
	printf("bad %s: refused with a remote access error\n", kind);
}

static void do_hold(uint64_t seconds)
{
	struct rdma_cm_event *event;

	printf("holding\n");
	fflush(stdout);
	if (!readable(events->fd, (int)seconds * 1000))
		die(FAILED, "still connected after %" PRIu64 " s", seconds);
	if (rdma_get_cm_event(events, &event) || event->event != RDMA_CM_EVENT_DISCONNECTED)
		die(FAILED, "%s instead of a disconnect", rdma_event_str(event->event));
	rdma_ack_cm_event(event);
	disconnected = 1;
	printf("disconnected by the target\n");
}

static size_t load_file(const char *name)
{
	FILE *f = fopen(name, "rb");
	long length;

	if (!f || fseek(f, 0, SEEK_END) || (length = ftell(f)) < 0)
		die(FAILED, "%s: %s", name, strerror(errno));
	rewind(f);
	use_buffer((size_t)length + 1);
	if (fread(buffer, 1, (size_t)length, f) != (size_t)length)
		die(FAILED, "%s: cannot read it", name);
	fclose(f);
	return (size_t)length;
}

static void save_file(const char *name, size_t length)
{
	FILE *f = fopen(name, "wb");

	if (!f || fwrite(buffer, 1, length, f) != length || fclose(f))
		die(FAILED, "%s: %s", name, strerror(errno));
}

static uint64_t number(const char *text)
{
	char *end;
	uint64_t value = strtoull(text, &end, 0);

	if (!*text || *end)
		die(USAGE, "\"%s\" is not a number", text);
	return value;
}

/* Runs the command at argv[0] and returns its number of words. */
static int command(int argc, char **argv)
{
	static const struct { const char *name; int words; } table[] = {
		{ "info", 1 }, { "write", 3 }, { "writefile", 3 }, { "read", 3 }, { "readfile", 4 }, { "fadd", 3 },
		{ "cas", 4 }, { "pattern", 4 }, { "fill", 4 }, { "verify", 4 }, { "bad", 2 }, { "hold", 2 },
	};
	const char *name = argv[0];
	int words = 0;

	for (size_t i = 0; i < sizeof table / sizeof *table; i++)
		if (!strcmp(name, table[i].name))
			words = table[i].words;
	if (!words || words > argc)
		die(USAGE, words ? "%s needs %d words" : "unknown command %s", name, words - 1);

	if (!strcmp(name, "info")) {
		/* printed at connect */
	} else if (!strcmp(name, "bad")) {
		do_bad(argv[1]);
	} else if (!strcmp(name, "hold")) {
		do_hold(number(argv[1]));
	} else if (!strcmp(name, "write") || !strcmp(name, "writefile")) {
		uint64_t offset = number(argv[1]);
		size_t length = strlen(argv[2]);
		if (!strcmp(name, "writefile")) {
			length = load_file(argv[2]);
		} else {
			use_buffer(length + 1);
			memcpy(buffer, argv[2], length);
		}
		move(IBV_WR_RDMA_WRITE, offset, length);
		printf("write %" PRIu64 ": %zu bytes\n", offset, length);
	} else if (!strcmp(name, "fadd")) {
		do_atomic(name, IBV_WR_ATOMIC_FETCH_AND_ADD, number(argv[1]), number(argv[2]), 0);
	} else if (!strcmp(name, "cas")) {
		do_atomic(name, IBV_WR_ATOMIC_CMP_AND_SWP, number(argv[1]), number(argv[2]), number(argv[3]));
	} else if (!strcmp(name, "fill")) {
		uint64_t length = number(argv[2]);
		use_buffer(length + 1);
		fill_pattern(buffer, length, number(argv[3]));
		move_timed(IBV_WR_RDMA_WRITE, number(argv[1]), length);
	} else {
		uint64_t offset = number(argv[1]), length = number(argv[2]);
		use_buffer(length + 1);
		if (!strcmp(name, "pattern")) {
			fill_pattern(buffer, length, number(argv[3]));
			move(IBV_WR_RDMA_WRITE, offset, length);
		}
		memset(buffer, 0, length);
		if (!strcmp(name, "verify"))
			move_timed(IBV_WR_RDMA_READ, offset, length);
		else
			move(IBV_WR_RDMA_READ, offset, length);
		if (!strcmp(name, "readfile")) {
			save_file(argv[3], length);
		} else if (!strcmp(name, "read")) {
			printf("read %" PRIu64 ": ", offset);
			for (uint64_t i = 0; i < length; i++)
				printf("%02x", buffer[i]);
			printf(" ");
			print_text(buffer, length);
			printf("\n");
		} else {
			compare_pattern(name, offset, length, number(argv[3]));
		}
	}
	fflush(stdout);
	return words;
}

static struct addrinfo *locate(const char *address, const char *port)
{
	struct addrinfo hints = { .ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM }, *where;

	if (getaddrinfo(address, port, &hints, &where))
		die(USAGE, "%s port %s is no address", address, port);
	return where;
}

static void open_id(uint8_t ack_timeout)
{
	events = rdma_create_event_channel();
	need(events != NULL, "rdma_create_event_channel");
	need(!rdma_create_id(events, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
	need(!rdma_set_option(id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &ack_timeout, sizeof ack_timeout),
	     "RDMA_OPTION_ID_ACK_TIMEOUT");
}

static void make_qp(void)
{
	channel = ibv_create_comp_channel(id->verbs);
	need(channel != NULL, "ibv_create_comp_channel");
	cq = ibv_create_cq(id->verbs, 2 * MAX_OUTSTANDING, NULL, channel, 0);
	need(cq != NULL, "ibv_create_cq");
	struct ibv_qp_init_attr qp = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = { .max_send_wr = MAX_OUTSTANDING, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	need(!rdma_create_qp(id, NULL, &qp), "rdma_create_qp");
}

/* Ends the connection and releases its resources. */
static void release(void)
{
	rdma_disconnect(id);
	rdma_destroy_qp(id);
	if (buffer_mr)
		ibv_dereg_mr(buffer_mr);
	buffer_mr = NULL;
	ibv_destroy_cq(cq);
	ibv_destroy_comp_channel(channel);
	rdma_destroy_id(id);
}

/* Answers a connection request as rxe-target's region service does. */
static void grant_region(struct rdma_conn_param *asked, const char *region)
{
	make_qp();
	buffer_mr = ibv_reg_mr(id->pd, buffer, buffer_length,
			       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
				       IBV_ACCESS_REMOTE_ATOMIC);
	need(buffer_mr != NULL, "ibv_reg_mr");
	struct grant grant = {
		.address = htobe64((uintptr_t)buffer),
		.length = htobe64(buffer_length),
		.key = htobe32(buffer_mr->rkey),
	};
	memcpy(grant.name, region, strnlen(region, sizeof grant.name));
	struct rdma_conn_param parameters = {
		.private_data = &grant,
		.private_data_len = sizeof grant,
		.responder_resources = asked->responder_resources,
		.initiator_depth = asked->initiator_depth,
		.rnr_retry_count = 7,
	};
	need(!rdma_accept(id, &parameters), "rdma_accept");
}

/* Exports memory to one client after another. */
static void __attribute__((noreturn)) serve(const char *address, const char *port, const char *region, uint8_t ack_timeout,
					    uint64_t length)
{
	struct addrinfo *where = locate(address, port);
	struct rdma_cm_event *event;
	int connected = 0;

	buffer_length = (length + 4095) & ~(size_t)4095;
	buffer = aligned_alloc(4096, buffer_length);
	need(buffer != NULL, "memory");
	memset(buffer, 0, buffer_length);
	open_id(ack_timeout);
	need(!rdma_bind_addr(id, where->ai_addr), "rdma_bind_addr");
	need(!rdma_listen(id, 4), "rdma_listen");
	printf("serving %" PRIu64 " bytes\n", length);
	fflush(stdout);
	for (;;) {
		need(!rdma_get_cm_event(events, &event), "rdma_get_cm_event");
		enum rdma_cm_event_type what = event->event;
		struct rdma_cm_id *whose = event->id;
		struct rdma_conn_param asked = event->param.conn;

		rdma_ack_cm_event(event);
		/* Disconnected, or abandoned by a client whose DREQ was lost. */
		if (connected && (what == RDMA_CM_EVENT_CONNECT_REQUEST || (whose == id && what != RDMA_CM_EVENT_ESTABLISHED))) {
			release();
			connected = 0;
		}
		if (what == RDMA_CM_EVENT_CONNECT_REQUEST) {
			id = whose;
			grant_region(&asked, region);
			connected = 1;
		}
	}
}

static void connect_to(const char *address, const char *port, const char *region, uint8_t ack_timeout)
{
	struct addrinfo *where = locate(address, port);
	struct grant grant;

	open_id(ack_timeout);
	need(!rdma_resolve_addr(id, NULL, where->ai_addr, 5000), "rdma_resolve_addr");
	expect_event(RDMA_CM_EVENT_ADDR_RESOLVED, NULL, 0);
	need(!rdma_resolve_route(id, 5000), "rdma_resolve_route");
	expect_event(RDMA_CM_EVENT_ROUTE_RESOLVED, NULL, 0);
	freeaddrinfo(where);

	make_qp();

	struct rdma_conn_param parameters = {
		.private_data = region,
		.private_data_len = (uint8_t)strlen(region),
		.responder_resources = 1,
		.initiator_depth = 16,
		.retry_count = 7,
		.rnr_retry_count = 7,
	};
	need(!rdma_connect(id, &parameters), "rdma_connect");
	expect_event(RDMA_CM_EVENT_ESTABLISHED, &grant, sizeof grant);
	region_address = be64toh(grant.address);
	region_length = be64toh(grant.length);
	region_key = be32toh(grant.key);
	printf("connected: region \"%.32s\", address 0x%" PRIx64 ", length %" PRIu64 ", key 0x%x\n", grant.name, region_address,
	       region_length, region_key);
	fflush(stdout);
	if (grant.reserved)
		die(FAILED, "the reserved bytes of the REP's private data are not zero");
}

static void __attribute__((noreturn)) usage(void)
{
	die(USAGE, "usage: region_client [-p PORT] [-r REGION] [-t CODE] [-w BYTES] [-q COUNT] ADDRESS COMMAND...");
}

int main(int argc, char **argv)
{
	const char *port = "4792", *region = "";
	uint8_t ack_timeout = 14; /* 67 ms; rdma_cm's own choice is seconds */
	int option;

	while ((option = getopt(argc, argv, "+p:r:t:w:q:")) != -1) {
		if (option == 'p')
			port = optarg;
		else if (option == 'r' && strlen(optarg) <= 56)
			region = optarg;
		else if (option == 't')
			ack_timeout = (uint8_t)number(optarg);
		else if (option == 'w' && (piece = number(optarg)) > 0 && piece <= 1u << 31)
			continue;
		else if (option == 'q' && (outstanding = number(optarg)) > 0 && outstanding <= MAX_OUTSTANDING)
			continue;
		else
			usage();
	}
	if (argc - optind < 2)
		usage();
	if (argc - optind == 3 && !strcmp(argv[optind + 1], "serve"))
		serve(argv[optind], port, region, ack_timeout, number(argv[optind + 2]));
	connect_to(argv[optind], port, region, ack_timeout);
	for (int i = optind + 1; i < argc;)
		i += command(argc - i, argv + i);

	/* Wait for the target's answer: the kernel does not retransmit the DREQ of a program that has exited. */
	rdma_disconnect(id);
	if (!disconnected)
		readable(events->fd, CONNECT_MS);
	release();
	rdma_destroy_event_channel(events);
	free(buffer);
	printf("done\n");
	return 0;
}
