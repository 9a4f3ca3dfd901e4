/* The end of a context (context.c). */
#ifndef FAKEGPU_CONTEXT_H
#define FAKEGPU_CONTEXT_H

#include "driver/driver.h"

/* Gives its memory back. The context is no longer current in this thread; where another thread has it current, its calls fail. */
void fg_end_context(CUcontext context);

#endif
