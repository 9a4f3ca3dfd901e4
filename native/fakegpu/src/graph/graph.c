/* Graphs and nodes of the stand-in driver: how they are made, copied and ended. */
#include <stdlib.h>
#include <string.h>

#include "driver/handle.h"
#include "graph/graph.h"

bool fg_graph_ok(CUgraph graph) { return fg_handle_lives(graph) && graph->tag == FG_GRAPH; }
bool fg_node_ok(CUgraphNode node, int type) { return fg_handle_lives(node) && node->tag == FG_NODE && (type < 0 || node->type == type); }

CUresult fg_new_graph(CUgraph *graph)
{
    CUgraph made = calloc(1, sizeof *made);
    if (made == NULL || !fg_handle_begins(made)) return free(made), CUDA_ERROR_OUT_OF_MEMORY;
    made->tag = FG_GRAPH;
    made->last = &made->first;
    *graph = made;
    return CUDA_SUCCESS;
}

CUresult cuGraphCreate(CUgraph *graph, unsigned int flags)
{
    if (!fg_driver.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    return graph == NULL || flags != 0 ? CUDA_ERROR_INVALID_VALUE : fg_new_graph(graph);
}

void fg_free_node(CUgraphNode node)
{
    if (node->type == CU_GRAPH_NODE_TYPE_GRAPH && node->is.graph != NULL) fg_free_graph(node->is.graph);
    if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && node->is.alloc.dptr != 0) fg_address_drop(node->is.alloc.dptr);
    fg_handle_ends(node);
    for (size_t i = 0; i < sizeof node->owned / sizeof *node->owned; i++) free(node->owned[i]);
    free(node->attributes);
    free(node->dependencies);
    free(node);
}

void fg_free_graph(CUgraph graph)
{
    fg_handle_ends(graph);
    for (CUgraphNode node = graph->first, next; node != NULL; node = next) {
        next = node->next;
        fg_free_node(node);
    }
    fg_release_retained(fg_take_retained(graph));
    free(graph->order);
    free(graph);
}

CUresult cuGraphDestroy(CUgraph graph)
{
    if (!fg_graph_ok(graph) || graph->embedded) return CUDA_ERROR_INVALID_VALUE;
    fg_free_graph(graph);
    return CUDA_SUCCESS;
}

bool fg_has_memory_nodes(CUgraph graph)
{
    for (CUgraphNode node = graph->first; node != NULL; node = node->next) {
        if (node->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC || node->type == CU_GRAPH_NODE_TYPE_MEM_FREE) return true;
        if (node->type == CU_GRAPH_NODE_TYPE_GRAPH && fg_has_memory_nodes(node->is.graph)) return true;
    }
    return false;
}

static CUgraphNode append(CUgraph graph, int type)
{
    static _Atomic uint64_t ids = 1;
    CUgraphNode node = calloc(1, sizeof *node);
    if (node == NULL || !fg_handle_begins(node)) return free(node), NULL;
    *node = (struct CUgraphNode_st){.tag = FG_NODE, .type = type, .graph = graph, .id = ids++};
    *graph->last = node;
    graph->last = &node->next;
    graph->count++;
    return node;
}

/* The node that was appended last goes again. */
static void take_back(CUgraph graph, CUgraphNode node)
{
    CUgraphNode *at = &graph->first;
    while (*at != node) at = &(*at)->next;
    *at = NULL;
    graph->last = at;
    graph->count--;
    fg_free_node(node);
}

/* A graph may free an allocation once. */
static bool is_freed_in(CUgraph graph, CUdeviceptr pointer)
{
    for (CUgraphNode node = graph->first; node != NULL; node = node->next)
        if (node->type == CU_GRAPH_NODE_TYPE_MEM_FREE && node->is.free_pointer == pointer) return true;
    return false;
}

CUresult fg_add_node(CUgraph graph, const struct fg_after *after, int type, union fg_general_params *params, CUgraphNode *made)
{
    if (!fg_graph_ok(graph) || made == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = fg_check_after(graph, after);
    if (result == CUDA_SUCCESS) result = fg_check_params(type, params);
    if (result == CUDA_SUCCESS && type == CU_GRAPH_NODE_TYPE_MEM_FREE && is_freed_in(graph, params->free_pointer))
        result = CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS) return result;
    CUgraphNode node = append(graph, type);
    if (node == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) { /* an address now; memory when the graph runs */
        params->alloc.dptr = fg_address_take(params->alloc.bytesize);
        if (params->alloc.dptr == 0) result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (result == CUDA_SUCCESS) result = fg_keep_params(node, params);
    for (size_t i = 0; i < after->count && result == CUDA_SUCCESS; i++)
        result = fg_depend(node, after->nodes[i], after->edges != NULL ? &after->edges[i] : NULL);
    if (result != CUDA_SUCCESS) return take_back(graph, node), result;
    *made = node;
    return CUDA_SUCCESS;
}

static CUresult copy_node(CUgraphNode from, CUgraph to, CUgraphNode *made)
{
    CUgraphNode node = append(to, from->type);
    if (node == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    node->origin = from->id;
    node->disabled = from->disabled;
    *made = node;
    if (from->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC) fg_address_hold(from->is.alloc.dptr);
    const CUresult result = fg_keep_params(node, &from->is);
    return result == CUDA_SUCCESS && from->attributes != NULL ? fg_copy_attributes(node, from->attributes) : result;
}

CUresult fg_copy_graph(CUgraph graph, CUgraph *copy)
{
    CUgraph made;
    CUgraphNode *nodes = calloc(graph->count + 1, sizeof *nodes);
    CUresult result = nodes != NULL ? fg_new_graph(&made) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result != CUDA_SUCCESS) return free(nodes), result;
    size_t count = 0;
    for (CUgraphNode node = graph->first; node != NULL && result == CUDA_SUCCESS; node = node->next) {
        node->index = count;
        result = copy_node(node, made, &nodes[count++]);
    }
    for (CUgraphNode node = graph->first; node != NULL && result == CUDA_SUCCESS; node = node->next)
        for (size_t i = 0; i < node->dependency_count && result == CUDA_SUCCESS; i++)
            result = fg_depend(nodes[node->index], nodes[node->dependencies[i].on->index], &node->dependencies[i].data);
    if (result == CUDA_SUCCESS) result = fg_copy_retained(graph, made);
    free(nodes);
    if (result != CUDA_SUCCESS) return fg_free_graph(made), result;
    *copy = made;
    return CUDA_SUCCESS;
}

CUresult cuGraphClone(CUgraph *clone, CUgraph graph)
{
    if (clone == NULL || !fg_graph_ok(graph)) return CUDA_ERROR_INVALID_VALUE;
    return fg_has_memory_nodes(graph) ? CUDA_ERROR_NOT_SUPPORTED : fg_copy_graph(graph, clone);
}

CUgraphNode fg_copy_of(CUgraph graph, CUgraphNode node)
{
    for (CUgraphNode at = graph->first; at != NULL; at = at->next) {
        if (at->origin == node->id) return at;
        /* A copy's child graph was copied from the original's child graph, whose nodes are the program's handles. */
        CUgraphNode inside = at->type == CU_GRAPH_NODE_TYPE_GRAPH ? fg_copy_of(at->is.graph, node) : NULL;
        if (inside != NULL) return inside;
    }
    return NULL;
}

CUresult cuGraphNodeFindInClone(CUgraphNode *found, CUgraphNode original, CUgraph clone)
{
    if (found == NULL || !fg_node_ok(original, -1) || !fg_graph_ok(clone)) return CUDA_ERROR_INVALID_VALUE;
    CUgraphNode copy = fg_copy_of(clone, original);
    if (copy == NULL) return CUDA_ERROR_INVALID_VALUE;
    *found = copy;
    return CUDA_SUCCESS;
}

CUresult cuGraphDestroyNode(CUgraphNode node)
{
    if (!fg_node_ok(node, -1)) return CUDA_ERROR_INVALID_VALUE;
    CUgraph graph = node->graph;
    if (fg_has_memory_nodes(graph)) return CUDA_ERROR_NOT_SUPPORTED;
    CUgraphNode *at = &graph->first;
    while (*at != node) at = &(*at)->next;
    *at = node->next;
    if (graph->last == &node->next) graph->last = at;
    graph->count--;
    for (CUgraphNode other = graph->first; other != NULL; other = other->next) {
        size_t kept = 0;
        for (size_t i = 0; i < other->dependency_count; i++)
            if (other->dependencies[i].on != node) other->dependencies[kept++] = other->dependencies[i];
        other->dependency_count = kept;
    }
    fg_free_node(node);
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetType(CUgraphNode node, int *type)
{
    if (!fg_node_ok(node, -1) || type == NULL) return CUDA_ERROR_INVALID_VALUE;
    *type = node->type;
    return CUDA_SUCCESS;
}
