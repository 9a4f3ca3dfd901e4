/* What a driver or an NVML that is older than this library does without, logged once per process and in one line. */
#ifndef VGPU_MISSING_SYMBOLS_H
#define VGPU_MISSING_SYMBOLS_H

#include "intercept/real.h"

/* At the start: which functions of the driver are missing. At INFO what programs can then not call either, and needs no limit; at WARN
 * what this library itself needs. */
void vgpu_missing_of_driver(void);

/* NVML, initialised once more (the caller calls nvmlShutdown when done); NULL where it cannot be had. Logs at WARN what
 * is missing: the library, its initialisation, or functions. */
const struct vgpu_nvml *vgpu_nvml_begin(void);

/* The same, initialised once for the whole process and never shut down: an initialisation costs many times what a question does. */
const struct vgpu_nvml *vgpu_nvml_kept(void);

/* NVML answered that it is not initialised: the program has shut it down more often than it had initialised it. The next
 * vgpu_nvml_kept initialises it again. */
void vgpu_nvml_lost(void);

#endif
