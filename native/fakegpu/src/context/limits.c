/* Limits and preferences of contexts, and peers, in the stand-in driver. They are kept and change nothing. */
#include "pool/held.h"
#include "stream/deferred.h"

/* CUlimit: 0 stack, 1 printf, 2 malloc heap, 3 depth and 4 pending launches of device runtime, 5 L2 fetch, 6 L2 persisting. */
enum { KNOWN_LIMITS = 7 };
static const size_t DEFAULT_LIMITS[KNOWN_LIMITS] = {1024, 1 << 20, 8 << 20, 2, 2048, 64, 0};

CUresult cuCtxGetLimit(size_t *value, int limit)
{
    CUcontext context;
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (value == NULL || limit < 0) return CUDA_ERROR_INVALID_VALUE;
    if (limit >= KNOWN_LIMITS) return CUDA_ERROR_NOT_SUPPORTED;
    *value = (context->limits_set >> limit & 1) != 0 ? context->limits[limit] : DEFAULT_LIMITS[limit];
    return CUDA_SUCCESS;
}

CUresult cuCtxSetLimit(int limit, size_t value)
{
    CUcontext context;
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (limit < 0) return CUDA_ERROR_INVALID_VALUE;
    if (limit >= KNOWN_LIMITS) return CUDA_ERROR_NOT_SUPPORTED;
    context->limits[limit] = value;
    context->limits_set |= 1U << limit;
    return CUDA_SUCCESS;
}

/* One of the context's preferences: cache, or shared memory. */
static CUresult get_choice(int *config, bool shared)
{
    CUcontext context;
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (config == NULL) return CUDA_ERROR_INVALID_VALUE;
    *config = shared ? context->shared_config : context->cache_config;
    return CUDA_SUCCESS;
}

static CUresult set_choice(int config, int most, bool shared)
{
    CUcontext context;
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (config < 0 || config > most) return CUDA_ERROR_INVALID_VALUE;
    *(shared ? &context->shared_config : &context->cache_config) = config;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCacheConfig(int *config) { return get_choice(config, false); }
CUresult cuCtxSetCacheConfig(int config) { return set_choice(config, 3, false); }
CUresult cuCtxGetSharedMemConfig(int *config) { return get_choice(config, true); }
CUresult cuCtxSetSharedMemConfig(int config) { return set_choice(config, 2, true); }

/* NULL means the calling thread's context. */
static CUresult named(CUcontext *context)
{
    if (*context == NULL) return fg_current(context);
    if (!fg_driver.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    return (*context)->tag == FG_CONTEXT ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxGetApiVersion(CUcontext context, unsigned int *version)
{
    const CUresult result = named(&context);
    if (result != CUDA_SUCCESS) return result;
    if (version == NULL) return CUDA_ERROR_INVALID_VALUE;
    *version = 3020;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetId(CUcontext context, unsigned long long *id)
{
    static uint64_t ids;
    const CUresult result = named(&context);
    if (result != CUDA_SUCCESS) return result;
    if (id == NULL) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fg_driver.lock);
    if (context->id == 0) context->id = ++ids;
    *id = context->id;
    pthread_mutex_unlock(&fg_driver.lock);
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice_v2(CUdevice *device, CUcontext context)
{
    const CUresult result = named(&context);
    if (result != CUDA_SUCCESS) return result;
    if (device == NULL) return CUDA_ERROR_INVALID_VALUE;
    *device = context->device;
    return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize_v2(CUcontext context)
{
    const CUresult result = named(&context);
    if (result != CUDA_SUCCESS) return result;
    fg_drain(context, NULL);
    fg_pools_waited(context, NULL, FG_ALL_FREES);
    return CUDA_SUCCESS;
}

static CUresult with_context(void)
{
    CUcontext context;
    return fg_current(&context);
}

CUresult cuCtxResetPersistingL2Cache(void) { return with_context(); }
CUresult cuProfilerStart(void) { return with_context(); }
CUresult cuProfilerStop(void) { return with_context(); }

CUresult cuModuleGetLoadingMode(int *mode)
{
    enum { EAGER = 1 };
    if (!fg_driver.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (mode == NULL) return CUDA_ERROR_INVALID_VALUE;
    *mode = EAGER;
    return CUDA_SUCCESS;
}

CUresult cuFlushGPUDirectRDMAWrites(int target, int scope)
{
    enum { CURRENT_CONTEXT = 0, TO_OWNER = 100, TO_ALL_DEVICES = 200 };
    if (target != CURRENT_CONTEXT || (scope != TO_OWNER && scope != TO_ALL_DEVICES)) return CUDA_ERROR_INVALID_VALUE;
    return with_context();
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
    if (fg_check_device(device) != CUDA_SUCCESS || fg_check_device(peer) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_DEVICE;
    if (can == NULL) return CUDA_ERROR_INVALID_VALUE;
    *can = device != peer;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAttribute(int *value, int attribute, CUdevice device, CUdevice peer)
{
    enum { PERFORMANCE_RANK = 1, ACCESS = 2, NATIVE_ATOMIC = 3, ARRAY_ACCESS = 4 };
    if (!fg_driver.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (fg_check_device(device) != CUDA_SUCCESS || fg_check_device(peer) != CUDA_SUCCESS || device == peer)
        return CUDA_ERROR_INVALID_DEVICE;
    if (value == NULL || attribute < PERFORMANCE_RANK || attribute > ARRAY_ACCESS) return CUDA_ERROR_INVALID_VALUE;
    bool linked = false;
    const struct fg_card *card = &fg_driver.machine->cards[fg_driver.card_of[device]];
    for (int i = 0; i < card->link_count; i++) linked = linked || card->link_peer[i] == fg_driver.card_of[peer];
    *value = attribute == PERFORMANCE_RANK ? !linked : attribute == NATIVE_ATOMIC ? linked : 1;
    return CUDA_SUCCESS;
}

static CUresult peer_of(CUcontext peer, CUcontext *context)
{
    const CUresult result = fg_current(context);
    if (result != CUDA_SUCCESS) return result;
    return peer != NULL && peer->tag == FG_CONTEXT ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags)
{
    CUcontext context;
    const CUresult result = peer_of(peer, &context);
    if (result != CUDA_SUCCESS) return result;
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (peer->device == context->device) return CUDA_ERROR_PEER_ACCESS_UNSUPPORTED;
    if ((context->peers >> peer->device & 1) != 0) return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    context->peers |= UINT64_C(1) << peer->device;
    return CUDA_SUCCESS;
}

CUresult cuCtxDisablePeerAccess(CUcontext peer)
{
    CUcontext context;
    const CUresult result = peer_of(peer, &context);
    if (result != CUDA_SUCCESS) return result;
    if ((context->peers >> peer->device & 1) == 0) return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    context->peers &= ~(UINT64_C(1) << peer->device);
    return CUDA_SUCCESS;
}
