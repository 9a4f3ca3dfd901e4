#include "symbols/real_dlsym.h"

#include <stdatomic.h>
#include <stddef.h>

#include "symbols/elf_symbol.h"

typedef void *(*dlsym_function)(void *, const char *);
typedef void *(*dlvsym_function)(void *, const char *, const char *);

static vgpu_function libc_function(const char *name)
{
    /* glibc before 2.34 keeps it in libdl. */
    const vgpu_function found = vgpu_elf_symbol("libc.so.", name);
    return found != NULL ? found : vgpu_elf_symbol("libdl.so.", name);
}

dlsym_function vgpu_real_dlsym(void)
{
    static _Atomic(dlsym_function) cached;
    dlsym_function function = atomic_load_explicit(&cached, memory_order_relaxed);
    if (function == NULL) {
        function = (dlsym_function)libc_function("dlsym");
        atomic_store_explicit(&cached, function, memory_order_relaxed);
    }
    return function;
}

dlvsym_function vgpu_real_dlvsym(void)
{
    static _Atomic(dlvsym_function) cached;
    dlvsym_function function = atomic_load_explicit(&cached, memory_order_relaxed);
    if (function == NULL) {
        function = (dlvsym_function)libc_function("dlvsym");
        atomic_store_explicit(&cached, function, memory_order_relaxed);
    }
    return function;
}
