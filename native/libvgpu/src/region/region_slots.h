/* The slots of the region, one per process: taken, given back, and swept when their process has died. */
#ifndef VGPU_REGION_SLOTS_H
#define VGPU_REGION_SLOTS_H

#include "region/region_file.h"
#include "vgpu_region.h"

/* Takes a slot for this process, which began at that time (vgpu_process_start_time). NULL when all 1024 belong to living processes, the
 * disk has no room for it, or the file lock cannot be had. */
struct vgpu_region_slot *vgpu_region_claim(struct vgpu_region_file *opened, uint64_t start_time);

/* Gives the slot back, with whatever it still holds. */
void vgpu_region_leave(struct vgpu_region_file *opened, struct vgpu_region_slot *slot);

/* Frees the slots of dead processes and repairs totals that a killed process left too high. With the file lock. */
void vgpu_region_reclaim(struct vgpu_region_file *opened);

#endif
