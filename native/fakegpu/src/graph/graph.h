/* Graphs of the stand-in driver: kernels, graphs inside of graphs, memory that is allocated and freed, and empty nodes. A node depends on
 * nodes that were there before it, so the order in which nodes were added is one in which they can run.
 *
 * What is instantiated, or put into another graph, is a copy: the original may change or go afterwards. As in CUDA, a graph is not to be
 * used by two threads at once.
 */
#ifndef FAKEGPU_GRAPH_H
#define FAKEGPU_GRAPH_H

#include "driver/driver.h"

struct CUgraphNode_st {
    enum fg_tag tag;
    int type; /* CU_GRAPH_NODE_TYPE_... */
    CUgraph graph;
    union fg_general_params is;
    CUgraphNode next;
};

struct CUgraph_st {
    enum fg_tag tag;
    CUgraphNode first, *last; /* in the order in which they were added */
    bool embedded; /* a node's child: it lives and ends with that node */
};

struct CUgraphExec_st {
    enum fg_tag tag;
    CUgraph graph; /* a copy of its own */
    unsigned long long flags;
};

/* The nodes that a new node depends on, as callers give them; `edges` may be NULL. */
struct fg_after {
    const CUgraphNode *nodes;
    const CUgraphEdgeData *edges;
    size_t count;
};

bool fg_graph_ok(CUgraph graph);

CUresult fg_new_graph(CUgraph *graph);
void fg_free_graph(CUgraph graph);
CUresult fg_copy_graph(CUgraph graph, CUgraph *copy);

/* Whether the graph allocates or frees: such a graph cannot be recorded as a part of another. */
bool fg_has_memory_nodes(CUgraph graph);

/* A node with a copy of those parameters, checked. For an allocation it writes the address into `params`. */
CUresult fg_add_node(CUgraph graph, const struct fg_after *after, int type, union fg_general_params *params, CUgraphNode *made);

CUfunction fg_function_of(const CUDA_KERNEL_NODE_PARAMS *kernel);

/* Whether these are nodes of the graph, and plain edges from them. */
CUresult fg_check_after(CUgraph graph, const struct fg_after *after);

/* Addresses of graphs' allocations (graph/graph_memory.c): each lives as long as a node or a block of memory has it. */
CUdeviceptr fg_address_take(uint64_t bytes);
void fg_address_hold(CUdeviceptr address);
void fg_address_drop(CUdeviceptr address);
bool fg_address_known(CUdeviceptr address); /* it is the beginning of such an allocation */

/* Only one instantiation of an allocation may exist at a time. */
bool fg_address_claim(CUdeviceptr address);
void fg_address_disclaim(CUdeviceptr address);

/* Takes bytes of the memory that the graphs of a device share; false: no more is free. */
bool fg_graph_take(int device, uint64_t bytes);

#endif
