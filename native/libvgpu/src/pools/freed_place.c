#include "pools/freed_place.h"

#include <stdatomic.h>

#include "intercept/real.h"

/* CUstreamCaptureMode: relaxed; asking an event while a stream records would end the recording. */
enum { RELAXED = 2, UNCHANGED = -1 };
enum { EVENT_DISABLE_TIMING = 2 };

int vgpu_freed_relax_capture(void)
{
    int mode = RELAXED;
    return vgpu_cuda()->cuThreadExchangeStreamCaptureMode(&mode) == CUDA_SUCCESS ? mode : UNCHANGED;
}

void vgpu_freed_restore_capture(int mode)
{
    if (mode != UNCHANGED) (void)vgpu_cuda()->cuThreadExchangeStreamCaptureMode(&mode);
}

/* Numbers of threads that freed in their own default stream; never given again, unlike pthread_self's. */
static uint64_t this_thread(void)
{
    static _Atomic uint64_t last;
    static _Thread_local uint64_t number;
    if (number == 0) number = atomic_fetch_add(&last, 1) + 1;
    return number;
}

struct vgpu_freed_place vgpu_freed_place(CUmemoryPool pool, int device, CUstream stream)
{
    struct vgpu_freed_place place = {.stream = stream != NULL ? stream : (CUstream)1, .pool = pool, .device = device};
    const bool own = (uintptr_t)stream > 2;
    if (stream == VGPU_STREAM_PER_THREAD) place.thread = this_thread();
    if (!own || vgpu_cuda()->cuStreamGetCtx(stream, &place.context) != CUDA_SUCCESS) (void)vgpu_cuda()->cuCtxGetCurrent(&place.context);
    return place;
}

bool vgpu_freed_same_place(const struct vgpu_freed_place *a, const struct vgpu_freed_place *b)
{
    return a->stream == b->stream && a->pool == b->pool && a->device == b->device && a->thread == b->thread && a->context == b->context;
}

/* Events belong to the stream's context, which need not be the current one. */
CUevent vgpu_freed_record(const struct vgpu_freed_place *place, CUevent event)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    CUcontext current = NULL, popped;
    (void)cuda->cuCtxGetCurrent(&current);
    const bool other = current != place->context;
    if (other && cuda->cuCtxPushCurrent_v2(place->context) != CUDA_SUCCESS) return event;
    const int mode = vgpu_freed_relax_capture();
    if (event == NULL && cuda->cuEventCreate(&event, EVENT_DISABLE_TIMING) != CUDA_SUCCESS) event = NULL;
    if (event != NULL && cuda->cuEventRecord(event, place->stream) != CUDA_SUCCESS) {
        cuda->cuEventDestroy_v2(event);
        event = NULL;
    }
    vgpu_freed_restore_capture(mode);
    if (other) (void)cuda->cuCtxPopCurrent_v2(&popped);
    return event;
}
