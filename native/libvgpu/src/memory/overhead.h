/* Memory that the driver takes for itself: contexts, modules, heaps. No call answers how much, so NVML is asked what
 * the driver holds for this process; what no block explains is charged to the slice as the context's.
 *
 * Only where NVML lists this process under a pid that it knows itself by (vgpu_process_own_pids): its own in its pid
 * namespace, or the one that the node wrote beside the limits. Nothing that the tenant can write counts. Where it is
 * not listed yet, allocations look again every second.
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
