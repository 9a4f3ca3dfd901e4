/* What becomes a node while a stream of the stand-in driver records (capture.h), and the events by which streams meet. */
#include "capture/capture.h"
#include "copy/copy.h"

static CUresult record(CUstream stream, int type, union fg_general_params *params, CUgraphNode *made)
{
    struct fg_capture *capture = fg_capture_of(stream);
    const struct fg_after after = {stream->frontier.nodes, stream->frontier.edges, stream->frontier.count};
    if (capture->broken) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    const CUresult result = fg_add_node(capture->graph, &after, type, params, made);
    if (result != CUDA_SUCCESS) return result;
    stream->frontier.count = 0;
    return fg_extend_frontier(&stream->frontier, made, NULL, 1);
}

bool fg_capture_node(CUstream stream, int type, union fg_general_params *params, CUresult *result)
{
    CUgraphNode made;
    if (!fg_is_recording(stream)) return false;
    *result = record(stream, type, params, &made);
    return true;
}

bool fg_capture_kernel(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra, CUresult *result)
{
    union fg_general_params params = {.kernel = {function, config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX,
                                                 config->blockDimY, config->blockDimZ, config->sharedMemBytes, parameters, extra, NULL,
                                                 NULL}};
    CUgraphNode made;
    if (!fg_is_recording(config->hStream)) return false;
    *result = record(config->hStream, CU_GRAPH_NODE_TYPE_KERNEL, &params, &made);
    for (unsigned int i = 0; i < config->numAttrs && *result == CUDA_SUCCESS; i++) {
        const struct fg_launch_attribute *attribute = (const struct fg_launch_attribute *)config->attrs + i;
        (void)cuGraphKernelNodeSetAttribute(made, attribute->id, &attribute->value); /* what nodes have not is of the launch alone */
    }
    return true;
}

bool fg_capture_alloc(CUstream stream, CUdeviceptr *pointer, size_t bytes, int device, CUresult *result)
{
    union fg_general_params params = {
        .alloc = {.poolProps = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}}, .bytesize = bytes}};
    if (!fg_capture_node(stream, CU_GRAPH_NODE_TYPE_MEM_ALLOC, &params, result)) return false;
    if (*result == CUDA_SUCCESS) *pointer = params.alloc.dptr;
    return true;
}

bool fg_capture_free(CUstream stream, CUdeviceptr pointer, CUresult *result)
{
    union fg_general_params params = {.free_pointer = pointer};
    return fg_capture_node(stream, CU_GRAPH_NODE_TYPE_MEM_FREE, &params, result);
}

bool fg_capture_copy(CUstream stream, const CUDA_MEMCPY3D *copy, CUresult *result)
{
    union fg_general_params params = {.memcpy = {.copy = *copy}};
    return fg_capture_node(stream, CU_GRAPH_NODE_TYPE_MEMCPY, &params, result);
}

bool fg_capture_fill(CUstream stream, const CUDA_MEMSET_NODE_PARAMS *fill, CUresult *result)
{
    union fg_general_params params = {.memset = {.fill = *fill}};
    return fg_capture_node(stream, CU_GRAPH_NODE_TYPE_MEMSET, &params, result);
}

bool fg_capture_host(CUstream stream, CUhostFn function, void *data, CUresult *result)
{
    union fg_general_params params = {.host = {function, data}};
    return fg_capture_node(stream, CU_GRAPH_NODE_TYPE_HOST, &params, result);
}

/* A launch of a graph is recorded as a graph inside. */
bool fg_capture_graph(CUstream stream, CUgraph graph, CUresult *result)
{
    union fg_general_params params = {.graph = graph};
    if (!fg_is_recording(stream)) return false;
    if (fg_has_memory_nodes(graph))
        *result = CUDA_ERROR_NOT_SUPPORTED;
    else
        (void)fg_capture_node(stream, CU_GRAPH_NODE_TYPE_GRAPH, &params, result);
    return true;
}

void fg_capture_forget(CUevent event)
{
    event->capture_id = 0;
    fg_clear_frontier(&event->frontier);
}

bool fg_capture_record(CUstream stream, CUevent event, bool external, CUresult *result)
{
    struct fg_capture *capture = fg_capture_of(stream);
    union fg_general_params params = {.event = event};
    if (capture == NULL) return fg_capture_forget(event), false;
    if (external) return fg_capture_node(stream, CU_GRAPH_NODE_TYPE_EVENT_RECORD, &params, result);
    if (capture->broken) return *result = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, true;
    fg_capture_forget(event);
    event->capture_id = capture->id;
    *result = fg_extend_frontier(&event->frontier, stream->frontier.nodes, stream->frontier.edges, stream->frontier.count);
    return true;
}

/* A stream waits for an event that was recorded in a capture. */
static CUresult wait_for_captured(CUstream stream, CUevent event)
{
    struct fg_capture *mine = fg_capture_of(stream), *theirs = fg_capture_named(event->capture_id);
    if (theirs == NULL) return CUDA_ERROR_CAPTURED_EVENT; /* that capture has ended */
    if (mine != NULL && mine != theirs) {
        mine->broken = theirs->broken = true;
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    if (theirs->broken) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if ((uintptr_t)stream <= 2) return theirs->broken = true, CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    const CUresult result = fg_extend_frontier(&stream->frontier, event->frontier.nodes, event->frontier.edges, event->frontier.count);
    if (result == CUDA_SUCCESS && mine == NULL) fg_join_capture(theirs, stream);
    return result;
}

bool fg_capture_wait(CUstream stream, CUevent event, bool external, CUresult *result)
{
    struct fg_capture *capture = fg_capture_of(stream);
    union fg_general_params params = {.event = event};
    if (capture != NULL && external) return fg_capture_node(stream, CU_GRAPH_NODE_TYPE_WAIT_EVENT, &params, result);
    if (event->capture_id != 0) return *result = wait_for_captured(stream, event), true;
    if (capture == NULL) return false;
    capture->broken = true; /* what is outside of it cannot be waited for */
    *result = CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    return true;
}
