/* Contexts of the stand-in driver: a stack per thread, one primary context per device. */
#include "pool/held.h"
#include "stream/deferred.h"
#include "context/context.h"

#include <stdlib.h>

/* Deeper than any program nests contexts. */
enum { STACK = 64 };

static _Thread_local CUcontext stack[STACK];
static _Thread_local int depth; /* stack[depth - 1] is current */

int fg_card_of(const struct CUctx_st *context) { return fg_driver.card_of[context->device]; }

CUresult fg_current(CUcontext *context)
{
    if (!fg_driver.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    CUcontext current = depth > 0 ? stack[depth - 1] : NULL;
    if (current != NULL && current->tag == FG_DESTROYED_CONTEXT) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    if (current == NULL || current->tag != FG_CONTEXT || (current->primary && current->retained == 0)) return CUDA_ERROR_INVALID_CONTEXT;
    if (fg_driver.state->cards[fg_card_of(current)].lost) return CUDA_ERROR_DEVICE_UNAVAILABLE;
    *context = current;
    return CUDA_SUCCESS;
}

/* A context costs memory of its card as soon as it exists. */
static CUresult charge_context(int card)
{
    struct fg_state *state = fg_driver.state;
    CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
    const int fault = fg_fault(FG_CALL_CONTEXT);
    if (fault != 0) return (CUresult)fault;
    fg_lock(state);
    if (state->cards[card].lost) {
        result = CUDA_ERROR_DEVICE_UNAVAILABLE;
    } else if (fg_take(state, card, fg_driver.machine->context_bytes)) {
        fg_self(state)->context[card] = true;
        result = CUDA_SUCCESS;
    }
    fg_unlock(state);
    return result;
}

static void release_context(CUcontext context)
{
    fg_flush(context);
    fg_pools_waited(context, NULL, FG_ALL_FREES);
    fg_free_context_memory(context);
    fg_lock(fg_driver.state);
    fg_give(fg_driver.state, fg_card_of(context), fg_driver.machine->context_bytes);
    fg_unlock(fg_driver.state);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    CUresult result = fg_check_device(device);
    if (result != CUDA_SUCCESS) return result;
    if (context == NULL) return CUDA_ERROR_INVALID_VALUE;
    struct CUctx_st *primary = &fg_driver.primary[device];
    pthread_mutex_lock(&fg_driver.lock);
    if (primary->retained == 0) result = charge_context(fg_card_of(primary));
    if (result == CUDA_SUCCESS) {
        primary->retained++;
        *context = primary;
    }
    pthread_mutex_unlock(&fg_driver.lock);
    return result;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device)
{
    CUresult result = fg_check_device(device);
    if (result != CUDA_SUCCESS) return result;
    struct CUctx_st *primary = &fg_driver.primary[device];
    pthread_mutex_lock(&fg_driver.lock);
    const bool last = primary->retained == 1;
    if (primary->retained == 0)
        result = CUDA_ERROR_INVALID_CONTEXT;
    else
        primary->retained--;
    pthread_mutex_unlock(&fg_driver.lock);
    if (last) release_context(primary);
    return result;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) { return cuDevicePrimaryCtxRelease_v2(device); }

CUresult cuDevicePrimaryCtxReset_v2(CUdevice device)
{
    const CUresult result = fg_check_device(device);
    if (result != CUDA_SUCCESS) return result;
    struct CUctx_st *primary = &fg_driver.primary[device];
    pthread_mutex_lock(&fg_driver.lock);
    const bool active = primary->retained > 0;
    primary->retained = 0;
    pthread_mutex_unlock(&fg_driver.lock);
    if (active) release_context(primary);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxReset(CUdevice device) { return cuDevicePrimaryCtxReset_v2(device); }

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice device, unsigned int flags)
{
    const CUresult result = fg_check_device(device);
    if (result != CUDA_SUCCESS) return result;
    pthread_mutex_lock(&fg_driver.lock);
    fg_driver.primary[device].flags = flags;
    pthread_mutex_unlock(&fg_driver.lock);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active)
{
    const CUresult result = fg_check_device(device);
    if (result != CUDA_SUCCESS) return result;
    if (flags == NULL || active == NULL) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fg_driver.lock);
    *flags = fg_driver.primary[device].flags;
    *active = fg_driver.primary[device].retained > 0;
    pthread_mutex_unlock(&fg_driver.lock);
    return CUDA_SUCCESS;
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device)
{
    CUresult result = fg_check_device(device);
    if (result != CUDA_SUCCESS) return result;
    if (context == NULL || depth == STACK) return CUDA_ERROR_INVALID_VALUE;
    struct CUctx_st *created = calloc(1, sizeof *created);
    if (created == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *created = (struct CUctx_st){.tag = FG_CONTEXT, .device = device, .flags = flags};
    result = charge_context(fg_card_of(created));
    if (result != CUDA_SUCCESS) {
        free(created);
        return result;
    }
    stack[depth++] = created;
    *context = created;
    return CUDA_SUCCESS;
}

CUresult cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice device) { return cuCtxCreate_v2(context, flags, device); }

CUresult cuCtxCreate_v3(CUcontext *context, void *affinities, int count, unsigned int flags, CUdevice device)
{
    if (count < 0 || (count > 0) != (affinities != NULL)) return CUDA_ERROR_INVALID_VALUE;
    return cuCtxCreate_v2(context, flags, device);
}

CUresult cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned int flags, CUdevice device)
{
    (void)parameters; /* affinities and shared clients make no difference here */
    return cuCtxCreate_v2(context, flags, device);
}

CUresult cuGLCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device) { return cuCtxCreate_v2(context, flags, device); }

CUresult cuGLCtxCreate(CUcontext *context, unsigned int flags, CUdevice device) { return cuCtxCreate_v2(context, flags, device); }

CUresult cuVDPAUCtxCreate(CUcontext *context, unsigned int flags, CUdevice device, unsigned int vdp_device, void *get_proc_address)
{
    return cuVDPAUCtxCreate_v2(context, flags, device, vdp_device, get_proc_address);
}

CUresult cuVDPAUCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device, unsigned int vdp_device, void *get_proc_address)
{
    (void)vdp_device;
    return get_proc_address != NULL ? cuCtxCreate_v2(context, flags, device) : CUDA_ERROR_INVALID_VALUE;
}

void fg_end_context(CUcontext context)
{
    release_context(context);
    context->tag = FG_DESTROYED_CONTEXT; /* not freed: it may still be current, here or in another thread */
}

static void end_current(CUcontext context)
{
    if (depth > 0 && stack[depth - 1] == context) depth--;
    fg_end_context(context);
}

CUresult cuCtxDestroy_v2(CUcontext context)
{
    if (!fg_driver.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (context == NULL || context->tag != FG_CONTEXT || context->primary || context->green) return CUDA_ERROR_INVALID_CONTEXT;
    end_current(context);
    return CUDA_SUCCESS;
}

CUresult cuCtxAttach(CUcontext *context, unsigned int flags)
{
    CUcontext current;
    const CUresult result = fg_current(&current);
    if (result != CUDA_SUCCESS) return result;
    if (context == NULL || flags != 0 || current->primary || current->green) return CUDA_ERROR_INVALID_VALUE;
    current->retained++;
    *context = current;
    return CUDA_SUCCESS;
}

CUresult cuCtxDetach(CUcontext context)
{
    CUcontext current;
    const CUresult result = fg_current(&current);
    if (result != CUDA_SUCCESS) return result;
    if (context != current || context->primary || context->green) return CUDA_ERROR_INVALID_CONTEXT;
    if (context->retained > 0)
        context->retained--;
    else
        end_current(context);
    return CUDA_SUCCESS;
}

CUresult cuCtxDestroy(CUcontext context) { return cuCtxDestroy_v2(context); }

CUresult cuCtxGetCurrent(CUcontext *context)
{
    if (!fg_driver.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (context == NULL) return CUDA_ERROR_INVALID_VALUE;
    *context = depth > 0 ? stack[depth - 1] : NULL;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context)
{
    if (!fg_driver.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (context != NULL && context->tag != FG_CONTEXT) return CUDA_ERROR_INVALID_CONTEXT;
    if (depth == 0) depth = 1;
    stack[depth - 1] = context;
    if (context == NULL) depth--;
    return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    if (!fg_driver.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (context == NULL || context->tag != FG_CONTEXT || depth == STACK) return CUDA_ERROR_INVALID_CONTEXT;
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext context) { return cuCtxPushCurrent_v2(context); }

CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    if (!fg_driver.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (depth == 0) return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    if (context != NULL) *context = stack[depth];
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext *context) { return cuCtxPopCurrent_v2(context); }

CUresult cuCtxGetDevice(CUdevice *device)
{
    CUcontext context;
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (device == NULL) return CUDA_ERROR_INVALID_VALUE;
    *device = context->device;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetFlags(unsigned int *flags)
{
    CUcontext context;
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (flags == NULL) return CUDA_ERROR_INVALID_VALUE;
    *flags = context->flags;
    return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void)
{
    CUcontext context;
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    fg_drain(context, NULL);
    fg_pools_waited(context, NULL, FG_ALL_FREES);
    return CUDA_SUCCESS;
}

static CUresult current_or_first(int *device)
{
    if (cuCtxGetDevice(device) != CUDA_SUCCESS) *device = 0;
    return fg_check_device(*device);
}

CUresult fg_device_at(int allocation_type, const CUmemLocation *place, int *device)
{
    const bool managed = allocation_type == CU_MEM_ALLOCATION_TYPE_MANAGED;
    if (!fg_driver.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (!managed && allocation_type != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
    switch (place->type) {
    case CU_MEM_LOCATION_TYPE_DEVICE: *device = place->id; return fg_check_device(place->id);
    case CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN:
        *device = place->id & 0xff;
        return managed || place->id >> 8 >= FG_LOCALITY_DOMAINS ? CUDA_ERROR_INVALID_VALUE : fg_check_device(*device);
    case CU_MEM_LOCATION_TYPE_HOST:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT: *device = -1; return managed ? current_or_first(device) : CUDA_SUCCESS;
    default:
        if (place->type != CU_MEM_LOCATION_TYPE_INVALID && place->type == fg_driver.machine->future_location)
            return current_or_first(device);
        return managed && place->type == CU_MEM_LOCATION_TYPE_INVALID ? current_or_first(device) : CUDA_ERROR_INVALID_VALUE;
    }
}

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

CUresult cuCtxSynchronize_v2(CUcontext context)
{
    const CUresult result = named(&context);
    if (result != CUDA_SUCCESS) return result;
    fg_drain(context, NULL);
    fg_pools_waited(context, NULL, FG_ALL_FREES);
    return CUDA_SUCCESS;
}

CUresult cuModuleGetLoadingMode(int *mode)
{
    enum { EAGER = 1 };
    if (!fg_driver.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (mode == NULL) return CUDA_ERROR_INVALID_VALUE;
    *mode = EAGER;
    return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
    if (fg_check_device(device) != CUDA_SUCCESS || fg_check_device(peer) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_DEVICE;
    if (can == NULL) return CUDA_ERROR_INVALID_VALUE;
    *can = device != peer;
    return CUDA_SUCCESS;
}
