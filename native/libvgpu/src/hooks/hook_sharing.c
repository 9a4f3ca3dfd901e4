/* Memory of one process that others open. Its maker is charged; when the maker lets go of it or ends, the container goes
 * on being charged for what is still open (memory/opened.h). */
#include "intercept/real.h"
#include "memory/charge.h"
#include "memory/opened.h"

CUresult cuIpcGetMemHandle(CUipcMemHandle_v1 *handle, CUdeviceptr pointer)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    const CUresult result = cuda->cuIpcGetMemHandle(handle, pointer);
    if (result == CUDA_SUCCESS) vgpu_memory_exported(pointer);
    return result;
}

static CUresult opened(CUresult result, const CUdeviceptr *pointer)
{
    if (result == CUDA_SUCCESS) vgpu_opened(*pointer);
    return result;
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *pointer, CUipcMemHandle_v1 handle, unsigned int flags)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    return cuda != NULL ? opened(cuda->cuIpcOpenMemHandle(pointer, handle, flags), pointer) : CUDA_ERROR_NOT_FOUND;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMemHandle_v1 handle, unsigned int flags)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    return cuda != NULL ? opened(cuda->cuIpcOpenMemHandle_v2(pointer, handle, flags), pointer) : CUDA_ERROR_NOT_FOUND;
}

CUresult cuIpcCloseMemHandle(CUdeviceptr pointer)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    const CUresult result = cuda->cuIpcCloseMemHandle(pointer);
    if (result == CUDA_SUCCESS) vgpu_opened_closed(pointer);
    return result;
}

CUresult cuMemPoolExportPointer(void *data, CUdeviceptr pointer)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    const CUresult result = cuda->cuMemPoolExportPointer(data, pointer);
    if (result == CUDA_SUCCESS) vgpu_memory_exported(pointer);
    return result;
}

CUresult cuMemPoolImportPointer(CUdeviceptr *pointer, CUmemoryPool pool, void *data)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    return cuda != NULL ? opened(cuda->cuMemPoolImportPointer(pointer, pool, data), pointer) : CUDA_ERROR_NOT_FOUND;
}
