#include "intercept/table.h"

#include <string.h>

/* One stand-in per row, of the row's own type: calling through a mistyped pointer would be undefined. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#define HOOK(symbol, base, version, flags, parameters) NEED(symbol, parameters)
#define NEED(symbol, parameters) \
    static CUresult missing_##symbol parameters { return CUDA_ERROR_NOT_FOUND; }
#include "intercept/cuda.def"
#include "intercept/cuda_needed.def"
#undef NEED
#define NEED(symbol, parameters) \
    static nvmlReturn_t missing_##symbol parameters { return NVML_ERROR_NOT_FOUND; }
#define HOOK NEED
#include "intercept/nvml.def"
#include "intercept/nvml_needed.def"
#undef HOOK
#undef NEED
#pragma GCC diagnostic pop

#define NEED(symbol, parameters) .symbol = missing_##symbol,
const struct vgpu_cuda vgpu_no_cuda = {
#define HOOK(symbol, base, version, flags, parameters) .symbol = missing_##symbol,
#include "intercept/cuda.def"
#include "intercept/cuda_needed.def"
};
const struct vgpu_nvml vgpu_no_nvml = {
#define HOOK NEED
#include "intercept/nvml.def"
#include "intercept/nvml_needed.def"
#undef HOOK
};
#undef NEED

const struct vgpu_row vgpu_cuda_rows[] = {
#define HOOK(symbol, base, version, flags, parameters) {#symbol, base, version, flags, offsetof(struct vgpu_cuda, symbol), true},
#define NEED(symbol, parameters) {#symbol, NULL, 0, 0, offsetof(struct vgpu_cuda, symbol), false},
#include "intercept/cuda.def"
#include "intercept/cuda_needed.def"
#undef NEED
};
const size_t vgpu_cuda_row_count = sizeof vgpu_cuda_rows / sizeof *vgpu_cuda_rows;

const struct vgpu_row vgpu_nvml_rows[] = {
#define HOOK(symbol, parameters) {#symbol, NULL, 0, 0, offsetof(struct vgpu_nvml, symbol), true},
#define NEED(symbol, parameters) {#symbol, NULL, 0, 0, offsetof(struct vgpu_nvml, symbol), false},
#include "intercept/nvml.def"
#include "intercept/nvml_needed.def"
#undef HOOK
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
