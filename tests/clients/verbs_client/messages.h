/* Messages that consume a receive, with all checks of them. */
#pragma once

#include "side.h"

/* Sends one to the peer, into a receive posted there. */
void to_peer(struct work w, struct pieces theirs);
/* The peer sends one; the words of `format` are added to its line. Returns the completion of our receive. */
struct ibv_wc __attribute__((format(printf, 4, 5)))
to_us(int link, struct pieces theirs, struct pieces ours, const char *format, ...);
