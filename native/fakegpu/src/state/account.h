/* What this process takes of the cards: memory, and time on their clocks. */
#ifndef FAKEGPU_ACCOUNT_H
#define FAKEGPU_ACCOUNT_H

#include "state/process.h"

/* Takes bytes of a card for this process; false: not that much is free. With the lock. */
bool fg_take(struct fg_state *state, int card, uint64_t bytes);
void fg_give(struct fg_state *state, int card, uint64_t bytes);

/* The card's clock, advanced to now. With the lock. */
struct fg_clock *fg_clock_now(struct fg_state *state, int card);

/* Queues a kernel of that length on a card. Returns its mark (clock.h) in this process's queue. With the lock. */
int64_t fg_queue_kernel(struct fg_state *state, int card, int64_t length_ns);

/* When this process's mark was reached, 0 if it is not yet. */
int64_t fg_reached_ns(struct fg_state *state, int card, int64_t mark);

/* How long the card must still work before this process's mark is reached; 0: it is. */
int64_t fg_left_ns(struct fg_state *state, int card, int64_t mark);

/* Sleeps until this process's mark is reached. */
void fg_sleep_until_reached(struct fg_state *state, int card, int64_t mark);

/* Busy percent of the sample that NVML shows now. With the lock; the clock has been advanced. */
unsigned int fg_utilisation(const struct fg_machine *machine, const struct fg_sample ring[FG_SAMPLES]);

#endif
