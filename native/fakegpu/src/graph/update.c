/* Changing graphs that have been instantiated, in the stand-in driver. What may change is what the documentation of cuGraphExecUpdate and
 * of the functions for single nodes allows. */
#include <string.h>

#include "memory/block.h"
#include "driver/log.h"
#include "graph/graph.h"

/* The executable graph's copy of the original's node; NULL: it has none of that type. */
static CUgraphNode copy_in(CUgraphExec exec, CUgraphNode node, int type)
{
    return fg_exec_ok(exec) && fg_node_ok(node, type) ? fg_copy_of(exec->graph, node) : NULL;
}

static bool same_card(CUdeviceptr a, CUdeviceptr b)
{
    struct fg_block x, y;
    return !fg_find_block(a, &x) || !fg_find_block(b, &y) || x.device == y.device;
}

static bool copy_may_become(const CUDA_MEMCPY3D *is, const CUDA_MEMCPY3D *wanted)
{
    return is->srcMemoryType == wanted->srcMemoryType && is->dstMemoryType == wanted->dstMemoryType &&
           same_card(is->srcDevice, wanted->srcDevice) && same_card(is->dstDevice, wanted->dstDevice);
}

static bool fill_may_become(const CUDA_MEMSET_NODE_PARAMS *is, const CUDA_MEMSET_NODE_PARAMS *wanted)
{
    const bool lines = is->height <= 1 && wanted->height <= 1;
    const bool same =
        is->width == wanted->width && is->height == wanted->height && is->elementSize == wanted->elementSize && is->pitch == wanted->pitch;
    return (lines || same) && same_card(is->dst, wanted->dst);
}

/* CU_GRAPH_EXEC_UPDATE_...: whether a node's parameters may be replaced by those. */
static int may_become(CUgraphNode node, const union fg_general_params *wanted)
{
    const union fg_general_params *is = &node->is;
    bool ok = true;
    switch (node->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: {
        CUfunction function = wanted->kernel.func != NULL ? wanted->kernel.func : (CUfunction)wanted->kernel.kern;
        return function->module->device == is->kernel.func->module->device ? CU_GRAPH_EXEC_UPDATE_SUCCESS
                                                                           : CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE;
    }
    case CU_GRAPH_NODE_TYPE_MEMCPY: ok = copy_may_become(&is->memcpy.copy, &wanted->memcpy.copy); break;
    case CU_GRAPH_NODE_TYPE_MEMSET: ok = fill_may_become(&is->memset.fill, &wanted->memset.fill); break;
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL:
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT: ok = is->semaphores.numExtSems == wanted->semaphores.numExtSems; break;
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
    case CU_GRAPH_NODE_TYPE_MEM_FREE: return CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED;
    default: break;
    }
    return ok ? CU_GRAPH_EXEC_UPDATE_SUCCESS : CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED;
}

static CUresult set(CUgraphExec exec, CUgraphNode original, int type, const union fg_general_params *wanted)
{
    CUgraphNode node = copy_in(exec, original, type);
    if (node == NULL) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = fg_check_params(type, wanted);
    if (result != CUDA_SUCCESS) return result;
    return may_become(node, wanted) == CU_GRAPH_EXEC_UPDATE_SUCCESS ? fg_keep_params(node, wanted) : CUDA_ERROR_INVALID_VALUE;
}

#define SET(symbol, TYPE, type, field)                                      \
    CUresult symbol(CUgraphExec exec, CUgraphNode node, const type *wanted) \
    {                                                                       \
        if (wanted == NULL) return CUDA_ERROR_INVALID_VALUE;                \
        const union fg_general_params params = {.field = *wanted};          \
        return set(exec, node, TYPE, &params);                              \
    }
SET(cuGraphExecKernelNodeSetParams_v2, CU_GRAPH_NODE_TYPE_KERNEL, CUDA_KERNEL_NODE_PARAMS, kernel)
SET(cuGraphExecHostNodeSetParams, CU_GRAPH_NODE_TYPE_HOST, CUDA_HOST_NODE_PARAMS, host)
SET(cuGraphExecExternalSemaphoresSignalNodeSetParams, CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL, CUDA_EXT_SEM_NODE_PARAMS, semaphores)
SET(cuGraphExecExternalSemaphoresWaitNodeSetParams, CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT, CUDA_EXT_SEM_NODE_PARAMS, semaphores)
SET(cuGraphExecBatchMemOpNodeSetParams, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, CUDA_BATCH_MEM_OP_NODE_PARAMS, batch)

CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_KERNEL_NODE_PARAMS *kernel)
{
    union fg_general_params params = {0};
    if (kernel == NULL) return CUDA_ERROR_INVALID_VALUE;
    memcpy(&params.kernel, kernel, offsetof(CUDA_KERNEL_NODE_PARAMS, kern)); /* the first version ends there */
    return set(exec, node, CU_GRAPH_NODE_TYPE_KERNEL, &params);
}

/* Of single nodes only copies and fills of one line may change. */
CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMCPY3D *copy, CUcontext context)
{
    CUgraphNode mine = copy_in(exec, node, CU_GRAPH_NODE_TYPE_MEMCPY);
    if (mine == NULL || copy == NULL) return CUDA_ERROR_INVALID_VALUE;
    const CUDA_MEMCPY3D *is = &mine->is.memcpy.copy;
    if (is->Height > 1 || is->Depth > 1 || copy->Height != 1 || copy->Depth != 1 || copy->WidthInBytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    const union fg_general_params params = {.memcpy = {.context = context, .copy = *copy}};
    return set(exec, node, CU_GRAPH_NODE_TYPE_MEMCPY, &params);
}

CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node, const CUDA_MEMSET_NODE_PARAMS *fill, CUcontext context)
{
    if (fill == NULL || fill->width == 0 || fill->height == 0) return CUDA_ERROR_INVALID_VALUE;
    const union fg_general_params params = {.memset = {*fill, context}};
    return set(exec, node, CU_GRAPH_NODE_TYPE_MEMSET, &params);
}

CUresult cuGraphExecEventRecordNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event)
{
    const union fg_general_params params = {.event = event};
    return set(exec, node, CU_GRAPH_NODE_TYPE_EVENT_RECORD, &params);
}

CUresult cuGraphExecEventWaitNodeSetEvent(CUgraphExec exec, CUgraphNode node, CUevent event)
{
    const union fg_general_params params = {.event = event};
    return set(exec, node, CU_GRAPH_NODE_TYPE_WAIT_EVENT, &params);
}

static bool depends_alike(CUgraphNode node, CUgraphNode other, CUgraphNode *odd)
{
    for (size_t i = 0; i < other->dependency_count; i++) {
        bool found = false;
        for (size_t j = 0; j < node->dependency_count && !found; j++)
            found = node->dependencies[j].on->index == other->dependencies[i].on->index;
        if (!found) return *odd = other->dependencies[i].on, false;
    }
    return true;
}

static void number(CUgraph graph)
{
    size_t index = 0;
    for (CUgraphNode node = graph->first; node != NULL; node = node->next) node->index = index++;
}

static int refuse(CUgraphExecUpdateResultInfo *info, int why, CUgraphNode node, CUgraphNode from)
{
    *info = (CUgraphExecUpdateResultInfo){why, node, from};
    return why;
}

/* Whether the first graph may take over the second's parameters; nodes are paired in the order in which they were added. */
static int compare(CUgraph graph, CUgraph other, CUgraphExecUpdateResultInfo *info)
{
    enum { COOPERATIVE = 2 };
    CUgraphNode odd = NULL;
    if (graph->count != other->count) return refuse(info, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, NULL, NULL);
    number(graph);
    number(other);
    for (CUgraphNode node = graph->first, new = other->first; node != NULL; node = node->next, new = new->next) {
        if (node->type != new->type) return refuse(info, CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED, new, NULL);
        if (node->dependency_count != new->dependency_count) return refuse(info, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, new, NULL);
        if (!depends_alike(node, new, &odd)) return refuse(info, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, new, odd);
        const int parameters = may_become(node, &new->is);
        if (parameters != CU_GRAPH_EXEC_UPDATE_SUCCESS) return refuse(info, parameters, new, NULL);
        const bool was = node->attributes != NULL && node->attributes->values[COOPERATIVE].bytes[0] != 0;
        const bool is = new->attributes != NULL && new->attributes->values[COOPERATIVE].bytes[0] != 0;
        if (was != is) return refuse(info, CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED, new, NULL);
        if (node->type != CU_GRAPH_NODE_TYPE_GRAPH) continue;
        const int inside = compare(node->is.graph, new->is.graph, info);
        if (inside != CU_GRAPH_EXEC_UPDATE_SUCCESS) return inside;
    }
    return CU_GRAPH_EXEC_UPDATE_SUCCESS;
}

static CUresult take_over(CUgraph graph, CUgraph other)
{
    CUresult result = CUDA_SUCCESS;
    for (CUgraphNode node = graph->first, new = other->first; node != NULL && result == CUDA_SUCCESS; node = node->next, new = new->next) {
        result = node->type == CU_GRAPH_NODE_TYPE_GRAPH ? take_over(node->is.graph, new->is.graph) : fg_keep_params(node, &new->is);
        if (result == CUDA_SUCCESS && new->attributes != NULL) result = fg_copy_attributes(node, new->attributes);
    }
    return result;
}

CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info)
{
    if (info == NULL) return CUDA_ERROR_INVALID_VALUE;
    *info = (CUgraphExecUpdateResultInfo){.result = CU_GRAPH_EXEC_UPDATE_ERROR};
    if (!fg_exec_ok(exec) || !fg_graph_ok(graph)) return CUDA_ERROR_INVALID_VALUE;
    if (compare(exec->graph, graph, info) != CU_GRAPH_EXEC_UPDATE_SUCCESS) {
        fg_log(FG_LOG_ERROR, "A graph cannot take over another's parameters: reason %d (CUgraphExecUpdateResult)", info->result);
        return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    }
    const CUresult result = take_over(exec->graph, graph);
    if (result == CUDA_SUCCESS) info->result = CU_GRAPH_EXEC_UPDATE_SUCCESS;
    return result;
}

CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *error_node, int *why)
{
    CUgraphExecUpdateResultInfo info;
    const CUresult result = cuGraphExecUpdate_v2(exec, graph, &info);
    if (error_node != NULL) *error_node = info.errorNode;
    if (why != NULL) *why = info.result;
    return result;
}

CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraph child)
{
    CUgraphExecUpdateResultInfo info;
    CUgraphNode mine = copy_in(exec, node, CU_GRAPH_NODE_TYPE_GRAPH);
    if (mine == NULL || !fg_graph_ok(child)) return CUDA_ERROR_INVALID_VALUE;
    if (compare(mine->is.graph, child, &info) != CU_GRAPH_EXEC_UPDATE_SUCCESS) return CUDA_ERROR_INVALID_VALUE;
    return take_over(mine->is.graph, child);
}

CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *wanted)
{
    union fg_general_params params;
    if (wanted == NULL || !fg_node_ok(node, wanted->type)) return CUDA_ERROR_INVALID_VALUE;
    memcpy(&params, &wanted->reserved1, sizeof params);
    switch (node->type) {
    case CU_GRAPH_NODE_TYPE_GRAPH: return cuGraphExecChildGraphNodeSetParams(exec, node, params.graph);
    case CU_GRAPH_NODE_TYPE_MEMCPY: return cuGraphExecMemcpyNodeSetParams(exec, node, &params.memcpy.copy, params.memcpy.context);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
    case CU_GRAPH_NODE_TYPE_MEM_FREE: return CUDA_ERROR_NOT_SUPPORTED;
    default: return set(exec, node, node->type, &params);
    }
}

static CUgraphNode switchable(CUgraphExec exec, CUgraphNode node)
{
    CUgraphNode mine = copy_in(exec, node, -1);
    const bool may = mine != NULL && (mine->type == CU_GRAPH_NODE_TYPE_KERNEL || mine->type == CU_GRAPH_NODE_TYPE_MEMSET ||
                                      mine->type == CU_GRAPH_NODE_TYPE_MEMCPY);
    return may ? mine : NULL;
}

CUresult cuGraphNodeSetEnabled(CUgraphExec exec, CUgraphNode node, unsigned int enabled)
{
    CUgraphNode mine = switchable(exec, node);
    if (mine == NULL || enabled > 1) return CUDA_ERROR_INVALID_VALUE;
    mine->disabled = enabled == 0;
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetEnabled(CUgraphExec exec, CUgraphNode node, unsigned int *enabled)
{
    CUgraphNode mine = switchable(exec, node);
    if (mine == NULL || enabled == NULL) return CUDA_ERROR_INVALID_VALUE;
    *enabled = !mine->disabled;
    return CUDA_SUCCESS;
}
