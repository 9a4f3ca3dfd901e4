/* What modules and libraries of the stand-in driver define: kernels with their parameters, and variables in device memory. */
#include "module/symbol.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/block.h"
#include "module/ptx.h"

static CUresult add_variable(CUmodule module, CUcontext context, const struct fg_ptx_item *item)
{
    struct fg_block *block, wanted = {.bytes = item->bytes,
                                      .device = context->device,
                                      .context = context,
                                      .kind = FG_MODULE_MEMORY,
                                      .managed = item->managed,
                                      .touched = true};
    if (item->bytes == 0 || item->bytes == SIZE_MAX) return CUDA_ERROR_INVALID_PTX;
    struct fg_variable *made = calloc(1, sizeof *made);
    if (made == NULL || !fg_charge(context->device, fg_rounded(item->bytes))) return free(made), CUDA_ERROR_OUT_OF_MEMORY;
    wanted.charged = fg_rounded(item->bytes);
    const CUresult result = fg_add_block(&wanted, &block);
    if (result != CUDA_SUCCESS) return fg_discharge(context->device, wanted.charged), free(made), result;
    *made = (struct fg_variable){.at = block->base, .bytes = item->bytes, .managed = item->managed, .next = module->variables};
    snprintf(made->name, sizeof made->name, "%s", item->name);
    module->variables = made;
    memset((void *)(uintptr_t)made->at, 0, made->bytes);
    return fg_ptx_initialise(item, (void *)(uintptr_t)made->at) ? CUDA_SUCCESS : CUDA_ERROR_NOT_SUPPORTED;
}

CUresult fg_add_variables(CUmodule module, CUcontext context)
{
    struct fg_ptx_item item;
    enum fg_ptx_kind kind;
    CUresult result = CUDA_SUCCESS;
    for (const char *at = module->image; result == CUDA_SUCCESS && (kind = fg_ptx_next(&at, &item)) != FG_PTX_END;)
        if (kind == FG_PTX_VARIABLE && !item.external) result = add_variable(module, context, &item);
    return result;
}

void fg_end_symbols(CUmodule module)
{
    for (struct fg_variable *at = module->variables, *next; at != NULL; at = next) {
        next = at->next;
        struct fg_block *block = fg_remove_block(at->at, 1U << FG_MODULE_MEMORY); /* it may have gone with its context */
        if (block != NULL) fg_drop_block(block);
        free(at);
    }
    module->variables = NULL;
}

static bool module_ok(CUmodule module) { return module != NULL && module->tag == FG_MODULE; }

/* A kernel is one function, however often it is asked for. */
static CUresult function_of(CUmodule module, const struct fg_ptx_item *item, CUfunction *function)
{
    const size_t bytes = (size_t)item->parameter_count * sizeof *item->parameters;
    CUfunction known = module->functions;
    while (known != NULL && strcmp(known->name, item->name) != 0) known = known->next;
    if (known != NULL) return *function = known, CUDA_SUCCESS;
    if (item->is_too_wide) return CUDA_ERROR_INVALID_PTX;
    struct CUfunc_st *made = calloc(1, sizeof *made);
    struct fg_parameter *parameters = malloc(bytes + 1);
    if (made == NULL || parameters == NULL) return free(made), free(parameters), CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(parameters, item->parameters, bytes);
    *made = (struct CUfunc_st){.tag = FG_FUNCTION,
                               .module = module,
                               .block = {1, 1, 1},
                               .parameters = parameters,
                               .parameter_count = item->parameter_count,
                               .next = module->functions};
    snprintf(made->name, sizeof made->name, "%s", item->name);
    module->functions = made;
    *function = made;
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    struct fg_ptx_item item;
    if (!module_ok(module)) return CUDA_ERROR_INVALID_HANDLE;
    if (function == NULL || name == NULL || *name == '\0') return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fg_driver.lock);
    const CUresult result =
        fg_ptx_find(module->image, FG_PTX_KERNEL, name, &item) ? function_of(module, &item, function) : CUDA_ERROR_NOT_FOUND;
    pthread_mutex_unlock(&fg_driver.lock);
    return result;
}

CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule module)
{
    struct fg_ptx_item item;
    enum fg_ptx_kind kind;
    if (!module_ok(module)) return CUDA_ERROR_INVALID_HANDLE;
    if (count == NULL) return CUDA_ERROR_INVALID_VALUE;
    *count = 0;
    for (const char *at = module->image; (kind = fg_ptx_next(&at, &item)) != FG_PTX_END;) *count += kind == FG_PTX_KERNEL;
    return CUDA_SUCCESS;
}

CUresult cuModuleEnumerateFunctions(CUfunction *functions, unsigned int room, CUmodule module)
{
    struct fg_ptx_item item;
    enum fg_ptx_kind kind;
    unsigned int found = 0;
    CUresult result = CUDA_SUCCESS;
    if (!module_ok(module)) return CUDA_ERROR_INVALID_HANDLE;
    if (functions == NULL || room == 0) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fg_driver.lock);
    for (const char *at = module->image; found < room && result == CUDA_SUCCESS && (kind = fg_ptx_next(&at, &item)) != FG_PTX_END;)
        if (kind == FG_PTX_KERNEL) result = function_of(module, &item, &functions[found++]);
    pthread_mutex_unlock(&fg_driver.lock);
    return result;
}

CUresult fg_module_variable(CUmodule module, const char *name, bool managed_only, CUdeviceptr *pointer, size_t *bytes)
{
    if (!module_ok(module)) return CUDA_ERROR_INVALID_HANDLE;
    if (name == NULL || (pointer == NULL && bytes == NULL)) return CUDA_ERROR_INVALID_VALUE;
    const struct fg_variable *found = module->variables;
    while (found != NULL && (strcmp(found->name, name) != 0 || (managed_only && !found->managed))) found = found->next;
    if (found == NULL) return CUDA_ERROR_NOT_FOUND;
    if (pointer != NULL) *pointer = found->at;
    if (bytes != NULL) *bytes = found->bytes;
    return CUDA_SUCCESS;
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *pointer, size_t *bytes, CUmodule module, const char *name)
{
    return fg_module_variable(module, name, false, pointer, bytes);
}

/* References to textures and surfaces: names of them are found, but since CUDA 12 nothing can be bound to one. */
static CUresult reference(void *found, CUmodule module, enum fg_ptx_kind kind, const char *name)
{
    struct fg_ptx_item item;
    if (!module_ok(module)) return CUDA_ERROR_INVALID_HANDLE;
    if (found == NULL || name == NULL) return CUDA_ERROR_INVALID_VALUE;
    return fg_ptx_find(module->image, kind, name, &item) ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_NOT_FOUND;
}

CUresult cuModuleGetTexRef(CUtexref *found, CUmodule module, const char *name) { return reference(found, module, FG_PTX_TEXTURE, name); }
CUresult cuModuleGetSurfRef(CUsurfref *found, CUmodule module, const char *name) { return reference(found, module, FG_PTX_SURFACE, name); }

CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *bytes)
{
    if (function == NULL || function->tag != FG_FUNCTION) return CUDA_ERROR_INVALID_HANDLE;
    if (offset == NULL || index >= (size_t)function->parameter_count) return CUDA_ERROR_INVALID_VALUE;
    *offset = function->parameters[index].offset;
    if (bytes != NULL) *bytes = function->parameters[index].bytes;
    return CUDA_SUCCESS;
}

CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t *offset, size_t *bytes)
{
    return cuFuncGetParamInfo((CUfunction)(void *)kernel, index, offset, bytes);
}
