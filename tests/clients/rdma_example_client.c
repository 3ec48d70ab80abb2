/*
 * An independent program with the byte exchange of the tutorials' rdma-example client:
 * SEND our buffer's attributes, receive the server's, WRITE the string there, READ it back, compare, disconnect.
 *
 * usage: rdma_example_client -a ADDRESS -s STRING [-p PORT]       (PORT defaults to 20886)
 */
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TIMEOUT_MS = 10000 };

/* The attributes of a buffer, which both sides exchange, in the sender's (little-endian) byte order. */
struct attributes {
	uint64_t address;
	uint32_t length;
	uint32_t key;
} __attribute__((packed));

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void need(int ok, const char *what)
{
	if (!ok)
		die(what);
}

/* Waits for one completion; exits unless it is a success. */
static void completed(int got, const struct ibv_wc *wc, const char *what)
{
	need(got == 1, what);
	if (wc->status != IBV_WC_SUCCESS) {
		fprintf(stderr, "%s: %s\n", what, ibv_wc_status_str(wc->status));
		exit(1);
	}
}

int main(int argc, char **argv)
{
	const char *address = NULL, *text = NULL, *service = "20886";
	int option;

	while ((option = getopt(argc, argv, "a:s:p:")) != -1) {
		if (option == 'a')
			address = optarg;
		else if (option == 's')
			text = optarg;
		else if (option == 'p')
			service = optarg;
		else
			return 2;
	}
	if (!address || !text || optind != argc) {
		fprintf(stderr, "usage: rdma_example_client -a ADDRESS -s STRING [-p PORT]\n");
		return 2;
	}

	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *where;
	need(!rdma_getaddrinfo(address, service, &hints, &where), "rdma_getaddrinfo");

	struct ibv_qp_init_attr qp = {
		.cap = { .max_send_wr = 8, .max_recv_wr = 8, .max_send_sge = 2, .max_recv_sge = 2 },
		.qp_type = IBV_QPT_RC,
		.sq_sig_all = 1,
	};
	struct rdma_cm_id *id;
	need(!rdma_create_ep(&id, where, NULL, &qp), "rdma_create_ep");

	uint32_t length = (uint32_t)strlen(text);
	char *source = strdup(text), *sink = calloc(1, length + 1);
	struct attributes ours = { 0 }, theirs = { 0 };
	struct ibv_mr *source_mr = rdma_reg_read(id, source, length);
	need(source_mr != NULL, "register the source buffer");
	struct ibv_mr *sink_mr = rdma_reg_msgs(id, sink, length);
	struct ibv_mr *ours_mr = rdma_reg_msgs(id, &ours, sizeof ours);
	struct ibv_mr *theirs_mr = rdma_reg_msgs(id, &theirs, sizeof theirs);
	need(sink_mr && ours_mr && theirs_mr, "register buffers");
	need(!rdma_post_recv(id, NULL, &theirs, sizeof theirs, theirs_mr), "post receive");

	/* The numbers of the original client: without RNR retries the server's receive must be posted. */
	struct rdma_conn_param parameters = { .initiator_depth = 3, .responder_resources = 3, .retry_count = 3 };
	need(!rdma_connect(id, &parameters), "rdma_connect");
	printf("The client is connected successfully\n");

	struct ibv_wc wc;
	ours = (struct attributes){ (uintptr_t)source, length, source_mr->lkey };
	need(!rdma_post_send(id, NULL, &ours, sizeof ours, ours_mr, 0), "post send");
	completed(rdma_get_send_comp(id, &wc), &wc, "SEND");
	completed(rdma_get_recv_comp(id, &wc), &wc, "receive");
	if (wc.byte_len != sizeof theirs || theirs.length != length) {
		fprintf(stderr, "the server sent %u bytes, buffer length %u\n", wc.byte_len, theirs.length);
		return 1;
	}
	printf("server buffer: address 0x%llx, length %u, key 0x%x\n", (unsigned long long)theirs.address, theirs.length,
	       theirs.key);

	need(!rdma_post_write(id, NULL, source, length, source_mr, 0, theirs.address, theirs.key), "post WRITE");
	completed(rdma_get_send_comp(id, &wc), &wc, "WRITE");
	need(!rdma_post_read(id, NULL, sink, length, sink_mr, 0, theirs.address, theirs.key), "post READ");
	completed(rdma_get_send_comp(id, &wc), &wc, "READ");
	if (memcmp(source, sink, length)) {
		printf("ERROR, source and destination buffers differ\n");
		return 1;
	}
	printf("SUCCESS, source and destination buffers match\n");

	need(!rdma_disconnect(id), "rdma_disconnect");
	rdma_dereg_mr(source_mr);
	rdma_dereg_mr(sink_mr);
	rdma_dereg_mr(ours_mr);
	rdma_dereg_mr(theirs_mr);
	rdma_destroy_ep(id);
	rdma_freeaddrinfo(where);
	free(source);
	free(sink);
	printf("Client resource clean up is complete\n");
	return 0;
}
