/* Calls that fail because the configuration wants it. */
#ifndef FAKEGPU_FAULT_H
#define FAKEGPU_FAULT_H

#include "machine/fault_call.h"

/* Counts the call. The result it has to answer; 0: it is to work. */
int fg_fault(enum fg_call call);

#endif
