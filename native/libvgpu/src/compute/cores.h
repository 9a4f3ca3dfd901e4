/* The share of the cores: every launch passes here. Decides with the governor (governor.h), times launches with events, asks NVML.
 *
 * A thread keeps what it found out about its launches for the next few of them: then a launch costs a few loads, and looks at no clock.
 * All other state begins at the first launch that a limit concerns, and is empty in a fork child.
 */
#ifndef VGPU_CORES_H
#define VGPU_CORES_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "compute/core_timing.h"
#include "cuda_abi.h"
#include "governor/thread_budget.h"

/* A launch that has been let through; `timing` >= 0: it is being timed, with that pair. */
struct vgpu_launch {
    int index, timing;
    CUstream stream;
    struct vgpu_event_pair pair;
};

/* The per-thread default stream, for functions whose NULL means it (CU_STREAM_PER_THREAD). */
static inline CUstream vgpu_per_thread(CUstream stream) { return stream != NULL ? stream : (CUstream)(uintptr_t)2; }

/* What a thread knows of its next launches. In a fork child the governor's memory is empty (costs NULL), and the thread
 * asks again. */
struct vgpu_core_pass {
    int left;                       /* so many launches go by what stands here; 0: ask */
    struct vgpu_governor *governor; /* of the current device; NULL: nothing limits it */
    int64_t budget_ns;               /* GPU time that the thread has of the governor's lease */
    int64_t asked_ms;               /* when it asked last */
};
extern _Thread_local struct vgpu_core_pass vgpu_core_pass;

/* Captures that are open: while there are any, a launch asks whether it is only recorded, and is free then. */
extern _Atomic int vgpu_captures_open;
void vgpu_cores_capture_begun(void);
void vgpu_cores_capture_ended(void);

/* The fast path: whether the launch may be made at once and is paid. false: vgpu_cores_admit. */
static inline bool vgpu_cores_pass(const void *what, uint64_t size)
{
    struct vgpu_core_pass *pass = &vgpu_core_pass;
    if (__builtin_expect(pass->left <= 0, 0)) return false;
    pass->left--;
    struct vgpu_governor *governor = pass->governor;
    if (governor == NULL) return true;
    if (__builtin_expect(atomic_load_explicit(&vgpu_captures_open, memory_order_relaxed) > 0, 0)) return false;
    return vgpu_thread_budget_pay(governor, vgpu_cost_key(what, size), &pass->budget_ns);
}

/* The thread's current context may be another one now: its next launch asks. */
void vgpu_cores_device_changed(void);

/* Waits until the launch may be made. `what` is the function or the graph, `size` distinguishes its launches, `stream`
 * is where it goes (the special handle 2 for the per-thread default stream). Never longer than VGPU_LONGEST_WAIT_NS,
 * and as long again while a monitor gives another container precedence. */
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
