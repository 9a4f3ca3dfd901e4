/* Running graphs in the stand-in driver, and the memory that graphs of a device share.
 *
 * A graph takes memory when it is launched (or uploaded) and keeps its share of the device's graph memory until cuDeviceGraphMemTrim;
 * what one graph has freed the next one uses.
 */
#include <stdlib.h>

#include "block.h"
#include "copy.h"
#include "graph.h"

struct CUgraphExec_st {
    enum fg_tag tag;
    CUgraph graph;
    unsigned long long flags;
};

static struct {
    uint64_t used, reserved, used_high, reserved_high;
} memory[FG_MAX_DEVICES]; /* under fg_driver.lock */

static bool graph_take(int device, uint64_t bytes)
{
    pthread_mutex_lock(&fg_driver.lock);
    const uint64_t used = memory[device].used + bytes;
    const uint64_t growth = used > memory[device].reserved ? used - memory[device].reserved : 0;
    const bool fits = fg_charge(device, growth);
    if (fits) {
        memory[device].used = used;
        memory[device].reserved += growth;
        if (used > memory[device].used_high) memory[device].used_high = used;
        if (memory[device].reserved > memory[device].reserved_high) memory[device].reserved_high = memory[device].reserved;
    }
    pthread_mutex_unlock(&fg_driver.lock);
    return fits;
}

void fg_graph_give(int device, uint64_t bytes)
{
    pthread_mutex_lock(&fg_driver.lock);
    memory[device].used -= bytes;
    pthread_mutex_unlock(&fg_driver.lock);
}

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    const CUresult result = fg_check_device(device);
    if (result != CUDA_SUCCESS) return result;
    pthread_mutex_lock(&fg_driver.lock);
    fg_discharge(device, memory[device].reserved - memory[device].used);
    memory[device].reserved = memory[device].used;
    pthread_mutex_unlock(&fg_driver.lock);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice device, int attribute, void *value)
{
    const CUresult result = fg_check_device(device);
    if (result != CUDA_SUCCESS) return result;
    if (value == NULL || attribute < 0 || attribute > 3) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fg_driver.lock);
    const uint64_t values[] = {memory[device].used, memory[device].used_high, memory[device].reserved, memory[device].reserved_high};
    pthread_mutex_unlock(&fg_driver.lock);
    *(uint64_t *)value = values[attribute];
    return CUDA_SUCCESS;
}

static CUresult instantiate(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    CUcontext context;
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (exec == NULL || !fg_graph_ok(graph) || flags > 15) return CUDA_ERROR_INVALID_VALUE;
    struct CUgraphExec_st *made = calloc(1, sizeof *made);
    if (made == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *made = (struct CUgraphExec_st){FG_EXEC, graph, flags};
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

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) { return instantiate(exec, graph, flags); }

CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    if (params == NULL) return CUDA_ERROR_INVALID_VALUE;
    params->hErrNode_out = NULL;
    const CUresult result = instantiate(exec, graph, params->flags);
    params->result_out = result == CUDA_SUCCESS ? 0 : 1;
    return result;
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    return cuGraphInstantiateWithParams(exec, graph, params);
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    if (exec == NULL || exec->tag != FG_EXEC) return CUDA_ERROR_INVALID_VALUE;
    exec->tag = 0;
    free(exec);
    return CUDA_SUCCESS;
}

static CUresult run_alloc(const CUDA_MEM_ALLOC_NODE_PARAMS *wanted, bool free_first)
{
    const int device = wanted->poolProps.location.id;
    struct fg_block *old = free_first ? fg_remove_block(wanted->dptr, 1U << FG_GRAPH_MEMORY) : NULL;
    if (old != NULL) {
        fg_graph_give(device, fg_rounded(old->bytes));
        free(old);
    }
    if (!graph_take(device, fg_rounded(wanted->bytesize))) return CUDA_ERROR_OUT_OF_MEMORY;
    const struct fg_block block = {.base = wanted->dptr, .bytes = wanted->bytesize, .device = device, .kind = FG_GRAPH_MEMORY, .touched = true};
    const CUresult result = fg_add_window(&block);
    if (result != CUDA_SUCCESS) fg_graph_give(device, fg_rounded(wanted->bytesize)); /* still there from the launch before */
    return result;
}

static void run_free(CUdeviceptr pointer)
{
    struct fg_block *block = fg_remove_block(pointer, 1U << FG_GRAPH_MEMORY);
    if (block == NULL) return;
    fg_graph_give(block->device, fg_rounded(block->bytes)); /* the address stays the graph's */
    free(block);
}

static CUresult run(CUgraph graph, CUstream stream, bool free_first)
{
    CUresult result = CUDA_SUCCESS;
    for (CUgraphNode node = graph->first; node != NULL && result == CUDA_SUCCESS; node = node->next) {
        const CUDA_KERNEL_NODE_PARAMS *k = &node->kernel;
        switch (node->type) {
        case CU_GRAPH_NODE_TYPE_KERNEL:
            result = cuLaunchKernel(k->func, k->gridDimX, k->gridDimY, k->gridDimZ, k->blockDimX, k->blockDimY, k->blockDimZ,
                                    k->sharedMemBytes, stream, k->kernelParams, k->extra);
            break;
        case CU_GRAPH_NODE_TYPE_MEM_ALLOC: result = run_alloc(&node->alloc, free_first); break;
        case CU_GRAPH_NODE_TYPE_MEM_FREE: run_free(node->free_pointer); break;
        case CU_GRAPH_NODE_TYPE_GRAPH: result = run(node->child, stream, free_first); break;
        case CU_GRAPH_NODE_TYPE_MEMCPY: result = fg_copy(&node->copy, stream, false); break;
        case CU_GRAPH_NODE_TYPE_MEMSET: result = fg_fill(&node->fill, stream); break;
        case CU_GRAPH_NODE_TYPE_HOST: result = cuLaunchHostFunc(stream, node->host.fn, node->host.userData); break;
        default: break;
        }
    }
    return result;
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    CUcontext context;
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (exec == NULL || exec->tag != FG_EXEC) return CUDA_ERROR_INVALID_VALUE;
    if (!fg_stream_ok(stream)) return CUDA_ERROR_INVALID_HANDLE;
    return run(exec->graph, stream, (exec->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH) != 0);
}

CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream) { return cuGraphLaunch(exec, stream); }

/* The sum of a graph's allocations, were it launched now. */
static void sizes(CUgraph graph, uint64_t bytes[FG_MAX_DEVICES])
{
    for (CUgraphNode node = graph->first; node != NULL; node = node->next) {
        if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) bytes[node->alloc.poolProps.location.id] += fg_rounded(node->alloc.bytesize);
        if (node->type == CU_GRAPH_NODE_TYPE_GRAPH) sizes(node->child, bytes);
    }
}

CUresult cuGraphUpload(CUgraphExec exec, CUstream stream)
{
    uint64_t bytes[FG_MAX_DEVICES] = {0};
    if (exec == NULL || exec->tag != FG_EXEC) return CUDA_ERROR_INVALID_VALUE;
    if (!fg_stream_ok(stream)) return CUDA_ERROR_INVALID_HANDLE;
    sizes(exec->graph, bytes);
    for (int i = 0; i < fg_driver.device_count; i++) {
        if (bytes[i] == 0) continue;
        if (!graph_take(i, bytes[i])) return CUDA_ERROR_OUT_OF_MEMORY;
        fg_graph_give(i, bytes[i]);
    }
    return CUDA_SUCCESS;
}

CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream) { return cuGraphUpload(exec, stream); }
