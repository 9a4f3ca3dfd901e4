/* What happens when a stream gets there: waits for values and events, memory that is freed in stream order.
 *
 * Kernels only take time on the card's clock, and copies are made at once: neither needs this. An action is run by a thread of the
 * driver's own once the stream's kernels are done and the stream's earlier actions too; the legacy stream and blocking streams wait for
 * each other. What is queued behind an action is an action itself.
 */
#ifndef FAKEGPU_DEFERRED_H
#define FAKEGPU_DEFERRED_H

#include "driver/driver.h"

/* Queues `run(data)`; with `ready`, not before that answers true (it is asked again and again). Returns a ticket, 0: no memory. */
uint64_t fg_defer(CUcontext context, CUstream stream, bool (*ready)(void *data), void (*run)(void *data), void *data);

/* The last action that the stream (a special one: its context) still has to run; 0: none. Cheap where no program uses any. */
uint64_t fg_pending(CUcontext context, CUstream stream);

bool fg_is_done(uint64_t ticket);
void fg_wait_done(uint64_t ticket);

/* Runs what a context that ends has pending, without waiting for kernels and values. */
void fg_flush(CUcontext context);

/* Whether kernels or actions of the stream are still to come. */
bool fg_is_busy(CUcontext context, CUstream stream);

/* Waits until all that is in the stream (a special one: in the context) is done. */
void fg_drain(CUcontext context, CUstream stream);

/* The context of a stream: a special one's is the caller's. CUDA_ERROR_INVALID_HANDLE for no stream. */
CUresult fg_stream_context(CUstream stream, CUcontext *context);

#endif
