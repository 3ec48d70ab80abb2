/*
 * Functions of verbs_client's cases: our side of a connection in plain libibverbs, and the peer's by lines over TCP. "Ours"
 * is this side. Every error ends the program with one line on stderr.
 */
#pragma once

#include <infiniband/verbs.h>
#include <stdint.h>

enum { BUFFER = 1 << 20, GRH = 40, QKEY = 0x11223344, INLINE = 256, WAIT_MS = 20000, MAX_LINKS = 4 };
/* Offsets of messages. OURS and THEIRS are not aligned to each other. */
enum { OURS = 4099, THEIRS = 65541 };
enum { REMOTE = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC };
/* The kernel numbers this flag of a completion 1 << 2, rdma-core 1 << 3, and rxe's completions have the kernel's number. */
enum { WITH_INV = IBV_WC_WITH_INV | 1 << 2 };

/* Up to four pieces of a side's 1 MiB buffer, in order. A length of 0 ends the list. */
struct pieces { struct { uint32_t off, len; } p[4]; };
#define PIECE(off, len) ((struct pieces){ { { (off), (len) } } })

/* A work request of our send queue. */
struct work {
	enum ibv_wr_opcode op;
	int link;
	struct pieces ours;
	uint64_t at;	  /* offset in the peer's buffer; with `key`, an address */
	uint32_t key;	  /* 0: the buffer's */
	uint32_t imm;	  /* immediate data, or the key to invalidate */
	uint32_t qkey;	  /* 0: QKEY */
	uint64_t compare_add, swap;
	unsigned flags;
};

/* A queue pair of ours and the peer's at its other end. */
struct link { struct ibv_qp *qp; uint32_t remote_qpn; };

/* A case. */
struct test {
	const char *name;
	void (*run)(void);
	const char *what;
};

extern const struct test message_cases[], key_cases[]; /* each ends with a case without a name */

/* Ours. */
extern struct ibv_context *device;
extern struct ibv_pd *pd;
extern struct ibv_comp_channel *channel;
extern struct ibv_cq *cq;
extern struct ibv_srq *srq; /* a case may create one before its links */
extern struct ibv_mr *mr;
extern uint8_t *buffer;
extern enum ibv_mtu mtu;
extern union ibv_gid gid;
extern int ipv4;
extern struct link links[MAX_LINKS];
extern unsigned next_id; /* numbers of work requests of both sides, and seeds of messages */

/* The peer's. */
extern char answer[4096];
extern union ibv_gid remote_gid;
extern uint64_t remote_addr;
extern uint32_t remote_key;

void __attribute__((noreturn, format(printf, 1, 2))) die(const char *format, ...);
void need(int ok, const char *what);

/* Has the peer execute one line. Its answer must be "ok ..."; the fields are read from it. */
void __attribute__((format(printf, 1, 2))) peer(const char *format, ...);
const char *field_text(const char *name);
uint64_t field(const char *name);
int field_is(const char *name, const char *value);
/* The pieces in the syntax of the peer's lines. Four results can be in use at once. */
const char *text(struct pieces pieces);
/* The peer's next completion must be this one, its next event must have this name. */
void peer_completes(unsigned id, enum ibv_wc_status status);
void peer_event(const char *name);

uint32_t total(struct pieces pieces);
/* Pseudo-random bytes, the same as the peer's for the same seed; `check` compares with them. */
void fill(struct pieces pieces, unsigned seed);
void check(struct pieces pieces, unsigned seed);
/* Eight bytes of our buffer, and the address of one. */
uint64_t load(uint32_t off);
uint64_t address(uint32_t off);

/* Connects to the peer and opens our device. */
void connect_to(const char *where);
/* Creates a queue pair here and one at the peer, and moves both to RTS. */
void open_link(enum ibv_qp_type type, int peer_srq);
unsigned post(struct work w);
unsigned post_wr(int link, struct ibv_send_wr *wr);
unsigned post_recv(int link, struct pieces pieces);
/* Our next completion; 0 when there is none within `limit` ms. */
int poll_completion(struct ibv_wc *wc, int limit);
/* Our next completion must be this one. */
struct ibv_wc completes(unsigned id, enum ibv_wc_status status);
void our_event(enum ibv_event_type want);
void our_state_becomes(int link, enum ibv_qp_state want);
/* Destroys everything; nothing may be left. */
void end(void);
