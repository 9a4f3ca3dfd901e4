/* Running graphs in the stand-in driver: a graph's nodes go one by one into the stream that it is launched in. */
#include <stdlib.h>

#include "memory/block.h"
#include "driver/handle.h"
#include "graph/graph.h"

static bool exec_ok(CUgraphExec exec) { return fg_handle_lives(exec) && exec->tag == FG_EXEC; }

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
        if (claimed) continue;
        disclaim(graph, node);
        return false;
    }
    return true;
}

static CUresult instantiate(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    enum { EVERY_FLAG = 15 };
    CUcontext context;
    CUgraph copy;
    CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (exec == NULL || !fg_graph_ok(graph) || flags > EVERY_FLAG) return CUDA_ERROR_INVALID_VALUE;
    result = fg_copy_graph(graph, &copy);
    if (result != CUDA_SUCCESS) return result;
    if (!claim(copy)) { /* another instantiation has its memory */
        fg_free_graph(copy);
        return CUDA_ERROR_NOT_SUPPORTED;
    }
    struct CUgraphExec_st *made = calloc(1, sizeof *made);
    if (made == NULL || !fg_handle_begins(made)) {
        free(made);
        disclaim(copy, NULL);
        fg_free_graph(copy);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *made = (struct CUgraphExec_st){.tag = FG_EXEC, .graph = copy, .flags = flags};
    *exec = made;
    return CUDA_SUCCESS;
}

CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t log_bytes)
{
    if (error_node != NULL) *error_node = NULL;
    if (log != NULL && log_bytes > 0) *log = '\0';
    return instantiate(exec, graph, 0);
}

CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t log_bytes)
{
    return cuGraphInstantiate(exec, graph, error_node, log, log_bytes);
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    if ((flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0) return CUDA_ERROR_INVALID_VALUE; /* it has no stream for that */
    return instantiate(exec, graph, flags);
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    if (params == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = instantiate(exec, graph, params->flags);
    if (result == CUDA_SUCCESS && (params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) != 0) {
        result = cuGraphUpload(*exec, params->hUploadStream);
        if (result != CUDA_SUCCESS) cuGraphExecDestroy(*exec);
    }
    params->hErrNode_out = NULL;
    params->result_out = result == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
    return result;
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    return cuGraphInstantiateWithParams(exec, graph, params);
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    if (!exec_ok(exec)) return CUDA_ERROR_INVALID_VALUE;
    fg_handle_ends(exec);
    disclaim(exec->graph, NULL);
    fg_free_graph(exec->graph);
    free(exec);
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
    const CUDA_KERNEL_NODE_PARAMS *k = &node->is.kernel;
    switch (node->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        return cuLaunchKernel(fg_function_of(k), k->gridDimX, k->gridDimY, k->gridDimZ, k->blockDimX, k->blockDimY, k->blockDimZ,
                              k->sharedMemBytes, stream, k->kernelParams, k->extra);
    case CU_GRAPH_NODE_TYPE_GRAPH: return run(node->is.graph, stream, free_first);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: return run_alloc(&node->is.alloc, free_first);
    case CU_GRAPH_NODE_TYPE_MEM_FREE: run_free(node->is.free_pointer); return CUDA_SUCCESS;
    default: return CUDA_SUCCESS; /* an empty node */
    }
}

static CUresult run(CUgraph graph, CUstream stream, bool free_first)
{
    CUresult result = CUDA_SUCCESS;
    for (CUgraphNode node = graph->first; node != NULL && result == CUDA_SUCCESS; node = node->next)
        result = run_node(node, stream, free_first);
    return result;
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    CUcontext context;
    CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (!exec_ok(exec)) return CUDA_ERROR_INVALID_VALUE;
    if (!fg_stream_ok(stream)) return CUDA_ERROR_INVALID_HANDLE;
    if (fg_capture_graph(stream, exec->graph, &result)) return result;
    fg_gate(FG_CALL_GRAPH_LAUNCH, fg_card_of(context));
    const int fault = fg_fault(FG_CALL_GRAPH_LAUNCH);
    if (fault != 0) return (CUresult)fault;
    return run(exec->graph, stream, (exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0);
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
    if (!exec_ok(exec)) return CUDA_ERROR_INVALID_VALUE;
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
