/* What the stand-in driver knows of an address. */
#include "memory/block.h"

/* CUpointer_attribute */
enum {
    CONTEXT = 1,
    MEMORY_TYPE = 2,
    DEVICE_POINTER = 3,
    HOST_POINTER = 4,
    SYNC_MEMOPS = 6,
    IS_MANAGED = 8,
    DEVICE_ORDINAL = 9,
    IS_LEGACY_CUDA_IPC_CAPABLE = 10,
    RANGE_START_ADDR = 11,
    RANGE_SIZE = 12,
    MAPPED = 13,
    MEMPOOL_HANDLE = 17,
    LAST = 21
};

static CUresult answer(void *data, int attribute, CUdeviceptr pointer, const struct fg_block *block, bool on_host)
{
    switch (attribute) {
    case CONTEXT: *(CUcontext *)data = block->context; return CUDA_SUCCESS;
    case MEMORY_TYPE: *(unsigned int *)data = on_host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE; return CUDA_SUCCESS;
    case DEVICE_POINTER: *(CUdeviceptr *)data = pointer; return CUDA_SUCCESS;
    case HOST_POINTER:
        if (!on_host && !block->managed) return CUDA_ERROR_INVALID_VALUE;
        *(void **)data = (void *)(uintptr_t)pointer;
        return CUDA_SUCCESS;
    case SYNC_MEMOPS: *(unsigned int *)data = 0; return CUDA_SUCCESS;
    case IS_MANAGED: *(unsigned int *)data = block->managed; return CUDA_SUCCESS;
    case DEVICE_ORDINAL: *(int *)data = block->device; return CUDA_SUCCESS;
    case IS_LEGACY_CUDA_IPC_CAPABLE:
        *(unsigned char *)data = !on_host && block->kind == FG_DEVICE_MEMORY && !block->managed;
        return CUDA_SUCCESS;
    case RANGE_START_ADDR: *(CUdeviceptr *)data = block->base; return CUDA_SUCCESS;
    case RANGE_SIZE: *(size_t *)data = block->bytes; return CUDA_SUCCESS;
    case MAPPED: *(unsigned char *)data = 1; return CUDA_SUCCESS;
    case MEMPOOL_HANDLE: *(CUmemoryPool *)data = block->pool; return CUDA_SUCCESS;
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

static bool look_up(CUdeviceptr pointer, struct fg_block *block, bool *on_host)
{
    *on_host = false;
    if (fg_find_block(pointer, block)) return true;
    *block = (struct fg_block){0};
    *on_host = fg_is_host_memory(pointer, &block->base, &block->bytes);
    return *on_host;
}

CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr pointer)
{
    struct fg_block block;
    bool on_host;
    if (!fg_driver.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (data == NULL || attribute < CONTEXT || attribute > LAST || !look_up(pointer, &block, &on_host)) return CUDA_ERROR_INVALID_VALUE;
    return answer(data, attribute, pointer, &block, on_host);
}
