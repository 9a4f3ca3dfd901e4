/* What pools hold of freed memory until the program waits for it.
 *
 * On a card a pool gives nothing back before a stream, an event or a context is waited for, neither to the card nor when it is trimmed;
 * allocations from the pool have it again at once. Waiting for a stream is for what was freed in it, for a special stream and a context
 * for all of the context; for an event, for what was freed in its stream before it was recorded.
 */
#ifndef FAKEGPU_HELD_H
#define FAKEGPU_HELD_H

#include "driver/driver.h"

/* The number of the free that begins now. */
uint64_t fg_held_next(void);

/* The last number given: what an event comes behind. */
uint64_t fg_held_last(void);

/* Adds bytes of the pool that were freed in a stream; false: no memory. With fg_driver.lock, like all that follow. */
bool fg_held_add(CUmemoryPool pool, CUcontext context, CUstream stream, uint64_t bytes, uint64_t number);

/* What the pool holds of other streams than that. */
uint64_t fg_held_of_others(CUmemoryPool pool, CUstream stream);

/* Forgets all but `bytes` of what the pool holds: it is used again. */
void fg_held_cut(CUmemoryPool pool, uint64_t bytes);

/* Takes out an entry that is waited for by now, up to the number; returns its pool, NULL: there is no more. */
CUmemoryPool fg_held_waited(CUcontext context, CUstream stream, uint64_t number);

/* The program has waited: pools give back what they do not keep. Without the lock. */
void fg_pools_waited(CUcontext context, CUstream stream, uint64_t number);
static const uint64_t FG_ALL_FREES = UINT64_MAX; /* as a number */

#endif
