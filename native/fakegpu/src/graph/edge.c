/* What depends on what in graphs of the stand-in driver. */
#include <stdlib.h>
#include <string.h>

#include "graph/graph.h"

static const CUgraphEdgeData PLAIN;

static bool is_plain(const CUgraphEdgeData *data) { return memcmp(data, &PLAIN, sizeof PLAIN) == 0; }

/* Other edges than plain ones leave a kernel before its end, and lead to a kernel. */
static bool edge_ok(CUgraphNode from, int to_type, const CUgraphEdgeData *data)
{
    enum { PROGRAMMATIC = 1, LAST_PORT = 2 };
    static const unsigned char nothing[sizeof data->reserved];
    if (data == NULL || is_plain(data)) return true;
    if (data->type > PROGRAMMATIC || data->from_port > LAST_PORT || data->to_port != 0 ||
        memcmp(data->reserved, nothing, sizeof nothing) != 0)
        return false;
    return from->type == CU_GRAPH_NODE_TYPE_KERNEL && (to_type < 0 || to_type == CU_GRAPH_NODE_TYPE_KERNEL);
}

static struct fg_dependency *edge_between(CUgraphNode node, CUgraphNode on)
{
    for (size_t i = 0; i < node->dependency_count; i++)
        if (node->dependencies[i].on == on) return &node->dependencies[i];
    return NULL;
}

CUresult fg_check_after(CUgraph graph, const struct fg_after *after)
{
    if (after->count > 0 && after->nodes == NULL) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < after->count; i++) {
        if (!fg_node_ok(after->nodes[i], -1) || after->nodes[i]->graph != graph) return CUDA_ERROR_INVALID_VALUE;
        if (after->edges != NULL && !edge_ok(after->nodes[i], -1, &after->edges[i])) return CUDA_ERROR_INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

CUresult fg_depend(CUgraphNode node, CUgraphNode on, const CUgraphEdgeData *data)
{
    if (node == on || edge_between(node, on) != NULL || !edge_ok(on, node->type, data)) return CUDA_ERROR_INVALID_VALUE;
    /* Room grows by powers of two: a count that is one has none left. */
    const size_t count = node->dependency_count;
    if ((count & (count - 1)) == 0) {
        struct fg_dependency *wider = realloc(node->dependencies, (count > 0 ? 2 * count : 1) * sizeof *wider);
        if (wider == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
        node->dependencies = wider;
    }
    node->dependencies[node->dependency_count++] = (struct fg_dependency){on, data != NULL ? *data : PLAIN};
    return CUDA_SUCCESS;
}

/* Both nodes are in the graph. */
static bool both_in(CUgraph graph, CUgraphNode from, CUgraphNode to)
{
    return fg_node_ok(from, -1) && fg_node_ok(to, -1) && from->graph == graph && to->graph == graph && from != to;
}

static CUresult check_pairs(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
    if (!fg_graph_ok(graph) || (count > 0 && (from == NULL || to == NULL))) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        if (!both_in(graph, from[i], to[i])) return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

CUresult cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, const CUgraphEdgeData *edges,
                                   size_t count)
{
    CUresult result = check_pairs(graph, from, to, count);
    size_t added = 0;
    while (added < count && result == CUDA_SUCCESS) {
        result = fg_depend(to[added], from[added], edges != NULL ? &edges[added] : NULL);
        if (result == CUDA_SUCCESS) added++;
    }
    while (result != CUDA_SUCCESS && added > 0) to[--added]->dependency_count--; /* all or nothing: each was its node's last */
    return result;
}

CUresult cuGraphAddDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
    return cuGraphAddDependencies_v2(graph, from, to, NULL, count);
}

CUresult cuGraphRemoveDependencies_v2(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, const CUgraphEdgeData *edges,
                                      size_t count)
{
    CUresult result = check_pairs(graph, from, to, count);
    if (result == CUDA_SUCCESS && fg_has_memory_nodes(graph)) result = CUDA_ERROR_NOT_SUPPORTED;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        const struct fg_dependency *edge = edge_between(to[i], from[i]);
        if (edge == NULL || memcmp(&edge->data, edges != NULL ? &edges[i] : &PLAIN, sizeof PLAIN) != 0) result = CUDA_ERROR_INVALID_VALUE;
    }
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        struct fg_dependency *edge = edge_between(to[i], from[i]);
        if (edge == NULL) continue; /* named twice */
        const size_t behind = (size_t)(to[i]->dependencies + to[i]->dependency_count - (edge + 1));
        memmove(edge, edge + 1, behind * sizeof *edge);
        to[i]->dependency_count--;
    }
    return result;
}

CUresult cuGraphRemoveDependencies(CUgraph graph, const CUgraphNode *from, const CUgraphNode *to, size_t count)
{
    return cuGraphRemoveDependencies_v2(graph, from, to, NULL, count);
}

/* A list that a program asks for: without arrays it learns the length; room that is left over is cleared. */
struct listing {
    CUgraphNode *from, *to;
    CUgraphEdgeData *edges;
    size_t room, found;
    bool lossy;
};

static void list(struct listing *into, CUgraphNode from, CUgraphNode to, const CUgraphEdgeData *data)
{
    const size_t at = into->found++;
    if (at >= into->room) return;
    if (into->from != NULL) into->from[at] = from;
    if (into->to != NULL) into->to[at] = to;
    if (into->edges != NULL && data != NULL) into->edges[at] = *data;
    if (into->edges == NULL && data != NULL && !is_plain(data)) into->lossy = true;
}

static CUresult finish(struct listing *into, size_t *count)
{
    const bool wanted = into->from != NULL || into->to != NULL;
    for (size_t at = into->found; wanted && at < into->room; at++) list(into, NULL, NULL, &PLAIN), into->found--;
    if (wanted && into->lossy) return CUDA_ERROR_LOSSY_QUERY;
    *count = wanted && into->found > into->room ? into->room : into->found;
    return CUDA_SUCCESS;
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    if (!fg_graph_ok(graph) || count == NULL) return CUDA_ERROR_INVALID_VALUE;
    struct listing into = {.from = nodes, .room = *count};
    for (CUgraphNode node = graph->first; node != NULL; node = node->next) list(&into, node, NULL, NULL);
    return finish(&into, count);
}

CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    if (!fg_graph_ok(graph) || count == NULL) return CUDA_ERROR_INVALID_VALUE;
    struct listing into = {.from = nodes, .room = *count};
    for (CUgraphNode node = graph->first; node != NULL; node = node->next)
        if (node->dependency_count == 0) list(&into, node, NULL, NULL);
    return finish(&into, count);
}

CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *edges, size_t *count)
{
    if (!fg_graph_ok(graph) || count == NULL || (from == NULL) != (to == NULL)) return CUDA_ERROR_INVALID_VALUE;
    struct listing into = {from, to, edges, *count, 0, false};
    for (CUgraphNode node = graph->first; node != NULL; node = node->next)
        for (size_t i = 0; i < node->dependency_count; i++) list(&into, node->dependencies[i].on, node, &node->dependencies[i].data);
    return finish(&into, count);
}

CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count)
{
    return cuGraphGetEdges_v2(graph, from, to, NULL, count);
}

CUresult cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *edges, size_t *count)
{
    if (!fg_node_ok(node, -1) || count == NULL) return CUDA_ERROR_INVALID_VALUE;
    struct listing into = {.from = nodes, .edges = edges, .room = *count};
    for (size_t i = 0; i < node->dependency_count; i++) list(&into, node->dependencies[i].on, NULL, &node->dependencies[i].data);
    return finish(&into, count);
}

CUresult cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode *nodes, size_t *count)
{
    return cuGraphNodeGetDependencies_v2(node, nodes, NULL, count);
}

CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode node, CUgraphNode *nodes, CUgraphEdgeData *edges, size_t *count)
{
    if (!fg_node_ok(node, -1) || count == NULL) return CUDA_ERROR_INVALID_VALUE;
    struct listing into = {.from = nodes, .edges = edges, .room = *count};
    for (CUgraphNode other = node->graph->first; other != NULL; other = other->next) {
        const struct fg_dependency *edge = edge_between(other, node);
        if (edge != NULL) list(&into, other, NULL, &edge->data);
    }
    return finish(&into, count);
}

CUresult cuGraphNodeGetDependentNodes(CUgraphNode node, CUgraphNode *nodes, size_t *count)
{
    return cuGraphNodeGetDependentNodes_v2(node, nodes, NULL, count);
}

/* A walk in depth, without recursion: a chain may be as long as a graph. A node's index counts those of its dependencies that the walk has
 * looked at, from 1 on; DONE: it has its place. */
CUresult fg_order_graph(CUgraph graph, CUgraphNode *in_circle)
{
    const size_t DONE = SIZE_MAX;
    CUgraphNode *order = calloc(graph->count + 1, sizeof *order), *way = calloc(graph->count + 1, sizeof *way);
    CUresult result = order != NULL && way != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    size_t placed = 0, depth = 0;
    for (CUgraphNode node = graph->first; node != NULL; node = node->next) node->index = 0;
    for (CUgraphNode start = graph->first; start != NULL && result == CUDA_SUCCESS; start = start->next) {
        if (start->index != DONE) start->index = 1, way[depth++] = start;
        while (depth > 0 && result == CUDA_SUCCESS) {
            CUgraphNode node = way[depth - 1];
            if (node->index > node->dependency_count) {
                node->index = DONE;
                order[placed++] = node;
                depth--;
                continue;
            }
            CUgraphNode next = node->dependencies[node->index++ - 1].on;
            if (next->index == DONE) continue;
            if (next->index != 0) {
                if (in_circle != NULL) *in_circle = next;
                result = CUDA_ERROR_INVALID_VALUE;
            } else {
                next->index = 1;
                way[depth++] = next;
            }
        }
    }
    free(way);
    if (result != CUDA_SUCCESS) return free(order), result;
    free(graph->order);
    graph->order = order;
    return CUDA_SUCCESS;
}
