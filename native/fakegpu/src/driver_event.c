/* Streams and events of the stand-in driver. */
#include "driver.h"

#include <stdlib.h>

#include "deferred.h"

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

/* Levels that the card has: 0 is the least and -5 the greatest; a number outside is clamped. They change nothing here. */
enum { LEAST_PRIORITY = 0, GREATEST_PRIORITY = -5 };

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority)
{
    static _Atomic uint64_t ids = 16; /* apart from the special streams' */
    CUcontext context;
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (stream == NULL || flags > CU_STREAM_NON_BLOCKING) return CUDA_ERROR_INVALID_VALUE;
    struct CUstream_st *created = calloc(1, sizeof *created);
    if (created == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    const int level = priority > LEAST_PRIORITY ? LEAST_PRIORITY : priority < GREATEST_PRIORITY ? GREATEST_PRIORITY : priority;
    *created = (struct CUstream_st){.tag = FG_STREAM, .context = context, .flags = flags, .priority = level, .id = ids++};
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

CUresult cuStreamGetId(CUstream stream, unsigned long long *id)
{
    CUcontext context;
    const CUresult result = fg_stream_context(stream, &context);
    if (result == CUDA_SUCCESS && id == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) *id = special(stream) ? (uintptr_t)stream == 2 ? 2 : 1 : stream->id;
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
    stream->tag = 0;
    if (!pending || fg_defer(context, stream, NULL, free, stream) == 0) free(stream); /* what it has queued is still done */
    return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream stream) { return cuStreamDestroy_v2(stream); }

CUresult cuStreamSynchronize(CUstream stream)
{
    CUcontext context;
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (!fg_stream_ok(stream)) return CUDA_ERROR_INVALID_HANDLE;
    fg_drain(context, stream);
    return CUDA_SUCCESS;
}

CUresult cuStreamQuery(CUstream stream)
{
    CUcontext context;
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (!fg_stream_ok(stream)) return CUDA_ERROR_INVALID_HANDLE;
    return fg_is_busy(context, stream) ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

/* CUevent_flags */
enum { CU_EVENT_DISABLE_TIMING = 2, CU_EVENT_INTERPROCESS = 4 };

CUresult cuEventCreate(CUevent *event, unsigned int flags)
{
    CUcontext context;
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (event == NULL || flags > 7 || (flags & (CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS)) == CU_EVENT_INTERPROCESS)
        return CUDA_ERROR_INVALID_VALUE;
    struct CUevent_st *created = calloc(1, sizeof *created);
    if (created == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    created->tag = FG_EVENT;
    created->flags = flags;
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

CUresult cuEventDestroy(CUevent event) { return cuEventDestroy_v2(event); }

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
    event->ticket = fg_pending(context, stream);
    return CUDA_SUCCESS;
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags)
{
    enum { DEFAULT = 0, EXTERNAL = 1 };
    return flags == DEFAULT || flags == EXTERNAL ? cuEventRecord(event, stream) : CUDA_ERROR_INVALID_VALUE;
}

/* When the event came, 0 if it has not; found out once. An event in an empty stream comes at once. */
static int64_t came_ns(CUevent event)
{
    if (event->reached_ns != 0 || event->context == NULL) return event->reached_ns;
    if (event->ticket != 0) {
        if (!fg_is_done(event->ticket)) return 0;
        event->ticket = 0;
        event->recorded_ns = fg_now_ns(); /* found out now: nobody noted when the action was done */
    }
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
    if (event->context == NULL) return CUDA_SUCCESS;
    fg_sleep_until_reached(fg_driver.state, fg_card_of(event->context), event->mark);
    fg_wait_done(event->ticket);
    return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
    if (milliseconds == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!event_ok(start) || !event_ok(end) || start->context == NULL || end->context == NULL ||
        ((start->flags | end->flags) & CU_EVENT_DISABLE_TIMING) != 0)
        return CUDA_ERROR_INVALID_HANDLE;
    const int64_t from = came_ns(start), until = came_ns(end);
    if (from == 0 || until == 0) return CUDA_ERROR_NOT_READY;
    *milliseconds = (float)(until - from) / 1e6F;
    return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end) { return cuEventElapsedTime(milliseconds, start, end); }

static bool has_come(void *event) { return came_ns(event) != 0; }

/* Kernels of a process run in the order of their launch, so that on one card an event is waited for by its mark alone. */
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags)
{
    CUcontext context;
    const CUresult result = fg_stream_context(stream, &context);
    if (result != CUDA_SUCCESS) return result;
    if (!event_ok(event)) return CUDA_ERROR_INVALID_HANDLE;
    if (flags > 1) return CUDA_ERROR_INVALID_VALUE;
    if (fg_is_recording(stream)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED; /* as cuEventRecord */
    if (event->context == NULL || came_ns(event) != 0) return CUDA_SUCCESS;
    if (event->ticket == 0 && fg_card_of(event->context) == fg_card_of(context)) {
        if (!special(stream) && stream->last_mark < event->mark) stream->last_mark = event->mark;
        return CUDA_SUCCESS;
    }
    struct CUevent_st *kept = malloc(sizeof *kept); /* it may be recorded anew or destroyed in between */
    if (kept == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *kept = *event;
    return fg_defer(context, stream, has_come, free, kept) != 0 ? CUDA_SUCCESS : (free(kept), CUDA_ERROR_OUT_OF_MEMORY);
}
