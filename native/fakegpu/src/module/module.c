/* Modules of the stand-in driver: PTX text is all it knows. Each takes module_kib of the card. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/block.h"
#include "module/symbol.h"
#include "module/jit_log.h"
#include "driver/driver.h"

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    CUcontext context;
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (module == NULL || image == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (strstr(image, ".entry") == NULL && strstr(image, ".global") == NULL) return CUDA_ERROR_INVALID_IMAGE;
    struct CUmod_st *loaded = calloc(1, sizeof *loaded);
    char *copy = strdup(image);
    if (loaded == NULL || copy == NULL || !fg_charge(context->device, fg_driver.machine->module_bytes))
        return free(loaded), free(copy), CUDA_ERROR_OUT_OF_MEMORY;
    *loaded = (struct CUmod_st){.tag = FG_MODULE, .image = copy, .device = context->device};
    const CUresult filled = fg_add_variables(loaded, context);
    if (filled != CUDA_SUCCESS) return cuModuleUnload(loaded), filled;
    *module = loaded;
    return CUDA_SUCCESS;
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count, int *options, void **values)
{
    struct fg_jit_log log;
    if (!fg_jit_log_open(&log, count, options, values)) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = cuModuleLoadData(module, image);
    if (result == CUDA_ERROR_INVALID_IMAGE) fg_jit_log_error(&log, "No kernel or variable is defined in", "image");
    return result;
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image) { return cuModuleLoadData(module, image); }

CUresult cuModuleLoad(CUmodule *module, const char *path)
{
    enum { LIMIT = 1 << 20 };
    FILE *file = path != NULL ? fopen(path, "re") : NULL;
    char *text = file != NULL ? calloc(1, LIMIT + 1) : NULL;
    CUresult result = CUDA_ERROR_FILE_NOT_FOUND;
    if (text != NULL && fread(text, 1, LIMIT, file) > 0) result = cuModuleLoadData(module, text);
    if (file != NULL) fclose(file);
    free(text);
    return result;
}

CUresult cuModuleUnload(CUmodule module)
{
    if (module == NULL || module->tag != FG_MODULE) return CUDA_ERROR_INVALID_HANDLE;
    fg_end_symbols(module);
    free(module->image);
    module->tag = 0; /* kept: functions of it still point here and then fail */
    fg_discharge(module->device, fg_driver.machine->module_bytes + module->lazy_bytes);
    return CUDA_SUCCESS;
}

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

/* CUfunction_attribute: of a kernel without registers, shared memory or constants, since none is compiled. */
enum { MAX_THREADS_PER_BLOCK = 0, PTX_VERSION = 5, BINARY_VERSION = 6, MAX_DYNAMIC_SHARED = 8, SHARED_CARVEOUT = 9, LAST_ATTRIBUTE = 15 };
enum { THREADS_PER_BLOCK = 1024, SHARED_PER_BLOCK = 49152, SHARED_PER_SM = 167936 };

static bool is_function(CUfunction function) { return function != NULL && function->tag == FG_FUNCTION; }

CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction function)
{
    if (!is_function(function)) return CUDA_ERROR_INVALID_HANDLE;
    if (value == NULL || attribute < 0 || attribute > LAST_ATTRIBUTE) return CUDA_ERROR_INVALID_VALUE;
    const struct fg_card *card = &fg_driver.machine->cards[fg_driver.card_of[function->module->device]];
    if ((function->attributes_set >> attribute & 1) != 0)
        *value = function->attributes[attribute];
    else if (attribute == MAX_THREADS_PER_BLOCK)
        *value = THREADS_PER_BLOCK;
    else if (attribute == PTX_VERSION || attribute == BINARY_VERSION)
        *value = card->major * 10 + card->minor;
    else
        *value = attribute == MAX_DYNAMIC_SHARED ? SHARED_PER_BLOCK : attribute == SHARED_CARVEOUT ? -1 : 0;
    return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value)
{
    if (!is_function(function)) return CUDA_ERROR_INVALID_HANDLE;
    if (attribute < MAX_DYNAMIC_SHARED || attribute > LAST_ATTRIBUTE) return CUDA_ERROR_INVALID_VALUE; /* the others can only be read */
    if (attribute == SHARED_CARVEOUT ? value < -1 || value > 100 : value < 0) return CUDA_ERROR_INVALID_VALUE;
    if (attribute == MAX_DYNAMIC_SHARED && value > SHARED_PER_SM) return CUDA_ERROR_INVALID_VALUE;
    function->attributes[attribute] = value;
    function->attributes_set |= 1U << attribute;
    return CUDA_SUCCESS;
}

/* A library's kernel is its module's function: there is one device's code only. */
CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
    if (function == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!is_function((CUfunction)(void *)kernel)) return CUDA_ERROR_INVALID_HANDLE;
    *function = (CUfunction)(void *)kernel;
    return CUDA_SUCCESS;
}
