/* A signal handler posts work requests while the main thread registers memory: it interrupts the library with its locks held. */
#include "loopback.h"
#include <signal.h>
#include <sys/time.h>
#include <time.h>

enum { REGISTRATIONS = 20000, LEAST = 20 };

static volatile sig_atomic_t posted, refused;

static void handler(int signal)
{
	(void)signal;
	if (posted >= DEPTH)
		return;
	if (post_write())
		refused++;
	else
		posted++;
}

int main(void)
{
	struct itimerval interval = { { 0, 300 }, { 0, 300 } };
	struct ibv_wc wc;
	time_t end;
	int completed = 0;

	connect_to_itself();
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
