/* Calls that fail, or wait, because the configuration wants it. */
#ifndef FAKEGPU_FAULT_H
#define FAKEGPU_FAULT_H

#include "machine/fault_call.h"

/* Counts the call. The result it has to answer; 0: it is to work. */
int fg_fault(enum fg_call call);

/* Waits while the configuration wants calls on that card to wait. With no lock held that a call on another card takes. */
void fg_gate(enum fg_call call, int card);

#endif
