/*
 * A client that sends garbage, the same for the same seed.
 *
 *   garbage_client stream ADDRESS PORT COUNT SEED    COUNT TCP streams, each with up to 400 random bytes
 *   garbage_client mad ADDRESS OWN_ADDRESS COUNT SEED
 *                                                    COUNT RoCE packets to queue pair 1, a quarter of them with a wrong
 *                                                    ICRC, with random messages: some are random from the first byte on,
 *                                                    some after a valid header of the connection manager, some too short
 *                                                    or too long
 *
 * Prints "thrown" and the outcome of the streams.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/ip.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static uint64_t state;

static uint32_t below(uint32_t n)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return (uint32_t)(state >> 32) % n;
}

static void fill(uint8_t *bytes, size_t length)
{
	for (size_t i = 0; i < length; i++)
		bytes[i] = below(256);
}

static void need(int good, const char *what)
{
	if (good)
		return;
	perror(what);
	exit(1);
}

static int streams(const char *address, int port, int count)
{
	struct sockaddr_in to = { .sin_family = AF_INET, .sin_port = htons(port) };
	int refused = 0;

	need(inet_pton(AF_INET, address, &to.sin_addr) == 1, "the address");
	for (int i = 0; i < count; i++) {
		uint8_t bytes[400];
		size_t length = 1 + below(sizeof(bytes));
		int sock = socket(AF_INET, SOCK_STREAM, 0);
		struct pollfd wait = { .fd = sock, .events = POLLIN };

		need(sock >= 0 && !connect(sock, (struct sockaddr *)&to, sizeof(to)), "connect");
		fill(bytes, length);
		need(write(sock, bytes, length) == (ssize_t)length, "write");
		/* The server closes, or waits for more. */
		refused += poll(&wait, 1, 300) == 1 && read(sock, bytes, sizeof(bytes)) <= 0;
		close(sock);
	}
	printf("thrown %d streams, the server closed %d\n", count, refused);
	return 0;
}

static uint32_t crc(uint32_t sum, const uint8_t *bytes, size_t length)
{
	for (size_t i = 0; i < length; i++) {
		sum ^= bytes[i];
		for (int bit = 0; bit < 8; bit++)
			sum = sum >> 1 ^ (sum & 1 ? 0xEDB88320 : 0);
	}
	return sum;
}

/* Computed over eight bytes of ones for InfiniBand's header, with ones in all fields that routers may change. */
static uint32_t icrc(const uint8_t *packet, size_t length)
{
	uint8_t head[8 + 20 + 8 + 12];

	memset(head, 0xFF, 8);
	memcpy(head + 8, packet, sizeof(head) - 8);
	head[8 + 1] = head[8 + 8] = 0xFF;
	memset(head + 8 + 10, 0xFF, 2);
	memset(head + 8 + 20 + 6, 0xFF, 2);
	head[8 + 28 + 4] = 0xFF;
	return ~crc(crc(~0u, head, sizeof(head)), packet + sizeof(head) - 8, length - (sizeof(head) - 8));
}

static int mads(const char *address, const char *own, int count)
{
	struct sockaddr_in to = { .sin_family = AF_INET }, from;
	int sock = socket(AF_INET, SOCK_RAW, IPPROTO_RAW);

	need(sock >= 0, "socket");
	need(inet_pton(AF_INET, address, &to.sin_addr) == 1 && inet_pton(AF_INET, own, &from.sin_addr) == 1, "an address");
	for (int i = 0; i < count; i++) {
		uint8_t packet[600] = { 0 }, *udp = packet + 20, *bth = udp + 8, *deth = bth + 12, *mad = deth + 8;
		size_t mad_len = below(8) ? 256 : 4 * below(100);
		size_t length = mad + mad_len - packet;
		struct iphdr ip = { .version = 4, .ihl = 5, .ttl = 64, .protocol = IPPROTO_UDP, .id = htons(i + 1),
				    .frag_off = htons(IP_DF), .tot_len = htons(length + 4), .saddr = from.sin_addr.s_addr,
				    .daddr = to.sin_addr.s_addr };
		uint16_t ports[3] = { htons(0xC000 + below(1000)), htons(4791), htons(length + 4 - 20) };
		uint32_t words[2] = { htonl(0x80010000), htonl(1) }, sum;

		memcpy(packet, &ip, sizeof(ip));
		memcpy(udp, ports, sizeof(ports));
		bth[0] = 0x64; /* UD SEND ONLY */
		bth[2] = bth[3] = 0xFF;
		bth[7] = 1;
		fill(bth + 9, 3);
		memcpy(deth, words, sizeof(words));
		fill(mad, mad_len);
		if (mad_len >= 24 && below(4)) {
			/* Version 1, class 7 (connection manager) version 2, "send", one of its attributes. */
			memcpy(mad, (uint8_t[]){ 1, 7, 2, 3, 0, 0, 0, 0 }, 8);
			mad[16] = 0;
			mad[17] = 0x10 + below(12);
		}
		sum = icrc(packet, length);
		if (!below(4))
			sum ^= 1 << below(32);
		memcpy(packet + length, (uint8_t[]){ sum, sum >> 8, sum >> 16, sum >> 24 }, 4);
		while (sendto(sock, packet, length + 4, 0, (struct sockaddr *)&to, sizeof(to)) < 0)
			need(errno == ENOBUFS, "sendto");
	}
	printf("thrown %d packets\n", count);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc != 6 || (strcmp(argv[1], "stream") && strcmp(argv[1], "mad"))) {
		fprintf(stderr, "usage: %s stream ADDRESS PORT COUNT SEED | mad ADDRESS OWN_ADDRESS COUNT SEED\n", argv[0]);
		return 2;
	}
	state = 0x9E3779B97F4A7C15 ^ strtoull(argv[5], NULL, 0);
	if (!strcmp(argv[1], "stream"))
		return streams(argv[2], atoi(argv[3]), atoi(argv[4]));
	return mads(argv[2], argv[3], atoi(argv[4]));
}
