/* Running graphs in the stand-in driver: a graph's nodes go one by one into the stream that it is launched in, each after those that it
 * depends on. */
#include <stdlib.h>

#include "memory/block.h"
#include "copy/copy.h"
#include "stream/deferred.h"
#include "driver/handle.h"
#include "graph/graph.h"
#include "stream/semaphore.h"

bool fg_exec_ok(CUgraphExec exec) { return fg_handle_lives(exec) && exec->tag == FG_EXEC; }

/* Puts the nodes of the graph, and of those inside of it, in an order. */
static CUresult order(CUgraph graph, CUgraphNode *in_circle)
{
    CUresult result = fg_order_graph(graph, in_circle);
    for (CUgraphNode node = graph->first; node != NULL && result == CUDA_SUCCESS; node = node->next)
        if (node->type == CU_GRAPH_NODE_TYPE_GRAPH) result = order(node->is.graph, in_circle);
    return result;
}

static void disclaim(CUgraph graph, CUgraphNode until)
{
    for (CUgraphNode node = graph->first; node != until; node = node->next) {
        if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) fg_address_disclaim(node->is.alloc.dptr);
        if (node->type == CU_GRAPH_NODE_TYPE_GRAPH) disclaim(node->is.graph, NULL);
    }
}

static bool claim(CUgraph graph)
{
    for (CUgraphNode node = graph->first; node != NULL; node = node->next) {
        const bool claimed = node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC ? fg_address_claim(node->is.alloc.dptr)
                             : node->type == CU_GRAPH_NODE_TYPE_GRAPH   ? claim(node->is.graph)
                                                                        : true;
        if (!claimed) return disclaim(graph, node), false;
    }
    return true;
}

/* `error_node`: the original's node on a circle. */
static CUresult instantiate(CUgraphExec *exec, CUgraph graph, unsigned long long flags, CUgraphNode *error_node)
{
    enum { EVERY_FLAG = 15 };
    CUcontext context;
    CUgraph copy;
    CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (exec == NULL || !fg_graph_ok(graph) || flags > EVERY_FLAG) return CUDA_ERROR_INVALID_VALUE;
    result = order(graph, error_node);
    if (result == CUDA_SUCCESS) result = fg_copy_graph(graph, &copy);
    if (result != CUDA_SUCCESS) return result;
    result = order(copy, NULL);
    if (result == CUDA_SUCCESS && !claim(copy)) result = CUDA_ERROR_NOT_SUPPORTED; /* another instantiation has its memory */
    struct CUgraphExec_st *made = result == CUDA_SUCCESS ? calloc(1, sizeof *made) : NULL;
    if (made == NULL || !fg_handle_begins(made)) {
        free(made);
        if (result == CUDA_SUCCESS) disclaim(copy, NULL), result = CUDA_ERROR_OUT_OF_MEMORY;
        return fg_free_graph(copy), result;
    }
    *made = (struct CUgraphExec_st){.tag = FG_EXEC, .graph = copy, .flags = flags};
    *exec = made;
    return CUDA_SUCCESS;
}

CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t log_bytes)
{
    if (error_node != NULL) *error_node = NULL;
    if (log != NULL && log_bytes > 0) *log = '\0';
    return instantiate(exec, graph, 0, error_node);
}

CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t log_bytes)
{
    return cuGraphInstantiate(exec, graph, error_node, log, log_bytes);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    if ((flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0) return CUDA_ERROR_INVALID_VALUE; /* it has no stream for that */
    return instantiate(exec, graph, flags, NULL);
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    if (params == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUgraphNode in_circle = NULL;
    CUresult result = instantiate(exec, graph, params->flags, &in_circle);
    params->hErrNode_out = in_circle;
    if (result == CUDA_SUCCESS && (params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0) {
        result = cuGraphUpload(*exec, params->hUploadStream);
        if (result != CUDA_SUCCESS) cuGraphExecDestroy(*exec);
    }
    params->result_out = result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS
                         : in_circle != NULL    ? CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE
                                                : CUDA_GRAPH_INSTANTIATE_ERROR;
    return result;
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    return cuGraphInstantiateWithParams(exec, graph, params);
}

/* Where a launch ends that is still under way. */
struct under_way {
    struct fg_retained *retained;
    CUcontext context;
    int64_t mark;
    uint64_t ticket;
};

static bool has_ended(void *data)
{
    const struct under_way *launch = data;
    return fg_is_done(launch->ticket) && (launch->mark == 0 || fg_left_ns(fg_driver.state, fg_card_of(launch->context), launch->mark) == 0);
}

static void release(void *data)
{
    struct under_way *launch = data;
    fg_release_retained(launch->retained);
    free(launch);
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    if (!fg_exec_ok(exec)) return CUDA_ERROR_INVALID_VALUE;
    fg_handle_ends(exec);
    /* User objects stay as long as a launch of it runs. */
    struct under_way launch = {fg_take_retained(exec->graph), exec->context, exec->mark, exec->ticket};
    struct under_way *kept = launch.retained != NULL && launch.context != NULL && !has_ended(&launch) ? malloc(sizeof *kept) : NULL;
    if (kept != NULL) *kept = launch;
    if (kept == NULL || fg_defer_apart(launch.context, has_ended, release, kept) == 0) {
        free(kept);
        fg_release_retained(launch.retained);
    }
    disclaim(exec->graph, NULL);
    fg_free_graph(exec->graph);
    free(exec);
    return CUDA_SUCCESS;
}

CUresult cuGraphExecGetFlags(CUgraphExec exec, cuuint64_t *flags)
{
    if (!fg_exec_ok(exec) || flags == NULL) return CUDA_ERROR_INVALID_VALUE;
    *flags = exec->flags;
    return CUDA_SUCCESS;
}

static void run_free(CUdeviceptr pointer)
{
    struct fg_block *block = fg_remove_block(pointer, 1U << FG_GRAPH_MEMORY);
    if (block != NULL) fg_drop_block(block);
}

static CUresult run_alloc(const CUDA_MEM_ALLOC_NODE_PARAMS *wanted, bool free_first)
{
    int device;
    struct fg_block before;
    const CUresult placed = fg_device_at(wanted->poolProps.allocType, &wanted->poolProps.location, &device);
    if (placed != CUDA_SUCCESS) return placed;
    if (free_first) run_free(wanted->dptr);
    if (fg_find_block(wanted->dptr, &before)) return CUDA_ERROR_INVALID_VALUE; /* still there from the launch before */
    if (!fg_graph_take(device, fg_rounded(wanted->bytesize))) return CUDA_ERROR_OUT_OF_MEMORY;
    const struct fg_block block = {
        .base = wanted->dptr, .bytes = wanted->bytesize, .device = device, .kind = FG_GRAPH_MEMORY, .touched = true};
    const CUresult result = fg_add_window(&block);
    if (result == CUDA_SUCCESS)
        fg_address_hold(wanted->dptr);
    else
        fg_graph_give(device, fg_rounded(wanted->bytesize));
    return result;
}

static CUresult run(CUgraph graph, CUstream stream, bool free_first);

static CUresult run_node(CUgraphNode node, CUstream stream, bool free_first)
{
    const union fg_general_params *is = &node->is;
    const CUDA_KERNEL_NODE_PARAMS *k = &is->kernel;
    switch (node->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return cuLaunchKernel(k->func, k->gridDimX, k->gridDimY, k->gridDimZ, k->blockDimX, k->blockDimY, k->blockDimZ, k->sharedMemBytes,
                              stream, k->kernelParams, k->extra);
    case CU_GRAPH_NODE_TYPE_MEMCPY: return fg_copy(&is->memcpy.copy, stream, false);
    case CU_GRAPH_NODE_TYPE_MEMSET: return fg_fill(&is->memset.fill, stream);
    case CU_GRAPH_NODE_TYPE_HOST: return cuLaunchHostFunc(stream, is->host.fn, is->host.userData);
    case CU_GRAPH_NODE_TYPE_GRAPH: return run(is->graph, stream, free_first);
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT: return cuStreamWaitEvent(stream, is->event, 0);
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD: return cuEventRecord(is->event, stream);
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL: return fg_run_semaphores(&is->semaphores, stream, false);
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT: return fg_run_semaphores(&is->semaphores, stream, true);
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: return cuStreamBatchMemOp_v2(stream, is->batch.count, is->batch.paramArray, is->batch.flags);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: return run_alloc(&is->alloc, free_first);
    case CU_GRAPH_NODE_TYPE_MEM_FREE: return run_free(is->free_pointer), CUDA_SUCCESS;
    default: return CUDA_SUCCESS; /* an empty node */
    }
}

static CUresult run(CUgraph graph, CUstream stream, bool free_first)
{
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < graph->count && result == CUDA_SUCCESS; i++)
        if (!graph->order[i]->disabled) result = run_node(graph->order[i], stream, free_first);
    return result;
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    CUcontext context;
    CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (!fg_exec_ok(exec)) return CUDA_ERROR_INVALID_VALUE;
    if (!fg_stream_ok(stream)) return CUDA_ERROR_INVALID_HANDLE;
    if (fg_capture_graph(stream, exec->graph, &result)) return result;
    fg_gate(FG_CALL_GRAPH_LAUNCH, fg_card_of(context));
    const int fault = fg_fault(FG_CALL_GRAPH_LAUNCH);
    if (fault != 0) return (CUresult)fault;
    result = run(exec->graph, stream, (exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0);
    exec->context = (uintptr_t)stream > 2 ? stream->context : context;
    exec->mark = fg_stream_mark(exec->context, stream);
    exec->ticket = fg_pending(exec->context, stream);
    return result;
}

CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) { return cuGraphLaunch(exec, stream); }

/* The sum of a graph's allocations, were it launched now. */
static void sizes(CUgraph graph, uint64_t bytes[FG_MAX_DEVICES])
{
    for (CUgraphNode node = graph->first; node != NULL; node = node->next) {
        int device;
        const CUDA_MEM_ALLOC_NODE_PARAMS *alloc = &node->is.alloc;
        if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC &&
            fg_device_at(alloc->poolProps.allocType, &alloc->poolProps.location, &device) == CUDA_SUCCESS)
            bytes[device] += fg_rounded(alloc->bytesize);
        if (node->type == CU_GRAPH_NODE_TYPE_GRAPH) sizes(node->is.graph, bytes);
    }
}

CUresult cuGraphUpload(CUgraphExec exec, CUstream stream)
{
    uint64_t bytes[FG_MAX_DEVICES] = {0};
    if (!fg_exec_ok(exec)) return CUDA_ERROR_INVALID_VALUE;
    if (!fg_stream_ok(stream)) return CUDA_ERROR_INVALID_HANDLE;
    sizes(exec->graph, bytes);
    for (int i = 0; i < fg_driver.device_count; i++) {
        if (bytes[i] == 0) continue;
        if (!fg_graph_take(i, bytes[i])) return CUDA_ERROR_OUT_OF_MEMORY;
        fg_graph_give(i, bytes[i]);
    }
    return CUDA_SUCCESS;
}

CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream) { return cuGraphUpload(exec, stream); }
