/* Memory that graphs take when they run.
 *
 * A graph with allocation nodes takes memory at its launch (or upload), not when it is built; the driver keeps it for
 * the device's graphs until cuDeviceGraphMemTrim. So the charge of a device is what its graphs have reserved as the
 * driver reports it, and before a launch the most by which that can grow is reserved.
 *
 * Any thread; not from signal handlers. No lock is held while a graph is launched, which waits while the card's queue is full: launches
 * that are under way are counted with all that they may take. A fork child finds no graph.
 */
#ifndef VGPU_GRAPH_MEMORY_H
#define VGPU_GRAPH_MEMORY_H

#include "cuda_abi.h"

/* A graph was instantiated: its allocation nodes are counted, those of child graphs too. Most graphs have none and cost nothing later. */
void vgpu_graph_memory_instantiated(CUgraphExec exec, CUgraph graph);
void vgpu_graph_memory_destroyed(CUgraphExec exec);

/* Launches or uploads through `real`, with the graph's memory reserved before and its true growth charged after.
 * CUDA_ERROR_OUT_OF_MEMORY when it does not fit. */
CUresult vgpu_graph_memory_run(CUgraphExec exec, CUstream stream, CUresult (*real)(CUgraphExec, CUstream));

/* The driver has trimmed a device's graph memory, or ended its contexts: the charge follows. */
void vgpu_graph_memory_settle(CUdevice device);

#endif
