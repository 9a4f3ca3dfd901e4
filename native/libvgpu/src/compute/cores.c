#include "compute/cores.h"

#include <time.h>

#include "timeshare/bucket.h"
#include "compute/core_terms.h"
#include "compute/core_timing.h"
#include "compute/core_usage.h"
#include "config/devices.h"
#include "base/wipe_on_fork.h"
#include "base/mutex.h"
#include "governor/thread_budget.h"
#include "intercept/real.h"

/* A container that waits for another of higher priority looks again so often. A limits file ends a block by itself; of one in the region
 * nobody knows whether the monitor that wrote it still lives: there a launch waits for half a minute at most. */
static const int64_t BLOCKED_LOOK_NS = 10000000, BLOCKED_WAIT_NS = 30000000000;

struct device {
    struct vgpu_mutex lock; /* guards costs, timing and all but the fast path of the governor. With it no call is made that may wait */
    bool started;
    struct vgpu_governor governor;
    struct vgpu_costs costs;
    struct vgpu_core_timing timing;
    struct vgpu_core_usage usage;
};

static _Atomic(void *) pages[VGPU_MAX_DEVICES]; /* struct device */

/* So many launches go by one look at the clock, the limits and the context, if they come this closely: then all of them
 * are made before a person, a monitor or a limits file could notice. A thread that launches less often looks each
 * time. */
enum { LAUNCHES_PER_LOOK = 16, CLOSE_MS = 4 };

_Thread_local struct vgpu_core_pass vgpu_core_pass;
_Atomic int vgpu_captures_open;

void vgpu_cores_capture_begun(void) { atomic_fetch_add(&vgpu_captures_open, 1); }

void vgpu_cores_capture_ended(void) { atomic_fetch_sub(&vgpu_captures_open, 1); }

/* Zeroes are a valid beginning. NULL: no memory. */
static struct device *device_at(int index) { return vgpu_wiped_pages(&pages[index], sizeof(struct device)); }

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void sleep_ns(int64_t ns)
{
    nanosleep(&(struct timespec){.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000}, NULL); /* a signal only shortens it */
}

struct place {
    struct vgpu_region *region;
    int index;
};

static struct vgpu_member member_of(struct vgpu_region_slot *slot, int index)
{
    return (struct vgpu_member){.had_ns = vgpu_slot_core_had(slot, index), .waiting_at_ns = vgpu_slot_core_waiting(slot, index)};
}

static struct vgpu_member member(const struct vgpu_members *members, int at)
{
    const struct place *place = members->context;
    struct vgpu_region_slot *slot = &place->region->slots[at];
    return atomic_load_explicit(&slot->pid, memory_order_relaxed) != 0 ? member_of(slot, place->index) : (struct vgpu_member){0};
}

static struct vgpu_shared_cores shared_by(const struct vgpu_core_terms *terms, struct place *place)
{
    return (struct vgpu_shared_cores){
        .paid_until_ns = vgpu_region_paid_until(terms->region, place->index),
        .claimed_until_ns = vgpu_region_claimed_until(terms->region, place->index),
        .members = {.count = terms->process_count, .member = member, .context = place},
        .own = terms->slot != NULL ? member_of(terms->slot, place->index) : (struct vgpu_member){0},
    };
}

/* With the lock. */
static void start(struct device *device, int index, const struct vgpu_core_terms *terms)
{
    if (!device->started) {
        vgpu_governor_start(&device->governor, &device->costs, terms->percent);
        if (terms->slot != NULL) atomic_store(vgpu_slot_core_had(terms->slot, index), 0); /* its predecessor's */
        device->started = true;
    }
    device->governor.percent = terms->percent;
}

/* Looks at what has ended since. Whether it is time to ask NVML. */
static bool collect(struct device *device, int index, const struct vgpu_core_terms *terms, const struct vgpu_shared_cores *shared)
{
    vgpu_mutex_lock_last(&device->lock);
    start(device, index, terms);
    const int64_t now = now_ns();
    vgpu_core_timing_collect(&device->timing, &device->governor, shared, now);
    const bool wants_sample = vgpu_governor_wants_sample(&device->governor, now);
    vgpu_mutex_unlock(&device->lock);
    return wants_sample;
}

/* The launch will not be timed after all. */
static void give_up_timing(struct device *device, const struct vgpu_launch *launch)
{
    vgpu_mutex_lock_last(&device->lock);
    (void)vgpu_core_timing_put(&device->timing, launch->timing, &launch->pair, false);
    vgpu_governor_untimed(&device->governor, launch->timing);
    vgpu_mutex_unlock(&device->lock);
}

/* One look: what the launch has to wait; 0: it is admitted. */
static int64_t look(struct device *device, const struct vgpu_core_terms *terms, uint64_t key, int64_t asked_ns, struct vgpu_launch *launch)
{
    struct place place = {.region = terms->region, .index = launch->index};
    const struct vgpu_shared_cores shared = shared_by(terms, &place);
    struct vgpu_core_sample sample;
    const bool sampled = collect(device, launch->index, terms, &shared) && vgpu_core_usage_ask(&device->usage, launch->index, &sample);
    vgpu_mutex_lock_last(&device->lock);
    struct vgpu_governor *governor = &device->governor;
    if (sampled) vgpu_governor_sample(governor, sample.begin_ns, sample.end_ns, sample.percent, sample.newest_percent);
    const struct vgpu_verdict verdict = vgpu_governor_ask(governor, &shared, key, asked_ns, now_ns(), true);
    launch->timing = verdict.timing;
    if (verdict.timing >= 0) launch->pair = vgpu_core_timing_take(&device->timing, verdict.timing);
    vgpu_mutex_unlock(&device->lock);
    if (launch->timing >= 0 && !vgpu_core_timing_begin(&launch->pair, launch->stream)) {
        give_up_timing(device, launch);
        launch->timing = -1;
    }
    return verdict.wait_ns;
}

/* Whether a launch only becomes part of a graph: it is paid when that is launched. */
static bool is_recorded(CUstream stream)
{
    int mode;
    if (atomic_load(&vgpu_captures_open) <= 0) return false;
    const bool runs = vgpu_core_timing_enter(stream, &mode);
    vgpu_core_timing_leave(mode);
    return !runs;
}

/* The lease is used up, or nothing is known of the launch. */
static void admit_slowly(struct device *device, uint64_t key, struct vgpu_launch *launch)
{
    int mode;
    if (vgpu_core_timing_enter(launch->stream, &mode)) {
        const int64_t asked_ns = now_ns();
        struct vgpu_core_terms terms;
        while (vgpu_core_terms_of(launch->index, &terms) && terms.percent < 100) {
            const int64_t wait_ns = look(device, &terms, key, asked_ns, launch);
            if (wait_ns == 0) break;
            sleep_ns(wait_ns);
        }
    }
    vgpu_core_timing_leave(mode);
}

static void wait_while_blocked(int index)
{
    struct vgpu_core_terms terms;
    const int64_t until_ns = now_ns() + BLOCKED_WAIT_NS;
    while (vgpu_core_terms_of(index, &terms) && terms.blocked && now_ns() < until_ns) sleep_ns(BLOCKED_LOOK_NS);
}

/* What is found now counts for the thread's next launches, if they come closely. NULL: nothing limits them. */
static void keep_pass(struct vgpu_core_pass *pass, struct vgpu_governor *governor, int64_t now_ms)
{
    if (pass->governor != governor) {
        if (pass->governor != NULL) vgpu_thread_budget_return(pass->governor, &pass->budget_ns);
        pass->governor = governor;
        pass->budget_ns = 0;
    }
    pass->left = now_ms != 0 && now_ms - pass->asked_ms <= CLOSE_MS ? LAUNCHES_PER_LOOK - 1 : 0;
    pass->asked_ms = now_ms;
}

struct vgpu_launch vgpu_cores_admit(const void *what, uint64_t size, CUstream stream)
{
    struct vgpu_core_pass *pass = &vgpu_core_pass;
    struct vgpu_launch launch = {.index = VGPU_DEVICE_UNKNOWN, .timing = -1, .stream = stream};
    const uint64_t key = vgpu_cost_key(what, size);
    const bool only_the_budget = pass->left > 0 && pass->governor != NULL && atomic_load(&vgpu_captures_open) <= 0;
    if (only_the_budget && vgpu_thread_budget_fill_and_pay(pass->governor, key, &pass->budget_ns)) return launch;
    int64_t now_ms = 0;
    pass->left = 0;
    const enum vgpu_core_concern concern = vgpu_core_concern_now(&now_ms);
    if (concern != VGPU_CORES_FREE) {
        launch.index = vgpu_core_current_device();
        if (launch.index < 0) return launch;
        if (concern == VGPU_CORES_BLOCKED) wait_while_blocked(launch.index);
    }
    struct device *device = concern != VGPU_CORES_FREE && vgpu_core_limits(launch.index) ? device_at(launch.index) : NULL;
    struct vgpu_governor *governor = device != NULL ? &device->governor : NULL;
    if (concern != VGPU_CORES_BLOCKED) keep_pass(pass, governor, now_ms);
    if (governor == NULL || is_recorded(stream)) return launch;
    if (vgpu_thread_budget_fill_and_pay(governor, key, &pass->budget_ns)) return launch;
    admit_slowly(device, key, &launch);
    return launch;
}

void vgpu_cores_device_changed(void)
{
    vgpu_core_pass.left = 0;
    vgpu_core_device_changed();
}

void vgpu_cores_timed(const struct vgpu_launch *launch, CUresult result)
{
    struct device *device = device_at(launch->index);
    if (result != CUDA_SUCCESS || !vgpu_core_timing_end(&launch->pair, launch->stream)) {
        give_up_timing(device, launch);
        return;
    }
    vgpu_mutex_lock_last(&device->lock);
    if (!vgpu_core_timing_put(&device->timing, launch->timing, &launch->pair, true))
        vgpu_governor_untimed(&device->governor, launch->timing);
    vgpu_mutex_unlock(&device->lock);
}

void vgpu_cores_forget_context(CUcontext context)
{
    for (int i = 0; i < VGPU_MAX_DEVICES; i++) {
        struct device *device = atomic_load_explicit(&pages[i], memory_order_acquire);
        if (device == NULL) continue;
        vgpu_mutex_lock_last(&device->lock);
        if (device->started) vgpu_core_timing_forget(&device->timing, &device->governor, context);
        vgpu_mutex_unlock(&device->lock);
    }
}
