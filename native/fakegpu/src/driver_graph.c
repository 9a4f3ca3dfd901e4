/* Building graphs in the stand-in driver: by adding nodes, and by recording a stream. */
#include "graph.h"

#include <stdlib.h>

#include "arena.h"
#include "block.h"
#include "copy.h"
#include "deferred.h"

bool fg_graph_ok(CUgraph graph) { return graph != NULL && graph->tag == FG_GRAPH; }

CUgraphNode fg_add_node(CUgraph graph, int type)
{
    CUgraphNode node = calloc(1, sizeof *node);
    if (node == NULL) return NULL;
    node->tag = FG_NODE;
    node->type = type;
    *graph->last = node;
    graph->last = &node->next;
    graph->count++;
    return node;
}

CUresult cuGraphCreate(CUgraph *graph, unsigned int flags)
{
    if (!fg_driver.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (graph == NULL || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    CUgraph made = calloc(1, sizeof *made);
    if (made == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    made->tag = FG_GRAPH;
    made->last = &made->first;
    *graph = made;
    return CUDA_SUCCESS;
}

CUresult cuGraphDestroy(CUgraph graph)
{
    if (!fg_graph_ok(graph)) return CUDA_ERROR_INVALID_VALUE;
    graph->tag = 0; /* kept, with its nodes: what was instantiated from it still runs */
    return CUDA_SUCCESS;
}

static bool dependencies_ok(const CUgraphNode *dependencies, size_t count)
{
    if (count > 0 && dependencies == NULL) return false;
    for (size_t i = 0; i < count; i++)
        if (dependencies[i] == NULL || dependencies[i]->tag != FG_NODE) return false;
    return true;
}

/* A new node, or why there is none. */
static CUresult add(CUgraphNode *made, CUgraph graph, const CUgraphNode *dependencies, size_t count, int type, CUgraphNode *node)
{
    if (made == NULL || !fg_graph_ok(graph) || !dependencies_ok(dependencies, count)) return CUDA_ERROR_INVALID_VALUE;
    *node = fg_add_node(graph, type);
    return *node != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult add_kernel(CUgraphNode *made, CUgraph graph, const CUgraphNode *dependencies, size_t count, const CUDA_KERNEL_NODE_PARAMS *kernel)
{
    CUgraphNode node;
    if (kernel->func == NULL || kernel->func->tag != FG_FUNCTION || kernel->gridDimX == 0 || kernel->blockDimX == 0)
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = add(made, graph, dependencies, count, CU_GRAPH_NODE_TYPE_KERNEL, &node);
    if (result != CUDA_SUCCESS) return result;
    node->kernel = *kernel;
    *made = node;
    return CUDA_SUCCESS;
}

CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count, const CUDA_KERNEL_NODE_PARAMS *kernel)
{
    return kernel == NULL ? CUDA_ERROR_INVALID_VALUE : add_kernel(node, graph, dependencies, count, kernel);
}

CUresult cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count, const CUDA_KERNEL_NODE_PARAMS *kernel)
{
    if (kernel == NULL) return CUDA_ERROR_INVALID_VALUE;
    /* The first version's structure ends before `kern`. */
    const CUDA_KERNEL_NODE_PARAMS wide = {kernel->func,      kernel->gridDimX,  kernel->gridDimY,       kernel->gridDimZ,     kernel->blockDimX,
                                          kernel->blockDimY, kernel->blockDimZ, kernel->sharedMemBytes, kernel->kernelParams, kernel->extra,
                                          NULL,              NULL};
    return add_kernel(node, graph, dependencies, count, &wide);
}

CUresult cuGraphKernelNodeGetParams_v2(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *kernel)
{
    if (node == NULL || node->tag != FG_NODE || node->type != CU_GRAPH_NODE_TYPE_KERNEL || kernel == NULL) return CUDA_ERROR_INVALID_VALUE;
    *kernel = node->kernel;
    return CUDA_SUCCESS;
}

static CUresult new_alloc(CUgraph graph, CUDA_MEM_ALLOC_NODE_PARAMS *wanted, CUgraphNode *made)
{
    if (wanted->bytesize == 0 || wanted->poolProps.allocType != 1 || wanted->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = fg_check_device(wanted->poolProps.location.id);
    if (result != CUDA_SUCCESS) return result;
    wanted->dptr = fg_arena_take(wanted->bytesize); /* an address now; memory when the graph runs */
    CUgraphNode node = wanted->dptr != 0 ? fg_add_node(graph, CU_GRAPH_NODE_TYPE_MEM_ALLOC) : NULL;
    if (node == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    node->alloc = *wanted;
    *made = node;
    return CUDA_SUCCESS;
}

CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *wanted)
{
    if (node == NULL || wanted == NULL || !fg_graph_ok(graph) || !dependencies_ok(dependencies, count)) return CUDA_ERROR_INVALID_VALUE;
    return new_alloc(graph, wanted, node);
}

CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count, CUdeviceptr pointer)
{
    CUgraphNode made;
    if (pointer == 0) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = add(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_MEM_FREE, &made);
    if (result != CUDA_SUCCESS) return result;
    made->free_pointer = pointer;
    *node = made;
    return CUDA_SUCCESS;
}

CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count, CUgraph child)
{
    CUgraphNode made;
    if (!fg_graph_ok(child) || child == graph) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = add(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_GRAPH, &made);
    if (result != CUDA_SUCCESS) return result;
    made->child = child;
    *node = made;
    return CUDA_SUCCESS;
}

CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count, CUgraphNodeParams *wanted)
{
    if (wanted == NULL) return CUDA_ERROR_INVALID_VALUE;
    switch (wanted->type) {
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: return cuGraphAddMemAllocNode(node, graph, dependencies, count, &wanted->alloc);
    case CU_GRAPH_NODE_TYPE_MEM_FREE: return cuGraphAddMemFreeNode(node, graph, dependencies, count, wanted->free_dptr);
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, const void *edges, size_t count, CUgraphNodeParams *wanted)
{
    (void)edges; /* nodes run in the order in which they were added */
    return cuGraphAddNode(node, graph, dependencies, count, wanted);
}

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
    if (node == NULL || node->tag != FG_NODE || node->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC || params == NULL) return CUDA_ERROR_INVALID_VALUE;
    *params = node->alloc;
    return CUDA_SUCCESS;
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *graph)
{
    if (node == NULL || node->tag != FG_NODE || node->type != CU_GRAPH_NODE_TYPE_GRAPH || graph == NULL) return CUDA_ERROR_INVALID_VALUE;
    *graph = node->child;
    return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    if (!fg_graph_ok(graph) || count == NULL) return CUDA_ERROR_INVALID_VALUE;
    size_t at = 0;
    for (CUgraphNode node = graph->first; nodes != NULL && node != NULL && at < *count; node = node->next) nodes[at++] = node;
    *count = nodes != NULL ? at : graph->count;
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetType(CUgraphNode node, int *type)
{
    if (node == NULL || node->tag != FG_NODE || type == NULL) return CUDA_ERROR_INVALID_VALUE;
    *type = node->type;
    return CUDA_SUCCESS;
}

/* Recording. Only streams of one's own record; the legacy stream cannot. */
static CUgraph recorded_by(CUstream stream) { return (uintptr_t)stream > 2 && stream->tag == FG_STREAM ? stream->capture : NULL; }

static _Atomic int recordings;

bool fg_is_recording(CUstream stream) { return recorded_by(stream) != NULL; }
bool fg_any_recording(void) { return recordings > 0; }

CUresult cuStreamBeginCapture_v2(CUstream stream, int mode)
{
    if ((uintptr_t)stream <= 2 || stream->tag != FG_STREAM || mode < 0 || mode > 2) return CUDA_ERROR_INVALID_VALUE;
    if (stream->capture != NULL) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = cuGraphCreate(&stream->capture, 0);
    if (result == CUDA_SUCCESS) recordings++;
    return result;
}

/* The first version had the global mode alone. */
CUresult cuStreamBeginCapture(CUstream stream) { return cuStreamBeginCapture_v2(stream, 0); }

CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode) { return cuStreamBeginCapture_v2(stream, mode); }

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    if (recorded_by(stream) == NULL || graph == NULL) return CUDA_ERROR_INVALID_VALUE;
    *graph = stream->capture;
    stream->capture = NULL;
    recordings--;
    return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph) { return cuStreamEndCapture(stream, graph); }

CUresult cuStreamIsCapturing(CUstream stream, int *status)
{
    if (status == NULL || !fg_stream_ok(stream)) return CUDA_ERROR_INVALID_VALUE;
    *status = recorded_by(stream) != NULL ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
    return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing_ptsz(CUstream stream, int *status) { return cuStreamIsCapturing(stream, status); }

bool fg_capture_alloc(CUstream stream, CUdeviceptr *pointer, size_t bytes, int device, CUresult *result)
{
    CUgraph graph = recorded_by(stream);
    if (graph == NULL) return false;
    CUDA_MEM_ALLOC_NODE_PARAMS wanted = {.poolProps = {.allocType = 1, .location = {CU_MEM_LOCATION_TYPE_DEVICE, device}}, .bytesize = bytes};
    CUgraphNode node;
    *result = new_alloc(graph, &wanted, &node);
    if (*result == CUDA_SUCCESS) *pointer = wanted.dptr;
    return true;
}

bool fg_capture_free(CUstream stream, CUdeviceptr pointer, CUresult *result)
{
    CUgraph graph = recorded_by(stream);
    CUgraphNode node;
    if (graph != NULL) *result = cuGraphAddMemFreeNode(&node, graph, NULL, 0, pointer);
    return graph != NULL;
}

bool fg_capture_kernel(const CUlaunchConfig *config, CUfunction function, CUresult *result)
{
    CUgraph graph = recorded_by(config->hStream);
    CUgraphNode node;
    const CUDA_KERNEL_NODE_PARAMS kernel = {function,           config->gridDimX,       config->gridDimY, config->gridDimZ, config->blockDimX,
                                            config->blockDimY,  config->blockDimZ,      config->sharedMemBytes, NULL, NULL, NULL, NULL};
    if (graph != NULL) *result = add_kernel(&node, graph, NULL, 0, &kernel);
    return graph != NULL;
}

bool fg_capture_copy(CUstream stream, const CUDA_MEMCPY3D *copy, CUresult *result)
{
    CUgraph graph = recorded_by(stream);
    CUgraphNode node = graph != NULL ? fg_add_node(graph, CU_GRAPH_NODE_TYPE_MEMCPY) : NULL;
    if (node != NULL) node->copy = *copy;
    *result = node != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    return graph != NULL;
}

bool fg_capture_fill(CUstream stream, const CUDA_MEMSET_NODE_PARAMS *fill, CUresult *result)
{
    CUgraph graph = recorded_by(stream);
    CUgraphNode node = graph != NULL ? fg_add_node(graph, CU_GRAPH_NODE_TYPE_MEMSET) : NULL;
    if (node != NULL) node->fill = *fill;
    *result = node != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    return graph != NULL;
}

bool fg_capture_host(CUstream stream, CUhostFn function, void *data, CUresult *result)
{
    CUgraph graph = recorded_by(stream);
    CUgraphNode node = graph != NULL ? fg_add_node(graph, CU_GRAPH_NODE_TYPE_HOST) : NULL;
    if (node != NULL) node->host = (CUDA_HOST_NODE_PARAMS){function, data};
    *result = node != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    return graph != NULL;
}

CUresult cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count, const CUDA_MEMCPY3D *copy,
                              CUcontext context)
{
    CUgraphNode made;
    if (copy == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (context != NULL && context->tag != FG_CONTEXT) return CUDA_ERROR_INVALID_CONTEXT;
    CUresult result = fg_check_copy(copy);
    if (result == CUDA_SUCCESS) result = add(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_MEMCPY, &made);
    if (result != CUDA_SUCCESS) return result;
    made->copy = *copy;
    *node = made;
    return CUDA_SUCCESS;
}

CUresult cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                              const CUDA_MEMSET_NODE_PARAMS *fill, CUcontext context)
{
    CUgraphNode made;
    if (fill == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (context != NULL && context->tag != FG_CONTEXT) return CUDA_ERROR_INVALID_CONTEXT;
    CUresult result = fg_check_fill(fill);
    if (result == CUDA_SUCCESS) result = add(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_MEMSET, &made);
    if (result != CUDA_SUCCESS) return result;
    made->fill = *fill;
    *node = made;
    return CUDA_SUCCESS;
}

CUresult cuGraphAddHostNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count, const CUDA_HOST_NODE_PARAMS *host)
{
    CUgraphNode made;
    if (host == NULL || host->fn == NULL) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = add(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_HOST, &made);
    if (result != CUDA_SUCCESS) return result;
    made->host = *host;
    *node = made;
    return CUDA_SUCCESS;
}

CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count)
{
    CUgraphNode made;
    const CUresult result = add(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_EMPTY, &made);
    if (result == CUDA_SUCCESS) *node = made;
    return result;
}
