/* Times launches with pairs of the driver's events. The caller holds the cores' lock, but for enter and leave. */
#ifndef VGPU_CORE_TIMING_H
#define VGPU_CORE_TIMING_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "governor/governor.h"

struct vgpu_core_timing {
    struct {
        CUcontext context; /* in which the events were made; NULL: there are none */
        CUevent begin, end;
        bool pending; /* both recorded, end not seen yet */
    } pairs[VGPU_TIMINGS];
};

/* Before and after any call that this module makes into the driver: on this thread such calls then never disturb a stream capture of the
 * program. false: the launch is being captured. */
bool vgpu_core_timing_enter(CUstream stream, int *mode);
void vgpu_core_timing_leave(int mode);

/* Records the event before, and the one after, the launch. false: not possible. */
bool vgpu_core_timing_begin(struct vgpu_core_timing *timing, int at, CUstream stream);
bool vgpu_core_timing_end(struct vgpu_core_timing *timing, int at, CUstream stream);

/* Reports launches that have begun and ended to the governor. */
void vgpu_core_timing_collect(struct vgpu_core_timing *timing, struct vgpu_governor *governor, const struct vgpu_shared_cores *shared,
                              int64_t now_ns);

/* The events of that context are gone. */
void vgpu_core_timing_forget(struct vgpu_core_timing *timing, struct vgpu_governor *governor, CUcontext context);

#endif
