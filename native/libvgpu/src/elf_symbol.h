/* Finding a function of the C library without dlsym, which this library replaces. */
#ifndef VGPU_ELF_SYMBOL_H
#define VGPU_ELF_SYMBOL_H

#include "table.h"

/* The function `name` in the loaded object whose file name starts with `object` ("libc.so."), read from its own symbol table; the
 * default version where there are several. NULL if there is none. Takes the dynamic linker's lock only as dl_iterate_phdr does. */
vgpu_function vgpu_elf_symbol(const char *object, const char *name);

#endif
