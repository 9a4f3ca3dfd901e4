/* Nodes by type in the stand-in driver: adding them, and reading and writing their parameters. */
#include <string.h>

#include "graph/graph.h"

static CUresult add(CUgraphNode *node, CUgraph graph, const CUgraphNode *nodes, size_t count, int type, union fg_general_params *params)
{
    const struct fg_after after = {nodes, NULL, count};
    return fg_add_node(graph, &after, type, params, node);
}

static CUresult set(CUgraphNode node, int type, const union fg_general_params *params)
{
    if (!fg_node_ok(node, type)) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = fg_check_params(type, params);
    return result == CUDA_SUCCESS ? fg_keep_params(node, params) : result;
}

/* The parameters of kernels before CUDA 12 end before `kern`. */
static union fg_general_params of_first_version(const CUDA_KERNEL_NODE_PARAMS *kernel)
{
    union fg_general_params params = {0};
    memcpy(&params.kernel, kernel, offsetof(CUDA_KERNEL_NODE_PARAMS, kern));
    return params;
}

#define ADD(symbol, TYPE, type, field)                                                                                   \
    CUresult symbol(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count, const type *wanted) \
    {                                                                                                                    \
        if (wanted == NULL) return CUDA_ERROR_INVALID_VALUE;                                                             \
        union fg_general_params params = {.field = *wanted};                                                             \
        return add(node, graph, dependencies, count, TYPE, &params);                                                     \
    }
#define GET(symbol, TYPE, type, field)                                                  \
    CUresult symbol(CUgraphNode node, type *params)                                     \
    {                                                                                   \
        if (!fg_node_ok(node, TYPE) || params == NULL) return CUDA_ERROR_INVALID_VALUE; \
        *params = node->is.field;                                                       \
        return CUDA_SUCCESS;                                                            \
    }
#define SET(symbol, TYPE, type, field)                                                  \
    CUresult symbol(CUgraphNode node, const type *wanted)                               \
    {                                                                                   \
        if (!fg_node_ok(node, TYPE) || wanted == NULL) return CUDA_ERROR_INVALID_VALUE; \
        union fg_general_params params = node->is;                                      \
        params.field = *wanted;                                                         \
        return set(node, TYPE, &params);                                                \
    }
ADD(cuGraphAddKernelNode_v2, CU_GRAPH_NODE_TYPE_KERNEL, CUDA_KERNEL_NODE_PARAMS, kernel)
GET(cuGraphKernelNodeGetParams_v2, CU_GRAPH_NODE_TYPE_KERNEL, CUDA_KERNEL_NODE_PARAMS, kernel)
SET(cuGraphKernelNodeSetParams_v2, CU_GRAPH_NODE_TYPE_KERNEL, CUDA_KERNEL_NODE_PARAMS, kernel)
GET(cuGraphMemcpyNodeGetParams, CU_GRAPH_NODE_TYPE_MEMCPY, CUDA_MEMCPY3D, memcpy.copy)
SET(cuGraphMemcpyNodeSetParams, CU_GRAPH_NODE_TYPE_MEMCPY, CUDA_MEMCPY3D, memcpy.copy)
GET(cuGraphMemsetNodeGetParams, CU_GRAPH_NODE_TYPE_MEMSET, CUDA_MEMSET_NODE_PARAMS, memset.fill)
SET(cuGraphMemsetNodeSetParams, CU_GRAPH_NODE_TYPE_MEMSET, CUDA_MEMSET_NODE_PARAMS, memset.fill)
ADD(cuGraphAddHostNode, CU_GRAPH_NODE_TYPE_HOST, CUDA_HOST_NODE_PARAMS, host)
GET(cuGraphHostNodeGetParams, CU_GRAPH_NODE_TYPE_HOST, CUDA_HOST_NODE_PARAMS, host)
SET(cuGraphHostNodeSetParams, CU_GRAPH_NODE_TYPE_HOST, CUDA_HOST_NODE_PARAMS, host)
ADD(cuGraphAddExternalSemaphoresSignalNode, CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL, CUDA_EXT_SEM_NODE_PARAMS, semaphores)
GET(cuGraphExternalSemaphoresSignalNodeGetParams, CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL, CUDA_EXT_SEM_NODE_PARAMS, semaphores)
SET(cuGraphExternalSemaphoresSignalNodeSetParams, CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL, CUDA_EXT_SEM_NODE_PARAMS, semaphores)
ADD(cuGraphAddExternalSemaphoresWaitNode, CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT, CUDA_EXT_SEM_NODE_PARAMS, semaphores)
GET(cuGraphExternalSemaphoresWaitNodeGetParams, CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT, CUDA_EXT_SEM_NODE_PARAMS, semaphores)
SET(cuGraphExternalSemaphoresWaitNodeSetParams, CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT, CUDA_EXT_SEM_NODE_PARAMS, semaphores)
ADD(cuGraphAddBatchMemOpNode, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, CUDA_BATCH_MEM_OP_NODE_PARAMS, batch)
GET(cuGraphBatchMemOpNodeGetParams, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, CUDA_BATCH_MEM_OP_NODE_PARAMS, batch)
SET(cuGraphBatchMemOpNodeSetParams, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, CUDA_BATCH_MEM_OP_NODE_PARAMS, batch)
GET(cuGraphEventRecordNodeGetEvent, CU_GRAPH_NODE_TYPE_EVENT_RECORD, CUevent, event)
GET(cuGraphEventWaitNodeGetEvent, CU_GRAPH_NODE_TYPE_WAIT_EVENT, CUevent, event)
GET(cuGraphMemAllocNodeGetParams, CU_GRAPH_NODE_TYPE_MEM_ALLOC, CUDA_MEM_ALLOC_NODE_PARAMS, alloc)
GET(cuGraphMemFreeNodeGetParams, CU_GRAPH_NODE_TYPE_MEM_FREE, CUdeviceptr, free_pointer)
GET(cuGraphChildGraphNodeGetGraph, CU_GRAPH_NODE_TYPE_GRAPH, CUgraph, graph)

CUresult cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                              const CUDA_KERNEL_NODE_PARAMS *kernel)
{
    if (kernel == NULL) return CUDA_ERROR_INVALID_VALUE;
    union fg_general_params params = of_first_version(kernel);
    return add(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_KERNEL, &params);
}

CUresult cuGraphKernelNodeGetParams(CUgraphNode node, CUDA_KERNEL_NODE_PARAMS *kernel)
{
    if (!fg_node_ok(node, CU_GRAPH_NODE_TYPE_KERNEL) || kernel == NULL) return CUDA_ERROR_INVALID_VALUE;
    memcpy(kernel, &node->is.kernel, offsetof(CUDA_KERNEL_NODE_PARAMS, kern));
    return CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeSetParams(CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *kernel)
{
    if (kernel == NULL) return CUDA_ERROR_INVALID_VALUE;
    const union fg_general_params params = of_first_version(kernel);
    return set(node, CU_GRAPH_NODE_TYPE_KERNEL, &params);
}

CUresult cuGraphAddMemcpyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count, const CUDA_MEMCPY3D *copy,
                              CUcontext context)
{
    if (copy == NULL) return CUDA_ERROR_INVALID_VALUE;
    union fg_general_params params = {.memcpy = {.context = context, .copy = *copy}};
    return add(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_MEMCPY, &params);
}

CUresult cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count,
                              const CUDA_MEMSET_NODE_PARAMS *fill, CUcontext context)
{
    if (fill == NULL) return CUDA_ERROR_INVALID_VALUE;
    union fg_general_params params = {.memset = {*fill, context}};
    return add(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_MEMSET, &params);
}

CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count)
{
    union fg_general_params none = {0};
    return add(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_EMPTY, &none);
}

CUresult cuGraphAddChildGraphNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count, CUgraph child)
{
    union fg_general_params params = {.graph = child};
    return child == graph ? CUDA_ERROR_INVALID_VALUE : add(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_GRAPH, &params);
}

CUresult cuGraphAddEventRecordNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count, CUevent event)
{
    union fg_general_params params = {.event = event};
    return add(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_EVENT_RECORD, &params);
}

CUresult cuGraphAddEventWaitNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count, CUevent event)
{
    union fg_general_params params = {.event = event};
    return add(node, graph, dependencies, count, CU_GRAPH_NODE_TYPE_WAIT_EVENT, &params);
}

CUresult cuGraphEventRecordNodeSetEvent(CUgraphNode node, CUevent event)
{
    const union fg_general_params params = {.event = event};
    return set(node, CU_GRAPH_NODE_TYPE_EVENT_RECORD, &params);
}

CUresult cuGraphEventWaitNodeSetEvent(CUgraphNode node, CUevent event)
{
    const union fg_general_params params = {.event = event};
    return set(node, CU_GRAPH_NODE_TYPE_WAIT_EVENT, &params);
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

/* Nodes in their general form: what is not used must be 0. */
static bool general(const CUgraphNodeParams *wanted, union fg_general_params *params)
{
    if (wanted == NULL || wanted->reserved0[0] != 0 || wanted->reserved0[1] != 0 || wanted->reserved0[2] != 0 || wanted->reserved2 != 0)
        return false;
    memcpy(params, &wanted->reserved1, sizeof *params);
    return true;
}

CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, const void *edges, size_t count,
                           CUgraphNodeParams *wanted)
{
    union fg_general_params params;
    const struct fg_after after = {dependencies, edges, count};
    if (!general(wanted, &params)) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = fg_add_node(graph, &after, wanted->type, &params, node);
    if (result == CUDA_SUCCESS && wanted->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) wanted->alloc.dptr = params.alloc.dptr;
    return result;
}

CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies, size_t count, CUgraphNodeParams *wanted)
{
    return cuGraphAddNode_v2(node, graph, dependencies, NULL, count, wanted);
}

CUresult cuGraphNodeSetParams(CUgraphNode node, CUgraphNodeParams *wanted)
{
    union fg_general_params params;
    if (!general(wanted, &params) || !fg_node_ok(node, wanted->type)) return CUDA_ERROR_INVALID_VALUE;
    if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || node->type == CU_GRAPH_NODE_TYPE_MEM_FREE) return CUDA_ERROR_NOT_SUPPORTED;
    return set(node, wanted->type, &params);
}
