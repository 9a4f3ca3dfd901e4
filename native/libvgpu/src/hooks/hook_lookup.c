/* Every way a program can look a function up: dlsym, dlvsym, cuGetProcAddress.
 *
 * The rule is one: pass the question on, with the very same arguments, then exchange the answer if it is the real
 * address of a function that we alter. So versions, flags, handles and errors mean what they always meant. What is found
 * in a second copy of the driver is answered with the first one's (driver_copy.h).
 *
 * Takes no lock and allocates once, when the tables of real functions are built: a thread inside the dynamic linker may
 * come here. Runs before constructors do, and before a sanitizer of the program is ready (the Makefile's LOOKUP).
 */
#include <dlfcn.h>
#include <string.h>

#include "intercept/driver_copy.h"
#include "symbols/elf_symbol.h"
#include "intercept/real.h"
#include "symbols/real_dlsym.h"

VGPU_EXPORT void *dlsym(void *restrict handle, const char *restrict name);
VGPU_EXPORT void *dlvsym(void *restrict handle, const char *restrict name, const char *restrict version);

/* The hooks, in the order of the altered rows (table.h). */
static const vgpu_function cuda_hooks[] = {
#define HOOK(symbol, base, version, flags, parameters) (vgpu_function) symbol,
#include "intercept/cuda.def"
};
static const vgpu_function nvml_hooks[] = {
#define HOOK(symbol, parameters) (vgpu_function) symbol,
#include "intercept/nvml.def"
#undef HOOK
};

/* Cheap refusal of the names that never concern us. */
static int altered(const char *name)
{
    if (name == NULL) return 0;
    if (name[0] == 'c' && name[1] == 'u') return vgpu_altered_named(name) != NULL;
    if (name[0] == 'n' && name[1] == 'v') return vgpu_altered_named(name) != NULL;
    return name[0] == 'd' && name[1] == 'l' && (vgpu_same(name, "dlsym") || vgpu_same(name, "dlvsym"));
}

static void *as_pointer(vgpu_function function)
{
    void *pointer;
    memcpy(&pointer, &function, sizeof pointer);
    return pointer;
}

static bool is_of_cuda(const struct vgpu_row *row) { return row->name[0] == 'c'; }

static void *hook_of(const struct vgpu_row *row)
{
    return as_pointer(is_of_cuda(row) ? cuda_hooks[row - vgpu_cuda_rows] : nvml_hooks[row - vgpu_nvml_rows]);
}

/* Our function if `found` is a real one that is altered, else `found` itself. */
static void *replacement(void *found)
{
    const struct vgpu_row *row = vgpu_altered_at(found);
    return row != NULL ? hook_of(row) : found;
}

static bool library_present(const struct vgpu_row *row) { return is_of_cuda(row) ? vgpu_has_cuda() : vgpu_nvml() != NULL; }

/* A lookup of dlsym or dlvsym themselves: ours, whichever copy of the C library it finds theirs in. */
static void *exchange_lookup(const char *name, void *found)
{
    const bool is_libc = found == as_pointer((vgpu_function)vgpu_real_dlsym()) || found == as_pointer((vgpu_function)vgpu_real_dlvsym()) ||
                         vgpu_is_in_c_library(found);
    if (!is_libc) return found;
    return as_pointer(vgpu_same(name, "dlsym") ? (vgpu_function)dlsym : (vgpu_function)dlvsym);
}

/* `found` is the answer of the real lookup. */
static void *exchange(void *handle, const char *name, void *found)
{
    if (found == NULL) return NULL;
    if (name[0] == 'd') return exchange_lookup(name, found);
    const struct vgpu_row *row = vgpu_altered_named(name);
    /* A search of all objects finds our own export first. Without the driver in the process the honest answer is
     * "none". */
    if (found == hook_of(row)) return library_present(row) ? found : NULL;
    void *const replaced = replacement(found);
    if (replaced != found || !is_of_cuda(row) || !vgpu_is_in_driver_copy(handle, found)) return replaced;
    return library_present(row) ? hook_of(row) : NULL;
}

/* A function that we do not alter: of a second copy of the driver it must be the first one's, whose state it works on. */
static void *of_one_driver(void *handle, const char *name, void *found)
{
    return found != NULL && vgpu_is_in_driver_copy(handle, found) ? vgpu_driver_function(name) : found;
}

/* Names of the driver's functions begin so, and few others do. A search from a place (RTLD_NEXT) or of everything must
 * stay a tail call, and finds what is in the program's namespace alone. */
static bool may_be_of_a_driver(void *handle, const char *name)
{
    return name != NULL && name[0] == 'c' && name[1] == 'u' && name[2] >= 'A' && name[2] <= 'Z' && handle != RTLD_DEFAULT &&
           handle != RTLD_NEXT;
}

/* The tables are built before the real lookup, so that dlerror() afterwards speaks of the caller's lookup and not of
 * ours. */
static void prepare(const char *name)
{
    const struct vgpu_row *row = vgpu_altered_named(name);
    if (row != NULL) (void)library_present(row);
    (void)dlerror();
}

void *dlsym(void *restrict handle, const char *restrict name)
{
    void *(*real)(void *, const char *) = vgpu_real_dlsym();
    if (real == NULL) return NULL;
    /* A tail call: the real one sees our caller's return address, by which it decides what RTLD_NEXT and RTLD_DEFAULT
     * mean. */
    if (!altered(name)) {
        if (may_be_of_a_driver(handle, name)) return of_one_driver(handle, name, real(handle, name));
        return real(handle, name);
    }
    prepare(name);
    return exchange(handle, name, real(handle, name));
}

void *dlvsym(void *restrict handle, const char *restrict name, const char *restrict version)
{
    void *(*real)(void *, const char *, const char *) = vgpu_real_dlvsym();
    if (real == NULL) return NULL;
    if (!altered(name)) return real(handle, name, version);
    prepare(name);
    return exchange(handle, name, real(handle, name, version));
}

CUresult cuGetProcAddress(const char *symbol, void **function, int version, cuuint64_t flags)
{
    const CUresult result = vgpu_cuda()->cuGetProcAddress(symbol, function, version, flags);
    if (result == CUDA_SUCCESS && function != NULL) *function = replacement(*function);
    return result;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status)
{
    const CUresult result = vgpu_cuda()->cuGetProcAddress_v2(symbol, function, version, flags, status);
    if (result == CUDA_SUCCESS && function != NULL) *function = replacement(*function);
    return result;
}
