/* Modules take memory of the card that no call names: what they took is looked up after. */
#include "memory/overhead.h"
#include "intercept/real.h"

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
