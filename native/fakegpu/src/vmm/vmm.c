/* Physical memory by handle, and its mappings, in the stand-in driver.
 *
 * Physical memory lives until its last handle is released, its last mapping undone and its last binding gone. Two mappings of one
 * handle do not show each other's content here. What was exported is on the card until the last process that made or imported it has let
 * go (shared.h); a descriptor that nobody has imported does not keep it, but importing it takes the bytes again.
 */
#include "vmm/vmm.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "memory/arena.h"
#include "memory/block.h"
#include "state/shared.h"

pthread_mutex_t fg_physical_lock = PTHREAD_MUTEX_INITIALIZER;
static struct fg_physical *all;
static struct fg_use *uses;

/* What an exported handle's file holds: which entry of the machine's state, and what to make again if that is gone. */
struct exported {
    uint64_t magic, bytes;
    int32_t card; /* -1: on the host */
    int32_t entry;
    uint32_t generation;
};
static const uint64_t EXPORTED = 0x4647564d4d455850;

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
    if (memory->shared_entry != 0) {
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
    all = made;
    return made;
}

static CUresult check_properties(const CUmemAllocationProp *properties)
{
    if (properties == NULL || properties->type != 1 || properties->location.type < CU_MEM_LOCATION_TYPE_DEVICE ||
        properties->location.type > CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT)
        return CUDA_ERROR_INVALID_VALUE;
    return properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? fg_check_device(properties->location.id) : CUDA_SUCCESS;
}

CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *properties, int option)
{
    const CUresult result = check_properties(properties);
    if (result != CUDA_SUCCESS) return result;
    if (bytes == NULL || option < 0 || option > 1) return CUDA_ERROR_INVALID_VALUE;
    *bytes = FG_PHYSICAL_UNIT;
    return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties, unsigned long long flags)
{
    const CUresult result = check_properties(properties);
    if (result != CUDA_SUCCESS) return result;
    if (handle == NULL || flags != 0 || bytes == 0 || bytes % FG_PHYSICAL_UNIT != 0) return CUDA_ERROR_INVALID_VALUE;
    const bool on_host = properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE;
    if (!on_host && !fg_charge(properties->location.id, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    pthread_mutex_lock(&fg_physical_lock);
    struct fg_physical *made = fg_add_physical(FG_PHYSICAL, properties->location.id, bytes, on_host);
    pthread_mutex_unlock(&fg_physical_lock);
    if (made == NULL) return on_host ? (void)0 : fg_discharge(properties->location.id, bytes), CUDA_ERROR_OUT_OF_MEMORY;
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

CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t bytes, size_t alignment, CUdeviceptr wanted, unsigned long long flags)
{
    (void)wanted; /* a wish only */
    if (!fg_driver.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (pointer == NULL || bytes == 0 || bytes % FG_PHYSICAL_UNIT != 0 || flags != 0 || (alignment & (alignment - 1)) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    /* Ranges are powers of two but aligned to 512 bytes alone: the first whole unit inside a larger one. */
    const uint64_t unit = alignment > FG_PHYSICAL_UNIT ? alignment : FG_PHYSICAL_UNIT, at = fg_arena_take(bytes + unit);
    if (at == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    *pointer = (at + unit - 1) / unit * unit;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr pointer, size_t bytes)
{
    /* Addresses are not used again: there are 16 TiB of them. */
    return pointer == 0 || pointer % FG_PHYSICAL_UNIT != 0 || bytes == 0 || bytes % FG_PHYSICAL_UNIT != 0 ? CUDA_ERROR_INVALID_VALUE
                                                                                                          : CUDA_SUCCESS;
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

CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    if (!fg_driver.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (pointer == 0 || pointer % FG_PHYSICAL_UNIT != 0 || bytes == 0 || bytes % FG_PHYSICAL_UNIT != 0 || offset != 0 || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fg_physical_lock);
    struct fg_physical *memory = fg_physical_of(handle);
    CUresult result = memory == NULL || bytes > memory->bytes ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS) {
        const struct fg_block window = {.base = pointer, .bytes = bytes, .device = memory->device, .kind = FG_MAPPED_MEMORY};
        result = fg_add_window(&window);
    }
    if (result == CUDA_SUCCESS) result = fg_add_use(0, memory, pointer, bytes);
    pthread_mutex_unlock(&fg_physical_lock);
    return result;
}

static struct fg_use *take_mapping(uint64_t at)
{
    struct fg_use **place = &uses;
    while (*place != NULL && ((*place)->owner != 0 || (*place)->at != at)) place = &(*place)->next;
    struct fg_use *use = *place;
    if (use != NULL) *place = use->next;
    return use;
}

CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes)
{
    if (!fg_driver.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    CUresult result = bytes == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    pthread_mutex_lock(&fg_physical_lock);
    for (uint64_t at = pointer; result == CUDA_SUCCESS && at < pointer + bytes;) {
        struct fg_use *use = take_mapping(at);
        if (use == NULL) {
            result = CUDA_ERROR_INVALID_VALUE;
            break;
        }
        struct fg_block *window = fg_remove_block(at, 1U << FG_MAPPED_MEMORY);
        if (window != NULL) fg_drop_block(window);
        at += use->bytes;
        use->memory->uses--;
        collect(use->memory);
        free(use);
    }
    pthread_mutex_unlock(&fg_physical_lock);
    return result;
}

CUresult cuMemSetAccess(CUdeviceptr pointer, size_t bytes, const CUmemAccessDesc *access, size_t count)
{
    if (pointer == 0 || bytes == 0 || access == NULL || count == 0) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        if ((access[i].flags != 0 && access[i].flags != 1 && access[i].flags != 3) || access[i].location.type < 1)
            return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties, CUmemGenericAllocationHandle handle)
{
    if (!fg_driver.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    pthread_mutex_lock(&fg_physical_lock);
    const struct fg_physical *memory = fg_physical_of(handle);
    const bool known = memory != NULL && memory->tag == FG_PHYSICAL && properties != NULL;
    if (known) {
        *properties = (CUmemAllocationProp){.type = 1};
        properties->location.type = memory->foreign ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE;
        properties->location.id = memory->foreign ? 0 : memory->device;
    }
    pthread_mutex_unlock(&fg_physical_lock);
    return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    if (handle == NULL || address == NULL) return CUDA_ERROR_INVALID_VALUE;
    const uint64_t wanted = (uint64_t)(uintptr_t)address;
    pthread_mutex_lock(&fg_physical_lock);
    struct fg_use *use = uses;
    while (use != NULL && (use->owner != 0 || wanted < use->at || wanted - use->at >= use->bytes)) use = use->next;
    if (use != NULL) {
        use->memory->handles++;
        *handle = (uint64_t)(uintptr_t)use->memory;
    }
    pthread_mutex_unlock(&fg_physical_lock);
    return use != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* An entry of the machine's state for memory that this process is charged with; memory of the host is charged to nobody. */
static bool share(struct fg_physical *memory)
{
    if (memory->shared_entry != 0) return true;
    const int card = memory->foreign ? 0 : fg_driver.card_of[memory->device];
    fg_lock(fg_driver.state);
    const int entry = fg_shared_new(fg_driver.state, card, memory->foreign ? 0 : memory->bytes, false);
    if (entry >= 0) memory->generation = fg_driver.state->shared[entry].generation;
    fg_unlock(fg_driver.state);
    memory->shared_entry = entry + 1;
    return entry >= 0;
}

CUresult cuMemExportToShareableHandle(void *shareable, CUmemGenericAllocationHandle handle, int type, unsigned long long flags)
{
    if (shareable == NULL || type != 1 || flags != 0) return CUDA_ERROR_INVALID_VALUE; /* POSIX file descriptors */
    struct exported note = {.magic = EXPORTED};
    pthread_mutex_lock(&fg_physical_lock);
    struct fg_physical *memory = fg_physical_of(handle);
    const CUresult result = memory == NULL ? CUDA_ERROR_INVALID_VALUE : share(memory) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS) {
        note.bytes = memory->bytes;
        note.card = memory->foreign ? -1 : fg_driver.card_of[memory->device];
        note.entry = memory->shared_entry - 1;
        note.generation = memory->generation;
    }
    pthread_mutex_unlock(&fg_physical_lock);
    if (result != CUDA_SUCCESS) return result;
    const int file = memfd_create("fakegpu-handle", MFD_CLOEXEC);
    if (file < 0 || pwrite(file, &note, sizeof note, 0) != (ssize_t)sizeof note) return CUDA_ERROR_UNKNOWN;
    *(int *)shareable = file;
    return CUDA_SUCCESS;
}

/* Holds the entry of an export, or, when nobody holds it any more, one in its place; the descriptor then names that one. */
static bool hold(struct exported *note, int file)
{
    fg_lock(fg_driver.state);
    bool held = fg_shared_hold(fg_driver.state, note->entry, note->generation);
    if (!held && (note->card < 0 || fg_take(fg_driver.state, note->card, note->bytes))) {
        note->entry = fg_shared_new(fg_driver.state, note->card < 0 ? 0 : note->card, note->card < 0 ? 0 : note->bytes, false);
        held = note->entry >= 0;
        if (held) note->generation = fg_driver.state->shared[note->entry].generation;
        if (!held && note->card >= 0) fg_give(fg_driver.state, note->card, note->bytes);
    }
    fg_unlock(fg_driver.state);
    return held && pwrite(file, note, sizeof *note, 0) == (ssize_t)sizeof *note;
}

static struct fg_physical *shared_as(const struct exported *note)
{
    struct fg_physical *at = all;
    while (at != NULL && (at->shared_entry != note->entry + 1 || at->generation != note->generation)) at = at->next;
    return at;
}

static CUresult import(struct exported *note, int file, struct fg_physical **memory)
{
    int device = fg_driver.device_count - 1;
    while (device >= 0 && fg_driver.card_of[device] != note->card) device--;
    if (note->card >= 0 && device < 0) return CUDA_ERROR_INVALID_DEVICE;
    *memory = shared_as(note);
    if (*memory != NULL) return (*memory)->handles++, CUDA_SUCCESS;
    if (!hold(note, file)) return CUDA_ERROR_OUT_OF_MEMORY;
    *memory = fg_add_physical(FG_PHYSICAL, device, note->bytes, note->card < 0);
    if (*memory == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    (*memory)->shared_entry = note->entry + 1;
    (*memory)->generation = note->generation;
    return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable, int type)
{
    struct exported note;
    struct fg_physical *memory;
    const int file = (int)(intptr_t)shareable;
    if (!fg_driver.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (handle == NULL || type != 1) return CUDA_ERROR_INVALID_VALUE;
    if (pread(file, &note, sizeof note, 0) != (ssize_t)sizeof note || note.magic != EXPORTED) return CUDA_ERROR_INVALID_HANDLE;
    pthread_mutex_lock(&fg_physical_lock);
    const CUresult result = import(&note, file, &memory);
    pthread_mutex_unlock(&fg_physical_lock);
    if (result == CUDA_SUCCESS) *handle = (uint64_t)(uintptr_t)memory;
    return result;
}

struct fg_physical *fg_mapped_at(CUdeviceptr pointer)
{
    const struct fg_use *use = uses;
    while (use != NULL && (use->owner != 0 || use->at != pointer)) use = use->next;
    return use != NULL ? use->memory : NULL;
}

CUresult fg_bind_tile(uint64_t owner, CUmemGenericAllocationHandle handle)
{
    pthread_mutex_lock(&fg_physical_lock);
    struct fg_physical *memory = fg_physical_of(handle);
    const CUresult result = memory != NULL ? fg_add_use(owner, memory, 0, memory->bytes) : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&fg_physical_lock);
    return result;
}

void fg_unbind_tiles(uint64_t owner)
{
    pthread_mutex_lock(&fg_physical_lock);
    (void)fg_drop_uses(owner, 0, UINT64_MAX);
    pthread_mutex_unlock(&fg_physical_lock);
}
