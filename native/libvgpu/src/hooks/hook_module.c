/* Modules take memory of the card that no call names: their code, and their variables, which may be arrays of any size.
 * What they took is looked up after; one that does not fit into the slice is unloaded again. */
#include "intercept/real.h"
#include "accounting/overhead.h"

/* Whether the module's memory is of a slice; else the call is the driver's own. */
static bool counted(const struct vgpu_overhead_before *before, const void *wanted) { return before->device >= 0 && wanted != NULL; }

/* `module` is where the caller wants it, `loaded` what the driver made. */
static CUresult module_loaded(const struct vgpu_overhead_before *before, CUresult result, const CUmodule *loaded, CUmodule *module)
{
    if (result != CUDA_SUCCESS) return result;
    if (!vgpu_overhead_fits(before)) {
        (void)vgpu_cuda()->cuModuleUnload(*loaded);
        vgpu_overhead_settle_current();
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *module = *loaded;
    return CUDA_SUCCESS;
}

CUresult cuModuleLoad(CUmodule *module, const char *path)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    CUmodule loaded;
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    const struct vgpu_overhead_before before = vgpu_overhead_before();
    if (!counted(&before, module)) return cuda->cuModuleLoad(module, path);
    return module_loaded(&before, cuda->cuModuleLoad(&loaded, path), &loaded, module);
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    CUmodule loaded;
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    const struct vgpu_overhead_before before = vgpu_overhead_before();
    if (!counted(&before, module)) return cuda->cuModuleLoadData(module, image);
    return module_loaded(&before, cuda->cuModuleLoadData(&loaded, image), &loaded, module);
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count, int *options, void **values)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    CUmodule loaded;
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    const struct vgpu_overhead_before before = vgpu_overhead_before();
    if (!counted(&before, module)) return cuda->cuModuleLoadDataEx(module, image, count, options, values);
    return module_loaded(&before, cuda->cuModuleLoadDataEx(&loaded, image, count, options, values), &loaded, module);
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    CUmodule loaded;
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    const struct vgpu_overhead_before before = vgpu_overhead_before();
    if (!counted(&before, module)) return cuda->cuModuleLoadFatBinary(module, image);
    return module_loaded(&before, cuda->cuModuleLoadFatBinary(&loaded, image), &loaded, module);
}

CUresult cuModuleUnload(CUmodule module)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    const CUresult result = cuda->cuModuleUnload(module);
    if (result == CUDA_SUCCESS) vgpu_overhead_changed();
    return result;
}

static CUresult library_loaded(const struct vgpu_overhead_before *before, CUresult result, const CUlibrary *loaded, CUlibrary *library)
{
    if (result != CUDA_SUCCESS) return result;
    if (!vgpu_overhead_fits(before)) {
        (void)vgpu_cuda()->cuLibraryUnload(*loaded);
        vgpu_overhead_settle_current();
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *library = *loaded;
    return CUDA_SUCCESS;
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, int *jit, void **jit_values, unsigned int jit_count, int *options,
                           void **values, unsigned int count)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    CUlibrary loaded;
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    const struct vgpu_overhead_before before = vgpu_overhead_before();
    if (!counted(&before, library)) return cuda->cuLibraryLoadData(library, code, jit, jit_values, jit_count, options, values, count);
    const CUresult result = cuda->cuLibraryLoadData(&loaded, code, jit, jit_values, jit_count, options, values, count);
    return library_loaded(&before, result, &loaded, library);
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, int *jit, void **jit_values, unsigned int jit_count, int *options,
                               void **values, unsigned int count)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    CUlibrary loaded;
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    const struct vgpu_overhead_before before = vgpu_overhead_before();
    if (!counted(&before, library)) return cuda->cuLibraryLoadFromFile(library, path, jit, jit_values, jit_count, options, values, count);
    const CUresult result = cuda->cuLibraryLoadFromFile(&loaded, path, jit, jit_values, jit_count, options, values, count);
    return library_loaded(&before, result, &loaded, library);
}

CUresult cuLibraryUnload(CUlibrary library)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    const CUresult result = cuda->cuLibraryUnload(library);
    if (result == CUDA_SUCCESS) vgpu_overhead_changed();
    return result;
}
