/* dlopen, dladdr and dlerror, which came from libdl before glibc 2.34: under their own names, hidden in this library
 * (base/older_glibc.c has the reason, and the other functions). */
#include <dlfcn.h>
#include <stdatomic.h>
#include <string.h>

#include "symbols/elf_symbol.h"
#include "symbols/real_dlsym.h"

/* Found as the dynamic linker would have bound it, so that a program's sanitizer sees the calls; before 2.34 also in a
 * libdl that only some library of the program shows to itself. NULL: there is no libdl. */
static vgpu_function bound(_Atomic(vgpu_function) *cached, const char *name)
{
    vgpu_function function = atomic_load_explicit(cached, memory_order_relaxed);
    if (function != NULL || vgpu_real_dlsym() == NULL) return function;
    void *found = vgpu_real_dlsym()(RTLD_DEFAULT, name);
    memcpy(&function, &found, sizeof function);
    if (function == NULL) function = vgpu_elf_symbol("libdl.so.", name);
    atomic_store_explicit(cached, function, memory_order_relaxed);
    return function;
}

void *dlopen(const char *name, int flags)
{
    static _Atomic(vgpu_function) cached;
    void *(*function)(const char *, int) = (void *(*)(const char *, int))bound(&cached, "dlopen");
    return function != NULL ? function(name, flags) : NULL;
}

int dladdr(const void *address, Dl_info *info)
{
    static _Atomic(vgpu_function) cached;
    int (*function)(const void *, Dl_info *) = (int (*)(const void *, Dl_info *))bound(&cached, "dladdr");
    return function != NULL ? function(address, info) : 0;
}

char *dlerror(void)
{
    static _Atomic(vgpu_function) cached;
    char *(*function)(void) = (char *(*)(void))bound(&cached, "dlerror");
    return function != NULL ? function() : NULL;
}
