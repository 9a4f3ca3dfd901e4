/* The multiprocessors of contexts (green.c). */
#ifndef FAKEGPU_GREEN_H
#define FAKEGPU_GREEN_H

#include "driver/driver.h"

/* Those that the context's kernels run on. */
int fg_context_multiprocessors(const struct CUctx_st *context);

/* Those that a description names; -1: of another device; 0: it is none that was generated, and all will do. */
int fg_described_multiprocessors(CUdevResourceDesc description, CUdevice device);

#endif
