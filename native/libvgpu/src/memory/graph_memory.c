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
    struct exec *next;
};

static struct VGPU_WIPED registry {
    struct vgpu_mutex lock;
    struct exec *execs;
    _Atomic int exec_count;
    uint64_t charged[ORDINALS]; /* bytes, by CUDA ordinal */
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
    vgpu_mutex_lock(&registry.lock);
    made->next = registry.execs;
    registry.execs = made;
    atomic_fetch_add(&registry.exec_count, 1);
    vgpu_mutex_unlock(&registry.lock);
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
    free(gone);
}

static uint64_t attribute(CUdevice device, int which)
{
    uint64_t value = 0;
    return vgpu_cuda()->cuDeviceGetGraphMemAttribute(device, which, &value) == CUDA_SUCCESS ? value : 0;
}

/* The charge becomes what the driver has reserved, `extra` bytes of which the caller reserved already. With the lock. */
static void settle(CUdevice device, uint64_t extra)
{
    const uint64_t now = attribute(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT), have = registry.charged[device] + extra;
    const int index = vgpu_state_cuda_device(device);
    if (now > have) vgpu_slice_charge(index, now - have);
    if (now < have) vgpu_slice_release(index, have - now);
    registry.charged[device] = now;
}

static uint64_t growth(CUdevice device, uint64_t bytes)
{
    const uint64_t used = attribute(device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT);
    return vgpu_quota_subtract(used + bytes, attribute(device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT));
}

/* Reserves the growth of every device; on failure nothing is reserved. With the lock. */
static CUresult reserve(const struct exec *exec, uint64_t reserved[ORDINALS])
{
    for (CUdevice device = 0; device < ORDINALS; device++) {
        if (exec->bytes[device] == 0) continue;
        reserved[device] = growth(device, exec->bytes[device]);
        if (reserved[device] == 0 || vgpu_memory_reserve(vgpu_state_cuda_device(device), reserved[device]) == CUDA_SUCCESS) continue;
        reserved[device] = 0;
        for (CUdevice back = 0; back < device; back++)
            if (reserved[back] != 0) vgpu_slice_release(vgpu_state_cuda_device(back), reserved[back]);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

static CUresult run(const struct exec *exec, CUstream stream, CUresult (*real)(CUgraphExec, CUstream))
{
    uint64_t reserved[ORDINALS] = {0};
    CUresult result = reserve(exec, reserved);
    if (result != CUDA_SUCCESS) return result;
    result = real(exec->handle, stream);
    for (CUdevice device = 0; device < ORDINALS; device++)
        if (exec->bytes[device] != 0) settle(device, reserved[device]);
    return result;
}

CUresult vgpu_graph_memory_run(CUgraphExec handle, CUstream stream, CUresult (*real)(CUgraphExec, CUstream))
{
    if (atomic_load_explicit(&registry.exec_count, memory_order_acquire) == 0 || !vgpu_state_start()) return real(handle, stream);
    vgpu_mutex_lock(&registry.lock);
    const struct exec *exec = registry.execs;
    while (exec != NULL && exec->handle != handle) exec = exec->next;
    if (exec == NULL) {
        vgpu_mutex_unlock(&registry.lock);
        return real(handle, stream);
    }
    const CUresult result = run(exec, stream, real);
    vgpu_mutex_unlock(&registry.lock);
    return result;
}

void vgpu_graph_memory_settle(CUdevice device)
{
    if (device < 0 || device >= ORDINALS || !vgpu_state_start()) return;
    vgpu_mutex_lock(&registry.lock);
    if (registry.charged[device] != 0 || registry.exec_count != 0) settle(device, 0);
    vgpu_mutex_unlock(&registry.lock);
}
