/* Captures of the stand-in driver (capture.h). */
#include "capture/capture.h"

#include <stdlib.h>

enum { GLOBAL = 0, RELAXED = 2 }; /* CUstreamCaptureMode */

struct fg_capture {
    CUgraph graph;
    CUstream origin, members; /* all its streams, by next_member */
    uint64_t id;
    bool has_own_graph; /* begun by it, and not there before */
    bool broken;
    int mode;
    pthread_t thread;
    struct fg_capture *next;
};

/* All captures; their streams and graphs are, as in CUDA, used by one thread at a time. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fg_capture *captures;
static _Atomic int count;

static bool special(CUstream stream) { return (uintptr_t)stream <= 2; }

static struct fg_capture *capture_of(CUstream stream) { return !special(stream) && stream->tag == FG_STREAM ? stream->capture : NULL; }

bool fg_is_recording(CUstream stream) { return capture_of(stream) != NULL; }
bool fg_any_recording(void) { return count > 0; }

static void join(struct fg_capture *capture, CUstream stream)
{
    stream->capture = capture;
    stream->next_member = capture->members;
    capture->members = stream;
}

static CUresult begin(CUstream stream, CUgraph graph, int mode)
{
    static _Atomic uint64_t ids = 1;
    if (special(stream)) return stream == NULL || (uintptr_t)stream == 1 ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_ERROR_NOT_SUPPORTED;
    if (stream->tag != FG_STREAM) return CUDA_ERROR_INVALID_HANDLE;
    if (mode < GLOBAL || mode > RELAXED) return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture != NULL) return CUDA_ERROR_ILLEGAL_STATE;
    struct fg_capture *made = calloc(1, sizeof *made);
    if (made == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *made = (struct fg_capture){
        .graph = graph, .origin = stream, .id = ids++, .has_own_graph = graph == NULL, .mode = mode, .thread = pthread_self()};
    if (graph == NULL && fg_new_graph(&made->graph) != CUDA_SUCCESS) {
        free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    join(made, stream);
    pthread_mutex_lock(&lock);
    made->next = captures;
    captures = made;
    count++;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture_v2(CUstream stream, int mode) { return begin(stream, NULL, mode); }
CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode) { return cuStreamBeginCapture_v2(stream, mode); }

/* The first version had the global mode alone. */
CUresult cuStreamBeginCapture(CUstream stream) { return cuStreamBeginCapture_v2(stream, GLOBAL); }
CUresult cuStreamBeginCapture_ptsz(CUstream stream) { return cuStreamBeginCapture(stream); }

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *edges,
                                     size_t dependency_count, int mode)
{
    const struct fg_after after = {dependencies, edges, dependency_count};
    if (!fg_graph_ok(graph)) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = fg_check_after(graph, &after);
    return result == CUDA_SUCCESS ? begin(stream, graph, mode) : result;
}

CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *edges,
                                          size_t dependency_count, int mode)
{
    return cuStreamBeginCaptureToGraph(stream, graph, dependencies, edges, dependency_count, mode);
}

static void end(struct fg_capture *capture, bool keep_graph)
{
    if (!keep_graph && capture->has_own_graph) fg_free_graph(capture->graph);
    for (CUstream stream = capture->members; stream != NULL; stream = stream->next_member) stream->capture = NULL;
    pthread_mutex_lock(&lock);
    struct fg_capture **at = &captures;
    while (*at != capture) at = &(*at)->next;
    *at = capture->next;
    count--;
    pthread_mutex_unlock(&lock);
    free(capture);
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    struct fg_capture *capture = capture_of(stream);
    if (graph == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (capture == NULL) return CUDA_ERROR_ILLEGAL_STATE;
    *graph = NULL;
    if (capture->origin != stream) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    if (capture->mode != RELAXED && !pthread_equal(capture->thread, pthread_self())) return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    const bool broken = capture->broken;
    if (!broken) *graph = capture->graph;
    end(capture, !broken);
    return broken ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_SUCCESS;
}

CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph) { return cuStreamEndCapture(stream, graph); }

CUresult cuStreamIsCapturing(CUstream stream, int *status)
{
    enum { INVALIDATED = 2 };
    const struct fg_capture *capture = capture_of(stream);
    if (status == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!fg_stream_ok(stream)) return CUDA_ERROR_INVALID_HANDLE;
    *status = capture == NULL ? CU_STREAM_CAPTURE_STATUS_NONE : capture->broken ? INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
    return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing_ptsz(CUstream stream, int *status) { return cuStreamIsCapturing(stream, status); }

bool fg_capture_broken(CUstream stream)
{
    struct fg_capture *capture = capture_of(stream);
    if (capture != NULL) capture->broken = true;
    return capture != NULL;
}

void fg_capture_leave(CUstream stream)
{
    struct fg_capture *capture = capture_of(stream);
    if (capture == NULL) return;
    if (capture->origin == stream) {
        end(capture, false);
        return;
    }
    CUstream *at = &capture->members;
    while (*at != stream) at = &(*at)->next_member;
    *at = stream->next_member;
    capture->broken = true;
}

bool fg_capture_record(CUstream stream, CUevent event)
{
    const struct fg_capture *capture = capture_of(stream);
    event->capture_id = capture != NULL ? capture->id : 0;
    return capture != NULL;
}

/* A stream waits for an event that was recorded in a capture. */
static CUresult wait_for_captured(CUstream stream, CUevent event)
{
    pthread_mutex_lock(&lock);
    struct fg_capture *mine = capture_of(stream), *theirs = captures;
    while (theirs != NULL && theirs->id != event->capture_id) theirs = theirs->next;
    pthread_mutex_unlock(&lock);
    if (theirs == NULL) return CUDA_ERROR_CAPTURED_EVENT; /* that capture has ended */
    if (mine == theirs) return CUDA_SUCCESS;
    theirs->broken = theirs->broken || mine != NULL || special(stream);
    if (mine != NULL) {
        mine->broken = true;
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    if (special(stream)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    if (theirs->broken) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    join(theirs, stream);
    return CUDA_SUCCESS;
}

bool fg_capture_wait(CUstream stream, CUevent event, CUresult *result)
{
    if (event->capture_id == 0 && !fg_capture_broken(stream)) return false;
    /* What is outside of a capture cannot be waited for. */
    *result = event->capture_id != 0 ? wait_for_captured(stream, event) : CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    return true;
}

/* What is queued in a stream that records becomes a node. */
static bool record(CUstream stream, int type, union fg_general_params *params, CUresult *result)
{
    static const struct fg_after nothing;
    const struct fg_capture *capture = capture_of(stream);
    CUgraphNode made;
    if (capture == NULL) return false;
    *result = capture->broken ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : fg_add_node(capture->graph, &nothing, type, params, &made);
    return true;
}

bool fg_capture_kernel(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra, CUresult *result)
{
    union fg_general_params params = {.kernel = {function, config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX,
                                                 config->blockDimY, config->blockDimZ, config->sharedMemBytes, parameters, extra, NULL,
                                                 NULL}};
    return record(config->hStream, CU_GRAPH_NODE_TYPE_KERNEL, &params, result);
}

bool fg_capture_alloc(CUstream stream, CUdeviceptr *pointer, size_t bytes, int device, CUresult *result)
{
    union fg_general_params params = {
        .alloc = {.poolProps = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}}, .bytesize = bytes}};
    if (!record(stream, CU_GRAPH_NODE_TYPE_MEM_ALLOC, &params, result)) return false;
    if (*result == CUDA_SUCCESS) *pointer = params.alloc.dptr;
    return true;
}

bool fg_capture_free(CUstream stream, CUdeviceptr pointer, CUresult *result)
{
    union fg_general_params params = {.free_pointer = pointer};
    return record(stream, CU_GRAPH_NODE_TYPE_MEM_FREE, &params, result);
}

/* A launch of a graph is recorded as a graph inside. */
bool fg_capture_graph(CUstream stream, CUgraph graph, CUresult *result)
{
    union fg_general_params params = {.graph = graph};
    if (!fg_is_recording(stream)) return false;
    *result = CUDA_ERROR_NOT_SUPPORTED;
    return fg_has_memory_nodes(graph) || record(stream, CU_GRAPH_NODE_TYPE_GRAPH, &params, result);
}
