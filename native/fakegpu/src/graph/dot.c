/* A graph of the stand-in driver as a drawing, in the DOT language. */
#include <stdio.h>

#include "graph/graph.h"

static const char *type_name(int type)
{
    static const char *const names[] = {"KERNEL",      "MEMCPY",       "MEMSET",           "HOST",           "GRAPH",     "EMPTY",
                                        "WAIT_EVENT",  "EVENT_RECORD", "EXT_SEMAS_SIGNAL", "EXT_SEMAS_WAIT", "MEM_ALLOC", "MEM_FREE",
                                        "BATCH_MEM_OP"};
    return type >= 0 && type < (int)(sizeof names / sizeof *names) ? names[type] : "?";
}

static void draw_params(FILE *file, CUgraphNode node)
{
    const union fg_general_params *is = &node->is;
    switch (node->type) {
    case CU_GRAPH_NODE_TYPE_KERNEL:
        fprintf(file, "\\n%s <<<%u,%u,%u,%u,%u,%u>>>", is->kernel.func->name, is->kernel.gridDimX, is->kernel.gridDimY, is->kernel.gridDimZ,
                is->kernel.blockDimX, is->kernel.blockDimY, is->kernel.blockDimZ);
        break;
    case CU_GRAPH_NODE_TYPE_MEMCPY:
        fprintf(file, "\\n%zu x %zu x %zu", is->memcpy.copy.WidthInBytes, is->memcpy.copy.Height, is->memcpy.copy.Depth);
        break;
    case CU_GRAPH_NODE_TYPE_MEMSET: fprintf(file, "\\n0x%llx = %u", (unsigned long long)is->memset.fill.dst, is->memset.fill.value); break;
    case CU_GRAPH_NODE_TYPE_MEM_ALLOC: fprintf(file, "\\n0x%llx, %zu bytes", (unsigned long long)is->alloc.dptr, is->alloc.bytesize); break;
    case CU_GRAPH_NODE_TYPE_MEM_FREE: fprintf(file, "\\n0x%llx", (unsigned long long)is->free_pointer); break;
    default: break;
    }
}

static void draw(FILE *file, CUgraph graph, bool verbose)
{
    fprintf(file, "subgraph cluster_%p {\n", (void *)graph);
    for (CUgraphNode node = graph->first; node != NULL; node = node->next) {
        fprintf(file, "\"%p\" [label=\"%s", (void *)node, type_name(node->type));
        if (verbose) draw_params(file, node);
        fprintf(file, "\"];\n");
        if (node->type == CU_GRAPH_NODE_TYPE_GRAPH) draw(file, node->is.graph, verbose);
        for (size_t i = 0; i < node->dependency_count; i++)
            fprintf(file, "\"%p\" -> \"%p\";\n", (void *)node->dependencies[i].on, (void *)node);
    }
    fprintf(file, "}\n");
}

CUresult cuGraphDebugDotPrint(CUgraph graph, const char *path, unsigned int flags)
{
    enum { EVERY_FLAG = (1 << 17) - 1 };
    if (!fg_graph_ok(graph) || path == NULL || flags > EVERY_FLAG) return CUDA_ERROR_INVALID_VALUE;
    FILE *file = fopen(path, "we");
    if (file == NULL) return CUDA_ERROR_OPERATING_SYSTEM;
    fprintf(file, "digraph dot {\n");
    draw(file, graph, flags != 0);
    fprintf(file, "}\n");
    const bool failed = ferror(file) != 0;
    return fclose(file) == 0 && !failed ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}
