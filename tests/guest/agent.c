/*
 * The test guest's agent: runs shell commands that the host requests over a virtio-serial port.
 *
 * Every message is a header of four little-endian u32 {kind, id, arg, length} and `length` bytes.
 *   host to guest:  RUN  (id chosen by the host, arg = time limit in ms, bytes = shell command)
 *                   KILL (arg = signal for the command's process group)
 *   guest to host:  READY, OUTPUT (bytes the command wrote to stdout or stderr), EXIT (arg = exit code; 128 + signal
 *                   if a signal ended it; 124 if its time ran out and it was killed)
 * Commands run concurrently, each in a process group of its own. EXIT is sent after all output of the command itself; later
 * output of its background children is still sent under its id.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { RUN = 1, KILL = 2, READY = 16, OUTPUT = 17, EXIT = 18 };
enum { MAX_JOBS = 256, MAX_COMMAND = 1 << 20 };

struct header { uint32_t kind, id, arg, length; };

struct job {
	int used, out, exited, expired;
	uint32_t id;
	pid_t pid;
	int64_t deadline;
};

static struct job jobs[MAX_JOBS];
static int port, wake[2];

static void die(const char *what)
{
	fprintf(stderr, "agent: %s: %s\n", what, strerror(errno));
	exit(1);
}

static int64_t now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static void write_all(const void *data, size_t length)
{
	const char *p = data;
	while (length) {
		ssize_t n = write(port, p, length);
		if (n < 0 && (errno == EINTR || errno == EAGAIN)) {
			usleep(1000);
			continue;
		}
		if (n < 0)
			die("write");
		p += n;
		length -= (size_t)n;
	}
}

static void read_all(void *data, size_t length)
{
	char *p = data;
	while (length) {
		ssize_t n = read(port, p, length);
		if (n < 0 && errno != EINTR)
			die("read");
		if (n == 0)	/* the host has not opened its end yet, or has closed it */
			usleep(20000);
		if (n > 0) {
			p += n;
			length -= (size_t)n;
		}
	}
}

static void send_message(uint32_t kind, uint32_t id, uint32_t arg, const void *data, uint32_t length)
{
	struct header h = { kind, id, arg, length };
	write_all(&h, sizeof h);
	write_all(data, length);
}

static void on_child(int signal_number)
{
	int saved = errno;
	(void)signal_number;
	(void)!write(wake[1], "", 1);
	errno = saved;
}

static void run(uint32_t id, uint32_t limit_ms, const char *command)
{
	struct job *j = jobs;
	int fds[2];

	while (j < jobs + MAX_JOBS && j->used)
		j++;
	if (j == jobs + MAX_JOBS || pipe2(fds, O_CLOEXEC)) {
		static const char text[] = "agent: too many commands at once\n";
		send_message(OUTPUT, id, 0, text, sizeof text - 1);
		send_message(EXIT, id, 125, NULL, 0);
		return;
	}
	pid_t pid = fork();
	if (pid < 0)
		die("fork");
	if (pid == 0) {
		int null = open("/dev/null", O_RDONLY);
		setpgid(0, 0);
		dup2(null, 0);
		dup2(fds[1], 1);
		dup2(fds[1], 2);
		signal(SIGCHLD, SIG_DFL);
		signal(SIGPIPE, SIG_DFL);
		execl("/bin/sh", "sh", "-c", command, (char *)NULL);
		_exit(127);
	}
	setpgid(pid, pid);	/* here too: a KILL may arrive before the child has run */
	close(fds[1]);
	fcntl(fds[0], F_SETFL, O_NONBLOCK);
	*j = (struct job){ .used = 1, .out = fds[0], .id = id, .pid = pid, .deadline = now_ms() + limit_ms };
}

/* Forwards the content of the job's pipe, at most one pipe's capacity: a command may write without end. */
static void drain(struct job *j)
{
	static char buffer[32768];
	ssize_t n;

	for (int turn = 0; j->out >= 0 && (n = read(j->out, buffer, sizeof buffer)) != 0; turn++) {
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return;
		send_message(OUTPUT, j->id, 0, buffer, (uint32_t)n);
		if (turn == 15)
			return;
	}
	if (j->out >= 0)
		close(j->out);
	j->out = -1;
	if (j->exited)
		j->used = 0;
}

static void reap(void)
{
	int status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
		for (struct job *j = jobs; j < jobs + MAX_JOBS; j++) {
			if (!j->used || j->exited || j->pid != pid)
				continue;
			j->exited = 1;
			drain(j);
			uint32_t code = j->expired ? 124
				: WIFEXITED(status) ? (uint32_t)WEXITSTATUS(status)
				: 128 + (uint32_t)WTERMSIG(status);
			send_message(EXIT, j->id, code, NULL, 0);
		}
	}
}

static void take_request(void)
{
	static char command[MAX_COMMAND + 1];
	struct header h;

	read_all(&h, sizeof h);
	if (h.length > MAX_COMMAND)
		die("a request is too long");
	read_all(command, h.length);
	command[h.length] = 0;
	if (h.kind == RUN)
		run(h.id, h.arg, command);
	if (h.kind == KILL)
		for (struct job *j = jobs; j < jobs + MAX_JOBS; j++)
			if (j->used && !j->exited && j->id == h.id)
				kill(-j->pid, (int)h.arg);
}

int main(int argc, char **argv)
{
	struct pollfd fds[MAX_JOBS + 2];

	if (argc != 2 || (port = open(argv[1], O_RDWR | O_CLOEXEC)) < 0)
		die("cannot open the port");
	if (pipe2(wake, O_CLOEXEC | O_NONBLOCK))
		die("pipe");
	signal(SIGPIPE, SIG_IGN);
	signal(SIGCHLD, on_child);
	send_message(READY, 0, 0, NULL, 0);
	for (;;) {
		int count = 2, wait = -1, hung_up;
		int64_t now = now_ms();

		fds[0] = (struct pollfd){ .fd = port, .events = POLLIN };
		fds[1] = (struct pollfd){ .fd = wake[0], .events = POLLIN };
		for (struct job *j = jobs; j < jobs + MAX_JOBS; j++) {
			if (!j->used)
				continue;
			if (!j->exited && !j->expired) {
				int64_t left = j->deadline - now;
				if (left <= 0) {
					j->expired = 1;
					kill(-j->pid, SIGKILL);
				} else if (wait < 0 || left < wait) {
					wait = left > 60000 ? 60000 : (int)left;
				}
			}
			if (j->out >= 0)
				fds[count++] = (struct pollfd){ .fd = j->out, .events = POLLIN };
		}
		if (poll(fds, (nfds_t)count, wait) < 0 && errno != EINTR)
			die("poll");
		for (char c; read(wake[0], &c, 1) == 1;)
			;
		for (struct job *j = jobs; j < jobs + MAX_JOBS; j++)
			if (j->used && j->out >= 0)
				drain(j);
		reap();
		hung_up = fds[0].revents & POLLHUP;
		if (fds[0].revents & POLLIN)
			take_request();
		else if (hung_up)
			usleep(20000);
	}
}
