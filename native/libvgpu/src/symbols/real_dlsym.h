/* The C library's own dlsym and dlvsym, which this library replaces for the program. Any thread; looked for once. NULL
 * only on a C library that is not glibc. */
#ifndef VGPU_REAL_DLSYM_H
#define VGPU_REAL_DLSYM_H

void *(*vgpu_real_dlsym(void))(void *handle, const char *name);
void *(*vgpu_real_dlvsym(void))(void *handle, const char *name, const char *version);

#endif
