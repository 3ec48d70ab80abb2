/* Messages that take a receive, with all that is to be checked of them. */
#pragma once

#include "side.h"

/* Sends one to the peer, into a receive that is posted there for it. */
void to_peer(struct work w, struct pieces theirs);
/* The peer sends one; the words of `format` go into its line. Returns the completion of our receive. */
struct ibv_wc __attribute__((format(printf, 4, 5)))
to_us(int link, struct pieces theirs, struct pieces ours, const char *format, ...);
