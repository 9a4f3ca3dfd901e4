#include "intercept/driver_copy.h"

#include <dlfcn.h>
#include <stddef.h>

#include "symbols/elf_symbol.h"
#include "intercept/real.h"
#include "symbols/real_dlsym.h"

/* What a program needs before it can take memory. Interposers of a few functions lack some of them. */
static const char *const signature[] = {"cuInit",         "cuDriverGetVersion", "cuDeviceGetCount", "cuDeviceGetAttribute",
                                        "cuCtxGetDevice", "cuGetErrorString"};

/* Where the object that an address lies in is loaded; NULL: in none. */
static const void *object_of(const void *address)
{
    Dl_info info;
    return address != NULL && dladdr(address, &info) != 0 ? info.dli_fbase : NULL;
}

static bool exports_signature(void *handle, const void *object)
{
    for (size_t i = 0; i < sizeof signature / sizeof *signature; i++)
        if (object_of(vgpu_real_dlsym()(handle, signature[i])) != object) return false;
    return true;
}

bool vgpu_is_in_driver_copy(void *handle, const void *found)
{
    const void *object = object_of(found);
    if (object == NULL || object == object_of(vgpu_driver_function("cuInit")) || !exports_signature(handle, object)) return false;
    vgpu_load_cuda();
    return true;
}

void *vgpu_driver_function(const char *name)
{
    void *driver = vgpu_cuda_handle();
    return driver != NULL ? vgpu_real_dlsym()(driver, name) : NULL;
}

bool vgpu_is_in_c_library(const void *found)
{
    Dl_info info;
    if (dladdr(found, &info) == 0 || info.dli_fname == NULL) return false;
    const char *file = info.dli_fname;
    for (const char *at = file; *at != '\0'; at++)
        if (*at == '/') file = at + 1;
    return vgpu_begins(file, "libc.so.") || vgpu_begins(file, "libdl.so.");
}
