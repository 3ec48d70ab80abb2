/*
 * Verbs against rxe-dpdk's example verbs_peer: one case per run, the memory of both sides verified.
 *
 * usage: verbs_client ADDRESS CASE       (without a case: their list)
 *
 * The peer executes verbs that this program requests, one line over TCP each (verbs_peer's documentation has the lines),
 * and answers "ok ..." or "error ...". So each case is one program for two sides. ADDRESS may be IPv4 or IPv6 and selects
 * the GIDs. The case `stop` ends the peer.
 * Exit codes: 0 success, 1 failure (with a description in one line on stderr), 2 usage.
 */
#include <stdio.h>
#include <string.h>

#include "side.h"

static void stop(void)
{
	peer("stop");
}

static const struct test other_cases[] = { { "stop", stop, "ends the peer" }, { 0 } };

int main(int argc, char **argv)
{
	const struct test *lists[] = { message_cases, key_cases, other_cases };

	for (int i = 0; argc == 3 && i < 3; i++)
		for (const struct test *test = lists[i]; test->name; test++)
			if (!strcmp(test->name, argv[2])) {
				connect_to(argv[1]);
				test->run();
				if (test->run != stop)
					end();
				printf("%s: ok\n", test->name);
				return 0;
			}
	fprintf(stderr, "usage: verbs_client ADDRESS CASE\n");
	for (int i = 0; i < 3; i++)
		for (const struct test *test = lists[i]; test->name; test++)
			fprintf(stderr, "  %-24s %s\n", test->name, test->what);
	return 2;
}
