/* The shared region: one file per container in which every process accounts for the device memory that it holds.
 *
 * The byte layout is version 1 of HAMi's, so that HAMi's monitor and our node agent read it alike. tests/native holds every offset
 * against the published table. Fields that the layout leaves unused carry our own bookkeeping:
 *
 *   slot.mem[0].spare[0]       start time of the process (clock ticks since boot): a recycled pid is not its predecessor
 *   slot.pid_namespace         the process's pid namespace, by its number; 0: unknown. A slice may belong to containers of several, by a
 *                              ResourceClaim, and a pid means something in its own namespace alone
 *   slot.mem[0].spare[1], [2]  accounting operations begun and done by the process (equal: none is under way)
 *   slots[0].util[d].spare[0]  bytes reserved on device d by the whole container. It belongs to the region, by position, not to
 *                              the owner of slot 0; no code that clears a slot may touch it.
 *   slots[1].util[d].spare[0]  until when GPU time that the container used of device d is paid for (bucket.h); the region's, likewise
 *   slots[2].util[d].spare[0]  until when the running time of its launches has been claimed (shared_time.h); the region's, likewise
 *   slots[3].util[d].spare[0]  orphaned bytes: shared ones whose maker has let go of them or ended, and which processes of the
 *                              container still have open; the region's, likewise, and part of what is reserved
 *   slots[4].util[0].spare[0]  when the container's first kernel was launched (ms since 1970); 0: none was; the region's, likewise
 *   slot.mem[d].spare[0], [1]  of the process's bytes those that others may have open by handle, and bytes of others that it
 *                              has open; for device 0 of a bank in the slot's last two fields, as mem[0] holds the process's own
 *   slot.util[d].spare[1], [2] GPU time charged to the process, and when it last waited for its turn (fairness.h)
 *
 * HAMi's layout has places for 16 devices. Behind it the file holds the same structure three times more, at multiples of
 * VGPU_BANK_BYTES, for devices 16..31 and so on. In these banks only what belongs to a device means anything (count, uuids, limits;
 * mem and util of the slots); a process has the slot of the same number in each, and its own fields stand in the first. HAMi's readers
 * see the first bank. The banks are holes in the file until a container has so many devices.
 *
 * The workload can write this file. It is therefore only ever used to lower a limit, never to raise one.
 */
#ifndef VGPU_REGION_H
#define VGPU_REGION_H

#include <assert.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

enum {
    VGPU_BANK_DEVICES = 16,
    VGPU_BANKS = 4,
    VGPU_MAX_DEVICES = VGPU_BANKS * VGPU_BANK_DEVICES,
    VGPU_MAX_PROCESSES = 1024,
    VGPU_UUID_BYTES = 96,
    VGPU_REGION_MAGIC = 19920718,
    VGPU_REGION_MAJOR = 1,
    VGPU_REGION_MINOR = 2,
    VGPU_BANK_BYTES = 2011136, /* the structure, in whole pages */
    VGPU_REGION_FILE_BYTES = VGPU_BANKS * VGPU_BANK_BYTES /* readers of HAMi's layout want at least 2008952 */
};

/* What somebody has open whose size is not known: more than any card has, and few enough to be added up. */
#define VGPU_UNKNOWN_SIZE (UINT64_C(1) << 48)

enum { VGPU_SLOT_EXITED = 0, VGPU_SLOT_RUNNING = 1 };

struct vgpu_region_mem {
    _Atomic uint64_t context_bytes;
    _Atomic uint64_t module_bytes;
    _Atomic uint64_t data_bytes;
    _Atomic uint64_t offset_bytes;
    _Atomic uint64_t total_bytes;
    _Atomic uint64_t spare[3];
};
static_assert(sizeof(struct vgpu_region_mem) == 64, "mem");

struct vgpu_region_util {
    _Atomic uint64_t decoder_percent;
    _Atomic uint64_t encoder_percent;
    _Atomic uint64_t sm_percent;
    _Atomic uint64_t spare[3];
};
static_assert(sizeof(struct vgpu_region_util) == 48, "util");

struct vgpu_region_slot {
    _Atomic int32_t pid;
    _Atomic int32_t host_pid;
    struct vgpu_region_mem mem[VGPU_BANK_DEVICES];
    _Atomic uint64_t monitor_used_bytes[VGPU_BANK_DEVICES];
    struct vgpu_region_util util[VGPU_BANK_DEVICES];
    _Atomic int32_t status;
    _Atomic uint32_t pid_namespace; /* in HAMi's layout: unused */
    _Atomic uint64_t seqlock; /* even: stable; always 0 here */
    _Atomic uint64_t spare[2];
};
static_assert(sizeof(struct vgpu_region_slot) == 1960, "slot");
static_assert(offsetof(struct vgpu_region_slot, mem) == 8, "slot.mem");
static_assert(offsetof(struct vgpu_region_slot, monitor_used_bytes) == 1032, "slot.monitor_used");
static_assert(offsetof(struct vgpu_region_slot, util) == 1160, "slot.util");
static_assert(offsetof(struct vgpu_region_slot, status) == 1928, "slot.status");
static_assert(offsetof(struct vgpu_region_slot, seqlock) == 1936, "slot.seqlock");

struct vgpu_region {
    _Atomic int32_t magic; /* written last, with release order: a reader that sees it sees all the rest */
    uint32_t major_version;
    uint32_t minor_version;
    _Atomic int32_t sm_init;
    _Atomic uint64_t sem_owner; /* HAMi's semaphores: kept initialised for its tools, never taken here */
    unsigned char sem[32];
    _Atomic uint64_t device_count;
    char uuid[VGPU_BANK_DEVICES][VGPU_UUID_BYTES]; /* zero padded: monitors compare all 96 bytes */
    _Atomic uint64_t limit_bytes[VGPU_BANK_DEVICES]; /* 0: none */
    _Atomic uint64_t sm_limit_percent[VGPU_BANK_DEVICES];
    struct vgpu_region_slot slots[VGPU_MAX_PROCESSES];
    _Atomic int32_t process_count; /* slots 0..process_count-1 may be in use; one with pid 0 is free */
    _Atomic int32_t utilization_switch;
    _Atomic int32_t recent_kernel;
    _Atomic int32_t priority;
    _Atomic uint64_t last_kernel_time_s;
    unsigned char post_init_sem[32];
};
static_assert(sizeof(struct vgpu_region) == 2008952, "region");
static_assert(VGPU_BANK_BYTES % 4096 == 0 && VGPU_BANK_BYTES > sizeof(struct vgpu_region), "bank");
static_assert(offsetof(struct vgpu_region, sem) == 24, "region.sem");
static_assert(offsetof(struct vgpu_region, device_count) == 56, "region.device_count");
static_assert(offsetof(struct vgpu_region, uuid) == 64, "region.uuid");
static_assert(offsetof(struct vgpu_region, limit_bytes) == 1600, "region.limit");
static_assert(offsetof(struct vgpu_region, sm_limit_percent) == 1728, "region.sm_limit");
static_assert(offsetof(struct vgpu_region, slots) == 1856, "region.slots");
static_assert(offsetof(struct vgpu_region, process_count) == 2008896, "region.process_count");
static_assert(offsetof(struct vgpu_region, utilization_switch) == 2008900, "region.utilization_switch");
static_assert(offsetof(struct vgpu_region, recent_kernel) == 2008904, "region.recent_kernel");
static_assert(offsetof(struct vgpu_region, priority) == 2008908, "region.priority");
static_assert(offsetof(struct vgpu_region, last_kernel_time_s) == 2008912, "region.last_kernel_time");
static_assert(offsetof(struct vgpu_region, post_init_sem) == 2008920, "region.post_init_sem");

/* The bank of a device, the slot of the same number in it, and the device's place there. `device` 0..VGPU_MAX_DEVICES-1. */
static inline struct vgpu_region *vgpu_region_bank(struct vgpu_region *region, int device)
{
    return (struct vgpu_region *)((char *)region + (size_t)device / VGPU_BANK_DEVICES * VGPU_BANK_BYTES);
}
static inline struct vgpu_region_slot *vgpu_slot_bank(struct vgpu_region_slot *slot, int device)
{
    return (struct vgpu_region_slot *)((char *)slot + (size_t)device / VGPU_BANK_DEVICES * VGPU_BANK_BYTES);
}
static inline size_t vgpu_place(int device) { return (size_t)device % VGPU_BANK_DEVICES; }

static inline _Atomic uint64_t *vgpu_region_limit_bytes(struct vgpu_region *region, int device)
{
    return &vgpu_region_bank(region, device)->limit_bytes[vgpu_place(device)];
}
static inline _Atomic uint64_t *vgpu_region_sm_limit_percent(struct vgpu_region *region, int device)
{
    return &vgpu_region_bank(region, device)->sm_limit_percent[vgpu_place(device)];
}
static inline struct vgpu_region_mem *vgpu_slot_mem(struct vgpu_region_slot *slot, int device)
{
    return &vgpu_slot_bank(slot, device)->mem[vgpu_place(device)];
}
static inline struct vgpu_region_util *vgpu_slot_util(struct vgpu_region_slot *slot, int device)
{
    return &vgpu_slot_bank(slot, device)->util[vgpu_place(device)];
}
static inline _Atomic uint64_t *vgpu_region_reserved(struct vgpu_region *region, int device)
{
    return &vgpu_slot_util(&region->slots[0], device)->spare[0];
}
static inline _Atomic uint64_t *vgpu_region_orphaned(struct vgpu_region *region, int device)
{
    return &vgpu_slot_util(&region->slots[3], device)->spare[0];
}
static inline _Atomic uint64_t *vgpu_slot_exported(struct vgpu_region_slot *slot, int device)
{
    return vgpu_place(device) == 0 ? &vgpu_slot_bank(slot, device)->spare[0] : &vgpu_slot_mem(slot, device)->spare[0];
}
static inline _Atomic uint64_t *vgpu_slot_imported(struct vgpu_region_slot *slot, int device)
{
    return vgpu_place(device) == 0 ? &vgpu_slot_bank(slot, device)->spare[1] : &vgpu_slot_mem(slot, device)->spare[1];
}
static inline _Atomic int64_t *vgpu_region_paid_until(struct vgpu_region *region, int device)
{
    return (_Atomic int64_t *)&vgpu_slot_util(&region->slots[1], device)->spare[0];
}
static inline _Atomic int64_t *vgpu_region_claimed_until(struct vgpu_region *region, int device)
{
    return (_Atomic int64_t *)&vgpu_slot_util(&region->slots[2], device)->spare[0];
}

static inline _Atomic uint64_t *vgpu_region_first_kernel_ms(struct vgpu_region *region) { return &region->slots[4].util[0].spare[0]; }
static inline _Atomic uint64_t *vgpu_slot_core_had(struct vgpu_region_slot *slot, int device)
{
    return &vgpu_slot_util(slot, device)->spare[1];
}
static inline _Atomic uint64_t *vgpu_slot_core_waiting(struct vgpu_region_slot *slot, int device)
{
    return &vgpu_slot_util(slot, device)->spare[2];
}
static inline _Atomic uint64_t *vgpu_slot_start_time(struct vgpu_region_slot *slot) { return &slot->mem[0].spare[0]; }
static inline _Atomic uint64_t *vgpu_slot_begun(struct vgpu_region_slot *slot) { return &slot->mem[0].spare[1]; }
static inline _Atomic uint64_t *vgpu_slot_done(struct vgpu_region_slot *slot) { return &slot->mem[0].spare[2]; }

#endif
