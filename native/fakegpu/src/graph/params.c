/* Parameters of graph nodes: what each type may carry, and the copies that a node keeps of what they point to. */
#include <stdlib.h>
#include <string.h>

#include "memory/block.h"
#include "copy/copy.h"
#include "graph/graph.h"
#include "stream/semaphore.h"

static bool context_ok(CUcontext context) { return context == NULL || context->tag == FG_CONTEXT; }

static CUfunction function_of(const CUDA_KERNEL_NODE_PARAMS *kernel)
{
    return kernel->func != NULL ? kernel->func : (CUfunction)kernel->kern; /* a library's kernel is its module's function here */
}

static CUresult check_kernel(const CUDA_KERNEL_NODE_PARAMS *kernel)
{
    CUfunction function = function_of(kernel);
    if (function == NULL || function->tag != FG_FUNCTION) return CUDA_ERROR_INVALID_VALUE;
    if (!fg_launch_ok(kernel->gridDimX, kernel->gridDimY, kernel->gridDimZ, kernel->blockDimX, kernel->blockDimY, kernel->blockDimZ))
        return CUDA_ERROR_INVALID_VALUE;
    const bool none = kernel->kernelParams == NULL && kernel->extra == NULL;
    return (kernel->kernelParams != NULL && kernel->extra != NULL) || (none && function->parameter_count > 0) ? CUDA_ERROR_INVALID_VALUE
                                                                                                              : CUDA_SUCCESS;
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

static CUresult check_batch(const CUDA_BATCH_MEM_OP_NODE_PARAMS *batch)
{
    if (!context_ok(batch->ctx)) return CUDA_ERROR_INVALID_CONTEXT;
    return batch->paramArray != NULL ? fg_check_values(batch->count, batch->paramArray, batch->flags) : CUDA_ERROR_INVALID_VALUE;
}

CUresult fg_check_params(int type, const union fg_general_params *params)
{
    switch (type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: return check_kernel(&params->kernel);
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        return context_ok(params->memcpy.context) ? fg_check_planned_copy(&params->memcpy.copy) : CUDA_ERROR_INVALID_CONTEXT;
    case CU_GRAPH_NODE_TYPE_MEMSET:
        return context_ok(params->memset.context) ? fg_check_planned_fill(&params->memset.fill) : CUDA_ERROR_INVALID_CONTEXT;
    case CU_GRAPH_NODE_TYPE_HOST: return params->host.fn != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_GRAPH_NODE_TYPE_GRAPH: return fg_graph_ok(params->graph) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_GRAPH_NODE_TYPE_EMPTY: return CUDA_SUCCESS;
    case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
    case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
        return params->event != NULL && params->event->tag == FG_EVENT ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL:
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT: return fg_check_semaphores(&params->semaphores);
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: return check_alloc(&params->alloc);
    case CU_GRAPH_NODE_TYPE_MEM_FREE: return fg_address_known(params->free_pointer) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP: return check_batch(&params->batch);
    case CU_GRAPH_NODE_TYPE_CONDITIONAL: return CUDA_ERROR_NOT_SUPPORTED; /* kernels would set the condition */
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

static void *copied(const void *from, size_t bytes)
{
    void *copy = malloc(bytes > 0 ? bytes : 1);
    if (copy != NULL && bytes > 0) memcpy(copy, from, bytes);
    return copy;
}

/* Arguments by value, one after another as the kernel's parameters lie, behind pointers to each. */
static bool keep_arguments(CUDA_KERNEL_NODE_PARAMS *kernel, void *owned[2])
{
    CUfunction function = kernel->func;
    const int count = function->parameter_count;
    const size_t bytes = count > 0 ? function->parameters[count - 1].offset + function->parameters[count - 1].bytes : 0;
    void **pointers = calloc((size_t)count + 1, sizeof *pointers);
    char *values = calloc(1, bytes + 1);
    owned[0] = pointers, owned[1] = values;
    if (pointers == NULL || values == NULL) return false;
    for (int i = 0; i < count; i++) {
        pointers[i] = values + function->parameters[i].offset;
        if (kernel->kernelParams[i] != NULL) memcpy(pointers[i], kernel->kernelParams[i], function->parameters[i].bytes);
    }
    kernel->kernelParams = pointers;
    return true;
}

/* Arguments in one buffer: a list of pairs, {1, the buffer, 2, the place of its size, 0}. */
static bool keep_buffer(CUDA_KERNEL_NODE_PARAMS *kernel, void *owned[2])
{
    enum { END = 0, POINTER = 1, SIZE = 2, LONGEST = 8 };
    const void *buffer = NULL;
    const size_t *size = NULL;
    for (int i = 0; i < LONGEST && (uintptr_t)kernel->extra[i] != END; i += 2) {
        if ((uintptr_t)kernel->extra[i] == POINTER) buffer = kernel->extra[i + 1];
        if ((uintptr_t)kernel->extra[i] == SIZE) size = kernel->extra[i + 1];
    }
    struct kept {
        void *list[5];
        size_t size;
    } *kept = calloc(1, sizeof *kept);
    owned[0] = kept;
    owned[1] = copied(buffer, buffer != NULL && size != NULL ? *size : 0);
    if (kept == NULL || owned[1] == NULL) return false;
    kept->size = size != NULL ? *size : 0;
    kept->list[0] = (void *)POINTER, kept->list[1] = owned[1];
    kept->list[2] = (void *)SIZE, kept->list[3] = &kept->size;
    kernel->extra = kept->list;
    return true;
}

static bool keep_kernel(CUDA_KERNEL_NODE_PARAMS *kernel, void *owned[2])
{
    kernel->func = function_of(kernel);
    kernel->kern = NULL;
    if (kernel->kernelParams != NULL) return keep_arguments(kernel, owned);
    return kernel->extra == NULL || keep_buffer(kernel, owned);
}

CUresult fg_keep_params(CUgraphNode node, const union fg_general_params *params)
{
    union fg_general_params is = *params;
    void *owned[2] = {NULL, NULL};
    bool kept = true;
    switch (node->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL: kept = keep_kernel(&is.kernel, owned); break;
    case CU_GRAPH_NODE_TYPE_GRAPH:
        kept = fg_copy_graph(params->graph, &is.graph) == CUDA_SUCCESS;
        if (kept) is.graph->embedded = true;
        break;
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL:
    case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT:
        owned[0] = copied(is.semaphores.extSemArray, is.semaphores.numExtSems * sizeof *is.semaphores.extSemArray);
        owned[1] = copied(is.semaphores.paramsArray, is.semaphores.numExtSems * sizeof *is.semaphores.paramsArray);
        is.semaphores.extSemArray = owned[0];
        is.semaphores.paramsArray = owned[1];
        kept = owned[0] != NULL && owned[1] != NULL;
        break;
    case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
        is.batch.paramArray = owned[0] = copied(is.batch.paramArray, is.batch.count * sizeof *is.batch.paramArray);
        kept = owned[0] != NULL;
        break;
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
        is.alloc.accessDescs = owned[0] = copied(is.alloc.accessDescs, is.alloc.accessDescCount * sizeof *is.alloc.accessDescs);
        kept = owned[0] != NULL;
        break;
    default: break;
    }
    void *unused[2] = {kept ? node->owned[0] : owned[0], kept ? node->owned[1] : owned[1]};
    CUgraph replaced = kept && node->type == CU_GRAPH_NODE_TYPE_GRAPH ? node->is.graph : NULL;
    if (kept) {
        node->is = is;
        memcpy(node->owned, owned, sizeof owned);
    } else if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) {
        node->is.alloc.dptr = is.alloc.dptr; /* goes with the node */
    }
    if (replaced != NULL) fg_free_graph(replaced);
    free(unused[0]);
    free(unused[1]);
    return kept ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}
