/* Memory that the driver takes for itself: contexts, modules, heaps. No call answers how much, so NVML is asked what
 * the driver holds for this process; what no block explains is charged to the slice as the context's.
 *
 * Memory that processes share is counted for one of those who hold it, and that is not always its maker: what NVML counts for this process
 * and no block explains is charged in the same way (shared_memory.h). What others do changes that, so a process that has had shared
 * memory looks again every second that it allocates in, and before it is refused.
 *
 * Only where NVML lists this process under a pid that it knows itself by (vgpu_process_own_pids): its own in its pid
 * namespace, or the one that the node wrote beside the limits. Nothing that the tenant can write counts. Where it is
 * not listed yet, allocations look again every second. So they do once a module was loaded, as the driver puts the code of a kernel on
 * the card when it is launched first.
 */
#ifndef VGPU_OVERHEAD_H
#define VGPU_OVERHEAD_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"

/* A context was made or ended: looks at once. */
void vgpu_overhead_settle(CUdevice device);

/* The same for the device of the current context, and for all of them. */
void vgpu_overhead_settle_current(void);
void vgpu_overhead_settle_all(void);

/* A module came or went: looks now, or, when the last look was just before, with the next allocation, or before the
 * program is answered how much is free. */
void vgpu_overhead_changed(void);
void vgpu_overhead_look_if_changed(void);
void vgpu_overhead_look_before_answer(void);

/* So many bytes are about to be taken from the slice: looks as above, and once more where little is left and code that was loaded since may
 * have taken it. */
void vgpu_overhead_look_before_taking(int index, uint64_t bytes);

/* Memory of a device (index) that others hold too came or went: notes it for the next look. Calls neither the driver nor NVML. */
void vgpu_overhead_shared(int index);

/* An allocation would be refused: looks if the process has had shared memory of the device. Whether that may have changed anything. */
bool vgpu_overhead_look_before_refusal(int index);

/* Something is done that may take much memory without naming it (a module with variables is loaded). After it has been
 * done: false if the container now holds more than its slice because of it; then the caller undoes it and looks again
 * (vgpu_overhead_changed). Whether the card has less free than before shows if a look is worth its price: what other
 * processes do at that moment may hide it, and then it is charged with the next look, and not refused. */
struct vgpu_overhead_before {
    int device;
    uint64_t free_bytes, own_bytes;
};
struct vgpu_overhead_before vgpu_overhead_before(void);
bool vgpu_overhead_fits(const struct vgpu_overhead_before *before);

#endif
