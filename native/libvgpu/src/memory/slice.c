#include "memory/slice.h"

#include <errno.h>

#include "config/devices.h"
#include "base/log.h"
#include "config/quota.h"
#include "region/region_account.h"
#include "state/process_state.h"

/* Dead processes of the container are looked for while asking how much is used, at most so often. */
enum { SWEEP_MS = 100 };

static uint64_t limit_now(struct vgpu_runtime *runtime, int index)
{
    vgpu_runtime_look_for_new_limits(runtime);
    if (index == VGPU_DEVICE_UNPLACED) return atomic_load(&runtime->unplaced_limit_bytes);
    if (index < 0) return VGPU_UNLIMITED;
    return vgpu_quota_stricter(atomic_load_explicit(&runtime->limit_bytes[index], memory_order_relaxed),
                               atomic_load_explicit(vgpu_region_limit_bytes(runtime->shared.region, index), memory_order_relaxed));
}

uint64_t vgpu_slice_limit(int index)
{
    struct vgpu_runtime *runtime = vgpu_runtime_start();
    return runtime != NULL ? limit_now(runtime, index) : VGPU_UNLIMITED;
}

uint64_t vgpu_slice_used(int index)
{
    struct vgpu_runtime *runtime = index >= 0 ? vgpu_runtime_start() : NULL;
    if (runtime == NULL) return 0;
    if (vgpu_is_due(&runtime->next_sweep_ms, vgpu_now_ms(CLOCK_MONOTONIC_COARSE), SWEEP_MS)) vgpu_runtime_reclaim(runtime);
    return vgpu_region_used(runtime->shared.region, index);
}

/* Alone the process never gets more than the limit, whatever stands in the region. */
static bool reserve_once(struct vgpu_runtime *runtime, struct vgpu_region_slot *slot, int index, uint64_t bytes, uint64_t limit)
{
    vgpu_brief_lock(&runtime->account_lock);
    const bool fits = vgpu_quota_fits(runtime->held[index], bytes, limit) &&
                      vgpu_region_reserve(runtime->shared.region, slot, index, bytes, limit) == 0;
    if (fits) runtime->held[index] += bytes;
    vgpu_brief_unlock(&runtime->account_lock);
    return fits;
}

static bool reserve(struct vgpu_runtime *runtime, int index, uint64_t bytes, uint64_t limit)
{
    struct vgpu_region_slot *slot = vgpu_runtime_slot(runtime);
    if (slot == NULL) return false;
    if (reserve_once(runtime, slot, index, bytes, limit)) return true;
    vgpu_runtime_reclaim(runtime);
    return reserve_once(runtime, slot, index, bytes, limit);
}

int vgpu_slice_reserve(int index, uint64_t bytes)
{
    struct vgpu_runtime *runtime = vgpu_runtime_start();
    if (runtime == NULL) return vgpu_runtime_is_starting() ? 0 : -ENOMEM;
    const uint64_t limit = limit_now(runtime, index);
    if (index < 0) return vgpu_quota_fits(0, bytes, limit) ? 0 : -ENOMEM;
    if (reserve(runtime, index, bytes, limit)) return 0;
    /* The wording is HAMi's: scripts look for it. */
    vgpu_log(VGPU_LOG_ERROR, "Device %d OOM %llu / %llu", index,
             (unsigned long long)(vgpu_region_used(runtime->shared.region, index) + bytes), (unsigned long long)limit);
    return -ENOMEM;
}

void vgpu_slice_charge(int index, uint64_t bytes)
{
    struct vgpu_runtime *runtime = index >= 0 ? vgpu_runtime_start() : NULL;
    struct vgpu_region_slot *slot = runtime != NULL ? vgpu_runtime_slot(runtime) : NULL;
    if (slot == NULL) return;
    vgpu_brief_lock(&runtime->account_lock);
    vgpu_region_charge(runtime->shared.region, slot, index, bytes);
    runtime->held[index] += bytes;
    vgpu_brief_unlock(&runtime->account_lock);
}

void vgpu_slice_release(int index, uint64_t bytes)
{
    struct vgpu_runtime *runtime = index >= 0 ? vgpu_runtime_start() : NULL;
    if (runtime == NULL || atomic_load_explicit(&runtime->slot, memory_order_acquire) == NULL) return;
    struct vgpu_region_slot *slot = vgpu_runtime_slot(runtime);
    vgpu_brief_lock(&runtime->account_lock);
    runtime->held[index] = vgpu_quota_subtract(runtime->held[index], bytes);
    if (slot != NULL) vgpu_region_release(runtime->shared.region, slot, index, bytes);
    vgpu_brief_unlock(&runtime->account_lock);
}

bool vgpu_slice_oversubscribes(void)
{
    struct vgpu_runtime *runtime = vgpu_runtime_start();
    return runtime != NULL && atomic_load_explicit(&runtime->oversubscribe, memory_order_relaxed);
}

uint64_t vgpu_slice_set_overhead(int index, uint64_t seen_bytes)
{
    struct vgpu_runtime *runtime = index >= 0 ? vgpu_runtime_start() : NULL;
    struct vgpu_region_slot *slot = runtime != NULL ? vgpu_runtime_slot(runtime) : NULL;
    if (slot == NULL) return 0;
    vgpu_brief_lock(&runtime->account_lock);
    const uint64_t old = runtime->overhead[index], blocks = vgpu_quota_subtract(runtime->held[index], old);
    const uint64_t now = vgpu_quota_subtract(seen_bytes, blocks);
    runtime->overhead[index] = now;
    runtime->held[index] = blocks + now;
    vgpu_region_set_overhead(runtime->shared.region, slot, index, old, now);
    vgpu_brief_unlock(&runtime->account_lock);
    return now;
}
