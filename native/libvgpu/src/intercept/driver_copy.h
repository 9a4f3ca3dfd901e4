/* A second copy of the CUDA driver in the process: the same library under another name, another file, or in a namespace
 * of its own (dlmopen). Its functions have addresses of their own, so address alone does not show what they are.
 *
 * A process has one driver, libcuda.so.1 of the program's own namespace. Whatever a lookup finds in another library
 * that exports a driver's functions is answered with that one driver's function of the same name, which may be altered:
 * memory taken through either is one account, and handles of one are good in the other.
 *
 * Code that the dynamic linker itself binds to such a copy inside another namespace is out of reach.
 */
#ifndef VGPU_DRIVER_COPY_H
#define VGPU_DRIVER_COPY_H

#include <stdbool.h>

/* Whether `found`, which a lookup at `handle` (also RTLD_NEXT) has answered, is in a library that is a CUDA driver but
 * not the process's. Then the process's driver is part of it afterwards, if it can be loaded at all. Changes what
 * dlerror() answers. */
bool vgpu_is_in_driver_copy(void *handle, const void *found);

/* The function of that name of the process's driver; NULL: it has none. */
void *vgpu_driver_function(const char *name);

/* Whether an address is in a C library, be it the program's or one in a namespace of its own. */
bool vgpu_is_in_c_library(const void *found);

#endif
