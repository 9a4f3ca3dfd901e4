/* Streams that record a graph: launches into them are free (cores.h), so it is counted how many captures are open.
 *
 * A stream that is destroyed while it records ends its capture without a call that shows it: launches then ask for good whether they are
 * recorded, and are slower for it. */
#include "compute/cores.h"
#include "intercept/real.h"

static CUresult begun(CUresult result)
{
    if (result == CUDA_SUCCESS) vgpu_cores_capture_begun();
    return result;
}

CUresult cuStreamBeginCapture(CUstream stream)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    return cuda != NULL ? begun(cuda->cuStreamBeginCapture(stream)) : CUDA_ERROR_NOT_FOUND;
}

CUresult cuStreamBeginCapture_ptsz(CUstream stream)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    return cuda != NULL ? begun(cuda->cuStreamBeginCapture_ptsz(stream)) : CUDA_ERROR_NOT_FOUND;
}

CUresult cuStreamBeginCapture_v2(CUstream stream, int mode)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    return cuda != NULL ? begun(cuda->cuStreamBeginCapture_v2(stream, mode)) : CUDA_ERROR_NOT_FOUND;
}

CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    return cuda != NULL ? begun(cuda->cuStreamBeginCapture_v2_ptsz(stream, mode)) : CUDA_ERROR_NOT_FOUND;
}

CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *dependencies, const void *edges, size_t count,
                                     int mode)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    return begun(cuda->cuStreamBeginCaptureToGraph(stream, graph, dependencies, edges, count, mode));
}

CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *dependencies, const void *edges, size_t count,
                                          int mode)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    return begun(cuda->cuStreamBeginCaptureToGraph_ptsz(stream, graph, dependencies, edges, count, mode));
}

/* One that is broken ends too, with an error; one that may not be ended there goes on, with another. */
static CUresult end(CUresult (*real)(CUstream, CUgraph *), CUresult (*is_capturing)(CUstream, int *), CUstream stream, CUgraph *graph)
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
    const struct vgpu_cuda *cuda = vgpu_cuda();
    return cuda != NULL ? end(cuda->cuStreamEndCapture, cuda->cuStreamIsCapturing, stream, graph) : CUDA_ERROR_NOT_FOUND;
}

CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    return cuda != NULL ? end(cuda->cuStreamEndCapture_ptsz, cuda->cuStreamIsCapturing_ptsz, stream, graph) : CUDA_ERROR_NOT_FOUND;
}
