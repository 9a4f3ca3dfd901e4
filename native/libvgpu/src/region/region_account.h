/* Reserving bytes of a device in the region: lock free, exact, and safe against being killed at any instruction.
 *
 * Two numbers are kept: the container's total per device (the one that is held against the limit) and each process's
 * own share. A reservation raises the total first and the share second; a release lowers the share first and the total
 * second. A process that is killed between leaves the total too high, never too low: a limit may be reached early but
 * is never exceeded, and vgpu_region_repair_totals puts it right as soon as somebody would be refused.
 *
 * Between processes nothing is locked. Among the threads of one process, the one that writes its slot holds a lock of
 * that process: so the one locked instruction that a reservation needs is the exchange of the total.
 */
#ifndef VGPU_REGION_ACCOUNT_H
#define VGPU_REGION_ACCOUNT_H

#include "vgpu_region.h"

/* Reserves if the container's total stays within `limit`. 0 or -ENOMEM. One thread of the process at a time. */
int vgpu_region_reserve(struct vgpu_region *region, struct vgpu_region_slot *slot, int device, uint64_t bytes, uint64_t limit);

/* Charges what is there already, whatever the limit. Likewise. */
void vgpu_region_charge(struct vgpu_region *region, struct vgpu_region_slot *slot, int device, uint64_t bytes);

/* The same for memory that the driver took for itself (contexts, modules), of which there were `old` and now are `now` bytes. Likewise. */
void vgpu_region_set_overhead(struct vgpu_region *region, struct vgpu_region_slot *slot, int device, uint64_t old, uint64_t now);

/* Undoes what somebody scribbled over the slot of a living process: it is among those that count, and was born when it was. */
void vgpu_region_repair_slot(struct vgpu_region *region, struct vgpu_region_slot *slot, uint64_t start_time);

/* Undoes what somebody scribbled into the region to have more: the process's share is at least what it `held`, and a device's total at
 * least the sum of the shares. Too high a total is put right by vgpu_region_repair_totals. One thread of the process at a time. */
void vgpu_region_repair_share(struct vgpu_region *region, struct vgpu_region_slot *slot, int device, uint64_t held);

/* Takes back a reservation of this process. Saturates at 0. Likewise. */
void vgpu_region_release(struct vgpu_region *region, struct vgpu_region_slot *slot, int device, uint64_t bytes);

/* Shows how many of the process's bytes it has shared with others by handle, and how many of others' it has open. */
void vgpu_region_set_shared(struct vgpu_region_slot *slot, int device, uint64_t exported, uint64_t imported);

/* Bytes of others' memory, and of their own by a further handle, that processes have open. */
uint64_t vgpu_region_open_bytes(struct vgpu_region *region, int device);

/* Of `bytes` that were shared and that the process lets go of, as many as are open become the region's (the sum of all makers, bounded by
 * what is open): they are in the total twice until the caller has released them. Returns how many. Needs the file lock. */
uint64_t vgpu_region_orphan(struct vgpu_region *region, int device, uint64_t bytes);

/* Takes up to so many of them off again: they are in a process's share already. Returns how many. Needs the file lock. */
uint64_t vgpu_region_take_orphaned(struct vgpu_region *region, int device, uint64_t bytes);

/* Takes the share of a process that has ended off the total, but for what it had shared and others have open: that is orphaned. Needs the
 * file lock. */
void vgpu_region_end_share(struct vgpu_region *region, struct vgpu_region_slot *slot, int device);

/* Lowers what is orphaned to what is still open. Needs the file lock. */
void vgpu_region_settle_orphaned(struct vgpu_region *region, int device_count);

/* Bytes that the processes of this container hold on a device, and those orphaned. */
uint64_t vgpu_region_used(struct vgpu_region *region, int device);

/* Sets the total of each of the first devices to the sum of the shares, unless somebody is reserving at this very
 * moment. Needs the file lock (no slot may come or go until it is done). */
void vgpu_region_repair_totals(struct vgpu_region *region, int device_count);

/* Number of slots that may be in use, in range whatever stands in the file. */
int vgpu_region_process_count(struct vgpu_region *region);

#endif
