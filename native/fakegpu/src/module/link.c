/* Linking in the stand-in driver: PTX texts become one. Its image is PTX text again, which is the only code that this driver loads. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver/handle.h"
#include "module/jit_log.h"
#include "module/ptx.h"

struct CUlinkState_st {
    enum fg_tag tag;
    char *text; /* all that was added; NULL: nothing yet */
    size_t bytes;
    struct fg_jit_log log;
};

enum { CU_JIT_INPUT_PTX = 1, CU_JIT_INPUT_LAST = 5 };

static bool link_ok(CUlinkState state) { return fg_handle_lives(state) && state->tag == FG_LINK; }

CUresult cuLinkCreate_v2(unsigned int count, int *options, void **values, CUlinkState *state)
{
    CUcontext context;
    struct fg_jit_log log;
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (state == NULL || !fg_jit_log_open(&log, count, options, values)) return CUDA_ERROR_INVALID_VALUE;
    CUlinkState made = calloc(1, sizeof *made);
    if (made == NULL || !fg_handle_begins(made)) return free(made), CUDA_ERROR_OUT_OF_MEMORY;
    *made = (struct CUlinkState_st){.tag = FG_LINK, .log = log};
    *state = made;
    return CUDA_SUCCESS;
}

CUresult cuLinkCreate(unsigned int count, int *options, void **values, CUlinkState *state)
{
    return cuLinkCreate_v2(count, options, values, state);
}

/* Nothing may be defined twice. */
static CUresult check_definitions(CUlinkState state, const char *more)
{
    struct fg_ptx_item item, other;
    enum fg_ptx_kind kind;
    size_t found = 0;
    for (const char *at = more; (kind = fg_ptx_next(&at, &item)) != FG_PTX_END; found++) {
        if (item.external || state->text == NULL || !fg_ptx_find(state->text, kind, item.name, &other)) continue;
        fg_jit_log_error(&state->log, "Multiple definition of", item.name);
        return CUDA_ERROR_INVALID_PTX;
    }
    return found > 0 || strstr(more, ".version") != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_PTX;
}

CUresult cuLinkAddData_v2(CUlinkState state, int type, void *data, size_t bytes, const char *name, unsigned int count, int *options,
                          void **values)
{
    (void)name;
    if (!link_ok(state)) return CUDA_ERROR_INVALID_HANDLE;
    if (data == NULL || bytes == 0 || type < 0 || type > CU_JIT_INPUT_LAST || (count > 0 && (options == NULL || values == NULL)))
        return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_JIT_INPUT_PTX) return CUDA_ERROR_NOT_SUPPORTED; /* machine code and NVVM: it can read neither */
    char *more = strndup(data, bytes);
    if (more == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    const CUresult result = check_definitions(state, more);
    const size_t length = strlen(more);
    char *longer = result == CUDA_SUCCESS ? realloc(state->text, state->bytes + length + 2) : NULL;
    if (longer != NULL) {
        memcpy(longer + state->bytes, more, length);
        memcpy(longer + state->bytes + length, "\n", 2);
        state->text = longer;
        state->bytes += length + 1;
    }
    free(more);
    return result == CUDA_SUCCESS && longer == NULL ? CUDA_ERROR_OUT_OF_MEMORY : result;
}

CUresult cuLinkAddData(CUlinkState state, int type, void *data, size_t bytes, const char *name, unsigned int count, int *options,
                       void **values)
{
    return cuLinkAddData_v2(state, type, data, bytes, name, count, options, values);
}

CUresult cuLinkAddFile_v2(CUlinkState state, int type, const char *path, unsigned int count, int *options, void **values)
{
    enum { LIMIT = 16 << 20 };
    if (!link_ok(state)) return CUDA_ERROR_INVALID_HANDLE;
    if (path == NULL) return CUDA_ERROR_INVALID_VALUE;
    FILE *file = fopen(path, "re");
    if (file == NULL) return CUDA_ERROR_FILE_NOT_FOUND;
    char *text = malloc(LIMIT);
    const size_t bytes = text != NULL ? fread(text, 1, LIMIT, file) : 0;
    fclose(file);
    const CUresult result =
        text != NULL ? cuLinkAddData_v2(state, type, text, bytes, path, count, options, values) : CUDA_ERROR_OUT_OF_MEMORY;
    free(text);
    return result;
}

CUresult cuLinkAddFile(CUlinkState state, int type, const char *path, unsigned int count, int *options, void **values)
{
    return cuLinkAddFile_v2(state, type, path, count, options, values);
}

/* The image stays the state's, and goes with it. What is declared must be defined somewhere. */
CUresult cuLinkComplete(CUlinkState state, void **image, size_t *bytes)
{
    struct fg_ptx_item item, other;
    enum fg_ptx_kind kind;
    if (!link_ok(state)) return CUDA_ERROR_INVALID_HANDLE;
    if (image == NULL || state->text == NULL) return CUDA_ERROR_INVALID_VALUE;
    for (const char *at = state->text; (kind = fg_ptx_next(&at, &item)) != FG_PTX_END;) {
        if (!item.external || fg_ptx_find(state->text, kind, item.name, &other)) continue;
        fg_jit_log_error(&state->log, "Undefined reference to", item.name);
        return CUDA_ERROR_INVALID_PTX;
    }
    *image = state->text;
    if (bytes != NULL) *bytes = state->bytes + 1;
    return CUDA_SUCCESS;
}

CUresult cuLinkDestroy(CUlinkState state)
{
    if (!link_ok(state)) return CUDA_ERROR_INVALID_HANDLE;
    fg_handle_ends(state);
    free(state->text);
    free(state);
    return CUDA_SUCCESS;
}
