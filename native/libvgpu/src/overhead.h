/* Memory that the driver takes for itself: contexts, modules, heaps. No call says how much, so NVML is asked what the driver holds for
 * this process; what no block explains is charged to the slice as the context's.
 *
 * Only where NVML shows this process under a pid that it knows itself by: in the host's pid namespace, or when the node wrote the host
 * pid into the process's slot. A forged host pid can hide the driver's own memory, never a block.
 */
#ifndef VGPU_OVERHEAD_H
#define VGPU_OVERHEAD_H

#include "cuda_abi.h"

/* A context was made or ended: looks at once. */
void vgpu_overhead_settle(CUdevice device);

/* The same for the device of the current context, and for all of them. */
void vgpu_overhead_settle_current(void);
void vgpu_overhead_settle_all(void);

/* A module came or went: looks now, or, when the last look was just before, with the next allocation. */
void vgpu_overhead_changed(void);
void vgpu_overhead_look_if_changed(void);

#endif
