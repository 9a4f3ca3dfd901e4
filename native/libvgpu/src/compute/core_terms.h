/* The terms under which launches are made, as of now: the container's share of each device, and whether it has to wait for another. */
#ifndef VGPU_CORE_TERMS_H
#define VGPU_CORE_TERMS_H

#include <stdbool.h>
#include <stdint.h>

#include "state/process_state.h"
#include "vgpu_region.h"

/* A kernel is about to be launched: shows it to monitors, at most once per RECORD_KERNEL_INTERVAL seconds; looks for
 * new limits. A clock reading and two loads while there is nothing to do. *now_ms is that clock, or untouched. */
enum vgpu_core_concern vgpu_core_concern_now(int64_t *now_ms);

/* Whether the device of that index has a limit itself. */
bool vgpu_core_limits(int index);

struct vgpu_core_terms {
    uint32_t percent; /* 1..100; 100: no limit */
    bool blocked;
    struct vgpu_region *region;
    struct vgpu_region_slot *slot; /* NULL: none could be had */
    int process_count;
};

/* Reads limits again if they have changed. false: nothing is known, so nothing is limited. */
bool vgpu_core_terms_of(int index, struct vgpu_core_terms *terms);

/* The device of the thread's current context (devices.h). The driver is asked when that context may have changed, and
 * else every VGPU_LIMITS_LOOK_MS: should a program change it by a call that has no hook, its launches are charged to
 * the wrong device of its container for that long. */
int vgpu_core_current_device(void);

/* The thread's current context may be another one now. */
void vgpu_core_device_changed(void);

#endif
