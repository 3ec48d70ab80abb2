/* A library that holds objects of verbs until it is unloaded, as MPI does. Its destructor runs later than those of libraries that were
   preloaded. With HOLDER_THREAD a thread of its own destroys them. */
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static char buffer[64];

__attribute__((constructor)) static void hold(void)
{
	struct ibv_device **devices = ibv_get_device_list(NULL);

	if (!devices || !devices[0] || !(context = ibv_open_device(devices[0])))
		return;
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 1, NULL, NULL, 0);
	mr = pd ? ibv_reg_mr(pd, buffer, sizeof buffer, 0) : NULL;
}

static void *destroy(void *unused)
{
	(void)unused;
	if (!mr || !cq)
		return NULL;
	/* Not by stdio, which is flushed earlier. */
	dprintf(1, "deregistered: %d, ", ibv_dereg_mr(mr));
	dprintf(1, "destroyed: %d, ", ibv_destroy_cq(cq));
	dprintf(1, "deallocated: %d, ", ibv_dealloc_pd(pd));
	dprintf(1, "closed: %d\n", ibv_close_device(context));
	return NULL;
}

__attribute__((destructor)) static void release(void)
{
	pthread_t thread;

	if (!getenv("HOLDER_THREAD"))
		destroy(NULL);
	else if (!pthread_create(&thread, NULL, destroy, NULL))
		pthread_join(thread, NULL);
}

void holder(void)
{
}
