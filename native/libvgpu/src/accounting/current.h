/* Where an allocation is made: at the place that it names, else in the current context of the thread, on its device. All ask the
 * driver. */
#ifndef VGPU_CURRENT_H
#define VGPU_CURRENT_H

#include <stdbool.h>

#include "cuda_abi.h"

/* The device whose memory an allocation of that type (CUmemAllocationType) at a place takes. false: none; the place is the host's, or a
 * device that is not there. Managed memory is never the host's alone. A place that is not known to be the host's is on the current
 * device, and without a context on the first one: a driver may have places that this library does not know. */
bool vgpu_memory_located(int type, const CUmemLocation *place, CUdevice *device);

/* Index of that device (devices.h); VGPU_DEVICE_UNKNOWN: none. Starts the process's state. */
int vgpu_memory_device_at(int type, const CUmemLocation *place);

/* Index of the device that the current context is on (devices.h; negative: leave the call to the driver). Starts the
 * process's state. */
int vgpu_memory_current_device(void);

/* The current context, as the owner of what is made in it; NULL: none. Only where the driver is part of the process. */
const void *vgpu_memory_current_context(void);

#endif
