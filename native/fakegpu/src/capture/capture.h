/* Streams that record a graph instead of running, by the rules of the CUDA Driver API's chapter on stream capture: launches of kernels and
 * graphs, allocations and frees become nodes, in the order of the calls, and other calls break the capture. A capture begins in one stream,
 * and another joins it by waiting for an event that was recorded in it, until the first one ends it.
 */
#ifndef FAKEGPU_CAPTURE_H
#define FAKEGPU_CAPTURE_H

#include "graph/graph.h"

/* A launch becomes a node. false: the stream records nothing, and nothing was done. */
bool fg_capture_kernel(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra, CUresult *result);

/* An event is recorded in, or waited for by, a stream that records, or is the mark of one that does. false: neither. */
bool fg_capture_record(CUstream stream, CUevent event);
bool fg_capture_wait(CUstream stream, CUevent event, CUresult *result);

/* A call that a recording does not survive was made in the stream. false: it records nothing. */
bool fg_capture_broken(CUstream stream);

/* The stream ends. */
void fg_capture_leave(CUstream stream);

#endif
