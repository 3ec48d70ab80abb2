/*
 * A client that connects with three receives posted and then sends nothing, or garbage: the server must disconnect it.
 *
 *   silent_client ADDRESS PORT SECONDS [retry=N] [private=HEX] [send=BYTES]
 *
 * With retry=5 (the default) servers take it for ucmatose, with 2 for cmtime. private is private data of the request, send
 * the length of a message of zeros. Prints "connected", then "given up" when the server disconnects within SECONDS; else the
 * event or error, and exits with 1.
 */
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RECEIVES 3

static void need(int good, const char *what)
{
	if (good)
		return;
	perror(what);
	exit(1);
}

static void expect(struct rdma_event_channel *channel, enum rdma_cm_event_type wanted)
{
	struct rdma_cm_event *event;

	need(!rdma_get_cm_event(channel, &event), "rdma_get_cm_event");
	if (event->event != wanted) {
		fprintf(stderr, "%s, status %d\n", rdma_event_str(event->event), event->status);
		exit(1);
	}
	rdma_ack_cm_event(event);
}

int main(int argc, char **argv)
{
	static char buffers[RECEIVES][64];
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *found;
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	struct ibv_mr *mr;
	unsigned char private[56];
	struct rdma_conn_param parameters = { .responder_resources = 1, .initiator_depth = 1, .retry_count = 5 };
	int send = -1;

	for (int i = 4; i < argc; i++) {
		unsigned byte;

		if (sscanf(argv[i], "retry=%hhu", &parameters.retry_count) == 1 || sscanf(argv[i], "send=%d", &send) == 1)
			continue;
		need(!strncmp(argv[i], "private=", 8) && strlen(argv[i]) <= 8 + 2 * sizeof(private), "an option");
		for (const char *hex = argv[i] + 8; sscanf(hex, "%2x", &byte) == 1; hex += 2)
			private[parameters.private_data_len++] = byte;
		parameters.private_data = private;
	}
	if (argc < 4 || send > (int)sizeof(buffers)) {
		fprintf(stderr, "usage: %s ADDRESS PORT SECONDS [retry=N] [private=HEX] [send=BYTES]\n", argv[0]);
		return 2;
	}
	need(!rdma_getaddrinfo(argv[1], argv[2], &hints, &found), "rdma_getaddrinfo");
	channel = rdma_create_event_channel();
	need(channel != NULL, "rdma_create_event_channel");
	need(!rdma_create_id(channel, &id, NULL, RDMA_PS_TCP), "rdma_create_id");
	need(!rdma_resolve_addr(id, NULL, found->ai_dst_addr, 2000), "rdma_resolve_addr");
	expect(channel, RDMA_CM_EVENT_ADDR_RESOLVED);
	need(!rdma_resolve_route(id, 2000), "rdma_resolve_route");
	expect(channel, RDMA_CM_EVENT_ROUTE_RESOLVED);

	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = 1, .max_recv_wr = RECEIVES, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	need(!rdma_create_qp(id, NULL, &attr), "rdma_create_qp");
	mr = rdma_reg_msgs(id, buffers, sizeof(buffers));
	need(mr != NULL, "rdma_reg_msgs");
	for (int i = 0; i < RECEIVES; i++)
		need(!rdma_post_recv(id, NULL, buffers[i], sizeof(buffers[i]), mr), "rdma_post_recv");

	need(!rdma_connect(id, &parameters), "rdma_connect");
	expect(channel, RDMA_CM_EVENT_ESTABLISHED);
	printf("connected\n");
	fflush(stdout);
	if (send >= 0)
		need(!rdma_post_send(id, NULL, buffers, send, mr, IBV_SEND_SIGNALED), "rdma_post_send");

	struct pollfd wait = { .fd = channel->fd, .events = POLLIN };
	if (poll(&wait, 1, atoi(argv[3]) * 1000) != 1) {
		fprintf(stderr, "still connected\n");
		return 1;
	}
	expect(channel, RDMA_CM_EVENT_DISCONNECTED);
	printf("given up\n");
	return 0;
}
