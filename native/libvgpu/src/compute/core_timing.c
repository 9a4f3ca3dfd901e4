#include "compute/core_timing.h"

#include "intercept/real.h"

/* CUstreamCaptureMode: relaxed; CUstreamCaptureStatus: none. Without these calls in the driver there are no captures. */
enum { RELAXED = 2, NOT_CAPTURING = 0, UNCHANGED = -1 };

bool vgpu_core_timing_enter(CUstream stream, int *mode)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    int status = NOT_CAPTURING;
    *mode = RELAXED;
    if (cuda->cuThreadExchangeStreamCaptureMode(mode) != CUDA_SUCCESS) *mode = UNCHANGED;
    const CUresult result = cuda->cuStreamIsCapturing(stream, &status);
    return result == CUDA_ERROR_NOT_FOUND || (result == CUDA_SUCCESS && status == NOT_CAPTURING);
}

void vgpu_core_timing_leave(int mode)
{
    if (mode != UNCHANGED) vgpu_cuda()->cuThreadExchangeStreamCaptureMode(&mode);
}

struct vgpu_event_pair vgpu_core_timing_take(struct vgpu_core_timing *timing, int at)
{
    struct vgpu_event_pair pair = timing->pairs[at];
    pair.forgotten = timing->forgotten;
    timing->pairs[at] = (struct vgpu_event_pair){.context = NULL};
    timing->pending[at] = false;
    return pair;
}

static void destroy_pair(const struct vgpu_cuda *cuda, struct vgpu_event_pair *pair)
{
    if (pair->context == NULL) return;
    cuda->cuEventDestroy_v2(pair->begin);
    cuda->cuEventDestroy_v2(pair->end);
    pair->context = NULL;
}

/* A pair of events of the current context. */
static bool make_pair(const struct vgpu_cuda *cuda, struct vgpu_event_pair *pair)
{
    CUcontext current = NULL;
    if (cuda->cuCtxGetCurrent(&current) != CUDA_SUCCESS || current == NULL) return false;
    if (pair->context == current) return true;
    destroy_pair(cuda, pair); /* a program with several contexts on one device changes between them seldom */
    if (cuda->cuEventCreate(&pair->begin, 0) != CUDA_SUCCESS) return false;
    if (cuda->cuEventCreate(&pair->end, 0) != CUDA_SUCCESS) {
        cuda->cuEventDestroy_v2(pair->begin);
        return false;
    }
    pair->context = current;
    return true;
}

bool vgpu_core_timing_begin(struct vgpu_event_pair *pair, CUstream stream)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    return make_pair(cuda, pair) && cuda->cuEventRecord(pair->begin, stream) == CUDA_SUCCESS;
}

bool vgpu_core_timing_end(const struct vgpu_event_pair *pair, CUstream stream)
{
    return vgpu_cuda()->cuEventRecord(pair->end, stream) == CUDA_SUCCESS;
}

bool vgpu_core_timing_put(struct vgpu_core_timing *timing, int at, const struct vgpu_event_pair *pair, bool recorded)
{
    /* A context has ended since, and it may have been the pair's: these two events are given up. */
    if (pair->forgotten != timing->forgotten) return false;
    timing->pairs[at] = *pair;
    timing->pending[at] = recorded;
    return recorded;
}

static void collect_one(const struct vgpu_cuda *cuda, struct vgpu_core_timing *timing, int at, struct vgpu_governor *governor,
                        const struct vgpu_shared_cores *shared, int64_t now_ns)
{
    CUresult result = cuda->cuEventQuery(timing->pairs[at].begin);
    if (result == CUDA_SUCCESS) {
        vgpu_governor_started(governor, at, now_ns);
        result = cuda->cuEventQuery(timing->pairs[at].end);
    }
    if (result == CUDA_ERROR_NOT_READY) return;
    float milliseconds = 0;
    if (result == CUDA_SUCCESS) result = cuda->cuEventElapsedTime(&milliseconds, timing->pairs[at].begin, timing->pairs[at].end);
    timing->pending[at] = false;
    if (result == CUDA_SUCCESS)
        vgpu_governor_ended(governor, shared, at, now_ns, (int64_t)((double)milliseconds * 1e6));
    else
        vgpu_governor_untimed(governor, at);
}

void vgpu_core_timing_collect(struct vgpu_core_timing *timing, struct vgpu_governor *governor, const struct vgpu_shared_cores *shared,
                              int64_t now_ns)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    for (int i = 0; i < VGPU_TIMINGS; i++)
        if (timing->pending[i]) collect_one(cuda, timing, i, governor, shared, now_ns);
}

void vgpu_core_timing_forget(struct vgpu_core_timing *timing, struct vgpu_governor *governor, CUcontext context)
{
    timing->forgotten++;
    for (int i = 0; i < VGPU_TIMINGS; i++) {
        if (timing->pairs[i].context != context) continue;
        if (timing->pending[i]) vgpu_governor_untimed(governor, i);
        timing->pairs[i].context = NULL;
        timing->pending[i] = false;
    }
}
