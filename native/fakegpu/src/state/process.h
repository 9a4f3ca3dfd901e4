/* The processes of the machine: their entries in its state, and which of them are dead. All functions are called with the state's lock. */
#ifndef FAKEGPU_PROCESS_H
#define FAKEGPU_PROCESS_H

#include <sys/types.h>

#include "state/state.h"

/* Frees what dead processes held. */
void fg_sweep(struct fg_state *state);

/* This process's entry, taken if need be (also in a fork child). NULL: 1024 processes live. */
struct fg_process *fg_self(struct fg_state *state);

/* The pid of an entry's process in the caller's pid namespace; 0: it is not in there. */
pid_t fg_visible_pid(const struct fg_state *state, const struct fg_process *process);

#endif
