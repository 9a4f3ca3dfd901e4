/* The share of the cores: every launch passes here. Decides with the governor (governor.h), times launches with events, asks NVML.
 *
 * A launch that no limit concerns costs a clock reading and two loads. All state begins at the first launch that a limit concerns, and is
 * empty in a fork child.
 */
#ifndef VGPU_CORES_H
#define VGPU_CORES_H

#include <stddef.h>
#include <stdint.h>

#include "cuda_abi.h"

/* A launch that has been let through; `timing` >= 0: it is being timed. */
struct vgpu_launch {
    int index, timing;
    CUstream stream;
};

/* The per-thread default stream, for functions whose NULL means it (CU_STREAM_PER_THREAD). */
static inline CUstream vgpu_per_thread(CUstream stream) { return stream != NULL ? stream : (CUstream)(uintptr_t)2; }

/* Waits until the launch may be made. `what` is the function or the graph, `size` tells its launches apart, `stream` is where it goes (the
 * special handle 2 for the per-thread default stream). Never longer than VGPU_LONGEST_WAIT_NS, and as long again while a monitor gives
 * another container precedence. */
struct vgpu_launch vgpu_cores_admit(const void *what, uint64_t size, CUstream stream);

void vgpu_cores_timed(const struct vgpu_launch *launch, CUresult result);

/* The launch has been made, with that result. */
static inline void vgpu_cores_launched(const struct vgpu_launch *launch, CUresult result)
{
    if (__builtin_expect(launch->timing >= 0, 0)) vgpu_cores_timed(launch, result);
}

/* A context is gone, and with it the events that were made in it. */
void vgpu_cores_forget_context(CUcontext context);

#endif
