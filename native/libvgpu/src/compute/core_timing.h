/* Times launches with pairs of the driver's events.
 *
 * Recording an event waits while the card's queue is full, so it is done without the card's lock: the thread that launches takes the pair
 * out, records both events, and puts it back to be collected. */
#ifndef VGPU_CORE_TIMING_H
#define VGPU_CORE_TIMING_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"
#include "governor/governor.h"

struct vgpu_event_pair {
    CUcontext context; /* in which the events were made; NULL: there are none */
    CUevent begin, end;
    unsigned int forgotten; /* of the timing, when the pair was taken out */
};

struct vgpu_core_timing {
    struct vgpu_event_pair pairs[VGPU_TIMINGS];
    bool pending[VGPU_TIMINGS]; /* both recorded, end not seen yet */
    unsigned int forgotten;     /* how often events were lost with their context */
};

/* Before and after any call that this module makes into the driver: on this thread such calls then never disturb a stream capture of the
 * program. false: the launch is being captured. */
bool vgpu_core_timing_enter(CUstream stream, int *mode);
void vgpu_core_timing_leave(int mode);

/* The pair of that timing, which the governor has given to this thread. With the card's lock. */
struct vgpu_event_pair vgpu_core_timing_take(struct vgpu_core_timing *timing, int at);

/* Records the event before, and the one after, the launch. false: not possible. Without a lock. */
bool vgpu_core_timing_begin(struct vgpu_event_pair *pair, CUstream stream);
bool vgpu_core_timing_end(const struct vgpu_event_pair *pair, CUstream stream);

/* The pair goes back; `recorded`: both events were. false: it is not to be collected. With the card's lock, as all that follows. */
bool vgpu_core_timing_put(struct vgpu_core_timing *timing, int at, const struct vgpu_event_pair *pair, bool recorded);

/* Reports launches that have begun and ended to the governor. */
void vgpu_core_timing_collect(struct vgpu_core_timing *timing, struct vgpu_governor *governor, const struct vgpu_shared_cores *shared,
                              int64_t now_ns);

/* The events of that context are gone. */
void vgpu_core_timing_forget(struct vgpu_core_timing *timing, struct vgpu_governor *governor, CUcontext context);

#endif
