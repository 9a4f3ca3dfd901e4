/* Ranges of addresses and what is mapped into them, in the stand-in driver. Two mappings of one handle do not show each other's content
 * here. */
#include "memory/arena.h"
#include "memory/block.h"
#include "vmm/physical.h"

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

/* What processes share is mapped as a whole (H100). */
static CUresult may_map(const struct fg_physical *memory, size_t bytes, size_t offset)
{
    if (memory != NULL && memory->shared_entry != 0 && (bytes != memory->bytes || offset != 0)) return CUDA_ERROR_NOT_SUPPORTED;
    return memory == NULL || bytes > memory->bytes || offset != 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    if (!fg_driver.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (pointer == 0 || pointer % FG_PHYSICAL_UNIT != 0 || bytes == 0 || bytes % FG_PHYSICAL_UNIT != 0 || offset % FG_PHYSICAL_UNIT != 0 ||
        flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fg_physical_lock);
    struct fg_physical *memory = fg_physical_of(handle);
    CUresult result = may_map(memory, bytes, offset);
    if (result == CUDA_SUCCESS) {
        const struct fg_block window = {.base = pointer, .bytes = bytes, .device = memory->device, .kind = FG_MAPPED_MEMORY};
        result = fg_add_window(&window);
    }
    if (result == CUDA_SUCCESS) result = fg_add_use(0, memory, pointer, bytes);
    pthread_mutex_unlock(&fg_physical_lock);
    return result;
}

CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes)
{
    if (!fg_driver.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    CUresult result = bytes == 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    pthread_mutex_lock(&fg_physical_lock);
    for (uint64_t at = pointer; result == CUDA_SUCCESS && at < pointer + bytes;) {
        const uint64_t mapped = fg_end_mapping(at);
        if (mapped == 0) {
            result = CUDA_ERROR_INVALID_VALUE;
            break;
        }
        struct fg_block *window = fg_remove_block(at, 1U << FG_MAPPED_MEMORY);
        if (window != NULL) fg_drop_block(window);
        at += mapped;
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

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    if (handle == NULL || address == NULL) return CUDA_ERROR_INVALID_VALUE;
    const uint64_t wanted = (uint64_t)(uintptr_t)address;
    pthread_mutex_lock(&fg_physical_lock);
    struct fg_physical *memory = fg_mapped_over(wanted);
    if (memory != NULL) {
        memory->handles++;
        *handle = (uint64_t)(uintptr_t)memory;
    }
    pthread_mutex_unlock(&fg_physical_lock);
    return memory != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
