/* Captures of the stand-in driver: streams that record (capture.h). */
#include "capture/capture.h"
#include "driver/log.h"

#include <stdlib.h>
#include <string.h>

enum { GLOBAL = 0, RELAXED = 2 }; /* CUstreamCaptureMode */

/* All captures; their streams and graphs are, as in CUDA, used by one thread at a time. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct fg_capture *captures;
static _Atomic int count;

static bool special(CUstream stream) { return (uintptr_t)stream <= 2; }
struct fg_capture *fg_capture_of(CUstream stream) { return !special(stream) && stream->tag == FG_STREAM ? stream->capture : NULL; }

bool fg_is_recording(CUstream stream) { return fg_capture_of(stream) != NULL; }
bool fg_any_recording(void) { return count > 0; }

void fg_clear_frontier(struct fg_frontier *frontier)
{
    free(frontier->nodes);
    free(frontier->edges);
    *frontier = (struct fg_frontier){0};
}

CUresult fg_extend_frontier(struct fg_frontier *frontier, const CUgraphNode *nodes, const CUgraphEdgeData *edges, size_t more)
{
    const size_t room = frontier->count + more + 1;
    CUgraphNode *wider_nodes = realloc(frontier->nodes, room * sizeof *wider_nodes);
    if (wider_nodes != NULL) frontier->nodes = wider_nodes;
    CUgraphEdgeData *wider_edges = realloc(frontier->edges, room * sizeof *wider_edges);
    if (wider_edges != NULL) frontier->edges = wider_edges;
    if (wider_nodes == NULL || wider_edges == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < more; i++) {
        size_t at = 0;
        while (at < frontier->count && frontier->nodes[at] != nodes[i]) at++;
        if (at < frontier->count) continue;
        frontier->nodes[at] = nodes[i];
        frontier->edges[at] = edges != NULL ? edges[i] : (CUgraphEdgeData){0};
        frontier->count++;
    }
    return CUDA_SUCCESS;
}

void fg_join_capture(struct fg_capture *capture, CUstream stream)
{
    stream->capture = capture;
    stream->next_member = capture->members;
    capture->members = stream;
}

static void end(struct fg_capture *capture)
{
    for (CUstream stream = capture->members, next; stream != NULL; stream = next) {
        next = stream->next_member;
        stream->capture = NULL;
        fg_clear_frontier(&stream->frontier);
    }
    pthread_mutex_lock(&lock);
    struct fg_capture **at = &captures;
    while (*at != capture) at = &(*at)->next;
    *at = capture->next;
    count--;
    pthread_mutex_unlock(&lock);
    free(capture);
}

static CUresult begin(CUstream stream, CUgraph graph, const struct fg_after *after, int mode)
{
    static _Atomic uint64_t ids = 1;
    if (special(stream)) return stream == NULL || (uintptr_t)stream == 1 ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_ERROR_NOT_SUPPORTED;
    if (stream->tag != FG_STREAM) return CUDA_ERROR_INVALID_HANDLE;
    if (mode < GLOBAL || mode > RELAXED) return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture != NULL) return CUDA_ERROR_ILLEGAL_STATE;
    struct fg_capture *made = calloc(1, sizeof *made);
    if (made == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *made = (struct fg_capture){
        .graph = graph, .origin = stream, .has_own_graph = graph == NULL, .mode = mode, .thread = pthread_self(), .id = ids++};
    CUresult result = graph == NULL ? fg_new_graph(&made->graph) : CUDA_SUCCESS;
    if (result == CUDA_SUCCESS) result = fg_extend_frontier(&stream->frontier, after->nodes, after->edges, after->count);
    if (result != CUDA_SUCCESS) return free(made), result;
    fg_join_capture(made, stream);
    pthread_mutex_lock(&lock);
    made->next = captures;
    captures = made;
    count++;
    pthread_mutex_unlock(&lock);
    return CUDA_SUCCESS;
}

static const struct fg_after NOTHING;

CUresult cuStreamBeginCapture_v2(CUstream stream, int mode) { return begin(stream, NULL, &NOTHING, mode); }
CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode) { return cuStreamBeginCapture_v2(stream, mode); }

/* The first version had the global mode alone. */
CUresult cuStreamBeginCapture(CUstream stream) { return cuStreamBeginCapture_v2(stream, GLOBAL); }

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *dependencies, const CUgraphEdgeData *edges,
                                     size_t dependency_count, int mode)
{
    const struct fg_after after = {dependencies, edges, dependency_count};
    if (!fg_graph_ok(graph)) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = fg_check_after(graph, &after);
    return result == CUDA_SUCCESS ? begin(stream, graph, &after, mode) : result;
}

/* Marks the frontier's nodes, and all that they depend on, as reached by the walk of that number. */
static bool reach(const struct fg_frontier *frontier, CUgraph graph)
{
    CUgraphNode *way = calloc(graph->count + 1, sizeof *way);
    size_t depth = 0;
    if (way == NULL) return false;
    for (CUgraphNode node = graph->first; node != NULL; node = node->next) node->index = 0;
    for (size_t i = 0; i < frontier->count; i++)
        if (frontier->nodes[i]->index == 0) frontier->nodes[i]->index = 1, way[depth++] = frontier->nodes[i];
    while (depth > 0) {
        CUgraphNode node = way[--depth];
        for (size_t i = 0; i < node->dependency_count; i++) {
            CUgraphNode on = node->dependencies[i].on;
            if (on->index == 0) on->index = 1, way[depth++] = on;
        }
    }
    free(way);
    return true;
}

/* Whether all that its other streams recorded comes before where its first stream is. */
static bool is_joined(const struct fg_capture *capture)
{
    if (!reach(&capture->origin->frontier, capture->graph)) return false;
    for (CUstream stream = capture->members; stream != NULL; stream = stream->next_member)
        for (size_t i = 0; i < stream->frontier.count; i++)
            if (stream->frontier.nodes[i]->index == 0) return false;
    return true;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    struct fg_capture *capture = fg_capture_of(stream);
    if (graph == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (capture == NULL) return CUDA_ERROR_ILLEGAL_STATE;
    *graph = NULL;
    if (capture->origin != stream) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    if (capture->mode != RELAXED && !pthread_equal(capture->thread, pthread_self())) return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    const CUresult result = capture->broken      ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED
                            : is_joined(capture) ? CUDA_SUCCESS
                                                 : CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
    if (result == CUDA_SUCCESS)
        *graph = capture->graph;
    else if (capture->has_own_graph)
        fg_free_graph(capture->graph);
    if (result != CUDA_SUCCESS)
        fg_log(FG_LOG_ERROR, "Capture %llu is given up: %s", (unsigned long long)capture->id,
               capture->broken ? "a call broke it" : "a stream was not joined");
    end(capture);
    return result;
}

CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph) { return cuStreamEndCapture(stream, graph); }

static int status_of(const struct fg_capture *capture)
{
    enum { INVALIDATED = 2 };
    return capture == NULL ? CU_STREAM_CAPTURE_STATUS_NONE : capture->broken ? INVALIDATED : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

CUresult cuStreamIsCapturing(CUstream stream, int *status)
{
    if (status == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!fg_stream_ok(stream)) return CUDA_ERROR_INVALID_HANDLE;
    *status = status_of(fg_capture_of(stream));
    return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing_ptsz(CUstream stream, int *status) { return cuStreamIsCapturing(stream, status); }

CUresult cuStreamGetCaptureInfo_v3(CUstream stream, int *status, cuuint64_t *id, CUgraph *graph, const CUgraphNode **dependencies,
                                   const CUgraphEdgeData **edges, size_t *dependency_count)
{
    static const CUgraphEdgeData plain;
    if (status == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!fg_stream_ok(stream)) return CUDA_ERROR_INVALID_HANDLE;
    const struct fg_capture *capture = fg_capture_of(stream);
    *status = status_of(capture);
    if (capture == NULL || capture->broken) return CUDA_SUCCESS;
    const struct fg_frontier *frontier = &stream->frontier;
    for (size_t i = 0; i < frontier->count && edges == NULL && dependencies != NULL; i++)
        if (memcmp(&frontier->edges[i], &plain, sizeof plain) != 0) return CUDA_ERROR_LOSSY_QUERY;
    if (id != NULL) *id = capture->id;
    if (graph != NULL) *graph = capture->graph;
    if (dependencies != NULL) *dependencies = frontier->nodes;
    if (edges != NULL) *edges = frontier->edges;
    if (dependency_count != NULL) *dependency_count = frontier->count;
    return CUDA_SUCCESS;
}

CUresult cuStreamGetCaptureInfo_v2(CUstream stream, int *status, cuuint64_t *id, CUgraph *graph, const CUgraphNode **dependencies,
                                   size_t *dependency_count)
{
    return cuStreamGetCaptureInfo_v3(stream, status, id, graph, dependencies, NULL, dependency_count);
}

CUresult cuStreamGetCaptureInfo(CUstream stream, int *status, cuuint64_t *id)
{
    return cuStreamGetCaptureInfo_v3(stream, status, id, NULL, NULL, NULL, NULL);
}

CUresult cuStreamUpdateCaptureDependencies_v2(CUstream stream, CUgraphNode *dependencies, const CUgraphEdgeData *edges,
                                              size_t dependency_count, unsigned int flags)
{
    enum { ADD = 0, SET = 1 };
    const struct fg_after after = {dependencies, edges, dependency_count};
    const struct fg_capture *capture = fg_capture_of(stream);
    if (!fg_stream_ok(stream)) return CUDA_ERROR_INVALID_HANDLE;
    if (capture == NULL) return CUDA_ERROR_ILLEGAL_STATE;
    if (capture->broken) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    const CUresult result = flags == ADD || flags == SET ? fg_check_after(capture->graph, &after) : CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS) return result;
    if (flags == SET) fg_clear_frontier(&stream->frontier);
    return fg_extend_frontier(&stream->frontier, dependencies, edges, dependency_count);
}

CUresult cuStreamUpdateCaptureDependencies(CUstream stream, CUgraphNode *dependencies, size_t dependency_count, unsigned int flags)
{
    return cuStreamUpdateCaptureDependencies_v2(stream, dependencies, NULL, dependency_count, flags);
}

bool fg_capture_broken(CUstream stream)
{
    struct fg_capture *capture = fg_capture_of(stream);
    if (capture != NULL) capture->broken = true;
    return capture != NULL;
}

struct fg_capture *fg_capture_named(uint64_t id)
{
    pthread_mutex_lock(&lock);
    struct fg_capture *capture = captures;
    while (capture != NULL && capture->id != id) capture = capture->next;
    pthread_mutex_unlock(&lock);
    return capture;
}

void fg_capture_leave(CUstream stream)
{
    struct fg_capture *capture = fg_capture_of(stream);
    if (capture == NULL) return;
    if (capture->origin == stream) {
        if (capture->has_own_graph) fg_free_graph(capture->graph);
        end(capture);
        return;
    }
    CUstream *at = &capture->members;
    while (*at != stream) at = &(*at)->next_member;
    *at = stream->next_member;
    capture->broken = true;
    stream->capture = NULL;
    fg_clear_frontier(&stream->frontier);
}
