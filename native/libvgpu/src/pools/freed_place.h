/* Where memory was freed: a stream, as seen from the calling thread, and the event that is recorded behind the free. Any thread; asks the
 * driver, with no lock of its own. */
#ifndef VGPU_FREED_PLACE_H
#define VGPU_FREED_PLACE_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"

/* CU_STREAM_PER_THREAD: what NULL means to the functions of the per-thread default stream. */
#define VGPU_STREAM_PER_THREAD ((CUstream)2)

/* The default streams are one per context, and one per thread. */
struct vgpu_freed_place {
    CUcontext context;
    CUstream stream;
    uint64_t thread;
    CUmemoryPool pool;
    int device;
};

struct vgpu_freed_place vgpu_freed_place(CUmemoryPool pool, int device, CUstream stream);
bool vgpu_freed_same_place(const struct vgpu_freed_place *a, const struct vgpu_freed_place *b);

/* Records the event (NULL: one that is made for it) behind all that the stream has to do; NULL: none could be had. */
CUevent vgpu_freed_record(const struct vgpu_freed_place *place, CUevent event);

/* While the thread asks events: doing so while a stream records a graph would end the recording. */
int vgpu_freed_relax_capture(void);
void vgpu_freed_restore_capture(int mode);

#endif
