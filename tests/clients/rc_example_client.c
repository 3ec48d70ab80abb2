/*
 * The client of the RC example of the manual "RDMA Aware Networks Programming", with the same bytes on the wire: both ends
 * exchange queue pair and buffer over TCP, synchronize there after each step, and the client receives one SEND, READs 16
 * bytes from the server's buffer and WRITEs 16 bytes there.
 *
 *   rc_example_client ADDRESS GID_INDEX
 *
 * Prints the received bytes, and "test result is 0" on success; else the step that failed, and exits with 1.
 */
#include <arpa/inet.h>
#include <endian.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define PORT 19875
#define MESSAGE 16
#define PATIENCE 2 /* seconds for every completion, as in the example */

struct hello {
	uint64_t addr;
	uint32_t rkey;
	uint32_t qpn;
	uint16_t lid;
	uint8_t gid[16];
} __attribute__((packed));

static void need(int good, const char *what)
{
	if (good)
		return;
	perror(what);
	exit(1);
}

static void trade(int sock, const void *ours, void *theirs, size_t length)
{
	need(write(sock, ours, length) == (ssize_t)length, "write");
	for (size_t got = 0; got < length;) {
		ssize_t n = read(sock, (char *)theirs + got, length - got);
		need(n > 0, "read from the server");
		got += n;
	}
}

static void meet(int sock, char byte)
{
	char theirs;

	trade(sock, &byte, &theirs, 1);
}

static void complete(struct ibv_cq *cq, const char *what)
{
	struct timespec start, now;
	struct ibv_wc wc;
	int n;

	clock_gettime(CLOCK_MONOTONIC, &start);
	while (!(n = ibv_poll_cq(cq, 1, &wc))) {
		clock_gettime(CLOCK_MONOTONIC, &now);
		if (now.tv_sec - start.tv_sec > PATIENCE) {
			fprintf(stderr, "%s: no completion within %d s\n", what, PATIENCE);
			exit(1);
		}
	}
	if (n < 0 || wc.status != IBV_WC_SUCCESS) {
		fprintf(stderr, "%s: %s\n", what, n < 0 ? "ibv_poll_cq" : ibv_wc_status_str(wc.status));
		exit(1);
	}
}

static void post(struct ibv_qp *qp, struct ibv_mr *mr, enum ibv_wr_opcode opcode, const struct hello *server)
{
	struct ibv_sge sge = { .addr = (uintptr_t)mr->addr, .length = MESSAGE, .lkey = mr->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = be64toh(server->addr), .rkey = ntohl(server->rkey) },
	}, *bad;

	need(!ibv_post_send(qp, &wr, &bad), "ibv_post_send");
}

int main(int argc, char **argv)
{
	const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
	static char buffer[MESSAGE];
	struct hello ours = { 0 }, server;
	union ibv_gid gid;

	if (argc != 3) {
		fprintf(stderr, "usage: %s ADDRESS GID_INDEX\n", argv[0]);
		return 2;
	}
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(PORT) };
	need(inet_pton(AF_INET, argv[1], &to.sin_addr) == 1, "the address");
	int index = atoi(argv[2]), sock = socket(AF_INET, SOCK_STREAM, 0);
	need(sock >= 0 && !connect(sock, (struct sockaddr *)&to, sizeof(to)), "connect");

	struct ibv_device **devices = ibv_get_device_list(NULL);
	need(devices && devices[0], "a device");
	struct ibv_context *context = ibv_open_device(devices[0]);
	need(context != NULL, "ibv_open_device");
	need(!ibv_query_gid(context, 1, index, &gid), "ibv_query_gid");
	struct ibv_pd *pd = ibv_alloc_pd(context);
	struct ibv_cq *cq = ibv_create_cq(context, 1, NULL, NULL, 0);
	need(pd && cq, "ibv_create_cq");
	struct ibv_mr *mr = ibv_reg_mr(pd, buffer, MESSAGE, access);
	need(mr != NULL, "ibv_reg_mr");
	struct ibv_qp_init_attr init = {
		.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	need(qp != NULL, "ibv_create_qp");

	ours.addr = htobe64((uintptr_t)buffer);
	ours.rkey = htonl(mr->rkey);
	ours.qpn = htonl(qp->qp_num);
	memcpy(ours.gid, &gid, sizeof(ours.gid));
	trade(sock, &ours, &server, sizeof(server));

	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = access };
	need(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "to INIT");
	struct ibv_sge sge = { .addr = (uintptr_t)buffer, .length = MESSAGE, .lkey = mr->lkey };
	struct ibv_recv_wr receive = { .sg_list = &sge, .num_sge = 1 }, *bad;
	need(!ibv_post_recv(qp, &receive, &bad), "ibv_post_recv");
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_256, .dest_qp_num = ntohl(server.qpn),
		.max_dest_rd_atomic = 1, .min_rnr_timer = 0x12,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .sgid_index = index, .hop_limit = 1 } },
	};
	memcpy(&attr.ah_attr.grh.dgid, server.gid, sizeof(server.gid));
	need(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			    IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "to RTR");
	attr = (struct ibv_qp_attr){ .qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 6, .max_rd_atomic = 1 };
	need(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			    IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC), "to RTS");

	meet(sock, 'Q');
	complete(cq, "the server's SEND");
	printf("the server has sent \"%.*s\"\n", MESSAGE, buffer);
	meet(sock, 'R');
	post(qp, mr, IBV_WR_RDMA_READ, &server);
	complete(cq, "READ");
	printf("the server's buffer holds \"%.*s\"\n", MESSAGE, buffer);
	memcpy(buffer, "RDMA write opera", MESSAGE);
	post(qp, mr, IBV_WR_RDMA_WRITE, &server);
	complete(cq, "WRITE");
	meet(sock, 'W');
	printf("test result is 0\n");
	return 0;
}
