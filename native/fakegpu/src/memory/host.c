/* Host memory that the stand-in driver knows: allocated by it, or registered with it. Addresses are the same for host and card. */
#include <stdlib.h>

#include "memory/block.h"

enum { DEVICE_MAP = 2, ALLOCATION_FLAGS = 7, REGISTER_FLAGS = 15 };

struct host_range {
    uint64_t base, bytes;
    unsigned int flags;
    bool registered;
    struct host_range *next;
};
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct host_range *ranges;

static struct host_range *overlapping(uint64_t base, uint64_t bytes)
{
    struct host_range *at = ranges;
    while (at != NULL && (base >= at->base + at->bytes || base + bytes <= at->base)) at = at->next;
    return at;
}

static CUresult add(void *pointer, size_t bytes, unsigned int flags, bool registered)
{
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    struct host_range *made = malloc(sizeof *made);
    pthread_mutex_lock(&lock);
    if (made != NULL && registered && overlapping((uintptr_t)pointer, bytes) != NULL) {
        result = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    } else if (made != NULL) {
        *made = (struct host_range){(uintptr_t)pointer, bytes, flags, registered, ranges};
        ranges = made;
        result = CUDA_SUCCESS;
    }
    pthread_mutex_unlock(&lock);
    if (result != CUDA_SUCCESS) free(made);
    return result;
}

static bool take_out(const void *pointer, bool registered)
{
    pthread_mutex_lock(&lock);
    struct host_range **at = &ranges;
    while (*at != NULL && ((*at)->base != (uintptr_t)pointer || (*at)->registered != registered)) at = &(*at)->next;
    struct host_range *found = *at;
    if (found != NULL) *at = found->next;
    pthread_mutex_unlock(&lock);
    free(found);
    return found != NULL;
}

static bool find(const void *pointer, struct host_range *found)
{
    pthread_mutex_lock(&lock);
    const struct host_range *at = overlapping((uintptr_t)pointer, 1);
    if (at != NULL) *found = *at;
    pthread_mutex_unlock(&lock);
    return at != NULL;
}

bool fg_is_host_memory(CUdeviceptr at, CUdeviceptr *base, size_t *bytes)
{
    struct host_range range;
    if (!find((const void *)(uintptr_t)at, &range)) return false;
    *base = range.base;
    *bytes = range.bytes;
    return true;
}

CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned int flags)
{
    CUcontext context;
    CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (pointer == NULL || bytes == 0 || flags > ALLOCATION_FLAGS) return CUDA_ERROR_INVALID_VALUE;
    void *memory = NULL;
    if (posix_memalign(&memory, 4096, bytes) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
    result = add(memory, bytes, flags | DEVICE_MAP, false); /* with unified addresses all of it is mapped */
    if (result == CUDA_SUCCESS)
        *pointer = memory;
    else
        free(memory);
    return result;
}

CUresult cuMemAllocHost_v2(void **pointer, size_t bytes) { return cuMemHostAlloc(pointer, bytes, 0); }

CUresult cuMemFreeHost(void *pointer)
{
    if (!fg_driver.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (pointer == NULL || !take_out(pointer, false)) return CUDA_ERROR_INVALID_VALUE;
    free(pointer);
    return CUDA_SUCCESS;
}

CUresult cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned int flags)
{
    CUcontext context;
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (pointer == NULL || bytes == 0 || flags > REGISTER_FLAGS) return CUDA_ERROR_INVALID_VALUE;
    return add(pointer, bytes, flags | DEVICE_MAP, true);
}

CUresult cuMemHostUnregister(void *pointer)
{
    CUcontext context;
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (pointer == NULL) return CUDA_ERROR_INVALID_VALUE;
    return take_out(pointer, true) ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *pointer, void *host, unsigned int flags)
{
    struct host_range range;
    CUcontext context;
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (pointer == NULL || flags != 0 || !find(host, &range)) return CUDA_ERROR_INVALID_VALUE;
    *pointer = (uintptr_t)host;
    return CUDA_SUCCESS;
}

CUresult cuMemHostGetFlags(unsigned int *flags, void *pointer)
{
    struct host_range range;
    CUcontext context;
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (flags == NULL || !find(pointer, &range)) return CUDA_ERROR_INVALID_VALUE;
    *flags = range.flags;
    return CUDA_SUCCESS;
}
