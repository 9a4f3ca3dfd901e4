/* Graphs: what they allocate is charged when they run. */
#include "compute/cores.h"
#include "memory/graph_memory.h"
#include "intercept/real.h"

CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t log_bytes)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    const CUresult result = cuda->cuGraphInstantiate(exec, graph, error_node, log, log_bytes);
    if (result == CUDA_SUCCESS) vgpu_graph_memory_instantiated(*exec, graph);
    return result;
}

CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log, size_t log_bytes)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    const CUresult result = cuda->cuGraphInstantiate_v2(exec, graph, error_node, log, log_bytes);
    if (result == CUDA_SUCCESS) vgpu_graph_memory_instantiated(*exec, graph);
    return result;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    const CUresult result = cuda->cuGraphInstantiateWithFlags(exec, graph, flags);
    if (result == CUDA_SUCCESS) vgpu_graph_memory_instantiated(*exec, graph);
    return result;
}

/* With the upload flag the driver would take the memory at once: it is asked without, and then to upload, with the memory reserved. */
static CUresult instantiate(CUresult (*real)(CUgraphExec *, CUgraph, CUDA_GRAPH_INSTANTIATE_PARAMS *),
                            CUresult (*upload)(CUgraphExec, CUstream), CUgraphExec *exec, CUgraph graph,
                            CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    const cuuint64_t flags = params != NULL ? params->flags : 0;
    if (params != NULL) params->flags = flags & ~(cuuint64_t)CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
    CUresult result = real(exec, graph, params);
    if (params != NULL) params->flags = flags;
    if (result != CUDA_SUCCESS) return result;
    vgpu_graph_memory_instantiated(*exec, graph);
    if ((flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) == 0) return result;
    result = vgpu_graph_memory_run(*exec, params->hUploadStream, upload);
    if (result != CUDA_SUCCESS) {
        vgpu_graph_memory_destroyed(*exec);
        cuda->cuGraphExecDestroy(*exec);
    }
    return result;
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    return cuda != NULL ? instantiate(cuda->cuGraphInstantiateWithParams, cuda->cuGraphUpload, exec, graph, params) : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    return cuda != NULL ? instantiate(cuda->cuGraphInstantiateWithParams_ptsz, cuda->cuGraphUpload_ptsz, exec, graph, params)
                        : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    vgpu_graph_memory_destroyed(exec); /* before: the number may be given out again at once */
    return cuda->cuGraphExecDestroy(exec);
}

/* A graph is one launch, whatever is in it: what it costs is learnt from launches of it. */
static CUresult launch(CUgraphExec exec, CUstream stream, CUstream timed_in, CUresult (*real)(CUgraphExec, CUstream))
{
    const struct vgpu_launch launch = vgpu_cores_admit(exec, 0, timed_in);
    const CUresult result = vgpu_graph_memory_run(exec, stream, real);
    vgpu_cores_launched(&launch, result);
    return result;
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    return cuda != NULL ? launch(exec, stream, stream, cuda->cuGraphLaunch) : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    return cuda != NULL ? launch(exec, stream, vgpu_per_thread(stream), cuda->cuGraphLaunch_ptsz) : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGraphUpload(CUgraphExec exec, CUstream stream)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    return cuda != NULL ? vgpu_graph_memory_run(exec, stream, cuda->cuGraphUpload) : CUDA_ERROR_NOT_FOUND;
}

CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    return cuda != NULL ? vgpu_graph_memory_run(exec, stream, cuda->cuGraphUpload_ptsz) : CUDA_ERROR_NOT_FOUND;
}

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    const CUresult result = cuda->cuDeviceGraphMemTrim(device);
    if (result == CUDA_SUCCESS) vgpu_graph_memory_settle(device);
    return result;
}
