/* Modules of the stand-in driver: PTX text is all it knows. Each takes module_kib of the card. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/block.h"
#include "driver/log.h"
#include "module/symbol.h"
#include "module/jit_log.h"

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    CUcontext context;
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (module == NULL || image == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (strstr(image, ".entry") == NULL && strstr(image, ".global") == NULL) {
        fg_log(FG_LOG_ERROR, "An image is no PTX text with a kernel or a variable");
        return CUDA_ERROR_INVALID_IMAGE;
    }
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
