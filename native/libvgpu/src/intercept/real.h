/* The real functions: of the C library's lookup, of the CUDA driver, of NVML. */
#ifndef VGPU_REAL_H
#define VGPU_REAL_H

#include "intercept/table.h"

/* The C library's own dlsym and dlvsym. NULL only on a C library that is not glibc. */
void *(*vgpu_real_dlsym(void))(void *handle, const char *name);
void *(*vgpu_real_dlvsym(void))(void *handle, const char *name, const char *version);

/* The driver's functions; NULL while libcuda.so.1 is not part of this process (it is never loaded by us), and on the thread that is
 * just building the table. Any thread; lock free after the first time. */
const struct vgpu_cuda *vgpu_cuda(void);

/* The same if it has been looked up before, else NULL. */
const struct vgpu_cuda *vgpu_cuda_at_hand(void);

/* NVML's functions, likewise. */
const struct vgpu_nvml *vgpu_nvml(void);

/* The same, but loads libnvidia-ml.so.1 if the process has not. NULL where there is none. */
const struct vgpu_nvml *vgpu_nvml_loaded(void);

/* Our replacement if `function` is a real one that has a replacement, else `function` itself. */
void *vgpu_replacement(void *function);

/* Whether the library (cu... or nvml...) that an altered symbol belongs to is part of this process. */
int vgpu_library_present(const struct vgpu_row *row);

#endif
