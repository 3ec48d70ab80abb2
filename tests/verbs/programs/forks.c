/* A child uses memory that its parent has registered after ibv_fork_init. */
#include "loopback.h"
#include <sys/wait.h>
#include <unistd.h>

int main(void)
{
	int status = -1;
	pid_t child;

	check(!ibv_fork_init(), "ibv_fork_init");
	connect_to_itself();
	child = fork();
	if (child == 0) {
		buffer[0]++;
		_exit(7);
	}
	check(child == waitpid(child, &status, 0), "waitpid");
	printf("status %#x, fork is %s\n", status, ibv_is_fork_initialized() == IBV_FORK_UNNEEDED ? "free" : "costly");
	return post_write();
}
