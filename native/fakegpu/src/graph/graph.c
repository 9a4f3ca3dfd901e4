/* Graphs and nodes of the stand-in driver: how they are made, copied and ended. */
#include <stdlib.h>
#include <string.h>

#include "driver/handle.h"
#include "graph/graph.h"

bool fg_graph_ok(CUgraph graph) { return fg_handle_lives(graph) && graph->tag == FG_GRAPH; }

static bool node_ok(CUgraphNode node) { return fg_handle_lives(node) && node->tag == FG_NODE; }

CUresult fg_new_graph(CUgraph *graph)
{
    CUgraph made = calloc(1, sizeof *made);
    if (made == NULL || !fg_handle_begins(made)) {
        free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    made->tag = FG_GRAPH;
    made->last = &made->first;
    *graph = made;
    return CUDA_SUCCESS;
}

CUresult cuGraphCreate(CUgraph *graph, unsigned int flags)
{
    if (!fg_driver.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    return graph == NULL || flags != 0 ? CUDA_ERROR_INVALID_VALUE : fg_new_graph(graph);
}

static void free_node(CUgraphNode node)
{
    if (node->type == CU_GRAPH_NODE_TYPE_GRAPH) fg_free_graph(node->is.graph);
    if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) fg_address_drop(node->is.alloc.dptr);
    fg_handle_ends(node);
    free(node);
}

void fg_free_graph(CUgraph graph)
{
    fg_handle_ends(graph);
    for (CUgraphNode node = graph->first, next; node != NULL; node = next) {
        next = node->next;
        free_node(node);
    }
    free(graph);
}

CUresult cuGraphDestroy(CUgraph graph)
{
    if (!fg_graph_ok(graph) || graph->embedded) return CUDA_ERROR_INVALID_VALUE;
    fg_free_graph(graph);
    return CUDA_SUCCESS;
}

bool fg_has_memory_nodes(CUgraph graph)
{
    for (CUgraphNode node = graph->first; node != NULL; node = node->next) {
        if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || node->type == CU_GRAPH_NODE_TYPE_MEM_FREE) return true;
        if (node->type == CU_GRAPH_NODE_TYPE_GRAPH && fg_has_memory_nodes(node->is.graph)) return true;
    }
    return false;
}

CUresult fg_check_after(CUgraph graph, const struct fg_after *after)
{
    static const CUgraphEdgeData plain;
    if (after->count > 0 && after->nodes == NULL) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < after->count; i++) {
        if (!node_ok(after->nodes[i]) || after->nodes[i]->graph != graph) return CUDA_ERROR_INVALID_VALUE;
        if (after->edges != NULL && memcmp(&after->edges[i], &plain, sizeof plain) != 0) return CUDA_ERROR_NOT_SUPPORTED;
    }
    return CUDA_SUCCESS;
}

CUfunction fg_function_of(const CUDA_KERNEL_NODE_PARAMS *kernel)
{
    return kernel->func != NULL ? kernel->func : (CUfunction)kernel->kern; /* a library's kernel is its module's function here */
}

static CUresult check_kernel(const CUDA_KERNEL_NODE_PARAMS *kernel)
{
    CUfunction function = fg_function_of(kernel);
    if (function == NULL || function->tag != FG_FUNCTION) return CUDA_ERROR_INVALID_VALUE;
    const bool fits =
        fg_launch_ok(kernel->gridDimX, kernel->gridDimY, kernel->gridDimZ, kernel->blockDimX, kernel->blockDimY, kernel->blockDimZ);
    const bool given = kernel->kernelParams != NULL || kernel->extra != NULL;
    return fits && (given || function->parameter_count == 0) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static CUresult check_alloc(const CUDA_MEM_ALLOC_NODE_PARAMS *wanted)
{
    int device;
    const CUmemPoolProps *pool = &wanted->poolProps;
    if (wanted->bytesize == 0 || pool->allocType != CU_MEM_ALLOCATION_TYPE_PINNED) return CUDA_ERROR_INVALID_VALUE;
    if (wanted->accessDescCount > 0 && wanted->accessDescs == NULL) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = fg_device_at(pool->allocType, &pool->location, &device);
    return result == CUDA_SUCCESS && device < 0 ? CUDA_ERROR_INVALID_VALUE : result; /* memory of the host is no graph's */
}

/* A graph may free an allocation once. */
static bool is_freed_in(CUgraph graph, CUdeviceptr pointer)
{
    for (CUgraphNode node = graph->first; node != NULL; node = node->next)
        if (node->type == CU_GRAPH_NODE_TYPE_MEM_FREE && node->is.free_pointer == pointer) return true;
    return false;
}

static CUresult check_params(CUgraph graph, int type, const union fg_general_params *params)
{
    switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return check_kernel(&params->kernel);
    case CU_GRAPH_NODE_TYPE_GRAPH: return fg_graph_ok(params->graph) && params->graph != graph ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_GRAPH_NODE_TYPE_EMPTY: return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: return check_alloc(&params->alloc);
    case CU_GRAPH_NODE_TYPE_MEM_FREE:
        return fg_address_known(params->free_pointer) && !is_freed_in(graph, params->free_pointer) ? CUDA_SUCCESS
                                                                                                   : CUDA_ERROR_INVALID_VALUE;
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

/* With a copy of the parameters: of an allocation its address is held, of a graph the node has its own. A kernel's arguments are not
 * looked at when it runs. */
static CUresult append(CUgraph graph, int type, const union fg_general_params *params, CUgraphNode *made)
{
    CUgraphNode node = calloc(1, sizeof *node);
    if (node == NULL || !fg_handle_begins(node)) {
        free(node);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *node = (struct CUgraphNode_st){.tag = FG_NODE, .type = type, .graph = graph, .is = *params};
    if (type == CU_GRAPH_NODE_TYPE_GRAPH) {
        const CUresult result = fg_copy_graph(params->graph, &node->is.graph);
        if (result != CUDA_SUCCESS) {
            fg_handle_ends(node);
            free(node);
            return result;
        }
        node->is.graph->embedded = true;
    }
    if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) fg_address_hold(params->alloc.dptr);
    *graph->last = node;
    graph->last = &node->next;
    if (made != NULL) *made = node;
    return CUDA_SUCCESS;
}

CUresult fg_add_node(CUgraph graph, const struct fg_after *after, int type, union fg_general_params *params, CUgraphNode *made)
{
    if (!fg_graph_ok(graph) || made == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = fg_check_after(graph, after);
    if (result == CUDA_SUCCESS) result = check_params(graph, type, params);
    if (result != CUDA_SUCCESS) return result;
    if (type != CU_GRAPH_NODE_TYPE_MEM_ALLOC) return append(graph, type, params, made);
    params->alloc.dptr = fg_address_take(params->alloc.bytesize); /* an address now; memory when the graph runs */
    if (params->alloc.dptr == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    result = append(graph, type, params, made);
    fg_address_drop(params->alloc.dptr); /* the node holds it */
    return result;
}

CUresult fg_copy_graph(CUgraph graph, CUgraph *copy)
{
    CUresult result = fg_new_graph(copy);
    if (result != CUDA_SUCCESS) return result;
    for (CUgraphNode node = graph->first; node != NULL && result == CUDA_SUCCESS; node = node->next)
        result = append(*copy, node->type, &node->is, NULL);
    if (result != CUDA_SUCCESS) fg_free_graph(*copy);
    return result;
}

static CUresult add(CUgraphNode *node, CUgraph graph, const CUgraphNode *nodes, size_t count, int type, union fg_general_params *params)
{
    const struct fg_after after = {nodes, NULL, count};
    return fg_add_node(graph, &after, type, params, node);
}

CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                 const CUDA_KERNEL_NODE_PARAMS *wanted)
{
    if (wanted == NULL) return CUDA_ERROR_INVALID_VALUE;
    union fg_general_params params = {.kernel = *wanted};
    return add(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_KERNEL, &params);
}

CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count)
{
    union fg_general_params none = {0};
    return add(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_EMPTY, &none);
}

CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count, CUgraph child)
{
    union fg_general_params params = {.graph = child};
    return add(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_GRAPH, &params);
}

CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                                CUDA_MEM_ALLOC_NODE_PARAMS *wanted)
{
    if (wanted == NULL) return CUDA_ERROR_INVALID_VALUE;
    union fg_general_params params = {.alloc = *wanted};
    const CUresult result = add(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_MEM_ALLOC, &params);
    if (result == CUDA_SUCCESS) wanted->dptr = params.alloc.dptr;
    return result;
}

CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count, CUdeviceptr pointer)
{
    union fg_general_params params = {.free_pointer = pointer};
    return add(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_MEM_FREE, &params);
}

/* A node in its general form: what is not used must be 0. */
CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, const void *edges, size_t count,
                           CUgraphNodeParams *wanted)
{
    union fg_general_params params;
    const struct fg_after after = {dependencies, edges, count};
    if (wanted == NULL || wanted->reserved0[0] != 0 || wanted->reserved0[1] != 0 || wanted->reserved0[2] != 0 || wanted->reserved2 != 0)
        return CUDA_ERROR_INVALID_VALUE;
    memcpy(&params, &wanted->reserved1, sizeof params);
    const CUresult result = fg_add_node(graph, &after, wanted->type, &params, node);
    if (result == CUDA_SUCCESS && wanted->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) wanted->alloc.dptr = params.alloc.dptr;
    return result;
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    if (!fg_graph_ok(graph) || count == NULL) return CUDA_ERROR_INVALID_VALUE;
    size_t found = 0;
    for (CUgraphNode node = graph->first; node != NULL; node = node->next, found++)
        if (nodes != NULL && found < *count) nodes[found] = node;
    for (size_t i = found; nodes != NULL && i < *count; i++) nodes[i] = NULL;
    if (nodes == NULL || found < *count) *count = found;
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetType(CUgraphNode node, int *type)
{
    if (!node_ok(node) || type == NULL) return CUDA_ERROR_INVALID_VALUE;
    *type = node->type;
    return CUDA_SUCCESS;
}

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
    if (!node_ok(node) || node->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC || params == NULL) return CUDA_ERROR_INVALID_VALUE;
    *params = node->is.alloc;
    return CUDA_SUCCESS;
}

CUresult cuGraphChildGraphNodeGetGraph(CUgraphNode node, CUgraph *graph)
{
    if (!node_ok(node) || node->type != CU_GRAPH_NODE_TYPE_GRAPH || graph == NULL) return CUDA_ERROR_INVALID_VALUE;
    *graph = node->is.graph;
    return CUDA_SUCCESS;
}
