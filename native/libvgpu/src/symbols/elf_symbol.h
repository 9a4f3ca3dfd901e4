/* Finding a function of the C library without dlsym, which this library replaces. */
#ifndef VGPU_ELF_SYMBOL_H
#define VGPU_ELF_SYMBOL_H

#include <stdbool.h>
#include <stddef.h>

/* Any function: converted back before it is called. ISO C has no void * for functions. */
typedef void (*vgpu_function)(void);

/* Comparing without the C library: a sanitizer of the program replaces strcmp, and looks the real one up with dlsym, here. */
static inline bool vgpu_begins(const char *text, const char *beginning)
{
    while (*beginning != '\0' && *text == *beginning) text++, beginning++;
    return *beginning == '\0';
}
static inline bool vgpu_same(const char *a, const char *b)
{
    while (*a != '\0' && *a == *b) a++, b++;
    return *a == *b;
}

/* The function `name` in the loaded object whose file name starts with `object` ("libc.so."), read from its own symbol table; the
 * default version where there are several. NULL if there is none. Calls no function that a sanitizer replaces, unless the program was
 * started in an odd way (then dl_iterate_phdr, with the dynamic linker's lock). */
vgpu_function vgpu_elf_symbol(const char *object, const char *name);

#endif
