#include "stream/deferred.h"

#include <signal.h>
#include <stdlib.h>
#include <time.h>

struct action {
    CUcontext context;
    CUstream stream; /* NULL: the legacy stream */
    int64_t mark;    /* of the kernels before it; 0: none */
    bool (*ready)(void *data);
    void (*run)(void *data);
    void *data;
    uint64_t ticket;
    struct action *next;
};

/* How often a value in memory is looked at: nothing reports its change. */
static const int64_t POLL_NS = 100000, NEVER_NS = INT64_MAX;

static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP; /* `ready` may ask whether an action is done */
static pthread_cond_t queued, finished = PTHREAD_COND_INITIALIZER;
static struct action *first, **last = &first;
static _Atomic int pending_count;
static uint64_t tickets, scans;
static bool has_worker;

static bool special(CUstream stream) { return (uintptr_t)stream <= 2; }

CUresult fg_stream_context(CUstream stream, CUcontext *context)
{
    const CUresult result = fg_current(context);
    if (result != CUDA_SUCCESS) return result;
    if (!fg_stream_ok(stream)) return CUDA_ERROR_INVALID_HANDLE;
    if (!special(stream)) *context = stream->context;
    return CUDA_SUCCESS;
}

/* A fork child has neither the thread nor the work of its parent. */
static void forget_in_child(void)
{
    lock = (pthread_mutex_t)PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
    finished = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    first = NULL;
    last = &first;
    pending_count = 0;
    has_worker = false;
}

/* Whether an earlier action that this scan passed holds this one up; notes it as passed. */
static bool held_up(const struct action *action)
{
    CUcontext context = action->context;
    CUstream stream = action->stream;
    const bool blocking = stream == NULL || (stream->flags & CU_STREAM_NON_BLOCKING) == 0;
    bool held = blocking && (stream == NULL ? context->scan_blocking : context->scan_legacy) == scans;
    if (stream == NULL ? context->scan_legacy == scans : stream->scan == scans) held = true;
    if (blocking) context->scan_blocking = scans;
    if (stream == NULL)
        context->scan_legacy = scans;
    else
        stream->scan = scans;
    return held;
}

static struct action *next_to_run(int64_t *wait_ns)
{
    scans++;
    *wait_ns = NEVER_NS;
    for (struct action *action = first; action != NULL; action = action->next) {
        if (held_up(action)) continue;
        const int64_t left_ns = action->mark != 0 ? fg_left_ns(fg_driver.state, fg_card_of(action->context), action->mark) : 0;
        if (left_ns == 0 && (action->ready == NULL || action->ready(action->data))) return action;
        const int64_t again_ns = left_ns > POLL_NS ? left_ns : POLL_NS;
        if (again_ns < *wait_ns) *wait_ns = again_ns;
    }
    return NULL;
}

static void wait_for_more(int64_t wait_ns)
{
    if (wait_ns == NEVER_NS) {
        pthread_cond_wait(&queued, &lock);
        return;
    }
    const int64_t until_ns = fg_now_ns() + wait_ns;
    const struct timespec until = {.tv_sec = until_ns / 1000000000, .tv_nsec = until_ns % 1000000000};
    pthread_cond_timedwait(&queued, &lock, &until);
}

static void take_out(struct action *done)
{
    struct action **at = &first;
    while (*at != done) at = &(*at)->next;
    *at = done->next;
    if (last == &done->next) last = at;
}

static void *work(void *nothing)
{
    pthread_mutex_lock(&lock);
    for (;;) {
        int64_t wait_ns;
        struct action *action = next_to_run(&wait_ns);
        if (action == NULL) {
            wait_for_more(wait_ns);
            continue;
        }
        pthread_mutex_unlock(&lock);
        action->run(action->data);
        pthread_mutex_lock(&lock);
        take_out(action);
        free(action);
        pending_count--;
        pthread_cond_broadcast(&finished);
    }
    return nothing;
}

/* With the lock. The thread takes none of the program's signals. */
static bool start_worker(void)
{
    static bool forks_are_handled;
    sigset_t every, before;
    pthread_t thread;
    pthread_condattr_t attributes;
    if (has_worker) return true;
    if (!forks_are_handled) forks_are_handled = pthread_atfork(NULL, NULL, forget_in_child) == 0;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&queued, &attributes);
    pthread_condattr_destroy(&attributes);
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before);
    has_worker = pthread_create(&thread, NULL, work, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (has_worker) pthread_detach(thread);
    return has_worker;
}

static uint64_t queue(const struct action *wanted)
{
    struct action *action = malloc(sizeof *action);
    if (action == NULL) return 0;
    *action = *wanted;
    pthread_mutex_lock(&lock);
    if (!start_worker()) {
        pthread_mutex_unlock(&lock);
        free(action);
        return 0;
    }
    const uint64_t ticket = action->ticket = ++tickets;
    *last = action;
    last = &action->next;
    pending_count++;
    pthread_cond_signal(&queued);
    pthread_mutex_unlock(&lock);
    return ticket;
}

uint64_t fg_defer(CUcontext context, CUstream stream, bool (*ready)(void *data), void (*run)(void *data), void *data)
{
    const struct action action = {.context = context,
                                  .stream = special(stream) ? NULL : stream,
                                  .mark = fg_stream_mark(context, stream),
                                  .ready = ready,
                                  .run = run,
                                  .data = data};
    return queue(&action);
}

uint64_t fg_pending(CUcontext context, CUstream stream)
{
    uint64_t ticket = 0;
    if (pending_count == 0) return 0;
    pthread_mutex_lock(&lock);
    for (const struct action *action = first; action != NULL; action = action->next)
        if (action->context == context && (special(stream) || action->stream == stream || action->stream == NULL)) ticket = action->ticket;
    pthread_mutex_unlock(&lock);
    return ticket;
}

static const struct action *action_of(uint64_t ticket)
{
    const struct action *action = first;
    while (action != NULL && action->ticket != ticket) action = action->next;
    return action;
}

bool fg_is_done(uint64_t ticket)
{
    if (ticket == 0 || pending_count == 0) return true;
    pthread_mutex_lock(&lock);
    const bool done = action_of(ticket) == NULL;
    pthread_mutex_unlock(&lock);
    return done;
}

void fg_wait_done(uint64_t ticket)
{
    if (ticket == 0 || pending_count == 0) return;
    pthread_mutex_lock(&lock);
    while (action_of(ticket) != NULL) pthread_cond_wait(&finished, &lock);
    pthread_mutex_unlock(&lock);
}

void fg_flush(CUcontext context)
{
    uint64_t ticket = 0;
    if (pending_count == 0) return;
    pthread_mutex_lock(&lock);
    for (struct action *action = first; action != NULL; action = action->next) {
        if (action->context != context) continue;
        action->mark = 0;
        action->ready = NULL;
        ticket = action->ticket;
    }
    if (ticket != 0) pthread_cond_signal(&queued);
    pthread_mutex_unlock(&lock);
    fg_wait_done(ticket);
}

bool fg_is_busy(CUcontext context, CUstream stream)
{
    const int64_t mark = fg_stream_mark(context, stream);
    return (mark != 0 && fg_left_ns(fg_driver.state, fg_card_of(context), mark) > 0) || fg_pending(context, stream) != 0;
}

void fg_drain(CUcontext context, CUstream stream)
{
    fg_sleep_until_reached(fg_driver.state, fg_card_of(context), fg_stream_mark(context, stream));
    fg_wait_done(fg_pending(context, stream));
}
