/* Graphs in the driver's ABI: parameters of nodes, edges, results (driver_abi.h has the semaphores and the operations in memory that some
 * nodes carry). */
#ifndef FAKEGPU_GRAPH_ABI_H
#define FAKEGPU_GRAPH_ABI_H

#include "driver/driver_abi.h"

typedef struct CUDA_EXT_SEM_NODE_PARAMS_st {
    CUexternalSemaphore *extSemArray;
    const CUDA_EXTERNAL_SEMAPHORE_PARAMS *paramsArray;
    unsigned int numExtSems;
} CUDA_EXT_SEM_NODE_PARAMS;
static_assert(sizeof(CUDA_EXT_SEM_NODE_PARAMS) == 24, "CUDA_EXT_SEM_SIGNAL_NODE_PARAMS, ..._WAIT_NODE_PARAMS");

typedef struct CUDA_MEMSET_NODE_PARAMS_st {
    CUdeviceptr dst;
    size_t pitch;
    unsigned int value, elementSize;
    size_t width, height;
} CUDA_MEMSET_NODE_PARAMS;
static_assert(sizeof(CUDA_MEMSET_NODE_PARAMS) == 40, "CUDA_MEMSET_NODE_PARAMS");
typedef struct CUDA_HOST_NODE_PARAMS_st {
    CUhostFn fn;
    void *userData;
} CUDA_HOST_NODE_PARAMS;
typedef struct CUDA_BATCH_MEM_OP_NODE_PARAMS_st {
    CUcontext ctx;
    unsigned int count;
    CUstreamBatchMemOpParams *paramArray;
    unsigned int flags;
} CUDA_BATCH_MEM_OP_NODE_PARAMS;
static_assert(sizeof(CUDA_BATCH_MEM_OP_NODE_PARAMS) == 32, "CUDA_BATCH_MEM_OP_NODE_PARAMS");

/* CUgraphNodeType, beyond those of cuda_abi.h */
enum {
    CU_GRAPH_NODE_TYPE_MEMCPY = 1,
    CU_GRAPH_NODE_TYPE_MEMSET = 2,
    CU_GRAPH_NODE_TYPE_HOST = 3,
    CU_GRAPH_NODE_TYPE_EMPTY = 5,
    CU_GRAPH_NODE_TYPE_WAIT_EVENT = 6,
    CU_GRAPH_NODE_TYPE_EVENT_RECORD = 7,
    CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL = 8,
    CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT = 9,
    CU_GRAPH_NODE_TYPE_BATCH_MEM_OP = 12,
    CU_GRAPH_NODE_TYPE_CONDITIONAL = 13
};

/* What a general node carries, by its type (CUgraphNodeParams of cuda_abi.h, from its offset 16 on). */
union fg_general_params {
    CUDA_KERNEL_NODE_PARAMS kernel;
    struct {
        int flags, reserved;
        CUcontext context;
        CUDA_MEMCPY3D copy;
    } memcpy;
    struct {
        CUDA_MEMSET_NODE_PARAMS fill;
        CUcontext context;
    } memset;
    CUDA_HOST_NODE_PARAMS host;
    CUgraph graph;
    CUevent event;
    CUDA_EXT_SEM_NODE_PARAMS semaphores;
    CUDA_MEM_ALLOC_NODE_PARAMS alloc;
    CUdeviceptr free_pointer;
    CUDA_BATCH_MEM_OP_NODE_PARAMS batch;
};
static_assert(sizeof(union fg_general_params) <= 232, "CUgraphNodeParams");

typedef struct CUgraphEdgeData_st {
    unsigned char from_port, to_port, type, reserved[5];
} CUgraphEdgeData;
typedef struct CUgraphExecUpdateResultInfo_st {
    int result;
    CUgraphNode errorNode, errorFromNode;
} CUgraphExecUpdateResultInfo;
static_assert(sizeof(CUgraphExecUpdateResultInfo) == 24, "CUgraphExecUpdateResultInfo");
/* CUgraphExecUpdateResult */
enum {
    CU_GRAPH_EXEC_UPDATE_SUCCESS = 0,
    CU_GRAPH_EXEC_UPDATE_ERROR = 1,
    CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED = 2,
    CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED = 3,
    CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED = 5,
    CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED = 6,
    CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE = 7,
    CU_GRAPH_EXEC_UPDATE_ERROR_ATTRIBUTES_CHANGED = 8
};
/* CUgraphInstantiateResult */
enum { CUDA_GRAPH_INSTANTIATE_SUCCESS = 0, CUDA_GRAPH_INSTANTIATE_ERROR = 1, CUDA_GRAPH_INSTANTIATE_INVALID_STRUCTURE = 2 };

#endif
