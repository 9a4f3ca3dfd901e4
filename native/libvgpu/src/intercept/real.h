/* The real functions of the CUDA driver and of NVML. They survive fork, as the libraries do. */
#ifndef VGPU_REAL_H
#define VGPU_REAL_H

#include "intercept/table.h"

/* The driver's functions. While libcuda.so.1 is not part of this process, and on the thread that is just building the table, each
 * of them answers CUDA_ERROR_NOT_FOUND. Never loads the driver. Any thread; lock free after the first time. */
const struct vgpu_cuda *vgpu_cuda(void);
bool vgpu_has_cuda(void);

/* The same if it has been looked up before, otherwise NULL. */
const struct vgpu_cuda *vgpu_cuda_at_hand(void);

/* Loads libcuda.so.1 if the process has not: for one that came upon another copy of it (driver_copy.h). */
void vgpu_load_cuda(void);

/* The handle of that library, for dlsym; NULL without it. */
void *vgpu_cuda_handle(void);

/* NVML's functions; NULL while libnvidia-ml.so.1 is not part of this process. Never loads it. */
const struct vgpu_nvml *vgpu_nvml(void);

/* The same, but loads libnvidia-ml.so.1 if the process has not. NULL where there is none. */
const struct vgpu_nvml *vgpu_nvml_loaded(void);

/* The row of the altered function whose real address this is; NULL for every other address. */
const struct vgpu_row *vgpu_altered_at(const void *function);

#endif
