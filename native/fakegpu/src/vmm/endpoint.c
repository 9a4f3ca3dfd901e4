/* Logical endpoints of the stand-in driver: numbers that hold physical memory by binding it, as multicast objects do. There is no fabric:
 * none is exported. */
#include <stdlib.h>

#include "vmm/physical.h"

enum { LARGEST_BYTES = 1 << 30, FLAGS = 1 };

/* A number that is reserved, and the endpoint of it. */
struct endpoint {
    CUlogicalEndpointId id;
    bool made, ready; /* ready: the program has asked whether it is */
    CUlogicalEndpointProp properties;
    unsigned int devices; /* that were added to a multicast one */
    struct endpoint *next;
};
static struct endpoint *all;
static CUlogicalEndpointId next_id = 1;

static struct endpoint **place_of(CUlogicalEndpointId id)
{
    struct endpoint **at = &all;
    while (*at != NULL && (*at)->id != id) at = &(*at)->next;
    return at;
}

/* NULL: there is none of that number. With the lock. */
static struct endpoint *made_of(CUlogicalEndpointId id)
{
    struct endpoint *found = *place_of(id);
    return found != NULL && found->made ? found : NULL;
}

static bool is_complete(const struct endpoint *endpoint)
{
    return endpoint->properties.type == CU_LOGICAL_ENDPOINT_TYPE_UNICAST || endpoint->devices == endpoint->properties.device_or_count;
}

CUresult cuLogicalEndpointIdReserve(CUlogicalEndpointId *base, uint32_t count)
{
    CUresult result = CUDA_SUCCESS;
    if (!fg_driver.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (base == NULL || count == 0) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fg_physical_lock);
    *base = next_id;
    for (uint32_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        struct endpoint *reserved = malloc(sizeof *reserved);
        if (reserved == NULL) {
            result = CUDA_ERROR_OUT_OF_MEMORY;
        } else {
            *reserved = (struct endpoint){.id = next_id++, .next = all};
            all = reserved;
        }
    }
    pthread_mutex_unlock(&fg_physical_lock);
    return result;
}

CUresult cuLogicalEndpointIdRelease(CUlogicalEndpointId base, uint32_t count)
{
    CUresult result = count > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fg_physical_lock);
    for (uint32_t i = 0; i < count && result == CUDA_SUCCESS; i++)
        if (*place_of(base + i) == NULL || (*place_of(base + i))->made) result = CUDA_ERROR_INVALID_VALUE;
    for (uint32_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        struct endpoint **at = place_of(base + i), *released = *at;
        *at = released->next;
        free(released);
    }
    pthread_mutex_unlock(&fg_physical_lock);
    return result;
}

static CUresult check(const CUlogicalEndpointProp *wanted)
{
    if (!fg_driver.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (wanted == NULL || (wanted->flags & ~(unsigned int)FLAGS) != 0) return CUDA_ERROR_INVALID_VALUE;
    if (wanted->ipcHandleTypes != 0) return CUDA_ERROR_NOT_SUPPORTED;
    if (wanted->type == CU_LOGICAL_ENDPOINT_TYPE_UNICAST) return fg_check_device((CUdevice)wanted->device_or_count);
    return wanted->type == CU_LOGICAL_ENDPOINT_TYPE_MULTICAST && wanted->device_or_count > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuLogicalEndpointCreate(CUlogicalEndpointId id, const CUlogicalEndpointProp *wanted)
{
    CUresult result = check(wanted);
    if (result != CUDA_SUCCESS) return result;
    if (wanted->size == 0 || wanted->size % FG_PHYSICAL_UNIT != 0 || wanted->size > LARGEST_BYTES) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fg_physical_lock);
    struct endpoint *endpoint = *place_of(id);
    if (endpoint == NULL || endpoint->made)
        result = CUDA_ERROR_INVALID_VALUE;
    else
        *endpoint = (struct endpoint){.id = id, .made = true, .properties = *wanted, .next = endpoint->next};
    pthread_mutex_unlock(&fg_physical_lock);
    return result;
}

CUresult cuLogicalEndpointAddDevice(CUlogicalEndpointId id, CUdevice device)
{
    CUresult result = fg_check_device(device);
    pthread_mutex_lock(&fg_physical_lock);
    struct endpoint *endpoint = made_of(id);
    if (endpoint == NULL || endpoint->properties.type != CU_LOGICAL_ENDPOINT_TYPE_MULTICAST || is_complete(endpoint))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) endpoint->devices++;
    pthread_mutex_unlock(&fg_physical_lock);
    return result;
}

CUresult cuLogicalEndpointQuery(CUlogicalEndpointId base, uint32_t count, int *status)
{
    bool ready = true;
    CUresult result = status != NULL && count > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fg_physical_lock);
    for (uint32_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        struct endpoint *endpoint = made_of(base + i);
        if (endpoint == NULL)
            result = CUDA_ERROR_INVALID_VALUE;
        else
            ready = (endpoint->ready = is_complete(endpoint)) && ready;
    }
    pthread_mutex_unlock(&fg_physical_lock);
    if (result == CUDA_SUCCESS) *status = ready;
    return result;
}

CUresult cuLogicalEndpointDestroy(CUlogicalEndpointId id)
{
    pthread_mutex_lock(&fg_physical_lock);
    struct endpoint *endpoint = made_of(id);
    if (endpoint != NULL) {
        endpoint->made = false;
        (void)fg_drop_uses(FG_ENDPOINT | id, 0, UINT64_MAX);
    }
    pthread_mutex_unlock(&fg_physical_lock);
    return endpoint != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* With the lock. */
static CUresult bind(CUlogicalEndpointId id, CUdevice device, uint64_t at, struct fg_physical *memory, uint64_t bytes)
{
    const CUresult result = fg_check_device(device);
    const struct endpoint *endpoint = made_of(id);
    if (result != CUDA_SUCCESS) return result;
    if (endpoint == NULL || !endpoint->ready || memory == NULL || memory->tag != FG_PHYSICAL || memory->device != device)
        return CUDA_ERROR_INVALID_VALUE;
    const CUlogicalEndpointProp *is = &endpoint->properties;
    if (is->type == CU_LOGICAL_ENDPOINT_TYPE_UNICAST && (CUdevice)is->device_or_count != device) return CUDA_ERROR_INVALID_VALUE;
    if (bytes == 0 || at % FG_PHYSICAL_UNIT != 0 || bytes > memory->bytes || bytes > is->size || at > is->size - bytes)
        return CUDA_ERROR_INVALID_VALUE;
    return fg_add_use(FG_ENDPOINT | id, memory, at, bytes);
}

CUresult cuLogicalEndpointBindAddr(CUlogicalEndpointId id, CUdevice device, cuuint64_t at, void *pointer, cuuint64_t bytes,
                                   unsigned long long flags)
{
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fg_physical_lock);
    const CUresult result = bind(id, device, at, fg_mapped_over((uintptr_t)pointer), bytes);
    pthread_mutex_unlock(&fg_physical_lock);
    return result;
}

CUresult cuLogicalEndpointBindMem(CUlogicalEndpointId id, CUdevice device, cuuint64_t at, CUmemGenericAllocationHandle memory,
                                  cuuint64_t offset, cuuint64_t bytes, unsigned long long flags)
{
    if (offset != 0 || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fg_physical_lock);
    const CUresult result = bind(id, device, at, fg_physical_of(memory), bytes);
    pthread_mutex_unlock(&fg_physical_lock);
    return result;
}

CUresult cuLogicalEndpointUnbind(CUlogicalEndpointId id, CUdevice device, cuuint64_t at, cuuint64_t bytes)
{
    if (fg_check_device(device) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_DEVICE;
    pthread_mutex_lock(&fg_physical_lock);
    const bool any = made_of(id) != NULL && fg_drop_uses(FG_ENDPOINT | id, at, bytes);
    pthread_mutex_unlock(&fg_physical_lock);
    return any ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
