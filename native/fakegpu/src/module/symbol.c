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
    return CUDA_SUCCESS;
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
    CUfunction known = module->functions;
    while (known != NULL && strcmp(known->name, item->name) != 0) known = known->next;
    if (known != NULL) {
        *function = known;
        return CUDA_SUCCESS;
    }
    struct CUfunc_st *made = calloc(1, sizeof *made);
    if (made == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *made = (struct CUfunc_st){
        .tag = FG_FUNCTION, .module = module, .block = {1, 1, 1}, .parameter_count = item->parameter_count, .next = module->functions};
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

CUresult cuModuleGetGlobal_v2(CUdeviceptr *pointer, size_t *bytes, CUmodule module, const char *name)
{
    if (!module_ok(module)) return CUDA_ERROR_INVALID_HANDLE;
    if (name == NULL || (pointer == NULL && bytes == NULL)) return CUDA_ERROR_INVALID_VALUE;
    const struct fg_variable *found = module->variables;
    while (found != NULL && strcmp(found->name, name) != 0) found = found->next;
    if (found == NULL) return CUDA_ERROR_NOT_FOUND;
    if (pointer != NULL) *pointer = found->at;
    if (bytes != NULL) *bytes = found->bytes;
    return CUDA_SUCCESS;
}
