/* Memory that several processes hold at once: by a handle that its maker exported and others imported, or that the maker imported again.
 *
 * It is charged to its maker while that one holds it. When the maker lets go or ends, as much of what it had shared as is open in the
 * container is orphaned: charged to the region, until it is closed. Nobody sees which memory is whose, so it goes by sums.
 *
 * NVML counts such memory once, for one of those who hold it, and for the next one when that one lets go. So a look at NVML
 * (slice.h) may find orphaned bytes in this process's overhead: then they are orphaned no more, and are again when the overhead falls.
 *
 * `index` is that of devices.h; where it is negative nothing is counted. Any thread, with at most a lock of memory/ or vmm/ held: the
 * region's file lock is taken.
 */
#ifndef VGPU_SHARED_MEMORY_H
#define VGPU_SHARED_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "state/process_state.h"

/* Changes how many of this process's bytes others may have open by a handle. */
void vgpu_shared_exported(int index, uint64_t add, uint64_t subtract);

/* The process has let go of memory that others may have open; it is exported no more. Returns how many of its bytes the caller has to
 * release: the others stay charged to the region. */
uint64_t vgpu_shared_let_go(int index, uint64_t bytes);

/* Changes how many bytes of others' the process has open, or of its own by a further handle. True: its overhead, as it was seen last, has
 * more of them than are open now, so another look at NVML is due. */
bool vgpu_shared_opened(int index, uint64_t add, uint64_t subtract);

/* Around a change of the process's overhead: `begin` before `account_lock` is taken (true: the region's lock is held until `end`), `fell`
 * before the bytes are taken off, `rose` after they were put on (0: they were not). */
bool vgpu_shared_look_begin(struct vgpu_process_state *state, int index);
void vgpu_shared_fell(struct vgpu_process_state *state, struct vgpu_region_slot *slot, int index, uint64_t bytes);
void vgpu_shared_rose(struct vgpu_process_state *state, struct vgpu_region_slot *slot, int index, uint64_t bytes);
void vgpu_shared_look_end(struct vgpu_process_state *state);

#endif
