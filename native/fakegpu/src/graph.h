/* Graphs of the stand-in driver: nodes in the order in which they were added, which is the order in which they run. */
#ifndef FAKEGPU_GRAPH_H
#define FAKEGPU_GRAPH_H

#include "driver.h"

struct CUgraphNode_st {
    enum fg_tag tag;
    int type; /* CU_GRAPH_NODE_TYPE_... */
    CUDA_KERNEL_NODE_PARAMS kernel;
    CUDA_MEM_ALLOC_NODE_PARAMS alloc; /* dptr: the address, given when the node is added */
    CUdeviceptr free_pointer;
    CUDA_MEMCPY3D copy;
    CUDA_MEMSET_NODE_PARAMS fill;
    CUDA_HOST_NODE_PARAMS host;
    CUgraph child;
    CUgraphNode next;
};

struct CUgraph_st {
    enum fg_tag tag;
    CUgraphNode first, *last;
    size_t count;
};

CUgraphNode fg_add_node(CUgraph graph, int type);
bool fg_graph_ok(CUgraph graph);

#endif
