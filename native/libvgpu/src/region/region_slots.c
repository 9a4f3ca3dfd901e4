#include "region/region_slots.h"

#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "region/process.h"
#include "region/region_account.h"

/* Writes nothing where nothing is: most devices are not there. */
static void clear(_Atomic uint64_t *cell)
{
    if (atomic_load_explicit(cell, memory_order_relaxed) != 0) atomic_store(cell, 0);
}

static void free_share(struct vgpu_region *region, struct vgpu_region_slot *slot, int device)
{
    struct vgpu_region_mem *mem = vgpu_slot_mem(slot, device);
    vgpu_region_end_share(region, slot, device);
    clear(vgpu_slot_exported(slot, device));
    clear(vgpu_slot_imported(slot, device));
    clear(&mem->data_bytes);
    clear(&mem->context_bytes);
    clear(&mem->module_bytes);
    clear(&mem->offset_bytes);
    clear(&vgpu_slot_bank(slot, device)->monitor_used_bytes[vgpu_place(device)]);
    clear(&vgpu_slot_util(slot, device)->sm_percent);
}

/* Shares first, totals second, pid last: a process that is killed here leaves totals too high and the slot still to be
 * swept. */
static void free_slot(struct vgpu_region *region, struct vgpu_region_slot *slot)
{
    atomic_store(&slot->status, VGPU_SLOT_EXITED);
    for (int i = 0; i < VGPU_MAX_DEVICES; i++) free_share(region, slot, i);
    atomic_store(&slot->host_pid, 0);
    atomic_store(&slot->pid_namespace, 0);
    atomic_store(vgpu_slot_begun(slot), 0);
    atomic_store(vgpu_slot_done(slot), 0);
    atomic_store(&slot->pid, 0);
}

/* Whether the slot's pid is one of another pid namespace: it means nothing here. */
static bool is_elsewhere(struct vgpu_region_slot *slot, uint32_t here)
{
    const uint32_t there = atomic_load(&slot->pid_namespace);
    return there != 0 && here != 0 && there != here;
}

static bool is_dead(const struct vgpu_region_file *opened, int at, uint32_t here)
{
    struct vgpu_region_slot *slot = &opened->region->slots[at];
    if (is_elsewhere(slot, here)) return !vgpu_region_slot_is_held(opened, at);
    return !vgpu_process_alive(atomic_load(&slot->pid), atomic_load(vgpu_slot_start_time(slot)));
}

/* Frees slots of the dead, and of this process's own image before an exec (same pid, same start time). A living slot never moves:
 * its owner holds a pointer to it. The count shrinks from its end. */
static void sweep(const struct vgpu_region_file *opened, bool own_too, uint32_t here)
{
    struct vgpu_region *region = opened->region;
    const pid_t self = getpid();
    int count = vgpu_region_process_count(region);
    for (int i = 0; i < count; i++) {
        struct vgpu_region_slot *slot = &region->slots[i];
        const pid_t pid = atomic_load(&slot->pid);
        const bool own = pid == self && !is_elsewhere(slot, here);
        if (pid == 0 || (own && !own_too)) continue;
        if (own || is_dead(opened, i, here)) free_slot(region, slot);
    }
    while (count > 0 && atomic_load(&region->slots[count - 1].pid) == 0) count--;
    atomic_store(&region->process_count, count);
}

void vgpu_region_reclaim(struct vgpu_region_file *opened)
{
    /* Most containers have one process: none is there when it opens the region. */
    if (vgpu_region_process_count(opened->region) > 0) sweep(opened, false, vgpu_process_namespace());
    vgpu_region_settle_orphaned(opened->region, opened->device_count);
    vgpu_region_repair_totals(opened->region, opened->device_count);
}

static struct vgpu_region_slot *take_free_slot(struct vgpu_region_file *opened, uint64_t start_time, uint32_t here)
{
    struct vgpu_region *region = opened->region;
    const int count = vgpu_region_process_count(region);
    int at = 0;
    while (at < count && atomic_load(&region->slots[at].pid) != 0) at++;
    if (at == VGPU_MAX_PROCESSES) {
        vgpu_log(VGPU_LOG_ERROR, "all %d process slots of the container are taken", VGPU_MAX_PROCESSES);
        return NULL;
    }
    const int error = at >= VGPU_SLOTS_AT_ONCE ? vgpu_region_allocate_slots(opened, at) : 0;
    if (error != 0) {
        vgpu_log(VGPU_LOG_ERROR, "no room for process slot %d in the shared region %s: %s", at, opened->path, strerror(-error));
        return NULL;
    }
    struct vgpu_region_slot *slot = &region->slots[at];
    free_slot(region, slot); /* it is empty, unless somebody scribbled over a living one */
    atomic_store(vgpu_slot_start_time(slot), start_time);
    atomic_store(&slot->host_pid, vgpu_process_host_pid(here));
    atomic_store(&slot->pid_namespace, here);
    vgpu_region_hold_slot(opened, at);
    atomic_store(&slot->status, VGPU_SLOT_RUNNING);
    atomic_store(&slot->pid, getpid());
    if (at == count) atomic_store(&region->process_count, count + 1);
    return slot;
}

struct vgpu_region_slot *vgpu_region_claim(struct vgpu_region_file *opened, uint64_t start_time)
{
    if (vgpu_region_lock(opened) != 0) return NULL;
    const uint32_t here = vgpu_process_namespace();
    sweep(opened, true, here);
    struct vgpu_region_slot *slot = take_free_slot(opened, start_time, here);
    vgpu_region_repair_totals(opened->region, opened->device_count);
    vgpu_region_unlock(opened);
    return slot;
}

void vgpu_region_leave(struct vgpu_region_file *opened, struct vgpu_region_slot *slot)
{
    if (vgpu_region_lock(opened) != 0) return; /* the next sweep finds it */
    const uint32_t here = vgpu_process_namespace();
    if (atomic_load(&slot->pid) == getpid() && !is_elsewhere(slot, here)) free_slot(opened->region, slot);
    sweep(opened, false, here);
    vgpu_region_unlock(opened);
}
