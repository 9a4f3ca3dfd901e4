/* Graphs of the stand-in driver, by the rules of the CUDA Driver API's chapter on graph management.
 *
 * A graph owns its nodes; a node owns the list of those that it depends on, and copies of all that its parameters point to. What is
 * instantiated is a copy of the graph, whose nodes remember which node they were copied from: the graph may change or go afterwards.
 * As in CUDA, a graph is not to be used by two threads at once.
 */
#ifndef FAKEGPU_GRAPH_H
#define FAKEGPU_GRAPH_H

#include "driver/driver.h"

struct fg_dependency {
    CUgraphNode on;
    CUgraphEdgeData data;
};

/* Attributes by CUlaunchAttributeID; a bit in `set` for each that has been given. */
struct fg_attributes {
    uint32_t set;
    CUlaunchAttributeValue values[FG_LAUNCH_ATTRIBUTES];
};

struct CUgraphNode_st {
    enum fg_tag tag;
    int type; /* CU_GRAPH_NODE_TYPE_... */
    CUgraph graph;
    uint64_t id, origin; /* no other node has this id; `origin`: the id of the node that it is a copy of, 0: of none */
    bool disabled;
    union fg_general_params is;
    void *owned[2]; /* what `is` points to */
    struct fg_attributes *attributes; /* NULL: none was given */
    struct fg_dependency *dependencies;
    size_t dependency_count;
    size_t index; /* scratch of copying and ordering */
    CUgraphNode next;
};

struct fg_retained {
    CUuserObject object;
    unsigned int count;
    struct fg_retained *next;
};

struct CUgraph_st {
    enum fg_tag tag;
    CUgraphNode first, *last; /* in the order in which they were added */
    size_t count;
    CUgraphNode *order; /* of a graph that runs: in an order in which each comes after what it depends on; else NULL */
    bool embedded; /* a node's child: it lives and ends with that node */
    struct fg_retained *retained;
};

struct CUgraphExec_st {
    enum fg_tag tag;
    CUgraph graph; /* a copy of its own, with `order` */
    unsigned long long flags;
    CUcontext context; /* of its last launch; NULL: there was none */
    int64_t mark;      /* where that launch's kernels end */
    uint64_t ticket;   /* its last action; 0: none */
};

bool fg_exec_ok(CUgraphExec exec);

/* The nodes that a new node depends on, as callers give them; `edges` may be NULL. */
struct fg_after {
    const CUgraphNode *nodes;
    const CUgraphEdgeData *edges;
    size_t count;
};

bool fg_graph_ok(CUgraph graph);
bool fg_node_ok(CUgraphNode node, int type); /* type -1: any */

CUresult fg_new_graph(CUgraph *graph);
void fg_free_graph(CUgraph graph);

/* A copy of the graph with its nodes, edges, attributes and the references to user objects that it holds. */
CUresult fg_copy_graph(CUgraph graph, CUgraph *copy);

/* Whether the graph allocates or frees: such a graph cannot be copied by the program, lose nodes or edges, or be updated. */
bool fg_has_memory_nodes(CUgraph graph);

/* The node that is a copy of that one, also in graphs inside of graphs; NULL: there is none. */
CUgraphNode fg_copy_of(CUgraph graph, CUgraphNode node);

/* A node with a copy of those parameters, checked. For an allocation it writes the address into `params`. */
CUresult fg_add_node(CUgraph graph, const struct fg_after *after, int type, union fg_general_params *params, CUgraphNode *made);
void fg_free_node(CUgraphNode node);

/* Parameters of a node of that type (params.c): whether they can be, and their copy in the place of the node's own. */
CUresult fg_check_params(int type, const union fg_general_params *params);
CUresult fg_keep_params(CUgraphNode node, const union fg_general_params *params);

/* Edges (edge.c). `fg_depend` refuses what is there already. */
CUresult fg_check_after(CUgraph graph, const struct fg_after *after);
CUresult fg_depend(CUgraphNode node, CUgraphNode on, const CUgraphEdgeData *data);

/* Fills graph->order; CUDA_ERROR_INVALID_VALUE and a node on the way where nodes depend on each other in a circle. */
CUresult fg_order_graph(CUgraph graph, CUgraphNode *in_circle);

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

/* References to user objects that graphs hold (user_object.c). */
CUresult fg_copy_retained(CUgraph from, CUgraph to);
struct fg_retained *fg_take_retained(CUgraph graph);
void fg_release_retained(void *retained);

/* Attributes (attribute.c). */
CUresult fg_copy_attributes(CUgraphNode to, const struct fg_attributes *from);

#endif
