/* Physical memory by handle in the stand-in driver. It lives until its last handle is released, its last mapping undone and its last
 * binding gone. */
#include "vmm/physical.h"

#include <stdlib.h>

#include "memory/block.h"
#include "state/shared.h"

/* CUmemAllocationProp.allocFlags.usage */
enum { CU_MEM_CREATE_USAGE_TILE_POOL = 1 };

pthread_mutex_t fg_physical_lock = PTHREAD_MUTEX_INITIALIZER;
static struct fg_physical *all;
static struct fg_use *uses;

struct fg_physical *fg_physical_of(CUmemGenericAllocationHandle handle)
{
    struct fg_physical *at = all;
    while (at != NULL && (uint64_t)(uintptr_t)at != handle) at = at->next;
    return at;
}

static void collect(struct fg_physical *memory)
{
    if (memory->handles > 0 || memory->uses > 0) return;
    struct fg_physical **at = &all;
    while (*at != memory) at = &(*at)->next;
    *at = memory->next;
    if (memory->shared_entry != 0 && fg_physical_is_shared(memory->shared_entry - 1, memory->generation)) {
        /* Another handle of it is here: the process holds it as before. */
    } else if (memory->shared_entry != 0) {
        fg_lock(fg_driver.state);
        fg_shared_drop(fg_driver.state, memory->shared_entry - 1);
        fg_unlock(fg_driver.state);
    } else if (memory->tag == FG_PHYSICAL && !memory->foreign) {
        fg_discharge(memory->device, memory->bytes);
    }
    free(memory);
}

struct fg_physical *fg_add_physical(enum fg_tag tag, int device, uint64_t bytes, bool foreign)
{
    struct fg_physical *made = malloc(sizeof *made);
    if (made == NULL) return NULL;
    *made = (struct fg_physical){.tag = tag, .device = device, .bytes = bytes, .handles = 1, .foreign = foreign, .next = all};
    made->place = (CUmemLocation){foreign ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE, foreign ? 0 : device};
    all = made;
    return made;
}

static CUresult check_properties(const CUmemAllocationProp *properties, int *device)
{
    if (properties == NULL || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
    return fg_device_at(properties->type, &properties->location, device);
}

CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *properties, int option)
{
    int device;
    const CUresult result = check_properties(properties, &device);
    if (result != CUDA_SUCCESS) return result;
    if (bytes == NULL || option < 0 || option > 1) return CUDA_ERROR_INVALID_VALUE;
    *bytes = FG_PHYSICAL_UNIT;
    return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties, unsigned long long flags)
{
    int device;
    const CUresult result = check_properties(properties, &device);
    if (result != CUDA_SUCCESS) return result;
    if (handle == NULL || flags != 0 || bytes == 0 || bytes % FG_PHYSICAL_UNIT != 0) return CUDA_ERROR_INVALID_VALUE;
    const bool on_host = device < 0;
    if (!on_host && !fg_charge(device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&fg_physical_lock);
    struct fg_physical *made = fg_add_physical(FG_PHYSICAL, on_host ? 0 : device, bytes, on_host);
    if (made != NULL) {
        made->place = properties->location;
        made->tile_pool = properties->allocFlags.usage == CU_MEM_CREATE_USAGE_TILE_POOL;
        made->handle_types = properties->requestedHandleTypes;
    }
    pthread_mutex_unlock(&fg_physical_lock);
    if (made == NULL) return on_host ? (void)0 : fg_discharge(device, bytes), CUDA_ERROR_OUT_OF_MEMORY;
    *handle = (uint64_t)(uintptr_t)made;
    return CUDA_SUCCESS;
}

bool fg_drop_uses(uint64_t owner, uint64_t from, uint64_t bytes)
{
    bool any = false;
    for (struct fg_use **at = &uses; *at != NULL;) {
        struct fg_use *use = *at;
        if (use->owner != owner || use->at < from || use->at - from >= bytes) {
            at = &use->next;
            continue;
        }
        *at = use->next;
        use->memory->uses--;
        collect(use->memory);
        free(use);
        any = true;
    }
    return any;
}

static CUresult release(CUmemGenericAllocationHandle handle)
{
    struct fg_physical *memory = fg_physical_of(handle);
    if (memory == NULL || memory->handles == 0) return CUDA_ERROR_INVALID_VALUE;
    memory->handles--;
    if (memory->tag == FG_MULTICAST && memory->handles == 0) fg_drop_uses(handle, 0, UINT64_MAX);
    collect(memory);
    return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    if (!fg_driver.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_lock(&fg_physical_lock);
    const CUresult result = release(handle);
    pthread_mutex_unlock(&fg_physical_lock);
    return result;
}

CUresult fg_add_use(uint64_t owner, struct fg_physical *memory, uint64_t at, uint64_t bytes)
{
    struct fg_use *use = malloc(sizeof *use);
    if (use == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *use = (struct fg_use){owner, at, bytes, memory, uses};
    uses = use;
    memory->uses++;
    return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties, CUmemGenericAllocationHandle handle)
{
    if (!fg_driver.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_lock(&fg_physical_lock);
    const struct fg_physical *memory = fg_physical_of(handle);
    const bool known = memory != NULL && memory->tag == FG_PHYSICAL && properties != NULL;
    if (known) {
        *properties = (CUmemAllocationProp){.type = 1, .requestedHandleTypes = memory->handle_types};
        properties->allocFlags.usage = memory->tile_pool ? CU_MEM_CREATE_USAGE_TILE_POOL : 0;
        properties->location = memory->place;
    }
    pthread_mutex_unlock(&fg_physical_lock);
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

uint64_t fg_end_mapping(uint64_t at)
{
    struct fg_use **place = &uses;
    while (*place != NULL && ((*place)->owner != 0 || (*place)->at != at)) place = &(*place)->next;
    struct fg_use *use = *place;
    if (use == NULL) return 0;
    const uint64_t bytes = use->bytes;
    *place = use->next;
    use->memory->uses--;
    collect(use->memory);
    free(use);
    return bytes;
}

struct fg_physical *fg_mapped_over(uint64_t address)
{
    const struct fg_use *use = uses;
    while (use != NULL && (use->owner != 0 || address < use->at || address - use->at >= use->bytes)) use = use->next;
    return use != NULL ? use->memory : NULL;
}

bool fg_physical_is_shared(int entry, uint32_t generation)
{
    const struct fg_physical *at = all;
    while (at != NULL && (at->shared_entry != entry + 1 || at->generation != generation)) at = at->next;
    return at != NULL;
}

static bool tile_fits(const struct fg_tile_memory *wanted)
{
    const struct fg_physical *memory = fg_physical_of(wanted->handle);
    return memory != NULL && wanted->offset <= memory->bytes && wanted->bytes <= memory->bytes - wanted->offset &&
           (memory->tile_pool || !wanted->tile_pool);
}

CUresult fg_bind_tile(uint64_t owner, uint64_t at, const struct fg_tile_memory *wanted)
{
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&fg_physical_lock);
    if (wanted != NULL && !tile_fits(wanted)) result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) (void)fg_drop_uses(owner, at, 1);
    if (result == CUDA_SUCCESS && wanted != NULL) {
        struct fg_physical *memory = fg_physical_of(wanted->handle);
        result = fg_add_use(owner, memory, at, memory->bytes);
    }
    pthread_mutex_unlock(&fg_physical_lock);
    return result;
}

void fg_unbind_tiles(uint64_t owner)
{
    pthread_mutex_lock(&fg_physical_lock);
    (void)fg_drop_uses(owner, 0, UINT64_MAX);
    pthread_mutex_unlock(&fg_physical_lock);
}
