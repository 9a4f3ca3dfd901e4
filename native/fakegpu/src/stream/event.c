/* Events of the stand-in driver. An event is where a stream was when it was recorded: a mark on the card's clock, and the last action
 * (deferred.h) before it.
 */
#include <stdlib.h>

#include "capture/capture.h"
#include "pool/held.h"
#include "stream/deferred.h"

/* CUevent_flags */
enum { CU_EVENT_DISABLE_TIMING = 2, CU_EVENT_INTERPROCESS = 4 };

static bool event_ok(CUevent event) { return event != NULL && event->tag == FG_EVENT; }

static CUresult create(CUevent *event, unsigned int flags)
{
    struct CUevent_st *created = calloc(1, sizeof *created);
    if (created == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *created = (struct CUevent_st){.tag = FG_EVENT, .flags = flags};
    *event = created;
    return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent *event, unsigned int flags)
{
    enum { EVERY_FLAG = 7 };
    CUcontext context;
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (event == NULL || flags > EVERY_FLAG || (flags & (CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS)) == CU_EVENT_INTERPROCESS)
        return CUDA_ERROR_INVALID_VALUE;
    return create(event, flags);
}

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
    const CUresult result = fg_stream_context(stream, &context);
    if (result != CUDA_SUCCESS) return result;
    if (!event_ok(event)) return CUDA_ERROR_INVALID_HANDLE;
    if (fg_capture_record(stream, event)) return CUDA_SUCCESS;
    fg_gate(FG_CALL_RECORD, fg_card_of(context));
    const int fault = fg_fault(FG_CALL_RECORD);
    if (fault != 0) return (CUresult)fault;
    event->context = context;
    event->stream = stream;
    event->frees = fg_held_last();
    event->mark = fg_stream_mark(context, stream);
    event->recorded_ns = fg_now_ns();
    event->reached_ns = 0;
    event->ticket = fg_pending(context, stream);
    return CUDA_SUCCESS;
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

static bool has_come(void *data)
{
    CUevent event = data;
    return event->context == NULL || came_ns(event) != 0;
}

CUresult cuEventQuery(CUevent event)
{
    if (!event_ok(event)) return CUDA_ERROR_INVALID_HANDLE;
    if (event->capture_id != 0) return CUDA_ERROR_CAPTURED_EVENT;
    if (!fg_thread_is_careful() && fg_any_recording()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    return has_come(event) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent event)
{
    if (!event_ok(event)) return CUDA_ERROR_INVALID_HANDLE;
    if (event->capture_id != 0) return CUDA_ERROR_CAPTURED_EVENT;
    if (event->context == NULL) return CUDA_SUCCESS;
    fg_sleep_until_reached(fg_driver.state, fg_card_of(event->context), event->mark);
    fg_wait_done(event->ticket);
    fg_pools_waited(event->context, event->stream, event->frees);
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

/* Kernels of a process run in the order of their launch, so that on one card an event is waited for by its mark alone. */
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags)
{
    CUcontext context;
    CUresult result = fg_stream_context(stream, &context);
    if (result != CUDA_SUCCESS) return result;
    if (!event_ok(event)) return CUDA_ERROR_INVALID_HANDLE;
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    if (fg_capture_wait(stream, event, &result)) return result;
    if (has_come(event)) return CUDA_SUCCESS;
    if (event->ticket == 0 && fg_card_of(event->context) == fg_card_of(context)) {
        if ((uintptr_t)stream > 2 && stream->last_mark < event->mark) stream->last_mark = event->mark;
        return CUDA_SUCCESS;
    }
    struct CUevent_st *kept = malloc(sizeof *kept); /* it may be recorded again or destroyed in between */
    if (kept == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *kept = *event;
    return fg_defer(context, stream, has_come, free, kept) != 0 ? CUDA_SUCCESS : (free(kept), CUDA_ERROR_OUT_OF_MEMORY);
}
