/* Streams and events of the stand-in driver. */
#include "driver.h"

#include <stdlib.h>

static bool special(CUstream stream) { return stream == NULL || (uintptr_t)stream == 1 || (uintptr_t)stream == 2; }

/* CUstreamCaptureMode of the thread. Asking for the state of an event while a stream is being recorded breaks the recording, unless the
 * thread has said that it knows what it does (CUDA Driver API, cuThreadExchangeStreamCaptureMode). */
enum { GLOBAL = 0, RELAXED = 2 };
static _Thread_local int capture_mode = GLOBAL;

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

CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
    CUcontext context;
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (stream == NULL || flags > 1) return CUDA_ERROR_INVALID_VALUE;
    struct CUstream_st *created = calloc(1, sizeof *created);
    if (created == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *created = (struct CUstream_st){.tag = FG_STREAM, .context = context};
    *stream = created;
    return CUDA_SUCCESS;
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority)
{
    (void)priority; /* every number is clamped to what the card has; here that is one level */
    return cuStreamCreate(stream, flags);
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
    stream->tag = 0;
    free(stream);
    return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream)
{
    CUcontext context;
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (!fg_stream_ok(stream)) return CUDA_ERROR_INVALID_HANDLE;
    fg_sleep_until_reached(fg_driver.state, fg_card_of(context), fg_stream_mark(context, stream));
    return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize_ptsz(CUstream stream) { return cuStreamSynchronize(stream); }

CUresult cuStreamQuery(CUstream stream)
{
    CUcontext context;
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (!fg_stream_ok(stream)) return CUDA_ERROR_INVALID_HANDLE;
    return fg_reached_ns(fg_driver.state, fg_card_of(context), fg_stream_mark(context, stream)) == 0 ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent *event, unsigned int flags)
{
    CUcontext context;
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (event == NULL || flags > 7) return CUDA_ERROR_INVALID_VALUE;
    struct CUevent_st *created = calloc(1, sizeof *created);
    if (created == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    created->tag = FG_EVENT;
    *event = created;
    return CUDA_SUCCESS;
}

static bool event_ok(CUevent event) { return event != NULL && event->tag == FG_EVENT; }

CUresult cuEventDestroy_v2(CUevent event)
{
    if (!event_ok(event)) return CUDA_ERROR_INVALID_HANDLE;
    event->tag = 0;
    free(event);
    return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
    CUcontext context;
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (!event_ok(event) || !fg_stream_ok(stream)) return CUDA_ERROR_INVALID_HANDLE;
    if (fg_is_recording(stream)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED; /* event nodes are not modelled */
    event->context = context;
    event->mark = fg_stream_mark(context, stream);
    event->recorded_ns = fg_now_ns();
    event->reached_ns = 0;
    return CUDA_SUCCESS;
}

/* When the event came, 0 if it has not; found out once. An event in an empty stream comes at once. */
static int64_t came_ns(CUevent event)
{
    if (event->reached_ns != 0 || event->context == NULL) return event->reached_ns;
    const int64_t reached = fg_reached_ns(fg_driver.state, fg_card_of(event->context), event->mark);
    if (reached != 0) event->reached_ns = reached > event->recorded_ns ? reached : event->recorded_ns;
    return event->reached_ns;
}

CUresult cuEventQuery(CUevent event)
{
    if (!event_ok(event)) return CUDA_ERROR_INVALID_HANDLE;
    if (capture_mode == GLOBAL && fg_any_recording()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return event->context != NULL && came_ns(event) == 0 ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

CUresult cuEventSynchronize(CUevent event)
{
    if (!event_ok(event)) return CUDA_ERROR_INVALID_HANDLE;
    if (event->context != NULL) fg_sleep_until_reached(fg_driver.state, fg_card_of(event->context), event->mark);
    return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
    if (milliseconds == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!event_ok(start) || !event_ok(end) || start->context == NULL || end->context == NULL) return CUDA_ERROR_INVALID_HANDLE;
    const int64_t from = came_ns(start), until = came_ns(end);
    if (from == 0 || until == 0) return CUDA_ERROR_NOT_READY;
    *milliseconds = (float)(until - from) / 1e6F;
    return CUDA_SUCCESS;
}
