/* Streams that record a graph instead of running, by the rules of the CUDA Driver API's chapter on stream capture.
 *
 * A capture begins in one stream; another joins it by waiting for an event that was recorded in it, and has to be joined by the first
 * before that one ends the capture. Each stream has a frontier: the nodes that its next node will depend on.
 */
#ifndef FAKEGPU_CAPTURE_H
#define FAKEGPU_CAPTURE_H

#include "graph/graph.h"

struct fg_capture {
    CUgraph graph;
    CUstream origin, members; /* all its streams, by next_member */
    bool has_own_graph;       /* begun by it, and not there before */
    bool broken;
    int mode;
    pthread_t thread;
    uint64_t id;
    struct fg_capture *next;
};

/* The capture that the stream takes part in; the one of that id, while it lasts; NULL: none. */
struct fg_capture *fg_capture_of(CUstream stream);
struct fg_capture *fg_capture_named(uint64_t id);
void fg_join_capture(struct fg_capture *capture, CUstream stream);

/* More nodes; those that are there already stay as they are. */
CUresult fg_extend_frontier(struct fg_frontier *frontier, const CUgraphNode *nodes, const CUgraphEdgeData *edges, size_t more);
void fg_clear_frontier(struct fg_frontier *frontier);

/* While a stream records, what is queued in it becomes a node. false: the stream records nothing, and nothing was done. */
bool fg_capture_node(CUstream stream, int type, union fg_general_params *params, CUresult *result);
bool fg_capture_kernel(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra, CUresult *result);

/* An event is recorded in, or waited for by, a stream that records, or is the mark of one that does. false: neither. */
bool fg_capture_record(CUstream stream, CUevent event, bool external, CUresult *result);
bool fg_capture_wait(CUstream stream, CUevent event, bool external, CUresult *result);

/* A call that a recording does not survive was made in the stream. false: it records nothing. */
bool fg_capture_broken(CUstream stream);

/* The stream, or the event, ends. */
void fg_capture_leave(CUstream stream);
void fg_capture_forget(CUevent event);

#endif
