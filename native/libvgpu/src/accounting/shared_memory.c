#include "accounting/shared_memory.h"

#include <stdatomic.h>

#include "config/quota.h"
#include "region/region_account.h"
#include "region/region_slots.h"

static uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* What it has taken over is shared as well: should it be killed, others have that open. */
static void show(const struct vgpu_process_state *state, struct vgpu_region_slot *slot, int index, uint64_t more)
{
    vgpu_region_set_shared(slot, index, state->exported[index] + state->taken[index] + more, state->imported[index]);
}

/* Adds to one of the process's sums, and shows both. True: more was taken over than is open. */
static bool change(struct vgpu_process_state *state, int index, uint64_t *sums, uint64_t add, uint64_t subtract)
{
    struct vgpu_region_slot *slot = vgpu_state_slot(state);
    vgpu_spin_lock(&state->account_lock);
    sums[index] = vgpu_quota_subtract(sums[index] + add, subtract);
    if (slot != NULL) show(state, slot, index, 0);
    const bool stale = state->taken[index] > state->imported[index];
    vgpu_spin_unlock(&state->account_lock);
    return stale;
}

void vgpu_shared_exported(int index, uint64_t add, uint64_t subtract)
{
    struct vgpu_process_state *state = index >= 0 ? vgpu_state_start() : NULL;
    if (state != NULL) (void)change(state, index, state->exported, add, subtract);
}

bool vgpu_shared_opened(int index, uint64_t add, uint64_t subtract)
{
    struct vgpu_process_state *state = index >= 0 ? vgpu_state_start() : NULL;
    if (state == NULL) return false;
    const bool stale = change(state, index, state->imported, add, subtract);
    /* With the last that has it open, what a maker left goes at once, not with the next sweep. */
    if (subtract != 0 && atomic_load(vgpu_region_orphaned(state->shared.region, index)) != 0) vgpu_state_reclaim(state);
    return stale;
}

/* As many as are open go over from the process's share to the region's bytes. */
static uint64_t orphan(struct vgpu_process_state *state, int index, uint64_t bytes)
{
    struct vgpu_region *region = state->shared.region;
    struct vgpu_region_slot *slot = vgpu_state_slot(state);
    if (slot == NULL || vgpu_region_open_bytes(region, index) == 0 || !vgpu_state_lock_region(state)) return 0;
    vgpu_spin_lock(&state->account_lock);
    const uint64_t kept = vgpu_region_orphan(region, index, bytes);
    state->held[index] = vgpu_quota_subtract(state->held[index], kept);
    if (kept != 0) vgpu_region_release(region, slot, index, kept);
    vgpu_spin_unlock(&state->account_lock);
    vgpu_state_unlock_region(state);
    return kept;
}

/* Exported until the end: killed in between, the process leaves bytes to be orphaned a second time, never none. */
uint64_t vgpu_shared_let_go(int index, uint64_t bytes)
{
    struct vgpu_process_state *state = index >= 0 ? vgpu_state_start() : NULL;
    if (state == NULL) return bytes;
    const uint64_t kept = orphan(state, index, bytes);
    (void)change(state, index, state->exported, 0, bytes);
    return bytes - kept;
}

bool vgpu_shared_look_begin(struct vgpu_process_state *state, int index)
{
    vgpu_spin_lock(&state->account_lock);
    const bool concerned = state->imported[index] != 0 || state->taken[index] != 0;
    if (!concerned) state->unmatched[index] = 0;
    vgpu_spin_unlock(&state->account_lock);
    if (!concerned || !vgpu_state_lock_region(state)) return false;
    /* A maker that was killed may be in NVML's figures no more, and in the region still. */
    vgpu_region_reclaim(&state->shared);
    return true;
}

/* More of it may be orphaned than another process has left open: too much, until that is closed, and not too little. */
void vgpu_shared_fell(struct vgpu_process_state *state, struct vgpu_region_slot *slot, int index, uint64_t bytes)
{
    const uint64_t back = smaller(bytes, state->taken[index]);
    if (back == 0) return;
    (void)vgpu_region_orphan(state->shared.region, index, back);
    state->taken[index] -= back;
    show(state, slot, index, 0);
}

/* No more than it has open: the rest of what rose is the driver's own. A maker that is just letting go is seen by NVML before it has
 * orphaned the bytes: what finds none of them is looked for once more, with the next look. */
void vgpu_shared_rose(struct vgpu_process_state *state, struct vgpu_region_slot *slot, int index, uint64_t bytes)
{
    const uint64_t room = vgpu_quota_subtract(state->imported[index], state->taken[index]);
    const uint64_t wanted = smaller(room, bytes + state->unmatched[index]);
    show(state, slot, index, wanted);
    const uint64_t taken = vgpu_region_take_orphaned(state->shared.region, index, wanted);
    state->taken[index] += taken;
    state->unmatched[index] = smaller(bytes, wanted - taken);
    show(state, slot, index, 0);
}

void vgpu_shared_look_end(struct vgpu_process_state *state) { vgpu_state_unlock_region(state); }
