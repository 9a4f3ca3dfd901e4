/* Stream-ordered memory of the stand-in driver.
 *
 * What is freed in a stream is free when the stream gets there; until then only that stream may have it again, or any stream before an
 * allocation would fail (CUDA Programming Guide, Stream Ordered Memory Allocator: same stream, internal dependencies). The pool keeps what
 * is free until the program waits for it (held.h), and up to its release threshold for longer: seen on an H100 with driver 580.159. */
#include "memory/block.h"
#include "pool/held.h"
#include "stream/deferred.h"

#include <stdlib.h>
#include <string.h>
#include "driver/driver.h"

static bool pool_ok(CUmemoryPool pool) { return pool != NULL && pool->tag == FG_POOL; }

/* Blocks that are freed and whose stream is not there yet; under fg_driver.lock. */
struct leaving {
    struct fg_block *block;
    CUstream stream;
    uint64_t bytes; /* of them nobody has again */
    CUcontext context;
    uint64_t number; /* held.h */
    struct leaving *next;
};
static struct leaving *all_leaving;

/* Bytes of the pool that are on their way out and may be had again; takes up to `wanted` of them if `take`. With the lock. */
static uint64_t reuse(CUmemoryPool pool, CUstream stream, bool any_stream, uint64_t wanted, bool take)
{
    uint64_t found = 0;
    for (struct leaving *at = all_leaving; at != NULL && found < wanted; at = at->next) {
        if (at->block->pool != pool || (!any_stream && at->stream != stream)) continue;
        const uint64_t part = at->bytes < wanted - found ? at->bytes : wanted - found;
        if (take) at->bytes -= part;
        found += part;
    }
    return found;
}

static bool pool_take(CUmemoryPool pool, uint64_t bytes, CUstream stream)
{
    bool fits = false;
    pthread_mutex_lock(&fg_driver.lock);
    for (int any_stream = 0; any_stream <= 1 && !fits; any_stream++) {
        const uint64_t again = reuse(pool, stream, any_stream != 0, bytes, false);
        const uint64_t used = pool->used + bytes - again;
        const uint64_t have = pool->reserved - (pool->apart ? fg_held_of_others(pool, stream) : 0), growth = used > have ? used - have : 0;
        fits = pool->device < 0 || fg_charge(pool->device, growth);
        if (!fits) continue;
        (void)reuse(pool, stream, any_stream != 0, again, true);
        pool->used = used;
        pool->reserved += growth;
        fg_held_cut(pool, pool->reserved - pool->used);
        if (pool->used > pool->used_high) pool->used_high = pool->used;
        if (pool->reserved > pool->reserved_high) pool->reserved_high = pool->reserved;
    }
    pthread_mutex_unlock(&fg_driver.lock);
    return fits;
}

/* Gives back what is neither used nor held nor below `keep`. With the lock. */
static void shrink(CUmemoryPool pool, uint64_t keep)
{
    const uint64_t busy = pool->used + pool->held, target = busy > keep ? busy : keep;
    if (pool->reserved <= target) return;
    if (pool->device >= 0) fg_discharge(pool->device, pool->reserved - target);
    pool->reserved = target;
}

void fg_pool_give(CUmemoryPool pool, uint64_t bytes)
{
    pthread_mutex_lock(&fg_driver.lock);
    pool->used -= bytes;
    shrink(pool, pool->threshold);
    pthread_mutex_unlock(&fg_driver.lock);
}

/* Freed in a stream that is there. */
static void hold(const struct leaving *freed)
{
    CUmemoryPool pool = freed->block->pool;
    pthread_mutex_lock(&fg_driver.lock);
    pool->used -= freed->bytes;
    if (pool->tag != FG_POOL || !fg_held_add(pool, freed->context, freed->stream, freed->bytes, freed->number))
        shrink(pool, pool->threshold);
    pthread_mutex_unlock(&fg_driver.lock);
}

void fg_pools_waited(CUcontext context, CUstream stream, uint64_t number)
{
    CUmemoryPool pool;
    pthread_mutex_lock(&fg_driver.lock);
    while ((pool = fg_held_waited(context, stream, number)) != NULL) shrink(pool, pool->threshold);
    pthread_mutex_unlock(&fg_driver.lock);
}

static CUresult allocate(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    CUresult result;
    if (!pool_ok(pool)) return CUDA_ERROR_INVALID_VALUE;
    if (!fg_stream_ok(stream)) return CUDA_ERROR_INVALID_HANDLE;
    if (pointer == NULL || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    if (fg_capture_alloc(stream, pointer, bytes, pool->device, &result)) return result;
    if (!pool_take(pool, fg_rounded(bytes), stream)) return CUDA_ERROR_OUT_OF_MEMORY;
    result = fg_allocate(pointer, bytes, FG_POOL_MEMORY, pool, pool->device);
    if (result != CUDA_SUCCESS) fg_pool_give(pool, fg_rounded(bytes));
    return result;
}

CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
    CUcontext context;
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (!fg_stream_ok(stream)) return CUDA_ERROR_INVALID_HANDLE;
    const uintptr_t number = (uintptr_t)stream;
    const int device = number > 2 ? stream->context->device : context->device;
    return allocate(pointer, bytes, fg_driver.current_pool[device], stream);
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream) { return cuMemAllocAsync(pointer, bytes, stream); }

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    CUcontext context;
    const CUresult result = fg_current(&context);
    return result == CUDA_SUCCESS ? allocate(pointer, bytes, pool, stream) : result;
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    return cuMemAllocFromPoolAsync(pointer, bytes, pool, stream);
}

/* The block is no more; what nobody took again the pool holds. */
static void end(struct leaving *freed)
{
    struct fg_block *block = freed->block;
    if (block->kind == FG_POOL_MEMORY) {
        hold(freed);
        block->kind = FG_FOREIGN_MEMORY; /* its bytes have been given back */
    }
    fg_drop_block(block);
}

/* The stream is there. */
static void leave(void *data)
{
    struct leaving *leaving = data, **at = &all_leaving;
    pthread_mutex_lock(&fg_driver.lock);
    while (*at != leaving) at = &(*at)->next;
    *at = leaving->next;
    pthread_mutex_unlock(&fg_driver.lock);
    end(leaving);
    free(leaving);
}

static CUresult free_later(const struct leaving *freed)
{
    struct leaving *leaving = malloc(sizeof *leaving);
    if (leaving == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *leaving = *freed;
    pthread_mutex_lock(&fg_driver.lock);
    leaving->next = all_leaving;
    all_leaving = leaving;
    pthread_mutex_unlock(&fg_driver.lock);
    if (fg_defer(leaving->context, leaving->stream, NULL, leave, leaving) == 0) leave(leaving);
    return CUDA_SUCCESS;
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream)
{
    struct leaving freed = {.stream = stream};
    CUresult result;
    if (!fg_stream_ok(stream)) return CUDA_ERROR_INVALID_HANDLE;
    if (pointer == 0) return CUDA_ERROR_INVALID_VALUE;
    if (fg_capture_free(stream, pointer, &result)) return result;
    if (fg_driver.machine->instant_allocations || fg_stream_context(stream, &freed.context) != CUDA_SUCCESS) return cuMemFree_v2(pointer);
    freed.block = fg_remove_block(pointer, 1U << FG_DEVICE_MEMORY | 1U << FG_POOL_MEMORY);
    if (freed.block == NULL) return cuMemFree_v2(pointer);
    freed.bytes = freed.block->kind == FG_POOL_MEMORY ? fg_rounded(freed.block->bytes) : 0;
    freed.number = fg_held_next();
    if (fg_is_busy(freed.context, stream)) return free_later(&freed);
    end(&freed);
    return CUDA_SUCCESS;
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream) { return cuMemFreeAsync(pointer, stream); }

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device)
{
    const CUresult result = fg_check_device(device);
    if (result != CUDA_SUCCESS) return result;
    if (pool == NULL) return CUDA_ERROR_INVALID_VALUE;
    *pool = &fg_driver.pool[device];
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device)
{
    const CUresult result = fg_check_device(device);
    if (result != CUDA_SUCCESS) return result;
    if (pool == NULL) return CUDA_ERROR_INVALID_VALUE;
    *pool = fg_driver.current_pool[device];
    return CUDA_SUCCESS;
}

CUresult cuDeviceSetMemPool(CUdevice device, CUmemoryPool pool)
{
    const CUresult result = fg_check_device(device);
    if (result != CUDA_SUCCESS) return result;
    if (!pool_ok(pool) || pool->device != device) return CUDA_ERROR_INVALID_VALUE;
    fg_driver.current_pool[device] = pool;
    return CUDA_SUCCESS;
}

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *properties)
{
    static const unsigned char zeroes[sizeof properties->reserved];
    if (!fg_driver.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (pool == NULL || properties == NULL || memcmp(properties->reserved, zeroes, sizeof zeroes) != 0) return CUDA_ERROR_INVALID_VALUE;
    int device;
    const CUresult result = fg_device_at(properties->allocType, &properties->location, &device);
    if (result != CUDA_SUCCESS) return result;
    struct CUmemPoolHandle_st *made = calloc(1, sizeof *made);
    if (made == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *made = (struct CUmemPoolHandle_st){
        .tag = FG_POOL, .device = device, .allocation_type = properties->allocType, .place = properties->location};
    *pool = made;
    return CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    if (!pool_ok(pool)) return CUDA_ERROR_INVALID_VALUE;
    for (int i = 0; i < fg_driver.device_count; i++) {
        if (pool == &fg_driver.pool[i]) return CUDA_ERROR_INVALID_VALUE; /* the default pool stays */
        if (pool == fg_driver.current_pool[i]) fg_driver.current_pool[i] = &fg_driver.pool[i];
    }
    pthread_mutex_lock(&fg_driver.lock);
    pool->threshold = 0;
    fg_held_cut(pool, 0);
    shrink(pool, 0);
    pthread_mutex_unlock(&fg_driver.lock);
    pool->tag = 0; /* kept: blocks that live on give their bytes back to it */
    return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    if (!pool_ok(pool)) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fg_driver.lock);
    shrink(pool, keep);
    pthread_mutex_unlock(&fg_driver.lock);
    return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value)
{
    if (!pool_ok(pool) || value == NULL || attribute < 1 || attribute > 8) return CUDA_ERROR_INVALID_VALUE;
    if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) pool->threshold = *(uint64_t *)value;
    if (attribute == CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC) pool->apart = *(int *)value == 0;
    return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value)
{
    if (!pool_ok(pool) || value == NULL) return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC: *(int *)value = !pool->apart; return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: *(uint64_t *)value = pool->threshold; return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: *(uint64_t *)value = pool->reserved; return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: *(uint64_t *)value = pool->reserved_high; return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: *(uint64_t *)value = pool->used; return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_ALLOCATION_TYPE: *(int *)value = pool->allocation_type; return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_LOCATION_ID: *(int *)value = pool->place.id; return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_LOCATION_TYPE: *(int *)value = pool->place.type; return CUDA_SUCCESS;
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
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

/* Pools are not shared between processes here. */
CUresult cuMemPoolExportPointer(void *data, CUdeviceptr pointer)
{
    (void)data, (void)pointer;
    return fg_driver.initialised ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult cuMemPoolImportPointer(CUdeviceptr *pointer, CUmemoryPool pool, void *data)
{
    (void)pointer, (void)pool;
    return cuMemPoolExportPointer(data, 0);
}
