/* Graphs: what they allocate is charged when they run. */
#include "compute/cores.h"
#include "memory/graph_memory.h"
#include "intercept/real.h"

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
    return instantiate(vgpu_cuda()->cuGraphInstantiateWithParams, vgpu_cuda()->cuGraphUpload, exec, graph, params);
}

CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS *params)
{
    return instantiate(vgpu_cuda()->cuGraphInstantiateWithParams_ptsz, vgpu_cuda()->cuGraphUpload_ptsz, exec, graph, params);
}

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    vgpu_graph_memory_destroyed(exec); /* before: the number may be given out again at once */
    return vgpu_cuda()->cuGraphExecDestroy(exec);
}

/* A graph is one launch, whatever is in it: what it costs is learnt from launches of it. */
static CUresult launch(CUgraphExec exec, CUstream stream, CUstream timed_in, CUresult (*real)(CUgraphExec, CUstream))
{
    const struct vgpu_launch launch = vgpu_cores_admit(exec, 0, timed_in);
    const CUresult result = vgpu_graph_memory_run(exec, stream, real);
    vgpu_cores_launched(&launch, result);
    return result;
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream stream) { return launch(exec, stream, stream, vgpu_cuda()->cuGraphLaunch); }

CUresult cuGraphLaunch_ptsz(CUgraphExec exec, CUstream stream)
{
    return launch(exec, stream, vgpu_per_thread(stream), vgpu_cuda()->cuGraphLaunch_ptsz);
}

CUresult cuGraphUpload(CUgraphExec exec, CUstream stream) { return vgpu_graph_memory_run(exec, stream, vgpu_cuda()->cuGraphUpload); }

CUresult cuGraphUpload_ptsz(CUgraphExec exec, CUstream stream)
{
    return vgpu_graph_memory_run(exec, stream, vgpu_cuda()->cuGraphUpload_ptsz);
}

/* A capture that is broken ends too, with an error; one that may not be ended there goes on, with another. */
static CUresult end_capture(CUresult (*real)(CUstream, CUgraph *), CUresult (*is_capturing)(CUstream, int *), CUstream stream,
                            CUgraph *graph)
{
    int before = CU_STREAM_CAPTURE_STATUS_NONE, after = CU_STREAM_CAPTURE_STATUS_NONE;
    if (is_capturing(stream, &before) != CUDA_SUCCESS) before = CU_STREAM_CAPTURE_STATUS_NONE;
    const CUresult result = real(stream, graph);
    if (before == CU_STREAM_CAPTURE_STATUS_NONE) return result;
    if (result == CUDA_SUCCESS || (is_capturing(stream, &after) == CUDA_SUCCESS && after == CU_STREAM_CAPTURE_STATUS_NONE))
        vgpu_cores_capture_ended();
    return result;
}

CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph)
{
    return end_capture(vgpu_cuda()->cuStreamEndCapture, vgpu_cuda()->cuStreamIsCapturing, stream, graph);
}

CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
    return end_capture(vgpu_cuda()->cuStreamEndCapture_ptsz, vgpu_cuda()->cuStreamIsCapturing_ptsz, stream, graph);
}
