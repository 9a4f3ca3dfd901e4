#include "region/region_account.h"

#include <errno.h>
#include <stdbool.h>

#include "config/quota.h"

static void subtract_from_total(_Atomic uint64_t *total, uint64_t bytes)
{
    uint64_t old = atomic_load(total);
    while (!atomic_compare_exchange_weak(total, &old, vgpu_quota_subtract(old, bytes))) {
    }
}

/* A slot's own cells have one writer at a time (its process, which holds its account lock), so they need no locked
 * instruction. Each is released after all that was written before it: a reader that sees a share or `done` sees `begun`
 * as well (repair_total). */
static void add(_Atomic uint64_t *own, uint64_t amount)
{
    atomic_store_explicit(own, atomic_load_explicit(own, memory_order_relaxed) + amount, memory_order_release);
}

static void subtract(_Atomic uint64_t *own, uint64_t bytes)
{
    atomic_store_explicit(own, vgpu_quota_subtract(atomic_load_explicit(own, memory_order_relaxed), bytes), memory_order_release);
}

int vgpu_region_reserve(struct vgpu_region *region, struct vgpu_region_slot *slot, int device, uint64_t bytes, uint64_t limit)
{
    _Atomic uint64_t *total = vgpu_region_reserved(region, device);
    struct vgpu_region_mem *mem = vgpu_slot_mem(slot, device);
    int result = -ENOMEM;
    add(vgpu_slot_begun(slot), 1);
    uint64_t used = atomic_load(total);
    while (vgpu_quota_fits(used, bytes, limit)) {
        if (!atomic_compare_exchange_weak(total, &used, used + bytes)) continue;
        add(&mem->total_bytes, bytes);
        add(&mem->data_bytes, bytes);
        result = 0;
        break;
    }
    add(vgpu_slot_done(slot), 1);
    return result;
}

void vgpu_region_charge(struct vgpu_region *region, struct vgpu_region_slot *slot, int device, uint64_t bytes)
{
    add(vgpu_slot_begun(slot), 1);
    atomic_fetch_add(vgpu_region_reserved(region, device), bytes);
    add(&vgpu_slot_mem(slot, device)->total_bytes, bytes);
    add(&vgpu_slot_mem(slot, device)->data_bytes, bytes);
    add(vgpu_slot_done(slot), 1);
}

void vgpu_region_set_overhead(struct vgpu_region *region, struct vgpu_region_slot *slot, int device, uint64_t old, uint64_t now)
{
    struct vgpu_region_mem *mem = vgpu_slot_mem(slot, device);
    add(vgpu_slot_begun(slot), 1);
    if (now > old) {
        atomic_fetch_add(vgpu_region_reserved(region, device), now - old);
        add(&mem->total_bytes, now - old);
        add(&mem->context_bytes, now - old);
    } else {
        subtract(&mem->context_bytes, old - now);
        subtract(&mem->total_bytes, old - now);
        subtract_from_total(vgpu_region_reserved(region, device), old - now);
    }
    add(vgpu_slot_done(slot), 1);
}

void vgpu_region_repair_slot(struct vgpu_region *region, struct vgpu_region_slot *slot, uint64_t start_time)
{
    const int32_t wanted = (int32_t)(slot - region->slots) + 1;
    int32_t count = atomic_load(&region->process_count);
    while (count < wanted && !atomic_compare_exchange_weak(&region->process_count, &count, wanted)) {
    }
    if (atomic_load(vgpu_slot_start_time(slot)) != start_time) atomic_store(vgpu_slot_start_time(slot), start_time);
}

void vgpu_region_repair_share(struct vgpu_region *region, struct vgpu_region_slot *slot, int device, uint64_t held)
{
    const uint64_t shown = atomic_load(&vgpu_slot_mem(slot, device)->total_bytes);
    if (shown < held) vgpu_region_charge(region, slot, device, held - shown);
    const uint64_t sum = vgpu_region_used(region, device);
    uint64_t total = atomic_load(vgpu_region_reserved(region, device));
    while (total < sum && !atomic_compare_exchange_weak(vgpu_region_reserved(region, device), &total, sum)) {
    }
}

void vgpu_region_release(struct vgpu_region *region, struct vgpu_region_slot *slot, int device, uint64_t bytes)
{
    add(vgpu_slot_begun(slot), 1);
    subtract(&vgpu_slot_mem(slot, device)->data_bytes, bytes);
    subtract(&vgpu_slot_mem(slot, device)->total_bytes, bytes);
    subtract_from_total(vgpu_region_reserved(region, device), bytes);
    add(vgpu_slot_done(slot), 1);
}

int vgpu_region_process_count(struct vgpu_region *region)
{
    const int count = atomic_load(&region->process_count);
    return count < 0 ? 0 : count > VGPU_MAX_PROCESSES ? VGPU_MAX_PROCESSES : count;
}

void vgpu_region_set_shared(struct vgpu_region_slot *slot, int device, uint64_t exported, uint64_t imported)
{
    atomic_store_explicit(vgpu_slot_exported(slot, device), exported, memory_order_relaxed);
    atomic_store_explicit(vgpu_slot_imported(slot, device), imported, memory_order_relaxed);
}

static uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* A tenant may have written any number there. */
static uint64_t orphaned_bytes(struct vgpu_region *region, int device)
{
    return smaller(atomic_load(vgpu_region_orphaned(region, device)), VGPU_UNKNOWN_SIZE);
}

/* What all processes but that one (NULL: all) have open. Handles whose size is not known count as more than any card has. */
static uint64_t open_bytes(struct vgpu_region *region, const struct vgpu_region_slot *but, int device)
{
    uint64_t sum = 0;
    for (int i = vgpu_region_process_count(region) - 1; i >= 0; i--) {
        struct vgpu_region_slot *slot = &region->slots[i];
        if (slot != but && atomic_load(&slot->pid) != 0) sum += smaller(atomic_load(vgpu_slot_imported(slot, device)), VGPU_UNKNOWN_SIZE);
    }
    return sum;
}

uint64_t vgpu_region_open_bytes(struct vgpu_region *region, int device) { return open_bytes(region, NULL, device); }

/* Of the bytes as many as are open become the region's; the total counts them twice until the caller takes them off a share. */
static uint64_t keep_open(struct vgpu_region *region, int device, uint64_t bytes, uint64_t open)
{
    const uint64_t before = orphaned_bytes(region, device), added = vgpu_quota_subtract(smaller(before + bytes, open), before);
    if (added == 0) return 0;
    atomic_fetch_add(vgpu_region_reserved(region, device), added);
    atomic_store(vgpu_region_orphaned(region, device), before + added);
    return added;
}

uint64_t vgpu_region_orphan(struct vgpu_region *region, int device, uint64_t bytes)
{
    return keep_open(region, device, bytes, open_bytes(region, NULL, device));
}

uint64_t vgpu_region_take_orphaned(struct vgpu_region *region, int device, uint64_t bytes)
{
    const uint64_t orphaned = orphaned_bytes(region, device), taken = smaller(orphaned, bytes);
    if (taken == 0) return 0;
    atomic_store(vgpu_region_orphaned(region, device), orphaned - taken);
    subtract_from_total(vgpu_region_reserved(region, device), taken);
    return taken;
}

void vgpu_region_end_share(struct vgpu_region *region, struct vgpu_region_slot *slot, int device)
{
    const uint64_t bytes = atomic_load(&vgpu_slot_mem(slot, device)->total_bytes);
    const uint64_t exported = smaller(atomic_load(vgpu_slot_exported(slot, device)), bytes);
    if (bytes == 0) return;
    if (exported != 0) (void)keep_open(region, device, exported, open_bytes(region, slot, device));
    atomic_store(&vgpu_slot_mem(slot, device)->total_bytes, 0);
    subtract_from_total(vgpu_region_reserved(region, device), bytes);
}

void vgpu_region_settle_orphaned(struct vgpu_region *region, int device_count)
{
    for (int device = 0; device < device_count; device++) {
        const uint64_t orphaned = orphaned_bytes(region, device);
        if (orphaned == 0) continue;
        const uint64_t open = open_bytes(region, NULL, device);
        if (open < orphaned) (void)vgpu_region_take_orphaned(region, device, orphaned - open);
    }
}

uint64_t vgpu_region_used(struct vgpu_region *region, int device)
{
    uint64_t sum = orphaned_bytes(region, device);
    for (int i = vgpu_region_process_count(region) - 1; i >= 0; i--)
        if (atomic_load(&region->slots[i].pid) != 0) sum += atomic_load(&vgpu_slot_mem(&region->slots[i], device)->total_bytes);
    return sum;
}

/* Sum of begun operations, and whether all of them are done. Equal sums before and after a look: nothing happened between. */
static bool quiet(struct vgpu_region *region, uint64_t *operations)
{
    *operations = 0;
    for (int i = vgpu_region_process_count(region) - 1; i >= 0; i--) {
        struct vgpu_region_slot *slot = &region->slots[i];
        if (atomic_load(&slot->pid) == 0) continue;
        const uint64_t begun = atomic_load(vgpu_slot_begun(slot));
        if (begun != atomic_load(vgpu_slot_done(slot))) return false;
        *operations += begun;
    }
    return true;
}

static bool repair_total(struct vgpu_region *region, int device)
{
    uint64_t before, after;
    if (!quiet(region, &before)) return false;
    uint64_t total = atomic_load(vgpu_region_reserved(region, device));
    const uint64_t sum = vgpu_region_used(region, device);
    if (!quiet(region, &after) || before != after) return false;
    /* A reservation that starts now has not touched the total yet, or makes this exchange fail. */
    return total == sum || atomic_compare_exchange_strong(vgpu_region_reserved(region, device), &total, sum);
}

void vgpu_region_repair_totals(struct vgpu_region *region, int device_count)
{
    /* A handful of tries: each fails only if some process reserved or released in that very microsecond. */
    enum { TRIES = 8 };
    for (int device = 0; device < device_count; device++)
        for (int i = 0; i < TRIES && !repair_total(region, device); i++) {
        }
}
