/* What the .def lists expand to: prototypes of the hooks, typed tables of the real functions, and a row for each of
 * them. The addresses of the hooks are no part of it: hook_lookup.c alone knows them, so that the hooks may use all
 * that lies below them.
 *
 * A hook whose arguments differ from its row does not compile.
 */
#ifndef VGPU_TABLE_H
#define VGPU_TABLE_H

#include <stdbool.h>
#include <stddef.h>

#include "cuda_abi.h"
#include "nvml_abi.h"
#include "symbols/elf_symbol.h"

#define VGPU_EXPORT __attribute__((visibility("default")))

#define HOOK(symbol, base, version, flags, parameters) VGPU_EXPORT CUresult symbol parameters;
#include "intercept/cuda.def"
#define HOOK(symbol, parameters) VGPU_EXPORT nvmlReturn_t symbol parameters;
#include "intercept/nvml.def"
#undef HOOK

/* Never a null pointer: a function that the driver lacks is one that answers "not found". */
struct vgpu_cuda {
#define HOOK(symbol, base, version, flags, parameters) CUresult(*symbol) parameters;
#include "intercept/cuda.def"
#define NEED(symbol, parameters) CUresult(*symbol) parameters;
#include "intercept/cuda_needed.def"
#undef NEED
};

struct vgpu_nvml {
#define HOOK(symbol, parameters) nvmlReturn_t(*symbol) parameters;
#include "intercept/nvml.def"
#undef HOOK
#define NEED(symbol, parameters) nvmlReturn_t(*symbol) parameters;
#include "intercept/nvml_needed.def"
#undef NEED
};

struct vgpu_row {
    const char *name;
    const char *base;      /* name to ask cuGetProcAddress for; NULL: it is only found by its symbol */
    int version;
    cuuint64_t flags;
    size_t offset;         /* of the real function in its table */
    bool altered;          /* there is a hook; else it is only needed */
};

/* The tables of a process that has no driver: every function answers "not found". */
extern const struct vgpu_cuda vgpu_no_cuda;
extern const struct vgpu_nvml vgpu_no_nvml;

/* The altered functions first, in the order of their .def list. */
extern const struct vgpu_row vgpu_cuda_rows[];
extern const size_t vgpu_cuda_row_count;
extern const struct vgpu_row vgpu_nvml_rows[];
extern const size_t vgpu_nvml_row_count;

/* The altered function of that name, of either library; NULL for every other name. */
const struct vgpu_row *vgpu_altered_named(const char *name);

#endif
