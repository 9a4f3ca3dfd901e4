/* Which processes hold an entry of what they share by handle (shared.h). All functions are called with the state's lock. */
#ifndef FAKEGPU_HOLDER_H
#define FAKEGPU_HOLDER_H

#include "state/state.h"

void fg_holder_set(struct fg_shared *shared, int process, bool holds);

bool fg_holder_is(const struct fg_shared *shared, int process);

/* One holder less: what it was charged with passes to another, or back to the card. */
void fg_holder_leave(struct fg_state *state, struct fg_shared *shared, int process);

/* Lets go of everything, for a process that is dead. */
void fg_holder_leave_all(struct fg_state *state, int process);

#endif
