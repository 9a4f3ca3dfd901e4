/* Events of the stand-in driver, also those that processes share.
 *
 * An event is where a stream was when it was recorded: a mark on the card's clock, and the last action (deferred.h) before it. Of an event
 * that processes share both are in the machine's state, so that the process that recorded it last is waited for.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "capture/capture.h"
#include "pool/held.h"
#include "stream/deferred.h"
#include "state/shared.h"

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
    if (event->shared_entry != 0) {
        fg_lock(fg_driver.state);
        fg_shared_drop(fg_driver.state, event->shared_entry - 1);
        fg_unlock(fg_driver.state);
    }
    fg_capture_forget(event);
    event->tag = 0;
    free(event);
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event) { return cuEventDestroy_v2(event); }

/* Events of several processes. A record is under way while actions before it are: then another process cannot know its mark. */
enum { NEVER = -1, UNDER_WAY = -2 }; /* fg_shared.recorder, else the process whose clock counts */

struct reached {
    int entry;
    uint32_t generation;
    uint64_t record;
};

static void note_reached(void *data)
{
    const struct reached *reached = data;
    fg_lock(fg_driver.state);
    struct fg_shared *shared = &fg_driver.state->shared[reached->entry];
    if (shared->live && shared->generation == reached->generation && shared->record == reached->record)
        shared->recorder = NEVER; /* as if it never had been */
    fg_unlock(fg_driver.state);
    free(data);
}

static CUresult share_record(CUevent event, CUcontext context, CUstream stream)
{
    struct reached *later = event->ticket != 0 ? malloc(sizeof *later) : NULL;
    if (event->ticket != 0 && later == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    fg_lock(fg_driver.state);
    struct fg_shared *shared = &fg_driver.state->shared[event->shared_entry - 1];
    const struct fg_process *self = fg_self(fg_driver.state);
    shared->record++;
    shared->card = fg_card_of(context);
    shared->mark = event->mark;
    shared->recorder = later != NULL ? UNDER_WAY : self != NULL ? (int32_t)(self - fg_driver.state->processes) : NEVER;
    if (later != NULL) *later = (struct reached){event->shared_entry - 1, event->generation, shared->record};
    fg_unlock(fg_driver.state);
    if (later == NULL || fg_defer(context, stream, NULL, note_reached, later) != 0) return CUDA_SUCCESS;
    note_reached(later);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

static bool shared_has_come(CUevent event)
{
    fg_lock(fg_driver.state);
    const struct fg_shared *shared = &fg_driver.state->shared[event->shared_entry - 1];
    const bool come = shared->recorder == NEVER || (shared->recorder >= 0 && fg_clock_left_ns(fg_clock_now(fg_driver.state, shared->card),
                                                                                              shared->recorder, shared->mark) == 0);
    fg_unlock(fg_driver.state);
    return come;
}

static CUresult record(CUevent event, CUstream stream, bool external)
{
    CUcontext context;
    CUresult result = fg_stream_context(stream, &context);
    if (result != CUDA_SUCCESS) return result;
    if (!event_ok(event)) return CUDA_ERROR_INVALID_HANDLE;
    if (fg_capture_record(stream, event, external, &result)) return result;
    if (external) return CUDA_ERROR_INVALID_VALUE; /* it has no meaning elsewhere */
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
    return event->shared_entry != 0 ? share_record(event, context, stream) : CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream) { return record(event, stream, false); }

CUresult cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags)
{
    enum { DEFAULT = 0, EXTERNAL = 1 };
    return flags == DEFAULT || flags == EXTERNAL ? record(event, stream, flags == EXTERNAL) : CUDA_ERROR_INVALID_VALUE;
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
    if (event->shared_entry != 0) return shared_has_come(event);
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
    static const int64_t POLL_NS = 100000; /* another process's record: nothing reports that it is reached */
    if (!event_ok(event)) return CUDA_ERROR_INVALID_HANDLE;
    if (event->capture_id != 0) return CUDA_ERROR_CAPTURED_EVENT;
    while (event->shared_entry != 0 && !shared_has_come(event)) fg_sleep_until(fg_now_ns() + POLL_NS);
    if (event->context == NULL || event->shared_entry != 0) return CUDA_SUCCESS;
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

CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end) { return cuEventElapsedTime(milliseconds, start, end); }

/* Kernels of a process run in the order of their launch, so that on one card an event is waited for by its mark alone. */
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags)
{
    enum { EXTERNAL = 1 };
    CUcontext context;
    CUresult result = fg_stream_context(stream, &context);
    if (result != CUDA_SUCCESS) return result;
    if (!event_ok(event)) return CUDA_ERROR_INVALID_HANDLE;
    if (flags > EXTERNAL) return CUDA_ERROR_INVALID_VALUE;
    if (fg_capture_wait(stream, event, flags == EXTERNAL, &result)) return result;
    if (has_come(event)) return CUDA_SUCCESS;
    if (event->shared_entry == 0 && event->ticket == 0 && fg_card_of(event->context) == fg_card_of(context)) {
        if ((uintptr_t)stream > 2 && stream->last_mark < event->mark) stream->last_mark = event->mark;
        return CUDA_SUCCESS;
    }
    struct CUevent_st *kept = malloc(sizeof *kept); /* it may be recorded again or destroyed in between */
    if (kept == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *kept = *event;
    return fg_defer(context, stream, has_come, free, kept) != 0 ? CUDA_SUCCESS : (free(kept), CUDA_ERROR_OUT_OF_MEMORY);
}

/* Handles of events for other processes. */
static const uint64_t MAGIC = 0x4647504549504348;

struct handle {
    uint64_t magic;
    int32_t pid, entry;
    uint32_t generation, flags;
};
static_assert(sizeof(struct handle) <= sizeof(CUipcEventHandle), "it fits into CUDA's handle");

CUresult cuIpcGetEventHandle(CUipcEventHandle *handle, CUevent event)
{
    CUcontext context;
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (!event_ok(event)) return CUDA_ERROR_INVALID_HANDLE;
    if (handle == NULL || (event->flags & CU_EVENT_INTERPROCESS) == 0) return CUDA_ERROR_INVALID_VALUE;
    if (event->shared_entry == 0) {
        fg_lock(fg_driver.state);
        const int entry = fg_shared_new(fg_driver.state, fg_card_of(context), 0, true);
        if (entry >= 0) event->generation = fg_driver.state->shared[entry].generation;
        fg_unlock(fg_driver.state);
        if (entry < 0) return CUDA_ERROR_OUT_OF_MEMORY;
        event->shared_entry = entry + 1;
        if (event->context != NULL) share_record(event, event->context, NULL);
    }
    const struct handle made = {MAGIC, getpid(), event->shared_entry - 1, event->generation, event->flags};
    memset(handle, 0, sizeof *handle);
    memcpy(handle, &made, sizeof made);
    return CUDA_SUCCESS;
}

CUresult cuIpcOpenEventHandle(CUevent *event, CUipcEventHandle handle)
{
    struct handle from;
    CUcontext context;
    CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    memcpy(&from, &handle, sizeof from);
    if (event == NULL || from.magic != MAGIC) return CUDA_ERROR_INVALID_VALUE;
    if (from.pid == getpid()) return CUDA_ERROR_INVALID_CONTEXT; /* not in the process that made it */
    result = create(event, from.flags);
    if (result != CUDA_SUCCESS) return result;
    fg_lock(fg_driver.state);
    const bool held = fg_shared_hold(fg_driver.state, from.entry, from.generation) && fg_driver.state->shared[from.entry].is_event;
    fg_unlock(fg_driver.state);
    if (!held) return free(*event), CUDA_ERROR_INVALID_HANDLE;
    (*event)->shared_entry = from.entry + 1;
    (*event)->generation = from.generation;
    return CUDA_SUCCESS;
}
