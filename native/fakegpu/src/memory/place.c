/* Pools by place, who may use a pool's memory, and what cards can do to each other's memory at once, in the stand-in driver. */
#include "driver/driver.h"

/* CUmemAccess_flags */
enum { NO_ACCESS = 0, READ_WRITE = 3 };

static bool pool_ok(CUmemoryPool pool) { return pool != NULL && pool->tag == FG_POOL; }

/* The pool's own device always may. */
CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *wanted, size_t count)
{
    if (!pool_ok(pool) || wanted == NULL || count == 0) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        if (wanted[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || (wanted[i].flags != NO_ACCESS && wanted[i].flags != READ_WRITE))
            return CUDA_ERROR_INVALID_VALUE;
        if (fg_check_device(wanted[i].location.id) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_DEVICE;
        if (wanted[i].location.id == pool->device && wanted[i].flags == NO_ACCESS) return CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < count; i++) {
        const uint64_t bit = UINT64_C(1) << wanted[i].location.id;
        pool->peers = wanted[i].flags == READ_WRITE ? pool->peers | bit : pool->peers & ~bit;
    }
    return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAccess(int *flags, CUmemoryPool pool, CUmemLocation *place)
{
    if (flags == NULL || !pool_ok(pool) || place == NULL || place->type != CU_MEM_LOCATION_TYPE_DEVICE) return CUDA_ERROR_INVALID_VALUE;
    if (fg_check_device(place->id) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_DEVICE;
    *flags = place->id == pool->device || (pool->peers >> place->id & 1) != 0 ? READ_WRITE : NO_ACCESS;
    return CUDA_SUCCESS;
}

/* Pools of devices; the host's and managed memory's have no default here. */
static CUresult check_place(const CUmemLocation *place, int type)
{
    int device;
    if (place == NULL) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = fg_device_at(type, place, &device);
    if (result != CUDA_SUCCESS) return result;
    return place->type == CU_MEM_LOCATION_TYPE_DEVICE && type == CU_MEM_ALLOCATION_TYPE_PINNED ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

/* A domain has a pool of its own, made when it is first asked for. */
static CUresult domain_pool(CUmemoryPool *pool, const CUmemLocation *place, int type)
{
    static struct CUmemPoolHandle_st pools[FG_MAX_DEVICES][FG_LOCALITY_DOMAINS];
    int device;
    const CUresult result = fg_device_at(type, place, &device);
    if (result != CUDA_SUCCESS || pool == NULL) return result != CUDA_SUCCESS ? result : CUDA_ERROR_INVALID_VALUE;
    struct CUmemPoolHandle_st *made = &pools[device][place->id >> 8];
    pthread_mutex_lock(&fg_driver.lock);
    if (made->tag == 0) *made = (struct CUmemPoolHandle_st){.tag = FG_POOL, .device = device, .allocation_type = type, .place = *place};
    pthread_mutex_unlock(&fg_driver.lock);
    *pool = made;
    return CUDA_SUCCESS;
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *place, int type)
{
    if (place != NULL && place->type == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN) return domain_pool(pool, place, type);
    const CUresult result = check_place(place, type);
    return result == CUDA_SUCCESS ? cuDeviceGetDefaultMemPool(pool, place->id) : result;
}

CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *place, int type)
{
    const CUresult result = check_place(place, type);
    return result == CUDA_SUCCESS ? cuDeviceGetMemPool(pool, place->id) : result;
}

CUresult cuMemSetMemPool(CUmemLocation *place, int type, CUmemoryPool pool)
{
    const CUresult result = check_place(place, type);
    return result == CUDA_SUCCESS ? cuDeviceSetMemPool(place->id, pool) : result;
}

/* CUatomicOperationCapability: NVLink carries all operations on scalars, the bus to the host none. */
static CUresult capabilities(unsigned int *found, const int *operations, unsigned int count, bool linked)
{
    enum { LAST_INTEGER = 9, LAST_OPERATION = 12, SIGNED = 1, UNSIGNED = 2, REDUCTION = 4, SCALAR_32 = 8, SCALAR_64 = 16 };
    if (found == NULL || operations == NULL || count == 0) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned int i = 0; i < count; i++)
        if (operations[i] < 0 || operations[i] > LAST_OPERATION) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned int i = 0; i < count; i++)
        found[i] = !linked                         ? 0U
                   : operations[i] <= LAST_INTEGER ? SIGNED | UNSIGNED | REDUCTION | SCALAR_32 | SCALAR_64
                                                   : REDUCTION | SCALAR_32 | SCALAR_64;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetHostAtomicCapabilities(unsigned int *found, const int *operations, unsigned int count, CUdevice device)
{
    const CUresult result = fg_check_device(device);
    return result == CUDA_SUCCESS ? capabilities(found, operations, count, false) : result;
}

CUresult cuDeviceGetP2PAtomicCapabilities(unsigned int *found, const int *operations, unsigned int count, CUdevice device, CUdevice peer)
{
    enum { NATIVE_ATOMIC = 3 };
    int linked;
    const CUresult result = cuDeviceGetP2PAttribute(&linked, NATIVE_ATOMIC, device, peer);
    return result == CUDA_SUCCESS ? capabilities(found, operations, count, linked != 0) : result;
}
