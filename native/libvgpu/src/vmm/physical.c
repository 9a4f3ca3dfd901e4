#include "vmm/physical.h"

#include <stdbool.h>
#include <stdlib.h>

#include "base/wipe_on_fork.h"
#include "accounting/overhead.h"
#include "accounting/shared_memory.h"
#include "accounting/slice.h"
#include "vgpu_region.h"
#include "vmm/handles.h"

static struct VGPU_WIPED bindings {
    struct vgpu_use *first; /* few */
} bindings;
VGPU_WIPE_ON_FORK(bindings);

static bool unused(const struct vgpu_physical *memory) { return memory->holds <= 0 && memory->uses <= 0; }

/* Ends an entry that nothing refers to any more. With the lock; the entry is unlinked already. */
static void finish(struct vgpu_physical *memory);

void vgpu_use_end(struct vgpu_use *use)
{
    struct vgpu_physical *memory = use->memory;
    free(use);
    memory->uses--;
    if (!unused(memory)) return;
    vgpu_handle_unlink(memory);
    finish(memory);
}

static void drop_owner(uint64_t owner)
{
    for (struct vgpu_use **at = &bindings.first; *at != NULL;) {
        struct vgpu_use *use = *at;
        if (use->owner != owner) {
            at = &use->next;
            continue;
        }
        *at = use->next;
        vgpu_use_end(use);
        at = &bindings.first; /* ending that memory may have ended others */
    }
}

static void finish(struct vgpu_physical *memory)
{
    if (memory->foreign)
        (void)vgpu_shared_opened(memory->device, 0, memory->bytes);
    else if (memory->device >= 0)
        vgpu_slice_release(memory->device, memory->exported ? vgpu_shared_let_go(memory->device, memory->bytes) : memory->bytes);
    else
        drop_owner(memory->handle);
    if (memory->exported || memory->foreign) vgpu_overhead_shared(memory->device);
    free(memory);
}

void vgpu_physical_unlock(void)
{
    vgpu_handles_unlock();
    vgpu_overhead_look_if_changed();
}

CUresult vgpu_physical_made(CUmemGenericAllocationHandle handle, int device, uint64_t bytes)
{
    struct vgpu_physical *memory = malloc(sizeof *memory);
    if (memory == NULL) {
        vgpu_slice_release(device, bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *memory = (struct vgpu_physical){.handle = handle, .bytes = bytes, .device = device, .holds = 1};
    vgpu_handles_lock();
    vgpu_handle_link(memory);
    vgpu_handles_unlock();
    return CUDA_SUCCESS;
}

void vgpu_physical_retained(CUmemGenericAllocationHandle handle)
{
    vgpu_handles_lock();
    struct vgpu_physical *memory = vgpu_handle_find(handle);
    if (memory != NULL) memory->holds++;
    vgpu_handles_unlock();
}

void vgpu_physical_exported(CUmemGenericAllocationHandle handle)
{
    vgpu_handles_lock();
    struct vgpu_physical *memory = vgpu_handle_find(handle);
    if (memory != NULL && !memory->exported && !memory->foreign && memory->device >= 0) {
        memory->exported = true;
        vgpu_shared_exported(memory->device, memory->bytes, 0);
    }
    vgpu_handles_unlock();
}

void vgpu_physical_imported(CUmemGenericAllocationHandle handle, int device)
{
    struct vgpu_physical *made = malloc(sizeof *made);
    vgpu_handles_lock();
    struct vgpu_physical *memory = vgpu_handle_find(handle);
    if (memory != NULL) {
        memory->holds++;
    } else if (made != NULL && device >= 0) {
        *made = (struct vgpu_physical){.handle = handle, .bytes = VGPU_UNKNOWN_SIZE, .device = device, .holds = 1, .foreign = true};
        vgpu_handle_link(made);
        (void)vgpu_shared_opened(device, made->bytes, 0);
        vgpu_overhead_shared(device);
        made = NULL;
    }
    vgpu_physical_unlock();
    free(made);
}

struct vgpu_physical *vgpu_physical_release_begin(CUmemGenericAllocationHandle handle)
{
    vgpu_handles_lock();
    struct vgpu_physical *memory = vgpu_handle_find(handle);
    if (memory != NULL && memory->holds > 0) {
        memory->holds--;
        if (unused(memory)) vgpu_handle_unlink(memory);
    } else {
        memory = NULL;
    }
    vgpu_handles_unlock();
    return memory;
}

void vgpu_physical_release_end(struct vgpu_physical *memory, CUresult released)
{
    if (memory == NULL) return;
    vgpu_handles_lock();
    const bool linked = vgpu_handle_find(memory->handle) == memory;
    if (released != CUDA_SUCCESS) {
        memory->holds++;
        if (!linked) vgpu_handle_link(memory);
    } else if (!linked && unused(memory)) {
        finish(memory);
    }
    vgpu_physical_unlock();
}

struct vgpu_use *vgpu_use_new(uint64_t owner, uint64_t at, uint64_t bytes, struct vgpu_physical *memory)
{
    struct vgpu_use *use = malloc(sizeof *use);
    /* Without memory to remember it the use is counted and never ends: charged too long, never too short. */
    memory->uses++;
    if (use != NULL) *use = (struct vgpu_use){.owner = owner, .at = at, .bytes = bytes, .memory = memory};
    return use;
}

void vgpu_physical_bind(uint64_t owner, uint64_t at, struct vgpu_physical *memory)
{
    struct vgpu_use *use = memory != NULL ? vgpu_use_new(owner, at, 0, memory) : NULL;
    if (use == NULL) return;
    use->next = bindings.first;
    bindings.first = use;
}

void vgpu_physical_bound(uint64_t owner, uint64_t at, CUmemGenericAllocationHandle handle)
{
    vgpu_handles_lock();
    vgpu_physical_bind(owner, at, vgpu_handle_find(handle));
    vgpu_handles_unlock();
}

void vgpu_physical_unbound(uint64_t owner, int device, uint64_t at, uint64_t bytes)
{
    vgpu_handles_lock();
    for (struct vgpu_use **place = &bindings.first; *place != NULL;) {
        struct vgpu_use *use = *place;
        if (use->owner != owner || use->memory->device != device || use->at < at || use->at - at >= bytes) {
            place = &use->next;
            continue;
        }
        *place = use->next;
        vgpu_use_end(use);
        place = &bindings.first;
    }
    vgpu_physical_unlock();
}

void vgpu_physical_owner_gone(uint64_t owner)
{
    vgpu_handles_lock();
    drop_owner(owner);
    vgpu_physical_unlock();
}
