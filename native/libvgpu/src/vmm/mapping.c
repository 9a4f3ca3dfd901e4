#include "vmm/mapping.h"

#include "base/wipe_on_fork.h"
#include "accounting/shared_memory.h"
#include "vgpu_region.h"
#include "vmm/handles.h"
#include "vmm/physical.h"

static struct VGPU_WIPED mappings {
    struct vgpu_use *chain[VGPU_CHAINS];
} mappings;
VGPU_WIPE_ON_FORK(mappings);

/* Shared memory is mapped as a whole or not at all (H100: CUDA_ERROR_NOT_SUPPORTED); what maps in parts has the largest so far. With
 * the lock. */
static void note_size(struct vgpu_physical *memory, uint64_t mapped)
{
    if (!memory->foreign || (memory->bytes != VGPU_UNKNOWN_SIZE && memory->bytes >= mapped)) return;
    (void)vgpu_shared_opened(memory->device, mapped, memory->bytes);
    memory->bytes = mapped;
}

void vgpu_physical_mapped(CUdeviceptr address, uint64_t bytes, CUmemGenericAllocationHandle handle)
{
    vgpu_handles_lock();
    struct vgpu_physical *memory = vgpu_handle_find(handle);
    if (memory != NULL) note_size(memory, bytes);
    struct vgpu_use *use = memory != NULL ? vgpu_use_new(0, address, bytes, memory) : NULL;
    if (use != NULL) {
        use->next = mappings.chain[vgpu_chain_of(address)];
        mappings.chain[vgpu_chain_of(address)] = use;
    }
    vgpu_handles_unlock();
}

/* Moves the mappings of one chain that begin in the range to `taken`; returns the bytes of the last one. */
static uint64_t take_from(struct vgpu_use **chain, CUdeviceptr address, uint64_t bytes, struct vgpu_use **taken)
{
    uint64_t size = 0;
    for (struct vgpu_use **at = chain; *at != NULL;) {
        struct vgpu_use *use = *at;
        if (use->at < address || use->at - address >= bytes) {
            at = &use->next;
            continue;
        }
        *at = use->next;
        use->next = *taken;
        *taken = use;
        size = use->bytes;
    }
    return size;
}

struct vgpu_use *vgpu_physical_unmap_begin(CUdeviceptr address, uint64_t bytes)
{
    /* Physical memory comes in units of at least 64 KiB on every card so far; an imported piece in the range is unknown: look behind. */
    enum { UNIT = 65536 };
    struct vgpu_use *taken = NULL;
    vgpu_handles_lock();
    if (bytes / UNIT > VGPU_CHAINS) {
        for (size_t i = 0; i < VGPU_CHAINS; i++) (void)take_from(&mappings.chain[i], address, bytes, &taken);
    } else {
        for (uint64_t done = 0; done < bytes;) {
            const uint64_t size = take_from(&mappings.chain[vgpu_chain_of(address + done)], address + done, 1, &taken);
            done += size > 0 ? size : UNIT;
        }
    }
    vgpu_handles_unlock();
    return taken;
}

void vgpu_physical_unmap_end(struct vgpu_use *taken, CUresult unmapped)
{
    vgpu_handles_lock();
    while (taken != NULL) {
        struct vgpu_use *use = taken;
        taken = use->next;
        if (unmapped == CUDA_SUCCESS) {
            vgpu_use_end(use);
        } else {
            use->next = mappings.chain[vgpu_chain_of(use->at)];
            mappings.chain[vgpu_chain_of(use->at)] = use;
        }
    }
    vgpu_physical_unlock();
}

/* Binding is rare, and a mapping may begin far before the address: all are looked through. With the lock. */
static struct vgpu_physical *memory_over(CUdeviceptr address)
{
    for (size_t i = 0; i < VGPU_CHAINS; i++)
        for (const struct vgpu_use *use = mappings.chain[i]; use != NULL; use = use->next)
            if (address >= use->at && address - use->at < use->bytes) return use->memory;
    return NULL;
}

void vgpu_physical_bound_address(uint64_t owner, uint64_t at, CUdeviceptr address)
{
    vgpu_handles_lock();
    vgpu_physical_bind(owner, at, memory_over(address));
    vgpu_handles_unlock();
}
