/* The entries of what processes share by handle, in the machine's state. All functions are called with the state's lock.
 *
 * An entry's memory is counted in the bytes of one holder; when that one lets go, another holder's take its place, and with the last
 * holder the memory is free. A handle names an entry and its generation.
 */
#ifndef FAKEGPU_SHARED_H
#define FAKEGPU_SHARED_H

#include "state/process.h"

/* A new entry that this process holds; -1: all are taken. Its bytes must be charged to this process already. */
int fg_shared_new(struct fg_state *state, int card, uint64_t bytes);

/* Holds the entry if it is still that generation; else false. */
bool fg_shared_hold(struct fg_state *state, int entry, uint32_t generation);

/* Lets go, for this process; the memory's bytes go back with the last holder. */
void fg_shared_drop(struct fg_state *state, int entry);

#endif
