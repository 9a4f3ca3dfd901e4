/* The state of one process: its configuration, devices, region and slot. What is done with it: slice.h (memory),
 * core_terms.h (launches).
 *
 * It is started by the first call that concerns it (cuInit, an NVML memory query), never by being loaded: a process
 * that uses no GPU pays nothing. After fork the child starts afresh by itself: the state lives in pages that the kernel
 * empties in a child. So do all other accounts and locks (wipe_on_fork.h); only the table of devices survives.
 *
 * Any thread may call any of these functions, but no signal handler: they wait for locks, for the disk, for NVML. Locks
 * are taken in this order, and any may be left out: one of memory/ (graphs, physical memory, pools, a shard of the block
 * table), `lock`, the lock of the region's file, `account_lock`. The locks of the cores, one for each device, are held with none of them.
 */
#ifndef VGPU_PROCESS_STATE_H
#define VGPU_PROCESS_STATE_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#include "base/mutex.h"
#include "base/spin_lock.h"
#include "config/config_source.h"
#include "cuda_abi.h"
#include "nvml_abi.h"
#include "region/region.h"

/* What a launch has to do with core limits. */
enum vgpu_core_concern {
    VGPU_CORES_FREE,    /* nothing */
    VGPU_CORES_LIMITED, /* some device has a limit */
    VGPU_CORES_BLOCKED  /* a container of higher priority goes first */
};

/* Zero means "not started". */
struct vgpu_process_state {
    struct vgpu_mutex lock; /* guards all that is not atomic */
    _Atomic bool ready;
    struct vgpu_region_file shared;
    _Atomic(struct vgpu_region_slot *) slot;
    pid_t pid; /* of the process that took the slot */
    uint64_t start_time;
    /* What the process knows of itself, whatever stands in the region: bytes it holds, and bytes of these that the
     * driver took for itself. The lock guards them and the process's own fields in the region, which change together;
     * where both are taken it comes second. */
    struct vgpu_spin_lock account_lock;
    uint64_t held[VGPU_MAX_DEVICES], overhead[VGPU_MAX_DEVICES];
    /* Of the bytes held those that others may have open by a handle; and others' bytes that this process has open. */
    uint64_t exported[VGPU_MAX_DEVICES], imported[VGPU_MAX_DEVICES];
    /* Of the overhead what was orphaned before NVML counted it for this process; and what rose with the last look and may be that, but
     * was not orphaned yet (shared_memory.h). */
    uint64_t taken[VGPU_MAX_DEVICES], unmatched[VGPU_MAX_DEVICES];
    struct vgpu_config config;
    struct vgpu_config_stamp stamp;
    _Atomic uint64_t limit_bytes[VGPU_MAX_DEVICES];
    _Atomic uint64_t unplaced_limit_bytes;
    _Atomic bool oversubscribe;
    _Atomic uint32_t core_percent[VGPU_MAX_DEVICES];
    _Atomic int64_t blocked_until_ms; /* until then the limits file holds launches back; 0: it does not */
    _Atomic int64_t next_look_ms, next_core_look_ms, next_sweep_ms, next_launch_s;
    _Atomic enum vgpu_core_concern concern;
    int64_t launch_interval_s;
};

/* Starts the process's state if it is not. Needs an initialised driver or NVML. NULL: without memory, or called from
 * inside itself. */
struct vgpu_process_state *vgpu_state_start(void);

/* The state if it has been started, else NULL. */
struct vgpu_process_state *vgpu_state_started(void);

/* Whether this thread is just starting the state: what it allocates while it does is the driver's own affair. */
bool vgpu_state_is_starting(void);

/* The process's slot, taken if need be; taken again, with what the process holds, if somebody has scribbled over it.
 * NULL: none is free. */
struct vgpu_region_slot *vgpu_state_slot(struct vgpu_process_state *state);

/* Takes the process's slot in the region now rather than at its first allocation, so that monitors see the process. */
void vgpu_state_register(void);

/* A changed limits file is seen by the first allocation or launch after 10 ms: one stat per 10 ms is nothing, and
 * people do not notice. */
enum { VGPU_LIMITS_LOOK_MS = 10 };
void vgpu_state_look_for_new_limits(struct vgpu_process_state *state);

/* Whether limits were looked for since this was asked last: for what is done about as often, and reads no clock of its own. */
extern _Atomic bool vgpu_state_looked;
static inline bool vgpu_state_has_looked(void)
{
    return atomic_load_explicit(&vgpu_state_looked, memory_order_relaxed) && atomic_exchange(&vgpu_state_looked, false);
}

/* Takes `lock` and the lock of the region's file; false: that one cannot be had, and neither is held. */
bool vgpu_state_lock_region(struct vgpu_process_state *state);
void vgpu_state_unlock_region(struct vgpu_process_state *state);

/* Frees what dead processes of the container held, and repairs totals. */
void vgpu_state_reclaim(struct vgpu_process_state *state);

/* Index of a device (devices.h); negative: VGPU_DEVICE_UNKNOWN or VGPU_DEVICE_UNPLACED. */
int vgpu_state_cuda_device(CUdevice device);
int vgpu_state_nvml_device(nvmlDevice_t device);

int vgpu_state_device_count(void);

/* UUID of a device of that index. */
const char *vgpu_state_device_uuid(int index);

/* Milliseconds of a coarse clock: about 5 ns, exact to 4 ms. */
static inline int64_t vgpu_now_ms(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* True for one caller per interval. */
static inline bool vgpu_is_due(_Atomic int64_t *next, int64_t now, int64_t interval)
{
    int64_t at = atomic_load_explicit(next, memory_order_relaxed);
    return now >= at && atomic_compare_exchange_strong(next, &at, now + interval);
}

#endif
