#include "pools/pool.h"

#include <stdatomic.h>
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
    bool apart; /* an allocation in one stream does not get what was freed in another */
    uint64_t threshold, live, kept; /* bytes; kept are charged though nobody uses them */
    uint64_t coming;                /* of those live: the driver may not have allocated them yet */
    uint64_t changes;               /* of live and kept: what the driver answered between two of them is old */
    struct pool *next;
};

static struct VGPU_WIPED registry {
    struct vgpu_mutex lock;
    struct pool *pools;
    _Atomic int keeping; /* pools with kept bytes */
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

/* Every change of a pool's bytes. With the lock. */
static void change(struct pool *pool, uint64_t live, uint64_t kept)
{
    if ((pool->kept == 0) != (kept == 0)) atomic_fetch_add(&registry.keeping, kept != 0 ? 1 : -1);
    pool->live = live;
    pool->kept = kept;
    pool->changes++;
}

void vgpu_pool_made(CUmemoryPool handle, int device)
{
    vgpu_mutex_lock(&registry.lock);
    struct pool *pool = entry_of(handle, device);
    if (pool != NULL) {
        change(pool, 0, 0);
        pool->coming = 0;
        pool->device = device;
        pool->threshold = 0;
        pool->apart = false;
    }
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

/* Of a pool that is no device's default one and was not made here: an imported one, or that of a part of a device. Drivers before 13.0
 * do not name its place. */
static int named_device(CUmemoryPool handle)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    int type;
    CUmemLocation place;
    if (cuda->cuMemPoolGetAttribute(handle, CU_MEMPOOL_ATTR_ALLOCATION_TYPE, &type) != CUDA_SUCCESS ||
        cuda->cuMemPoolGetAttribute(handle, CU_MEMPOOL_ATTR_LOCATION_TYPE, &place.type) != CUDA_SUCCESS ||
        cuda->cuMemPoolGetAttribute(handle, CU_MEMPOOL_ATTR_LOCATION_ID, &place.id) != CUDA_SUCCESS)
        return vgpu_memory_current_device();
    return vgpu_memory_device_at(type, &place);
}

int vgpu_pool_device(CUmemoryPool handle)
{
    enum { ASK = -100 };
    int device = known_device(handle, ASK), count = 0;
    if (device != ASK) return device;
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda->cuDeviceGetCount(&count) != CUDA_SUCCESS) count = 0;
    for (int i = 0; i < count; i++) {
        CUmemoryPool pool;
        CUdevice ordinal;
        if (cuda->cuDeviceGet(&ordinal, i) != CUDA_SUCCESS || cuda->cuDeviceGetDefaultMemPool(&pool, ordinal) != CUDA_SUCCESS ||
            pool != handle)
            continue;
        device = vgpu_state_cuda_device(ordinal);
        vgpu_pool_made(handle, device);
        return device;
    }
    return named_device(handle);
}

uint64_t vgpu_pool_take(CUmemoryPool handle, int device, uint64_t bytes)
{
    vgpu_mutex_lock(&registry.lock);
    struct pool *pool = entry_of(handle, device);
    const uint64_t reused = pool != NULL && !pool->apart ? smaller(pool->kept, bytes) : 0;
    if (pool != NULL) {
        change(pool, pool->live + bytes, pool->kept - reused);
        pool->coming += bytes;
    }
    vgpu_mutex_unlock(&registry.lock);
    return reused;
}

void vgpu_pool_put_back(CUmemoryPool handle, uint64_t bytes, uint64_t reused)
{
    vgpu_mutex_lock(&registry.lock);
    struct pool *pool = known(handle);
    if (pool != NULL) {
        change(pool, pool->live - smaller(pool->live, bytes), pool->kept + reused);
        pool->coming -= smaller(pool->coming, bytes);
    }
    vgpu_mutex_unlock(&registry.lock);
}

void vgpu_pool_taken(CUmemoryPool handle, uint64_t bytes)
{
    vgpu_mutex_lock(&registry.lock);
    struct pool *pool = known(handle);
    if (pool != NULL) {
        pool->coming -= smaller(pool->coming, bytes);
        pool->changes++;
    }
    const bool ask = pool != NULL && pool->apart;
    vgpu_mutex_unlock(&registry.lock);
    if (ask) (void)vgpu_pool_look(handle); /* it may have been the memory of before all the same */
}

void vgpu_pool_freed(CUmemoryPool handle, int device, uint64_t bytes)
{
    vgpu_mutex_lock(&registry.lock);
    struct pool *pool = known(handle);
    if (pool != NULL) change(pool, pool->live - smaller(pool->live, bytes), pool->kept + bytes);
    vgpu_mutex_unlock(&registry.lock);
    if (pool == NULL) vgpu_slice_release(device, bytes);
}

void vgpu_pool_threshold(CUmemoryPool handle, uint64_t bytes)
{
    const int device = vgpu_pool_device(handle);
    vgpu_mutex_lock(&registry.lock);
    struct pool *pool = entry_of(handle, device);
    if (pool != NULL) pool->threshold = bytes;
    vgpu_mutex_unlock(&registry.lock);
}

void vgpu_pool_opportunistic(CUmemoryPool handle, bool allowed)
{
    const int device = vgpu_pool_device(handle);
    vgpu_mutex_lock(&registry.lock);
    struct pool *pool = entry_of(handle, device);
    if (pool != NULL) pool->apart = !allowed;
    vgpu_mutex_unlock(&registry.lock);
}

/* Asked without the lock; what another thread has changed in between is asked for again. */
bool vgpu_pool_look(CUmemoryPool handle)
{
    enum { TRIES = 3 };
    for (int i = 0; i < TRIES; i++) {
        uint64_t reserved, dropped = 0;
        vgpu_mutex_lock(&registry.lock);
        const struct pool *before = known(handle);
        const uint64_t kept = before != NULL ? before->kept : 0, changes = before != NULL ? before->changes : 0;
        vgpu_mutex_unlock(&registry.lock);
        if (kept == 0 || vgpu_cuda()->cuMemPoolGetAttribute(handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved) != CUDA_SUCCESS)
            return false;
        vgpu_mutex_lock(&registry.lock);
        struct pool *pool = known(handle);
        const bool settled = pool != NULL && pool->changes == changes;
        const int device = settled ? pool->device : -1;
        if (settled) {
            const uint64_t there = pool->live - smaller(pool->live, pool->coming), left = reserved > there ? reserved - there : 0;
            dropped = pool->kept - smaller(pool->kept, left);
            if (dropped != 0) change(pool, pool->live, pool->kept - dropped);
        }
        vgpu_mutex_unlock(&registry.lock);
        if (dropped != 0) vgpu_slice_release(device, dropped);
        if (settled) return dropped != 0;
    }
    return false;
}

/* Pools that keep memory, MOST at most; -1: of any device. */
enum { MOST = 64, ANY_DEVICE = -1 };
static int keeping(CUmemoryPool *found, int device, bool beyond_threshold)
{
    int count = 0;
    if (atomic_load_explicit(&registry.keeping, memory_order_acquire) == 0) return 0;
    vgpu_mutex_lock(&registry.lock);
    for (const struct pool *pool = registry.pools; pool != NULL && count < MOST; pool = pool->next)
        if (pool->kept > 0 && (device == ANY_DEVICE || pool->device == device) &&
            (!beyond_threshold || pool->threshold < pool->live || pool->threshold - pool->live < pool->kept))
            found[count++] = pool->handle;
    vgpu_mutex_unlock(&registry.lock);
    return count;
}

void vgpu_pool_look_all(bool beyond_threshold)
{
    CUmemoryPool found[MOST];
    const int count = keeping(found, ANY_DEVICE, beyond_threshold);
    for (int i = 0; i < count; i++) (void)vgpu_pool_look(found[i]);
}

struct pool *vgpu_pool_end_begin(CUmemoryPool handle)
{
    vgpu_mutex_lock(&registry.lock);
    struct pool **at = &registry.pools;
    while (*at != NULL && (*at)->handle != handle) at = &(*at)->next;
    struct pool *ending = *at;
    if (ending != NULL) {
        *at = ending->next;
        if (ending->kept != 0) atomic_fetch_sub(&registry.keeping, 1);
    }
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
        if (ending->kept != 0) atomic_fetch_add(&registry.keeping, 1);
        vgpu_mutex_unlock(&registry.lock);
        return;
    }
    vgpu_slice_release(ending->device, ending->kept); /* blocks that live on are in the block table */
    free(ending);
}

bool vgpu_pool_trim_all(int device)
{
    CUmemoryPool found[MOST];
    bool any = false;
    const int count = keeping(found, device, false);
    for (int i = 0; i < count; i++) {
        (void)vgpu_cuda()->cuMemPoolTrimTo(found[i], 0);
        any = vgpu_pool_look(found[i]) || any;
    }
    return any;
}
