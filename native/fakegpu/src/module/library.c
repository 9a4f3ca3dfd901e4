/* Libraries of the stand-in driver: each is a module by another name. */
#include <stdlib.h>

#include "module/symbol.h"

struct CUlib_st {
    enum fg_tag tag;
    CUmodule module;
};

static CUresult as_library(CUlibrary *library, CUmodule module)
{
    CUlibrary made = calloc(1, sizeof *made);
    if (made == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *made = (struct CUlib_st){FG_MODULE, module};
    *library = made;
    return CUDA_SUCCESS;
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, int *jit, void **jit_values, unsigned int jit_count, int *options,
                           void **values, unsigned int count)
{
    CUmodule module;
    if (library == NULL || (jit_count > 0 && (jit == NULL || jit_values == NULL)) || (count > 0 && (options == NULL || values == NULL)))
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = cuModuleLoadData(&module, code);
    return result == CUDA_SUCCESS ? as_library(library, module) : result;
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, int *jit, void **jit_values, unsigned int jit_count, int *options,
                               void **values, unsigned int count)
{
    CUmodule module;
    if (library == NULL || (jit_count > 0 && (jit == NULL || jit_values == NULL)) || (count > 0 && (options == NULL || values == NULL)))
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = cuModuleLoad(&module, path);
    return result == CUDA_SUCCESS ? as_library(library, module) : result;
}

CUresult cuLibraryUnload(CUlibrary library)
{
    if (library == NULL || library->tag != FG_MODULE) return CUDA_ERROR_INVALID_HANDLE;
    const CUresult result = cuModuleUnload(library->module);
    free(library);
    return result;
}

static bool library_ok(CUlibrary library) { return library != NULL && library->tag == FG_MODULE; }

CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
    if (module == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!library_ok(library)) return CUDA_ERROR_INVALID_HANDLE;
    *module = library->module;
    return CUDA_SUCCESS;
}

CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    CUfunction function;
    CUmodule module;
    if (kernel == NULL) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = cuLibraryGetModule(&module, library);
    if (result == CUDA_SUCCESS) result = cuModuleGetFunction(&function, module, name);
    if (result == CUDA_SUCCESS) *kernel = (CUkernel)(void *)function;
    return result;
}

CUresult cuLibraryGetKernelCount(unsigned int *count, CUlibrary library)
{
    CUmodule module;
    const CUresult result = cuLibraryGetModule(&module, library);
    return result == CUDA_SUCCESS ? cuModuleGetFunctionCount(count, module) : result;
}

CUresult cuLibraryEnumerateKernels(CUkernel *kernels, unsigned int room, CUlibrary library)
{
    CUmodule module;
    const CUresult result = cuLibraryGetModule(&module, library);
    return result == CUDA_SUCCESS ? cuModuleEnumerateFunctions((CUfunction *)(void *)kernels, room, module) : result;
}

CUresult cuLibraryGetGlobal(CUdeviceptr *pointer, size_t *bytes, CUlibrary library, const char *name)
{
    CUmodule module;
    const CUresult result = cuLibraryGetModule(&module, library);
    return result == CUDA_SUCCESS ? fg_module_variable(module, name, false, pointer, bytes) : result;
}

CUresult cuLibraryGetManaged(CUdeviceptr *pointer, size_t *bytes, CUlibrary library, const char *name)
{
    CUmodule module;
    const CUresult result = cuLibraryGetModule(&module, library);
    return result == CUDA_SUCCESS ? fg_module_variable(module, name, true, pointer, bytes) : result;
}

/* Functions that both sides may call by one address are not made from PTX. */
CUresult cuLibraryGetUnifiedFunction(void **function, CUlibrary library, const char *name)
{
    CUmodule module;
    const CUresult result = cuLibraryGetModule(&module, library);
    if (result != CUDA_SUCCESS) return result;
    return function == NULL || name == NULL ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_FOUND;
}
