/* Modules take memory of the card that no call names: their code, and their variables, which may be arrays of any size.
 * What they took is looked up after; one that does not fit into the slice is unloaded again. */
#include "accounting/overhead.h"
#include "intercept/real.h"

/* The result of a load, once it is counted: CUDA_ERROR_OUT_OF_MEMORY if what the driver loaded does not fit. */
static CUresult counted(CUresult loaded, const struct vgpu_overhead_before *before)
{
    return loaded != CUDA_SUCCESS || vgpu_overhead_fits(before) ? loaded : CUDA_ERROR_OUT_OF_MEMORY;
}

/* `at` is where the driver puts what it loads: where the caller wants it, if its memory is of no slice. */
#define HOOK(symbol, base, version, flags, parameters)
#define LOAD(symbol, base, version, flags, parameters, arguments, wanted, type, unload) \
    CUresult symbol parameters                                                          \
    {                                                                                   \
        type loaded;                                                                    \
        const struct vgpu_overhead_before before = vgpu_overhead_before();              \
        type *const at = before.device >= 0 && wanted != NULL ? &loaded : wanted;       \
        const CUresult made = vgpu_cuda()->symbol arguments;                            \
        if (at == wanted) return made;                                                  \
        const CUresult result = counted(made, &before);                                 \
        if (result == CUDA_SUCCESS) {                                                   \
            *wanted = loaded;                                                           \
        } else if (made == CUDA_SUCCESS) {                                              \
            (void)vgpu_cuda()->unload(loaded);                                          \
            vgpu_overhead_settle_current();                                             \
        }                                                                               \
        return result;                                                                  \
    }
#include "intercept/cuda.def"
