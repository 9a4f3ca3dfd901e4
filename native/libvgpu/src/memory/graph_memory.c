#include "memory/graph_memory.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/wipe_on_fork.h"
#include "memory/charge.h"
#include "base/mutex.h"
#include "config/quota.h"
#include "intercept/real.h"
#include "state/process_state.h"
#include "accounting/current.h"
#include "accounting/slice.h"

/* A node's memory is aligned to that many bytes. */
enum { ALIGNMENT = 512 };
/* Ordinals of CUDA devices that graphs of one process run on. */
enum { ORDINALS = 64 };

/* Graphs with allocation nodes are few: a list. */
struct exec {
    CUgraphExec handle;
    uint64_t bytes[ORDINALS];
    int users; /* the list, and those who run it */
    struct exec *next;
};

/* Bytes of a device; with its lock. No launch is made with it. */
struct graph_device {
    struct vgpu_mutex lock;
    uint64_t charged;
    uint64_t launching, reserved; /* what launches that are under way may take, and what was reserved for them */
};

static struct VGPU_WIPED registry {
    struct vgpu_mutex lock; /* of the list */
    struct exec *execs;
    _Atomic int exec_count;
    struct graph_device devices[ORDINALS]; /* by CUDA ordinal */
} registry;
VGPU_WIPE_ON_FORK(registry);

static void count_nodes(const struct vgpu_cuda *cuda, CUgraph graph, uint64_t bytes[ORDINALS]);

static void count_node(const struct vgpu_cuda *cuda, CUgraphNode node, uint64_t bytes[ORDINALS])
{
    int type;
    CUgraph child;
    CUDA_MEM_ALLOC_NODE_PARAMS alloc;
    if (cuda->cuGraphNodeGetType(node, &type) != CUDA_SUCCESS) return;
    if (type == CU_GRAPH_NODE_TYPE_GRAPH && cuda->cuGraphChildGraphNodeGetGraph(node, &child) == CUDA_SUCCESS)
        count_nodes(cuda, child, bytes);
    if (type != CU_GRAPH_NODE_TYPE_MEM_ALLOC || cuda->cuGraphMemAllocNodeGetParams(node, &alloc) != CUDA_SUCCESS) return;
    CUdevice device;
    if (vgpu_memory_located(alloc.poolProps.allocType, &alloc.poolProps.location, &device) && device < ORDINALS)
        bytes[device] += (alloc.bytesize + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static void count_nodes(const struct vgpu_cuda *cuda, CUgraph graph, uint64_t bytes[ORDINALS])
{
    size_t count = 0;
    if (cuda->cuGraphGetNodes(graph, NULL, &count) != CUDA_SUCCESS || count == 0) return;
    CUgraphNode *nodes = calloc(count, sizeof(CUgraphNode));
    if (nodes != NULL && cuda->cuGraphGetNodes(graph, nodes, &count) == CUDA_SUCCESS)
        for (size_t i = 0; i < count; i++) count_node(cuda, nodes[i], bytes);
    free(nodes);
}

void vgpu_graph_memory_instantiated(CUgraphExec handle, CUgraph graph)
{
    static const uint64_t nothing[ORDINALS];
    struct exec counted = {.handle = handle};
    count_nodes(vgpu_cuda(), graph, counted.bytes);
    if (memcmp(counted.bytes, nothing, sizeof nothing) == 0) return;
    struct exec *made = malloc(sizeof *made);
    if (made == NULL) return; /* its growth is still charged by the next graph that runs, or by a trim */
    *made = counted;
    made->users = 1;
    vgpu_mutex_lock(&registry.lock);
    made->next = registry.execs;
    registry.execs = made;
    atomic_fetch_add(&registry.exec_count, 1);
    vgpu_mutex_unlock(&registry.lock);
}

static struct exec *hold(CUgraphExec handle)
{
    vgpu_mutex_lock(&registry.lock);
    struct exec *exec = registry.execs;
    while (exec != NULL && exec->handle != handle) exec = exec->next;
    if (exec != NULL) exec->users++;
    vgpu_mutex_unlock(&registry.lock);
    return exec;
}

static void drop(struct exec *exec)
{
    vgpu_mutex_lock(&registry.lock);
    VGPU_ASSERT(exec->users > 0);
    const bool unused = --exec->users == 0;
    vgpu_mutex_unlock(&registry.lock);
    if (unused) free(exec);
}

void vgpu_graph_memory_destroyed(CUgraphExec handle)
{
    if (atomic_load_explicit(&registry.exec_count, memory_order_acquire) == 0) return;
    vgpu_mutex_lock(&registry.lock);
    struct exec **at = &registry.execs;
    while (*at != NULL && (*at)->handle != handle) at = &(*at)->next;
    struct exec *gone = *at;
    if (gone != NULL) {
        *at = gone->next;
        atomic_fetch_sub(&registry.exec_count, 1);
    }
    vgpu_mutex_unlock(&registry.lock);
    if (gone != NULL) drop(gone);
}

static uint64_t attribute(CUdevice device, int which)
{
    uint64_t value = 0;
    return vgpu_cuda()->cuDeviceGetGraphMemAttribute(device, which, &value) == CUDA_SUCCESS ? value : 0;
}

/* The charge becomes what the driver has reserved, `extra` bytes of which the caller reserved already; what other launches take that are
 * under way is theirs to settle. With the lock. */
static void settle(struct graph_device *graphs, CUdevice device, uint64_t extra)
{
    const uint64_t now = attribute(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), have = graphs->charged + extra;
    const int index = vgpu_state_cuda_device(device);
    const uint64_t more = vgpu_quota_subtract(now, have + graphs->reserved), less = vgpu_quota_subtract(have, now);
    if (more != 0) vgpu_slice_charge(index, more);
    if (less != 0) vgpu_slice_release(index, less);
    graphs->charged = have + more - less;
}

/* By how much a launch of so many bytes can make the driver's memory grow, beside the launches that are under way. With the lock. */
static uint64_t growth(const struct graph_device *graphs, CUdevice device, uint64_t bytes)
{
    const uint64_t used = attribute(device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT);
    return vgpu_quota_subtract(used + graphs->launching + bytes,
                               attribute(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) + graphs->reserved);
}

/* Reserves the growth of a device. */
static CUresult begin(CUdevice device, uint64_t bytes, uint64_t *reserved)
{
    struct graph_device *graphs = &registry.devices[device];
    vgpu_mutex_lock(&graphs->lock);
    *reserved = growth(graphs, device, bytes);
    graphs->launching += bytes;
    graphs->reserved += *reserved;
    vgpu_mutex_unlock(&graphs->lock);
    if (*reserved == 0) return CUDA_SUCCESS;
    const CUresult result = vgpu_memory_reserve(vgpu_state_cuda_device(device), *reserved);
    if (result == CUDA_SUCCESS) return result;
    vgpu_mutex_lock(&graphs->lock);
    VGPU_ASSERT(graphs->launching >= bytes && graphs->reserved >= *reserved);
    graphs->launching -= bytes;
    graphs->reserved -= *reserved;
    vgpu_mutex_unlock(&graphs->lock);
    return result;
}

static void end(CUdevice device, uint64_t bytes, uint64_t reserved)
{
    struct graph_device *graphs = &registry.devices[device];
    vgpu_mutex_lock(&graphs->lock);
    VGPU_ASSERT(graphs->launching >= bytes && graphs->reserved >= reserved);
    graphs->launching -= bytes;
    graphs->reserved -= reserved;
    settle(graphs, device, reserved);
    vgpu_mutex_unlock(&graphs->lock);
}

static CUresult run(const struct exec *exec, CUstream stream, CUresult (*real)(CUgraphExec, CUstream))
{
    uint64_t reserved[ORDINALS];
    CUresult result = CUDA_SUCCESS;
    CUdevice begun = 0;
    for (; begun < ORDINALS && result == CUDA_SUCCESS; begun++)
        if (exec->bytes[begun] != 0) result = begin(begun, exec->bytes[begun], &reserved[begun]);
    if (result != CUDA_SUCCESS)
        begun--; /* the last one is undone already */
    else
        result = real(exec->handle, stream);
    for (CUdevice device = 0; device < begun; device++)
        if (exec->bytes[device] != 0) end(device, exec->bytes[device], reserved[device]);
    return result;
}

CUresult vgpu_graph_memory_run(CUgraphExec handle, CUstream stream, CUresult (*real)(CUgraphExec, CUstream))
{
    if (atomic_load_explicit(&registry.exec_count, memory_order_acquire) == 0 || !vgpu_state_start()) return real(handle, stream);
    struct exec *exec = hold(handle);
    if (exec == NULL) return real(handle, stream);
    const CUresult result = run(exec, stream, real);
    drop(exec);
    return result;
}

void vgpu_graph_memory_settle(CUdevice device)
{
    if (device < 0 || device >= ORDINALS || !vgpu_state_start()) return;
    struct graph_device *graphs = &registry.devices[device];
    vgpu_mutex_lock(&graphs->lock);
    if (graphs->charged != 0 || atomic_load(&registry.exec_count) != 0) settle(graphs, device, 0);
    vgpu_mutex_unlock(&graphs->lock);
}
