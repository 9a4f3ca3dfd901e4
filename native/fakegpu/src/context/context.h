/* The end of a context (context.c). */
#ifndef FAKEGPU_CONTEXT_H
#define FAKEGPU_CONTEXT_H

#include "driver/driver.h"

/* Gives its memory back. Where it is current it stays so, and calls fail. */
void fg_end_context(CUcontext context);

#endif
