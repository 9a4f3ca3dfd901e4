/* Streams of the stand-in driver. */
#include "driver/driver.h"

#include <stdlib.h>

#include "capture/capture.h"
#include "pool/held.h"
#include "stream/deferred.h"
#include "memory/block.h"

static bool special(CUstream stream) { return stream == NULL || (uintptr_t)stream == 1 || (uintptr_t)stream == 2; }

/* CUstreamCaptureMode of the thread. Asking for the state of an event while a stream is being recorded breaks the recording, unless the
 * thread has chosen another mode (CUDA Driver API, cuThreadExchangeStreamCaptureMode). */
enum { GLOBAL = 0, RELAXED = 2 };
static _Thread_local int capture_mode = GLOBAL;

bool fg_thread_is_careful(void) { return capture_mode != GLOBAL; }

CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
    if (mode == NULL || *mode < GLOBAL || *mode > RELAXED) return CUDA_ERROR_INVALID_VALUE;
    const int before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream stream, CUcontext *context)
{
    CUcontext current;
    if (context == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!fg_stream_ok(stream)) return CUDA_ERROR_INVALID_HANDLE;
    const CUresult result = special(stream) ? fg_current(&current) : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS) *context = special(stream) ? current : stream->context;
    return result;
}

/* Levels that the card has: 0 is the least and -5 the greatest; a number outside is clamped. They change nothing here. */
enum { LEAST_PRIORITY = 0, GREATEST_PRIORITY = -5 };

static void set_priority(CUstream stream, int priority)
{
    stream->priority = priority > LEAST_PRIORITY ? LEAST_PRIORITY : priority < GREATEST_PRIORITY ? GREATEST_PRIORITY : priority;
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority)
{
    CUcontext context;
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (stream == NULL || flags > CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    struct CUstream_st *created = calloc(1, sizeof *created);
    if (created == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *created = (struct CUstream_st){.tag = FG_STREAM, .context = context, .flags = flags};
    set_priority(created, priority);
    *stream = created;
    return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream *stream, unsigned int flags) { return cuStreamCreateWithPriority(stream, flags, LEAST_PRIORITY); }

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    CUcontext context;
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (least != NULL) *least = LEAST_PRIORITY;
    if (greatest != NULL) *greatest = GREATEST_PRIORITY;
    return CUDA_SUCCESS;
}

CUresult cuStreamGetFlags(CUstream stream, unsigned int *flags)
{
    CUcontext context;
    const CUresult result = fg_stream_context(stream, &context);
    if (result == CUDA_SUCCESS && flags == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) *flags = special(stream) ? 0 : stream->flags;
    return result;
}

CUresult cuStreamGetPriority(CUstream stream, int *priority)
{
    CUcontext context;
    const CUresult result = fg_stream_context(stream, &context);
    if (result == CUDA_SUCCESS && priority == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) *priority = special(stream) ? LEAST_PRIORITY : stream->priority;
    return result;
}

CUresult cuStreamGetDevice(CUstream stream, CUdevice *device)
{
    CUcontext context;
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (!fg_stream_ok(stream) || device == NULL) return CUDA_ERROR_INVALID_VALUE;
    *device = special(stream) ? context->device : stream->context->device;
    return CUDA_SUCCESS;
}

CUresult cuStreamDestroy_v2(CUstream stream)
{
    if (special(stream) || stream->tag != FG_STREAM) return CUDA_ERROR_INVALID_HANDLE;
    CUcontext context = stream->context;
    const bool pending = fg_pending(context, stream) != 0;
    fg_capture_leave(stream);
    stream->tag = 0;
    if (!pending || fg_defer(context, stream, NULL, free, stream) == 0) free(stream); /* what it has queued is still done */
    return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream)
{
    CUcontext context;
    const CUresult result = fg_stream_context(stream, &context);
    if (result != CUDA_SUCCESS) return result;
    if (fg_capture_broken(stream)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    fg_drain(context, stream);
    fg_pools_waited(context, stream, FG_ALL_FREES);
    return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize_ptsz(CUstream stream) { return cuStreamSynchronize(stream); }

CUresult cuStreamQuery(CUstream stream)
{
    CUcontext context;
    const CUresult result = fg_stream_context(stream, &context);
    if (result != CUDA_SUCCESS) return result;
    if (fg_capture_broken(stream)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return fg_is_busy(context, stream) ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

/* CUstreamWaitValue_flags: how memory and value are compared. */
enum { GEQ = 0, EQ = 1 };

struct awaited {
    CUdeviceptr at;
    uint32_t value;
    unsigned int flags;
};

static bool is_there(void *data)
{
    const struct awaited *awaited = data;
    const uint32_t now = *(const volatile uint32_t *)(uintptr_t)awaited->at;
    return awaited->flags == EQ ? now == awaited->value : (int32_t)(now - awaited->value) >= 0; /* cyclic */
}

CUresult cuStreamWaitValue32_v2(CUstream stream, CUdeviceptr address, uint32_t value, unsigned int flags)
{
    CUcontext context;
    CUdeviceptr base;
    size_t bytes;
    const CUresult result = fg_stream_context(stream, &context);
    if (result != CUDA_SUCCESS) return result;
    if (fg_capture_broken(stream)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (address == 0 || address % sizeof value != 0 || flags > EQ) return CUDA_ERROR_INVALID_VALUE;
    if (!fg_touch(address, sizeof value) && !fg_is_host_memory(address, &base, &bytes)) return CUDA_ERROR_INVALID_VALUE;
    struct awaited *kept = malloc(sizeof *kept);
    if (kept == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *kept = (struct awaited){address, value, flags};
    if (fg_defer(context, stream, is_there, free, kept) != 0) return CUDA_SUCCESS;
    free(kept);
    return CUDA_ERROR_OUT_OF_MEMORY;
}
