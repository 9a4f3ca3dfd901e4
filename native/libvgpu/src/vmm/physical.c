#include "vmm/physical.h"

#include <stdbool.h>
#include <stdlib.h>

#include "base/wipe_on_fork.h"
#include "base/mutex.h"
#include "accounting/slice.h"
#include "vgpu_region.h"

struct vgpu_physical {
    CUmemGenericAllocationHandle handle;
    uint64_t bytes;
    int device;
    int holds; /* handles given out and not released */
    int uses;  /* mappings and bindings */
    bool exported; /* others may have it open */
    bool foreign;  /* imported: its maker is charged; `bytes` is as much as was seen mapped, VGPU_UNKNOWN_SIZE before */
    struct vgpu_physical *next;
};

struct vgpu_use {
    uint64_t owner; /* 0: a mapping */
    uint64_t at, bytes;
    struct vgpu_physical *memory;
    struct vgpu_use *next;
};

/* 4096 chains: a card of 80 GiB in pieces of 2 MiB makes 40,000 mappings, ten to a chain. */
enum { CHAINS = 4096 };

static struct VGPU_WIPED registry {
    struct vgpu_mutex lock;
    struct vgpu_physical *handles[CHAINS];
    struct vgpu_use *mappings[CHAINS];
    struct vgpu_use *bindings; /* few */
} registry;
VGPU_WIPE_ON_FORK(registry);

static size_t chain_of(uint64_t key) { return (key * UINT64_C(0x9E3779B97F4A7C15)) >> 52; }

static struct vgpu_physical *find(CUmemGenericAllocationHandle handle)
{
    struct vgpu_physical *memory = registry.handles[chain_of(handle)];
    while (memory != NULL && memory->handle != handle) memory = memory->next;
    return memory;
}

static void link_physical(struct vgpu_physical *memory)
{
    struct vgpu_physical **chain = &registry.handles[chain_of(memory->handle)];
    memory->next = *chain;
    *chain = memory;
}

static void unlink_physical(struct vgpu_physical *memory)
{
    struct vgpu_physical **at = &registry.handles[chain_of(memory->handle)];
    while (*at != NULL && *at != memory) at = &(*at)->next;
    if (*at != NULL) *at = memory->next;
}

static bool unused(const struct vgpu_physical *memory) { return memory->holds <= 0 && memory->uses <= 0; }

/* Ends an entry that nothing refers to any more. With the lock; the entry is unlinked already. */
static void finish(struct vgpu_physical *memory);

static void drop_use(struct vgpu_use *use)
{
    struct vgpu_physical *memory = use->memory;
    free(use);
    memory->uses--;
    if (!unused(memory)) return;
    unlink_physical(memory);
    finish(memory);
}

static void drop_owner(uint64_t owner)
{
    for (struct vgpu_use **at = &registry.bindings; *at != NULL;) {
        struct vgpu_use *use = *at;
        if (use->owner != owner) {
            at = &use->next;
            continue;
        }
        *at = use->next;
        drop_use(use);
        at = &registry.bindings; /* ending that memory may have ended others */
    }
}

static void finish(struct vgpu_physical *memory)
{
    if (memory->exported) vgpu_slice_exported(memory->device, 0, memory->bytes);
    if (memory->foreign)
        vgpu_slice_imported(memory->device, 0, memory->bytes);
    else if (memory->device >= 0)
        vgpu_slice_release(memory->device, memory->bytes);
    else
        drop_owner(memory->handle);
    free(memory);
}

CUresult vgpu_physical_made(CUmemGenericAllocationHandle handle, int device, uint64_t bytes)
{
    struct vgpu_physical *memory = malloc(sizeof *memory);
    if (memory == NULL) {
        vgpu_slice_release(device, bytes);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *memory = (struct vgpu_physical){.handle = handle, .bytes = bytes, .device = device, .holds = 1};
    vgpu_mutex_lock(&registry.lock);
    link_physical(memory);
    vgpu_mutex_unlock(&registry.lock);
    return CUDA_SUCCESS;
}

void vgpu_physical_retained(CUmemGenericAllocationHandle handle)
{
    vgpu_mutex_lock(&registry.lock);
    struct vgpu_physical *memory = find(handle);
    if (memory != NULL) memory->holds++;
    vgpu_mutex_unlock(&registry.lock);
}

void vgpu_physical_exported(CUmemGenericAllocationHandle handle)
{
    vgpu_mutex_lock(&registry.lock);
    struct vgpu_physical *memory = find(handle);
    if (memory != NULL && !memory->exported && !memory->foreign && memory->device >= 0) {
        memory->exported = true;
        vgpu_slice_exported(memory->device, memory->bytes, 0);
    }
    vgpu_mutex_unlock(&registry.lock);
}

void vgpu_physical_imported(CUmemGenericAllocationHandle handle, int device)
{
    struct vgpu_physical *made = malloc(sizeof *made);
    vgpu_mutex_lock(&registry.lock);
    struct vgpu_physical *memory = find(handle);
    if (memory != NULL) {
        memory->holds++;
    } else if (made != NULL && device >= 0) {
        *made = (struct vgpu_physical){.handle = handle, .bytes = VGPU_UNKNOWN_SIZE, .device = device, .holds = 1, .foreign = true};
        link_physical(made);
        vgpu_slice_imported(device, made->bytes, 0);
        made = NULL;
    }
    vgpu_mutex_unlock(&registry.lock);
    free(made);
}

/* With the lock. */
static void note_size(struct vgpu_physical *memory, uint64_t mapped)
{
    if (!memory->foreign || (memory->bytes != VGPU_UNKNOWN_SIZE && memory->bytes >= mapped)) return;
    vgpu_slice_imported(memory->device, mapped, memory->bytes);
    memory->bytes = mapped;
}

struct vgpu_physical *vgpu_physical_release_begin(CUmemGenericAllocationHandle handle)
{
    vgpu_mutex_lock(&registry.lock);
    struct vgpu_physical *memory = find(handle);
    if (memory != NULL && memory->holds > 0) {
        memory->holds--;
        if (unused(memory)) unlink_physical(memory);
    } else {
        memory = NULL;
    }
    vgpu_mutex_unlock(&registry.lock);
    return memory;
}

void vgpu_physical_release_end(struct vgpu_physical *memory, CUresult released)
{
    if (memory == NULL) return;
    vgpu_mutex_lock(&registry.lock);
    const bool linked = find(memory->handle) == memory;
    if (released != CUDA_SUCCESS) {
        memory->holds++;
        if (!linked) link_physical(memory);
    } else if (!linked && unused(memory)) {
        finish(memory);
    }
    vgpu_mutex_unlock(&registry.lock);
}

static struct vgpu_use *new_use(uint64_t owner, uint64_t at, uint64_t bytes, struct vgpu_physical *memory)
{
    struct vgpu_use *use = malloc(sizeof *use);
    /* Without memory to remember it the use is counted and never ends: charged too long, never too short. */
    memory->uses++;
    if (use != NULL) *use = (struct vgpu_use){.owner = owner, .at = at, .bytes = bytes, .memory = memory};
    return use;
}

void vgpu_physical_mapped(CUdeviceptr address, uint64_t bytes, CUmemGenericAllocationHandle handle)
{
    vgpu_mutex_lock(&registry.lock);
    struct vgpu_physical *memory = find(handle);
    if (memory != NULL) note_size(memory, bytes);
    struct vgpu_use *use = memory != NULL ? new_use(0, address, bytes, memory) : NULL;
    if (use != NULL) {
        use->next = registry.mappings[chain_of(address)];
        registry.mappings[chain_of(address)] = use;
    }
    vgpu_mutex_unlock(&registry.lock);
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
    vgpu_mutex_lock(&registry.lock);
    if (bytes / UNIT > CHAINS) {
        for (size_t i = 0; i < CHAINS; i++) (void)take_from(&registry.mappings[i], address, bytes, &taken);
    } else {
        for (uint64_t done = 0; done < bytes;) {
            const uint64_t size = take_from(&registry.mappings[chain_of(address + done)], address + done, 1, &taken);
            done += size > 0 ? size : UNIT;
        }
    }
    vgpu_mutex_unlock(&registry.lock);
    return taken;
}

void vgpu_physical_unmap_end(struct vgpu_use *taken, CUresult unmapped)
{
    vgpu_mutex_lock(&registry.lock);
    while (taken != NULL) {
        struct vgpu_use *use = taken;
        taken = use->next;
        if (unmapped == CUDA_SUCCESS) {
            drop_use(use);
        } else {
            use->next = registry.mappings[chain_of(use->at)];
            registry.mappings[chain_of(use->at)] = use;
        }
    }
    vgpu_mutex_unlock(&registry.lock);
}

static void bind(uint64_t owner, uint64_t at, struct vgpu_physical *memory)
{
    struct vgpu_use *use = memory != NULL ? new_use(owner, at, 0, memory) : NULL;
    if (use == NULL) return;
    use->next = registry.bindings;
    registry.bindings = use;
}

void vgpu_physical_bound(uint64_t owner, uint64_t at, CUmemGenericAllocationHandle handle)
{
    vgpu_mutex_lock(&registry.lock);
    bind(owner, at, find(handle));
    vgpu_mutex_unlock(&registry.lock);
}

void vgpu_physical_bound_address(uint64_t owner, uint64_t at, CUdeviceptr address)
{
    vgpu_mutex_lock(&registry.lock);
    struct vgpu_use *use = registry.mappings[chain_of(address)];
    while (use != NULL && use->at != address) use = use->next;
    bind(owner, at, use != NULL ? use->memory : NULL);
    vgpu_mutex_unlock(&registry.lock);
}

void vgpu_physical_unbound(uint64_t owner, int device, uint64_t at, uint64_t bytes)
{
    vgpu_mutex_lock(&registry.lock);
    for (struct vgpu_use **place = &registry.bindings; *place != NULL;) {
        struct vgpu_use *use = *place;
        if (use->owner != owner || use->memory->device != device || use->at < at || use->at - at >= bytes) {
            place = &use->next;
            continue;
        }
        *place = use->next;
        drop_use(use);
        place = &registry.bindings;
    }
    vgpu_mutex_unlock(&registry.lock);
}

void vgpu_physical_owner_gone(uint64_t owner)
{
    vgpu_mutex_lock(&registry.lock);
    drop_owner(owner);
    vgpu_mutex_unlock(&registry.lock);
}
