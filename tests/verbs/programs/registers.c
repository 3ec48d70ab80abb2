/* A thread registers memory of a process with many mappings, while another one exchanges messages. */
#include "loopback.h"
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

enum { MAPPINGS = 30000, REGISTRATIONS = 30, PAGE = 4096 };

static atomic_int done;
static long messages;

static void *exchange(void *unused)
{
	struct ibv_wc wc;

	(void)unused;
	while (!done) {
		int count;

		check(!post_write(), "ibv_post_send");
		while (!(count = ibv_poll_cq(cq, 1, &wc)))
			;
		check(count == 1 && wc.status == IBV_WC_SUCCESS, "a completion");
		messages++;
	}
	return NULL;
}

int main(void)
{
	pthread_t thread;
	char *pages = mmap(NULL, (size_t)MAPPINGS * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	check(pages != MAP_FAILED, "mmap");
	/* Neighbours with different rights are mappings of their own. */
	for (int i = 0; i < MAPPINGS; i += 2)
		check(!mprotect(pages + (size_t)i * PAGE, PAGE, PROT_READ), "mprotect");
	connect_to_itself();
	check(!pthread_create(&thread, NULL, exchange, NULL), "pthread_create");
	for (int i = 0; i < REGISTRATIONS; i++) {
		/* The last page of all, so that the whole list is read. */
		struct ibv_mr *other = ibv_reg_mr(pd, pages + (size_t)(MAPPINGS - 1) * PAGE, PAGE, IBV_ACCESS_LOCAL_WRITE);

		check(other && !ibv_dereg_mr(other), "a registration");
	}
	done = 1;
	pthread_join(thread, NULL);
	printf("%ld messages during %d registrations\n", messages, REGISTRATIONS);
	return 0;
}
