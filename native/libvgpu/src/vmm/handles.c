#include "vmm/handles.h"

#include "base/mutex.h"
#include "base/wipe_on_fork.h"

static struct VGPU_WIPED table {
    struct vgpu_mutex lock;
    struct vgpu_physical *chain[VGPU_CHAINS];
} table;
VGPU_WIPE_ON_FORK(table);

void vgpu_handles_lock(void) { vgpu_mutex_lock(&table.lock); }

void vgpu_handles_unlock(void) { vgpu_mutex_unlock(&table.lock); }

struct vgpu_physical *vgpu_handle_find(CUmemGenericAllocationHandle handle)
{
    struct vgpu_physical *memory = table.chain[vgpu_chain_of(handle)];
    while (memory != NULL && memory->handle != handle) memory = memory->next;
    return memory;
}

void vgpu_handle_link(struct vgpu_physical *memory)
{
    struct vgpu_physical **chain = &table.chain[vgpu_chain_of(memory->handle)];
    memory->next = *chain;
    *chain = memory;
}

void vgpu_handle_unlink(struct vgpu_physical *memory)
{
    struct vgpu_physical **at = &table.chain[vgpu_chain_of(memory->handle)];
    while (*at != NULL && *at != memory) at = &(*at)->next;
    if (*at != NULL) *at = memory->next;
}
