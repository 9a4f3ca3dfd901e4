#include "intercept/table.h"

#include <string.h>

/* One stand-in per row, of the row's own type: calling through a mistyped pointer would be undefined. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#define HOOK(symbol, base, version, flags, parameters) \
    static CUresult missing_##symbol parameters { return CUDA_ERROR_NOT_FOUND; }
#include "intercept/cuda.def"
#undef HOOK
#define NEED(symbol, parameters) \
    static CUresult missing_##symbol parameters { return CUDA_ERROR_NOT_FOUND; }
#include "intercept/cuda_needed.def"
#undef NEED
#define HOOK(symbol, parameters) \
    static nvmlReturn_t missing_##symbol parameters { return NVML_ERROR_NOT_FOUND; }
#include "intercept/nvml.def"
#undef HOOK
#define NEED(symbol, parameters) \
    static nvmlReturn_t missing_##symbol parameters { return NVML_ERROR_NOT_FOUND; }
#include "intercept/nvml_needed.def"
#undef NEED
#pragma GCC diagnostic pop

const struct vgpu_row vgpu_cuda_rows[] = {
#define HOOK(symbol, base, version, flags, parameters) \
    {#symbol, base, version, flags, offsetof(struct vgpu_cuda, symbol), true, (vgpu_function)missing_##symbol},
#include "intercept/cuda.def"
#undef HOOK
#define NEED(symbol, parameters) {#symbol, NULL, 0, 0, offsetof(struct vgpu_cuda, symbol), false, (vgpu_function)missing_##symbol},
#include "intercept/cuda_needed.def"
#undef NEED
};
const size_t vgpu_cuda_row_count = sizeof vgpu_cuda_rows / sizeof *vgpu_cuda_rows;

const struct vgpu_row vgpu_nvml_rows[] = {
#define HOOK(symbol, parameters) {#symbol, NULL, 0, 0, offsetof(struct vgpu_nvml, symbol), true, (vgpu_function)missing_##symbol},
#include "intercept/nvml.def"
#undef HOOK
#define NEED(symbol, parameters) {#symbol, NULL, 0, 0, offsetof(struct vgpu_nvml, symbol), false, (vgpu_function)missing_##symbol},
#include "intercept/nvml_needed.def"
#undef NEED
};
const size_t vgpu_nvml_row_count = sizeof vgpu_nvml_rows / sizeof *vgpu_nvml_rows;

static const struct vgpu_row *named(const struct vgpu_row *rows, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++)
        if (rows[i].altered && strcmp(rows[i].name, name) == 0) return &rows[i];
    return NULL;
}

const struct vgpu_row *vgpu_altered_named(const char *name)
{
    return name[0] == 'c' ? named(vgpu_cuda_rows, vgpu_cuda_row_count, name) : named(vgpu_nvml_rows, vgpu_nvml_row_count, name);
}
