/* A signal handler posts work requests while the main thread registers memory: it interrupts the library with its locks held. */
#include <infiniband/verbs.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>

enum { DEPTH = 64, REGISTRATIONS = 20000, LEAST = 20 };

static struct ibv_qp *qp;
static struct ibv_mr *mr;
static char buffer[4096];
static volatile sig_atomic_t posted, refused;

static void handler(int signal)
{
	struct ibv_sge sge = { (uintptr_t)buffer, 8, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED };
	struct ibv_send_wr *bad;

	(void)signal;
	wr.wr.rdma.remote_addr = (uintptr_t)buffer + 64;
	wr.wr.rdma.rkey = mr->rkey;
	if (posted >= DEPTH)
		return;
	if (ibv_post_send(qp, &wr, &bad))
		refused++;
	else
		posted++;
}

static void check(int good, const char *what)
{
	if (!good) {
		perror(what);
		exit(1);
	}
}

int main(void)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);
	struct itimerval interval = { { 0, 300 }, { 0, 300 } };
	struct ibv_context *context;
	struct ibv_qp_attr attr;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_wc wc;
	time_t end;
	int completed = 0;

	check(devices && devices[0], "a device");
	context = ibv_open_device(devices[0]);
	check(context != NULL, "ibv_open_device");
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, DEPTH + 1, NULL, NULL, 0);
	mr = ibv_reg_mr(pd, buffer, sizeof buffer, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	check(pd && cq && mr, "objects");
	struct ibv_qp_init_attr init = { .send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
		.cap = { .max_send_wr = DEPTH + 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 } };
	qp = ibv_create_qp(pd, &init);
	check(qp != NULL, "ibv_create_qp");

	/* Connected to itself. */
	memset(&attr, 0, sizeof attr);
	attr.qp_state = IBV_QPS_INIT;
	attr.port_num = 1;
	attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
	check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS), "INIT");
	attr.qp_state = IBV_QPS_RTR;
	attr.path_mtu = IBV_MTU_1024;
	attr.dest_qp_num = qp->qp_num;
	attr.max_dest_rd_atomic = 1;
	attr.min_rnr_timer = 12;
	attr.ah_attr.is_global = 1;
	attr.ah_attr.port_num = 1;
	attr.ah_attr.grh.sgid_index = 1;
	attr.ah_attr.grh.hop_limit = 64;
	check(!ibv_query_gid(context, 1, 1, &attr.ah_attr.grh.dgid), "ibv_query_gid");
	check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			     IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER), "RTR");
	attr.qp_state = IBV_QPS_RTS;
	attr.timeout = 14;
	attr.retry_cnt = 7;
	attr.rnr_retry = 7;
	attr.max_rd_atomic = 1;
	check(!ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
			     IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC), "RTS");

	signal(SIGALRM, handler);
	check(!setitimer(ITIMER_REAL, &interval, NULL), "setitimer");
	for (int i = 0; i < REGISTRATIONS || posted < LEAST; i++) {
		struct ibv_mr *other = ibv_reg_mr(pd, buffer, sizeof buffer, 0);

		check(other && !ibv_dereg_mr(other), "a registration");
	}
	signal(SIGALRM, SIG_IGN);

	end = time(NULL) + 10;
	while (completed < posted && time(NULL) < end) {
		int count = ibv_poll_cq(cq, 1, &wc);

		check(count >= 0, "ibv_poll_cq");
		if (count && wc.status != IBV_WC_SUCCESS)
			break;
		completed += count;
	}
	printf("posted %s, refused %d\n", completed == posted ? "and completed" : "and lost", (int)refused);
	return completed != posted || refused;
}
