/* The container's slice of memory: its limit, what is used of it, and taking from it. Hooks talk to this module and to
 * charge.h.
 *
 * `index` is that of devices.h. Where it is negative nothing is counted: the driver answers for itself.
 */
#ifndef VGPU_SLICE_H
#define VGPU_SLICE_H

#include <stdbool.h>
#include <stdint.h>

/* Bytes that the container may hold on a device; VGPU_UNLIMITED, or 0 when it may not be used. */
uint64_t vgpu_slice_limit(int index);

/* Bytes that the container holds on a device. Sweeps dead processes now and then. */
uint64_t vgpu_slice_used(int index);

/* Bytes that would be left beside so many more; VGPU_UNLIMITED. */
uint64_t vgpu_slice_left(int index, uint64_t bytes);

/* Reserves before the driver is asked. 0, or -ENOMEM with nothing reserved. */
int vgpu_slice_reserve(int index, uint64_t bytes);

/* Charges memory that is there already, whatever the limit. */
void vgpu_slice_charge(int index, uint64_t bytes);

void vgpu_slice_release(int index, uint64_t bytes);

/* Whether the container was promised more than the card may have: then the host's memory stands in for what is missing. */
bool vgpu_slice_oversubscribes(void);

/* The driver was seen to hold so many bytes of the device for this process; what no block explains is its own (contexts, modules), and
 * charged as such. Returns these bytes. */
uint64_t vgpu_slice_set_overhead(int index, uint64_t seen_bytes);
uint64_t vgpu_slice_overhead(int index);

#endif
