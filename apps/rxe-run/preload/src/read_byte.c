/* A wait that pthread_cancel may end. Cancellation unwinds the stack, which must not run destructors of Rust. */
#include <pthread.h>
#include <stdint.h>
#include <unistd.h>

extern void rxe_verbs_wait_ended(uint64_t file);

static void ended(void *file)
{
	rxe_verbs_wait_ended(*(uint64_t *)file);
}

/* Reads one byte of an event channel. When the thread is cancelled meanwhile, reports the end of the wait for `file`. */
ssize_t rxe_verbs_read_byte(int fd, uint64_t file)
{
	char byte;
	ssize_t length;

	pthread_cleanup_push(ended, &file);
	length = read(fd, &byte, sizeof byte);
	pthread_cleanup_pop(0);
	return length;
}
