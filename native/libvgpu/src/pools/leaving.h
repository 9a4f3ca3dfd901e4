/* Memory that was freed in a stream (cuMemFreeAsync): it stays charged until the stream is there.
 *
 * An event behind the free shows when that is. Until then an allocation in the same stream may have the bytes again, as
 * the driver gives it the same memory; one in another stream may not, as the driver would give it other memory while
 * the card has some. Events are looked at whenever the program waits for the device, asks how much is free, takes from the
 * same pool, or is about to be refused; one that would be refused waits for them a while first.
 *
 * What came from a pool is kept by the pool then (pool.h): the driver lets go of it when somebody waits for the event. A
 * thread that is about to be refused does, and for memory of no pool every look.
 *
 * Any thread, with no lock of this library held; not from signal handlers. The lock of this list is held while events
 * are asked, which does not wait. A fork child finds it empty.
 */
#ifndef VGPU_LEAVING_H
#define VGPU_LEAVING_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "pools/freed_place.h"

/* Memory of a device was freed in a stream; it came from `pool`, or from none (NULL). Released when the stream is
 * there. */
void vgpu_leaving_add(CUmemoryPool pool, int device, uint64_t bytes, CUstream stream);

/* How many of the bytes wanted the pool may take again, as they were freed in that very stream: they are the caller's
 * now, and charged. vgpu_leaving_add gives them back. */
uint64_t vgpu_leaving_take(CUmemoryPool pool, int device, CUstream stream, uint64_t wanted);

/* Hands to pools what streams have freed since, and releases what came from none. Whether there was any. Costs a load
 * where nothing is leaving. */
bool vgpu_leaving_settle(void);

/* The same, and waits for the events of that device which are done, so that the driver lets go. */
bool vgpu_leaving_let_go(int device);

/* Waits until memory of that device was let go of, for two seconds at most in all: behind a kernel that takes longer, or
 * one that waits for this thread, the allocation is refused. False: nothing was. */
bool vgpu_leaving_wait(int device, int64_t *waited_ms);

/* The pool is about to be destroyed: nothing takes from it any more, and it keeps nothing. It is not after all. */
void vgpu_leaving_pool_ends(CUmemoryPool pool);
void vgpu_leaving_pool_stays(CUmemoryPool pool);

/* The context has ended, and all work in it. */
void vgpu_leaving_forget_context(CUcontext context);

#endif
