#include "accounting/slice.h"

#include <errno.h>

#include "accounting/shared_memory.h"
#include "config/devices.h"
#include "base/log.h"
#include "config/quota.h"
#include "region/region_account.h"
#include "state/process_state.h"

/* Dead processes of the container are looked for while asking how much is used, at most so often. */
enum { SWEEP_MS = 100 };

static uint64_t limit_now(struct vgpu_process_state *state, int index)
{
    vgpu_state_look_for_new_limits(state);
    if (index == VGPU_DEVICE_UNPLACED) return atomic_load(&state->unplaced_limit_bytes);
    if (index < 0) return VGPU_UNLIMITED;
    return vgpu_quota_stricter(atomic_load_explicit(&state->limit_bytes[index], memory_order_relaxed),
                               atomic_load_explicit(vgpu_region_limit_bytes(state->shared.region, index), memory_order_relaxed));
}

uint64_t vgpu_slice_limit(int index)
{
    struct vgpu_process_state *state = vgpu_state_start();
    return state != NULL ? limit_now(state, index) : VGPU_UNLIMITED;
}

uint64_t vgpu_slice_used(int index)
{
    struct vgpu_process_state *state = index >= 0 ? vgpu_state_start() : NULL;
    if (state == NULL) return 0;
    if (vgpu_is_due(&state->next_sweep_ms, vgpu_now_ms(CLOCK_MONOTONIC_COARSE), SWEEP_MS)) vgpu_state_reclaim(state);
    return vgpu_region_used(state->shared.region, index);
}

uint64_t vgpu_slice_left(int index, uint64_t bytes)
{
    struct vgpu_process_state *state = index >= 0 ? vgpu_state_start() : NULL;
    const uint64_t limit = state != NULL ? limit_now(state, index) : VGPU_UNLIMITED;
    if (limit == VGPU_UNLIMITED) return limit;
    return vgpu_quota_subtract(vgpu_quota_subtract(limit, vgpu_region_used(state->shared.region, index)), bytes);
}

/* With the account's lock, after an operation. */
static void check_account(const struct vgpu_process_state *state, struct vgpu_region_slot *slot, int index)
{
    VGPU_ASSERT(state->overhead[index] <= state->held[index]);
    VGPU_ASSERT(atomic_load(vgpu_slot_done(slot)) == atomic_load(vgpu_slot_begun(slot)));
    VGPU_ASSERT(vgpu_held_locks.spins == 1);
}

/* Alone the process never gets more than the limit, whatever stands in the region. */
static bool reserve_once(struct vgpu_process_state *state, struct vgpu_region_slot *slot, int index, uint64_t bytes, uint64_t limit)
{
    vgpu_spin_lock(&state->account_lock);
    const bool fits =
        vgpu_quota_fits(state->held[index], bytes, limit) && vgpu_region_reserve(state->shared.region, slot, index, bytes, limit) == 0;
    if (fits) state->held[index] += bytes;
    VGPU_ASSERT(!fits || state->held[index] <= limit);
    check_account(state, slot, index);
    vgpu_spin_unlock(&state->account_lock);
    return fits;
}

static bool reserve(struct vgpu_process_state *state, int index, uint64_t bytes, uint64_t limit)
{
    struct vgpu_region_slot *slot = vgpu_state_slot(state);
    if (slot == NULL) return false;
    if (reserve_once(state, slot, index, bytes, limit)) return true;
    vgpu_state_reclaim(state);
    return reserve_once(state, slot, index, bytes, limit);
}

int vgpu_slice_reserve(int index, uint64_t bytes)
{
    struct vgpu_process_state *state = vgpu_state_start();
    if (state == NULL) return vgpu_state_is_starting() ? 0 : -ENOMEM;
    const uint64_t limit = limit_now(state, index);
    if (index < 0) return vgpu_quota_fits(0, bytes, limit) ? 0 : -ENOMEM;
    if (reserve(state, index, bytes, limit)) return 0;
    /* The wording is HAMi's: scripts look for it. */
    vgpu_log(VGPU_LOG_ERROR, "Device %d OOM %llu / %llu", index,
             (unsigned long long)(vgpu_region_used(state->shared.region, index) + bytes), (unsigned long long)limit);
    return -ENOMEM;
}

void vgpu_slice_charge(int index, uint64_t bytes)
{
    struct vgpu_process_state *state = index >= 0 ? vgpu_state_start() : NULL;
    struct vgpu_region_slot *slot = state != NULL ? vgpu_state_slot(state) : NULL;
    if (slot == NULL) return;
    vgpu_spin_lock(&state->account_lock);
    vgpu_region_charge(state->shared.region, slot, index, bytes);
    state->held[index] += bytes;
    check_account(state, slot, index);
    vgpu_spin_unlock(&state->account_lock);
}

void vgpu_slice_release(int index, uint64_t bytes)
{
    struct vgpu_process_state *state = index >= 0 ? vgpu_state_start() : NULL;
    if (state == NULL || atomic_load_explicit(&state->slot, memory_order_acquire) == NULL) return;
    struct vgpu_region_slot *slot = vgpu_state_slot(state);
    vgpu_spin_lock(&state->account_lock);
    VGPU_ASSERT(bytes <= state->held[index] - state->overhead[index]);
    state->held[index] = vgpu_quota_subtract(state->held[index], bytes);
    if (slot != NULL) {
        vgpu_region_release(state->shared.region, slot, index, bytes);
        check_account(state, slot, index);
    }
    vgpu_spin_unlock(&state->account_lock);
}

bool vgpu_slice_oversubscribes(void)
{
    struct vgpu_process_state *state = vgpu_state_start();
    return state != NULL && atomic_load_explicit(&state->oversubscribe, memory_order_relaxed);
}

uint64_t vgpu_slice_overhead(int index)
{
    struct vgpu_process_state *state = index >= 0 ? vgpu_state_start() : NULL;
    if (state == NULL) return 0;
    vgpu_spin_lock(&state->account_lock);
    const uint64_t bytes = state->overhead[index];
    vgpu_spin_unlock(&state->account_lock);
    return bytes;
}

uint64_t vgpu_slice_set_overhead(int index, uint64_t seen_bytes)
{
    struct vgpu_process_state *state = index >= 0 ? vgpu_state_start() : NULL;
    struct vgpu_region_slot *slot = state != NULL ? vgpu_state_slot(state) : NULL;
    if (slot == NULL) return 0;
    const bool sharing = vgpu_shared_look_begin(state, index);
    vgpu_spin_lock(&state->account_lock);
    const uint64_t old = state->overhead[index], blocks = vgpu_quota_subtract(state->held[index], old);
    const uint64_t now = vgpu_quota_subtract(seen_bytes, blocks);
    if (sharing) vgpu_shared_fell(state, slot, index, vgpu_quota_subtract(old, now));
    state->overhead[index] = now;
    state->held[index] = blocks + now;
    vgpu_region_set_overhead(state->shared.region, slot, index, old, now);
    if (sharing) vgpu_shared_rose(state, slot, index, vgpu_quota_subtract(now, old));
    check_account(state, slot, index);
    vgpu_spin_unlock(&state->account_lock);
    if (sharing) vgpu_shared_look_end(state);
    return now;
}
