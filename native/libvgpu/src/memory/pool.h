/* Stream-ordered pools of this process: which device a pool is of, and what it keeps of freed memory.
 *
 * A pool gives freed memory back to the card only beyond its release threshold. What stays below it is charged on as the pool's kept
 * bytes, and the next allocation from that pool uses them up before it reserves anything. Without a threshold (the default) nothing is
 * kept. When the slice is full, pools that keep memory are trimmed before anybody is refused.
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

/* There is no such allocation after all: what vgpu_pool_take answered (`reused`) is kept by the pool again. */
void vgpu_pool_put_back(CUmemoryPool pool, uint64_t bytes, uint64_t reused);

/* A block of the pool was freed: its bytes are kept or released. */
void vgpu_pool_freed(CUmemoryPool pool, int device, uint64_t bytes);

/* The threshold was set; the pool was trimmed to `keep` bytes. */
void vgpu_pool_threshold(CUmemoryPool pool, uint64_t bytes);
void vgpu_pool_trimmed(CUmemoryPool pool, uint64_t keep);

/* A pool is ended in two halves: the driver may give its number out again at once. What `begin` took out is handed to `end`. */
struct pool *vgpu_pool_end_begin(CUmemoryPool pool);
void vgpu_pool_end(struct pool *ending, CUresult destroyed);

/* Trims all pools of a device that keep memory. Whether anything became free. */
bool vgpu_pool_trim_all(int device);

#endif
