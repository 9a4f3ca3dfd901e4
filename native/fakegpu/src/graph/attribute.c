/* Attributes of streams and of kernel nodes in the stand-in driver. They are kept and checked; only a stream's priority is also elsewhere.
 */
#include <stdlib.h>
#include <string.h>

#include "stream/deferred.h"
#include "graph/graph.h"

/* CUlaunchAttributeID */
enum {
    ACCESS_POLICY_WINDOW = 1,
    COOPERATIVE = 2,
    SYNCHRONIZATION_POLICY = 3,
    CLUSTER_DIMENSION = 4,
    CLUSTER_SCHEDULING = 5,
    PRIORITY = 8,
    MEM_SYNC_DOMAIN_MAP = 9,
    MEM_SYNC_DOMAIN = 10,
    PREFERRED_CLUSTER_DIMENSION = 11,
    SHARED_CARVEOUT = 14
};
static const uint32_t OF_STREAMS =
    1U << ACCESS_POLICY_WINDOW | 1U << SYNCHRONIZATION_POLICY | 1U << PRIORITY | 1U << MEM_SYNC_DOMAIN_MAP | 1U << MEM_SYNC_DOMAIN;
static const uint32_t OF_KERNELS = 1U << ACCESS_POLICY_WINDOW | 1U << COOPERATIVE | 1U << CLUSTER_DIMENSION | 1U << CLUSTER_SCHEDULING |
                                   1U << PRIORITY | 1U << MEM_SYNC_DOMAIN_MAP | 1U << MEM_SYNC_DOMAIN | 1U << PREFERRED_CLUSTER_DIMENSION |
                                   1U << SHARED_CARVEOUT;

struct window {
    void *base;
    size_t bytes;
    float hit_ratio;
    int hit, miss; /* CUaccessProperty: 0 normal, 1 streaming, 2 persisting */
};

static int number_of(const CUlaunchAttributeValue *value)
{
    int number;
    memcpy(&number, value, sizeof number);
    return number;
}

static bool window_ok(const CUlaunchAttributeValue *value)
{
    enum { STREAMING = 1, PERSISTING = 2 };
    struct window window;
    memcpy(&window, value, sizeof window);
    return window.hit_ratio >= 0.0F && window.hit_ratio <= 1.0F && window.hit >= 0 && window.hit <= PERSISTING && window.miss >= 0 &&
           window.miss <= STREAMING;
}

static bool dimension_ok(const CUlaunchAttributeValue *value)
{
    unsigned int sides[3];
    memcpy(sides, value, sizeof sides);
    return sides[0] > 0 && sides[1] > 0 && sides[2] > 0;
}

static bool value_ok(int id, const CUlaunchAttributeValue *value)
{
    enum { LAST_POLICY = 4, LAST_SCHEDULING = 2, DOMAINS = 4, LAST_DOMAIN = 1, WHOLE_PERCENT = 100 };
    const int number = number_of(value);
    switch (id) {
    case ACCESS_POLICY_WINDOW: return window_ok(value);
    case COOPERATIVE: return number == 0 || number == 1;
    case SYNCHRONIZATION_POLICY: return number >= 1 && number <= LAST_POLICY;
    case CLUSTER_DIMENSION:
    case PREFERRED_CLUSTER_DIMENSION: return dimension_ok(value);
    case CLUSTER_SCHEDULING: return number >= 0 && number <= LAST_SCHEDULING;
    case MEM_SYNC_DOMAIN_MAP: return (unsigned char)value->bytes[0] < DOMAINS && (unsigned char)value->bytes[1] < DOMAINS;
    case MEM_SYNC_DOMAIN: return number >= 0 && number <= LAST_DOMAIN;
    case SHARED_CARVEOUT: return number >= -1 && number <= WHOLE_PERCENT;
    default: return true;
    }
}

static bool is_one_of(int id, uint32_t ids) { return id > 0 && id < FG_LAUNCH_ATTRIBUTES && (ids >> id & 1) != 0; }

static CUlaunchAttributeValue unset(int id)
{
    CUlaunchAttributeValue value = {{0}};
    if (id == SYNCHRONIZATION_POLICY) value.bytes[0] = 1; /* automatic */
    if (id == MEM_SYNC_DOMAIN_MAP) value.bytes[1] = 1;    /* the remote domain is the second */
    if (id == SHARED_CARVEOUT) memset(&value, 0xff, sizeof(int));
    return value;
}

static CUlaunchAttributeValue get(const struct fg_attributes *attributes, int id)
{
    return attributes != NULL && (attributes->set >> id & 1) != 0 ? attributes->values[id] : unset(id);
}

static CUresult set(struct fg_attributes **attributes, int id, const CUlaunchAttributeValue *value)
{
    if (*attributes == NULL) *attributes = calloc(1, sizeof **attributes);
    if (*attributes == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    (*attributes)->values[id] = *value;
    (*attributes)->set |= 1U << id;
    return CUDA_SUCCESS;
}

CUresult fg_copy_attributes(CUgraphNode to, const struct fg_attributes *from)
{
    if (to->attributes == NULL) to->attributes = malloc(sizeof *to->attributes);
    if (to->attributes == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *to->attributes = *from;
    return CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeGetAttribute(CUgraphNode node, int id, CUlaunchAttributeValue *value)
{
    if (!fg_node_ok(node, CU_GRAPH_NODE_TYPE_KERNEL) || value == NULL || !is_one_of(id, OF_KERNELS)) return CUDA_ERROR_INVALID_VALUE;
    *value = get(node->attributes, id);
    return CUDA_SUCCESS;
}

CUresult cuGraphKernelNodeSetAttribute(CUgraphNode node, int id, const CUlaunchAttributeValue *value)
{
    if (!fg_node_ok(node, CU_GRAPH_NODE_TYPE_KERNEL) || value == NULL || !is_one_of(id, OF_KERNELS) || !value_ok(id, value))
        return CUDA_ERROR_INVALID_VALUE;
    return set(&node->attributes, id, value);
}

CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode to, CUgraphNode from)
{
    if (!fg_node_ok(to, CU_GRAPH_NODE_TYPE_KERNEL) || !fg_node_ok(from, CU_GRAPH_NODE_TYPE_KERNEL)) return CUDA_ERROR_INVALID_VALUE;
    static const struct fg_attributes none;
    return to == from ? CUDA_SUCCESS : fg_copy_attributes(to, from->attributes != NULL ? from->attributes : &none);
}

/* Special streams keep none: they are the context's, and answer what is so without having been set. */
static CUresult own_stream(CUstream stream)
{
    CUcontext context;
    return fg_stream_context(stream, &context);
}

CUresult cuStreamGetAttribute(CUstream stream, int id, CUlaunchAttributeValue *value)
{
    CUresult result = own_stream(stream);
    if (result != CUDA_SUCCESS) return result;
    if (value == NULL || !is_one_of(id, OF_STREAMS)) return CUDA_ERROR_INVALID_VALUE;
    *value = get((uintptr_t)stream > 2 ? stream->attributes : NULL, id);
    int priority = 0;
    if (id == PRIORITY) result = cuStreamGetPriority(stream, &priority);
    if (id == PRIORITY) memcpy(value, &priority, sizeof priority);
    return result;
}

CUresult cuStreamSetAttribute(CUstream stream, int id, const CUlaunchAttributeValue *value)
{
    const CUresult result = own_stream(stream);
    if (result != CUDA_SUCCESS) return result;
    if (value == NULL || !is_one_of(id, OF_STREAMS) || !value_ok(id, value)) return CUDA_ERROR_INVALID_VALUE;
    if ((uintptr_t)stream <= 2) return CUDA_ERROR_NOT_SUPPORTED;
    if (id == PRIORITY) return fg_set_priority(stream, number_of(value)), CUDA_SUCCESS;
    return set(&stream->attributes, id, value);
}

CUresult cuStreamCopyAttributes(CUstream to, CUstream from)
{
    if (own_stream(to) != CUDA_SUCCESS || own_stream(from) != CUDA_SUCCESS) return CUDA_ERROR_INVALID_HANDLE;
    if ((uintptr_t)to <= 2) return CUDA_ERROR_NOT_SUPPORTED;
    CUresult result = CUDA_SUCCESS;
    for (int id = 1; id < FG_LAUNCH_ATTRIBUTES && result == CUDA_SUCCESS; id++) {
        CUlaunchAttributeValue value;
        if (!is_one_of(id, OF_STREAMS)) continue;
        result = cuStreamGetAttribute(from, id, &value);
        if (result == CUDA_SUCCESS) result = cuStreamSetAttribute(to, id, &value);
    }
    return result;
}
