/* Stream-ordered pools of this process: which device a pool is of, and what it keeps of freed memory.
 *
 * Memory that was freed in a stream is not the card's again before the program waits for the device (a stream, an event or
 * a context), and then only what lies beyond the pool's release threshold. Until the driver answers that the pool has
 * less (CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) it is charged on as the pool's kept bytes, and the next allocation from that
 * pool uses them up before it reserves anything. Before anybody is refused, pools that keep memory are trimmed.
 *
 * Any thread; not from signal handlers. The lock of the pools is held for a few loads and stores: never while the driver
 * is called or the slice is charged. A fork child finds no pool.
 */
#ifndef VGPU_POOL_H
#define VGPU_POOL_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"

/* Remembers a pool that was made on a device (index; negative: the pool's memory is not counted). */
void vgpu_pool_made(CUmemoryPool pool, int device);

/* Index of the device that a pool's memory is on; asks the driver which default pool it is when it was not made here. */
int vgpu_pool_device(CUmemoryPool pool);

/* An allocation from the pool begins: how many of its bytes are those that the pool kept, and are charged already. The
 * caller reserves the others (vgpu_memory_reserve_pooled). */
uint64_t vgpu_pool_take(CUmemoryPool pool, int device, uint64_t bytes);

/* The driver has made the allocation. Between the two a look at the pool takes none of its bytes for granted. */
void vgpu_pool_taken(CUmemoryPool pool, uint64_t bytes);

/* There is no such allocation after all: what vgpu_pool_take answered (`reused`) is kept by the pool again. */
void vgpu_pool_put_back(CUmemoryPool pool, uint64_t bytes, uint64_t reused);

/* A block of the pool was freed, and its stream is there: its bytes are kept. */
void vgpu_pool_freed(CUmemoryPool pool, int device, uint64_t bytes);

/* The release threshold was set. */
void vgpu_pool_threshold(CUmemoryPool pool, uint64_t bytes);

/* Whether an allocation may get what was freed in another stream (CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC; it may unless the
 * program forbids it). Else what the pool keeps is counted on by nobody, and the pool is looked at after each allocation. */
void vgpu_pool_opportunistic(CUmemoryPool pool, bool allowed);

/* Asks the driver what a pool still has, and releases what it keeps no more. Whether anything was released. Costs no call of
 * the driver where nothing is kept. */
bool vgpu_pool_look(CUmemoryPool pool);

/* The same for all pools; after the program has waited, only those that keep more than their threshold: the driver shrinks no
 * others then. */
void vgpu_pool_look_all(bool beyond_threshold);

/* A pool is ended in two halves: the driver may give its number out again at once. What `begin` took out is handed to `end`. */
struct pool *vgpu_pool_end_begin(CUmemoryPool pool);
void vgpu_pool_end(struct pool *ending, CUresult destroyed);

/* Trims all pools of a device that keep memory. Whether anything was released. */
bool vgpu_pool_trim_all(int device);

#endif
