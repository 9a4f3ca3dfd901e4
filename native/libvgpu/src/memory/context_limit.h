/* What a context keeps ready for kernels (cuCtxSetLimit): the heap of their malloc, the buffer of their printf, stacks.
 *
 * Heap and buffer have the size that was asked for and appear with the next module or launch, so what they have beyond
 * the driver's own size is charged when it is set, until it is lowered or its context ends. How much stacks take only
 * the driver knows: it is looked up after, and undone where it does not fit. Any thread, with no lock held.
 */
#ifndef VGPU_CONTEXT_LIMIT_H
#define VGPU_CONTEXT_LIMIT_H

#include "cuda_abi.h"

/* Sets a limit of the current context through the driver. CUDA_ERROR_OUT_OF_MEMORY: the slice has no room for it. */
CUresult vgpu_context_limit_set(int limit, size_t value);

#endif
