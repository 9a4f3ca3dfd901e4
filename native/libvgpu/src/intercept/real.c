#include "intercept/real.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "symbols/real_dlsym.h"

/* Both tables are built at most once per process and published with one pointer. No lock: a thread inside the dynamic linker may call
 * us while another one, with our lock, waits for the dynamic linker. Two threads may build; the second copy is dropped. */
struct cuda_library {
    struct vgpu_cuda real;
    void *handle;
    void *known[]; /* two per row: by symbol and by cuGetProcAddress; NULL: none */
};

static _Atomic(struct cuda_library *) cuda_library;
static _Atomic(struct vgpu_nvml *) nvml_library;
static _Thread_local int building;

/* Fills one slot of a table of real functions; one that the driver lacks stays as it is. */
static void *fill(void *table, const struct vgpu_row *row, void *handle)
{
    void *function = vgpu_real_dlsym()(handle, row->name);
    if (function != NULL) memcpy((char *)table + row->offset, &function, sizeof function);
    return function;
}

static void *open_library(const char *name, int flags)
{
    /* NODELETE: our table points into it for good. */
    return vgpu_real_dlsym() != NULL ? dlopen(name, RTLD_LAZY | RTLD_NODELETE | flags) : NULL;
}

/* What the driver itself answers for this row; the same function as its symbol, unless the driver keeps two entries. */
static void *by_proc_address(const struct vgpu_cuda *real, const struct vgpu_row *row)
{
    void *function = NULL;
    CUdriverProcAddressQueryResult status;
    if (row->base == NULL) return NULL;
    CUresult result = real->cuGetProcAddress_v2(row->base, &function, row->version, row->flags, &status);
    if (result == CUDA_ERROR_NOT_FOUND && function == NULL) result = real->cuGetProcAddress(row->base, &function, row->version, row->flags);
    return result == CUDA_SUCCESS ? function : NULL;
}

/* Whether it is the exported function of another row: an older driver answers a newer request with what it has. */
static int belongs_to_another(const struct cuda_library *library, size_t row, const void *function)
{
    for (size_t i = 0; i < vgpu_cuda_row_count; i++)
        if (i != row && library->known[2 * i] == function) return 1;
    return 0;
}

static struct cuda_library *build_cuda(void *handle)
{
    struct cuda_library *library = calloc(1, sizeof *library + 2 * vgpu_cuda_row_count * sizeof *library->known);
    if (library == NULL) return NULL;
    library->real = vgpu_no_cuda;
    library->handle = handle;
    for (size_t i = 0; i < vgpu_cuda_row_count; i++) library->known[2 * i] = fill(&library->real, &vgpu_cuda_rows[i], handle);
    for (size_t i = 0; i < vgpu_cuda_row_count; i++) {
        const struct vgpu_row *row = &vgpu_cuda_rows[i];
        void *answer = by_proc_address(&library->real, row);
        if (answer == library->known[2 * i]) continue; /* nearly all: nothing that is not known */
        if (answer == NULL || belongs_to_another(library, i, answer)) continue;
        library->known[2 * i + 1] = answer;
        /* A driver may hand a function out that it does not export. */
        if (library->known[2 * i] == NULL) memcpy((char *)&library->real + row->offset, &answer, sizeof answer);
    }
    return library;
}

/* Apart, so that what every call begins with stays one look. */
__attribute__((noinline, cold)) static struct cuda_library *find_cuda(int flags)
{
    struct cuda_library *library = NULL;
    if (building) return NULL;
    building = 1;
    void *handle = open_library("libcuda.so.1", flags);
    struct cuda_library *built = handle != NULL ? build_cuda(handle) : NULL;
    building = 0;
    if (built == NULL) return NULL;
    if (atomic_compare_exchange_strong(&cuda_library, &library, built)) return built;
    free(built);
    return library;
}

static inline struct cuda_library *cuda_now(int flags)
{
    struct cuda_library *library = atomic_load_explicit(&cuda_library, memory_order_acquire);
    return __builtin_expect(library != NULL, 1) ? library : find_cuda(flags);
}

const struct vgpu_cuda *vgpu_cuda(void)
{
    const struct cuda_library *library = cuda_now(RTLD_NOLOAD);
    return __builtin_expect(library != NULL, 1) ? &library->real : &vgpu_no_cuda;
}

bool vgpu_has_cuda(void) { return cuda_now(RTLD_NOLOAD) != NULL; }

void vgpu_load_cuda(void) { (void)cuda_now(0); }

void *vgpu_cuda_handle(void)
{
    const struct cuda_library *library = cuda_now(RTLD_NOLOAD);
    return library != NULL ? library->handle : NULL;
}

const struct vgpu_cuda *vgpu_cuda_at_hand(void)
{
    const struct cuda_library *library = atomic_load_explicit(&cuda_library, memory_order_acquire);
    return library != NULL ? &library->real : NULL; /* the table is what the library begins with: no branch is left of this */
}

static const struct vgpu_nvml *nvml_now(int flags)
{
    struct vgpu_nvml *library = atomic_load_explicit(&nvml_library, memory_order_acquire);
    if (library != NULL || building) return library;
    building = 1;
    void *handle = open_library("libnvidia-ml.so.1", flags);
    struct vgpu_nvml *built = handle != NULL ? malloc(sizeof *built) : NULL;
    if (built != NULL) *built = vgpu_no_nvml;
    for (size_t i = 0; built != NULL && i < vgpu_nvml_row_count; i++) fill(built, &vgpu_nvml_rows[i], handle);
    building = 0;
    if (built == NULL) return NULL;
    if (atomic_compare_exchange_strong(&nvml_library, &library, built)) return built;
    free(built);
    return library;
}

const struct vgpu_nvml *vgpu_nvml(void) { return nvml_now(RTLD_NOLOAD); }

const struct vgpu_nvml *vgpu_nvml_loaded(void) { return nvml_now(0); }

const struct vgpu_row *vgpu_altered_at(const void *function)
{
    const struct cuda_library *cuda = cuda_now(RTLD_NOLOAD);
    for (size_t i = 0; function != NULL && cuda != NULL && i < 2 * vgpu_cuda_row_count; i++)
        if (cuda->known[i] == function && vgpu_cuda_rows[i / 2].altered) return &vgpu_cuda_rows[i / 2];
    const struct vgpu_nvml *nvml = vgpu_nvml();
    for (size_t i = 0; function != NULL && nvml != NULL && i < vgpu_nvml_row_count; i++) {
        const struct vgpu_row *row = &vgpu_nvml_rows[i];
        if (row->altered && memcmp((const char *)nvml + row->offset, &function, sizeof function) == 0) return row;
    }
    return NULL;
}
