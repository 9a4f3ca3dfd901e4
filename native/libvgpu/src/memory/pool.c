#include "memory/pool.h"

#include <stdlib.h>

#include "base/wipe_on_fork.h"
#include "accounting/current.h"
#include "base/mutex.h"
#include "intercept/real.h"
#include "state/process_state.h"
#include "accounting/slice.h"

/* A process has a handful of pools. */
struct pool {
    CUmemoryPool handle;
    int device;
    uint64_t threshold, live, kept; /* bytes; kept are charged though nobody uses them */
    struct pool *next;
};

static struct VGPU_WIPED registry {
    struct vgpu_mutex lock;
    struct pool *pools;
} registry;
VGPU_WIPE_ON_FORK(registry);

static uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* With the lock. */
static struct pool *known(CUmemoryPool handle)
{
    struct pool *pool = registry.pools;
    while (pool != NULL && pool->handle != handle) pool = pool->next;
    return pool;
}

/* The entry of a pool, made if need be; NULL without memory. With the lock. */
static struct pool *entry_of(CUmemoryPool handle, int device)
{
    struct pool *pool = known(handle);
    if (pool != NULL) return pool;
    pool = malloc(sizeof *pool);
    if (pool == NULL) return NULL;
    *pool = (struct pool){.handle = handle, .device = device, .next = registry.pools};
    return registry.pools = pool;
}

/* The most that the pool may keep beside what is live. */
static uint64_t room(const struct pool *pool) { return pool->threshold > pool->live ? pool->threshold - pool->live : 0; }

/* Lowers what is kept; returns the bytes to release. With the lock. */
static uint64_t drop_to(struct pool *pool, uint64_t kept)
{
    const uint64_t dropped = pool->kept > kept ? pool->kept - kept : 0;
    pool->kept -= dropped;
    return dropped;
}

void vgpu_pool_made(CUmemoryPool handle, int device)
{
    vgpu_mutex_lock(&registry.lock);
    struct pool *pool = entry_of(handle, device);
    if (pool != NULL) *pool = (struct pool){.handle = handle, .device = device, .next = pool->next};
    vgpu_mutex_unlock(&registry.lock);
}

static int known_device(CUmemoryPool handle, int otherwise)
{
    vgpu_mutex_lock(&registry.lock);
    const struct pool *pool = known(handle);
    const int device = pool != NULL ? pool->device : otherwise;
    vgpu_mutex_unlock(&registry.lock);
    return device;
}

int vgpu_pool_device(CUmemoryPool handle)
{
    enum { ASK = -100 };
    int device = known_device(handle, ASK), count = 0;
    if (device != ASK) return device;
    const struct vgpu_cuda *cuda = vgpu_cuda();
    device = vgpu_memory_current_device(); /* an imported pool does not name its own */
    if (cuda->cuDeviceGetCount(&count) != CUDA_SUCCESS) count = 0;
    for (int i = 0; i < count; i++) {
        CUmemoryPool pool;
        CUdevice ordinal;
        if (cuda->cuDeviceGet(&ordinal, i) != CUDA_SUCCESS || cuda->cuDeviceGetDefaultMemPool(&pool, ordinal) != CUDA_SUCCESS ||
            pool != handle)
            continue;
        device = vgpu_state_cuda_device(ordinal);
        vgpu_pool_made(handle, device);
    }
    return device;
}

uint64_t vgpu_pool_take(CUmemoryPool handle, int device, uint64_t bytes)
{
    vgpu_mutex_lock(&registry.lock);
    struct pool *pool = entry_of(handle, device);
    const uint64_t reused = pool != NULL ? smaller(pool->kept, bytes) : 0;
    if (pool != NULL) {
        pool->kept -= reused;
        pool->live += bytes;
    }
    vgpu_mutex_unlock(&registry.lock);
    return reused;
}

void vgpu_pool_put_back(CUmemoryPool handle, uint64_t bytes, uint64_t reused)
{
    vgpu_mutex_lock(&registry.lock);
    struct pool *pool = known(handle);
    if (pool != NULL) {
        pool->live -= smaller(pool->live, bytes);
        pool->kept += reused;
    }
    vgpu_mutex_unlock(&registry.lock);
}

void vgpu_pool_freed(CUmemoryPool handle, int device, uint64_t bytes)
{
    uint64_t released = bytes;
    vgpu_mutex_lock(&registry.lock);
    struct pool *pool = known(handle);
    if (pool != NULL) {
        pool->live -= smaller(pool->live, bytes);
        pool->kept += bytes;
        released = drop_to(pool, room(pool));
    }
    vgpu_mutex_unlock(&registry.lock);
    vgpu_slice_release(device, released);
}

void vgpu_pool_threshold(CUmemoryPool handle, uint64_t bytes)
{
    const int device = vgpu_pool_device(handle);
    vgpu_mutex_lock(&registry.lock);
    struct pool *pool = entry_of(handle, device);
    /* Lowered: the pool lets go at the driver's next synchronisation; until it is used or trimmed the bytes stay charged. */
    if (pool != NULL) pool->threshold = bytes;
    vgpu_mutex_unlock(&registry.lock);
}

void vgpu_pool_trimmed(CUmemoryPool handle, uint64_t keep)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    const int device = vgpu_pool_device(handle);
    uint64_t released = 0, reserved;
    /* Blocks in use may hold more than was asked to be kept: then the driver knows how much. */
    const bool known_reserved = cuda->cuMemPoolGetAttribute(handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved) == CUDA_SUCCESS;
    vgpu_mutex_lock(&registry.lock);
    struct pool *pool = known(handle);
    if (pool != NULL) {
        const uint64_t left = known_reserved && reserved > keep ? reserved : keep;
        released = drop_to(pool, left > pool->live ? left - pool->live : 0);
    }
    vgpu_mutex_unlock(&registry.lock);
    vgpu_slice_release(device, released);
}

struct pool *vgpu_pool_end_begin(CUmemoryPool handle)
{
    vgpu_mutex_lock(&registry.lock);
    struct pool **at = &registry.pools;
    while (*at != NULL && (*at)->handle != handle) at = &(*at)->next;
    struct pool *ending = *at;
    if (ending != NULL) *at = ending->next;
    vgpu_mutex_unlock(&registry.lock);
    return ending;
}

void vgpu_pool_end(struct pool *ending, CUresult destroyed)
{
    if (ending == NULL) return;
    if (destroyed != CUDA_SUCCESS) {
        vgpu_mutex_lock(&registry.lock);
        ending->next = registry.pools;
        registry.pools = ending;
        vgpu_mutex_unlock(&registry.lock);
        return;
    }
    vgpu_slice_release(ending->device, ending->kept); /* blocks that live on are in the block table */
    free(ending);
}

bool vgpu_pool_trim_all(int device)
{
    enum { MOST = 64 };
    CUmemoryPool keeping[MOST];
    int count = 0;
    vgpu_mutex_lock(&registry.lock);
    for (const struct pool *pool = registry.pools; pool != NULL && count < MOST; pool = pool->next)
        if (pool->device == device && pool->kept > 0) keeping[count++] = pool->handle;
    vgpu_mutex_unlock(&registry.lock);
    const struct vgpu_cuda *cuda = vgpu_cuda();
    for (int i = 0; i < count; i++)
        if (cuda->cuMemPoolTrimTo(keeping[i], 0) == CUDA_SUCCESS) vgpu_pool_trimmed(keeping[i], 0);
    return count > 0;
}
