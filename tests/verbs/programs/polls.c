/* Loads libibverbs as a plugin does, and says whose functions poll its completion queues, before and after a queue pair is in use. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <string.h>

static void *verbs;

static void *function(const char *name)
{
	void *found = dlvsym(verbs, name, "IBVERBS_1.1");

	if (!found)
		printf("no %s\n", name);
	return found;
}

static const char *owner(void *pointer)
{
	Dl_info info;

	if (!dladdr(pointer, &info))
		return "nobody";
	return strstr(info.dli_fname, "librxe_verbs.so") ? "wrapped" : "provider";
}

int main(void)
{
	verbs = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!verbs)
		return 1;

	struct ibv_device **(*get_list)(int *) = function("ibv_get_device_list");
	struct ibv_context *(*open_device)(struct ibv_device *) = function("ibv_open_device");
	struct ibv_pd *(*alloc_pd)(struct ibv_context *) = function("ibv_alloc_pd");
	struct ibv_cq *(*create_cq)(struct ibv_context *, int, void *, struct ibv_comp_channel *, int) = function("ibv_create_cq");
	struct ibv_qp *(*create_qp)(struct ibv_pd *, struct ibv_qp_init_attr *) = function("ibv_create_qp");
	int (*modify_qp)(struct ibv_qp *, struct ibv_qp_attr *, int) = function("ibv_modify_qp");

	struct ibv_context *context = open_device(get_list(NULL)[0]);
	struct ibv_pd *pd = alloc_pd(context);
	struct ibv_cq_init_attr_ex attributes = { .cqe = 16, .wc_flags = IBV_WC_EX_WITH_BYTE_LEN };
	struct ibv_cq_ex *extended = ibv_create_cq_ex(context, &attributes);
	struct ibv_cq *plain = create_cq(context, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr init = {
		.send_cq = plain,
		.recv_cq = ibv_cq_ex_to_cq(extended),
		.cap = { .max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_qp *qp = create_qp(pd, &init);

	printf("%s %s\n", owner(context->ops.poll_cq), owner(extended->start_poll));

	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	int failed = modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);

	printf("%s %s\n", owner(context->ops.poll_cq), owner(extended->start_poll));

	struct ibv_wc completion;
	struct ibv_poll_cq_attr poll = { 0 };

	printf("failed %d, polled %d, started %d\n", failed, ibv_poll_cq(plain, 1, &completion), ibv_start_poll(extended, &poll));
	return 0;
}
