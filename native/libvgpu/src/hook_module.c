/* Contexts and modules take memory of the card that no call names: what they took is looked up after. */
#include "overhead.h"
#include "real.h"

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    unsigned int flags;
    int active = 0;
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    /* Retained again it costs nothing more. */
    if (cuda->cuDevicePrimaryCtxGetState(device, &flags, &active) != CUDA_SUCCESS) active = 0;
    const CUresult result = cuda->cuDevicePrimaryCtxRetain(context, device);
    if (result == CUDA_SUCCESS && !active) vgpu_overhead_settle(device);
    return result;
}

static CUresult looked(CUresult result, CUdevice device)
{
    if (result == CUDA_SUCCESS) vgpu_overhead_settle(device);
    return result;
}

CUresult cuCtxCreate(CUcontext *context, unsigned int flags, CUdevice device)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    return cuda != NULL ? looked(cuda->cuCtxCreate(context, flags, device), device) : CUDA_ERROR_NOT_FOUND;
}

CUresult cuCtxCreate_v2(CUcontext *context, unsigned int flags, CUdevice device)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    return cuda != NULL ? looked(cuda->cuCtxCreate_v2(context, flags, device), device) : CUDA_ERROR_NOT_FOUND;
}

CUresult cuCtxCreate_v3(CUcontext *context, void *affinities, int count, unsigned int flags, CUdevice device)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    return cuda != NULL ? looked(cuda->cuCtxCreate_v3(context, affinities, count, flags, device), device) : CUDA_ERROR_NOT_FOUND;
}

CUresult cuCtxCreate_v4(CUcontext *context, void *parameters, unsigned int flags, CUdevice device)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    return cuda != NULL ? looked(cuda->cuCtxCreate_v4(context, parameters, flags, device), device) : CUDA_ERROR_NOT_FOUND;
}

static CUresult changed(CUresult result)
{
    if (result == CUDA_SUCCESS) vgpu_overhead_changed();
    return result;
}

CUresult cuModuleLoad(CUmodule *module, const char *path)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    return cuda != NULL ? changed(cuda->cuModuleLoad(module, path)) : CUDA_ERROR_NOT_FOUND;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    return cuda != NULL ? changed(cuda->cuModuleLoadData(module, image)) : CUDA_ERROR_NOT_FOUND;
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count, int *options, void **values)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    return cuda != NULL ? changed(cuda->cuModuleLoadDataEx(module, image, count, options, values)) : CUDA_ERROR_NOT_FOUND;
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    return cuda != NULL ? changed(cuda->cuModuleLoadFatBinary(module, image)) : CUDA_ERROR_NOT_FOUND;
}

CUresult cuModuleUnload(CUmodule module)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    return cuda != NULL ? changed(cuda->cuModuleUnload(module)) : CUDA_ERROR_NOT_FOUND;
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, int *jit, void **jit_values, unsigned int jit_count, int *options,
                           void **values, unsigned int count)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    return changed(cuda->cuLibraryLoadData(library, code, jit, jit_values, jit_count, options, values, count));
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, int *jit, void **jit_values, unsigned int jit_count, int *options,
                               void **values, unsigned int count)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    return changed(cuda->cuLibraryLoadFromFile(library, path, jit, jit_values, jit_count, options, values, count));
}

CUresult cuLibraryUnload(CUlibrary library)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    return cuda != NULL ? changed(cuda->cuLibraryUnload(library)) : CUDA_ERROR_NOT_FOUND;
}
