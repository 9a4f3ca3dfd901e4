/* The reader of the region file: whatever a tenant wrote into it, nothing is read or written outside, nothing loops, and a process
 * never gets more than its limit by it. The input is a list of writes, ten bytes each: where, and what. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "config/config.h"
#include "config/quota.h"
#include "region/process.h"
#include "region/region.h"
#include "region/region_slots.h"
#include "region/region_account.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { WRITE_BYTES = 10, MOST_WRITES = 64 };

static char path[] = "/tmp/vgpu-fuzz-XXXXXX";

static void remove_file(void) { (void)unlink(path); }

/* Ends the run by its name: it is none of the input's doing. */
static _Noreturn void failed(const char *call)
{
    perror(call);
    abort();
}

static void scribble(struct vgpu_region *region, const uint8_t *data, size_t size)
{
    for (size_t i = 0; i + WRITE_BYTES <= size && i < (size_t)MOST_WRITES * WRITE_BYTES; i += WRITE_BYTES) {
        uint16_t where;
        memcpy(&where, data + i, sizeof where);
        /* Half of the writes hit the head, its tail, or the first slots, where the fields are that matter; the others
         * any bank. */
        const size_t cell = (where & 1) != 0 ? (size_t)(where >> 1) % 1024 : (size_t)(where >> 1) * (VGPU_REGION_FILE_BYTES / 8) / 32768;
        const size_t at = (where & 3) == 3 ? sizeof *region - 8 * (1 + (size_t)(where >> 2) % 8) : 8 * cell;
        if (at + 8 <= VGPU_REGION_FILE_BYTES) memcpy((char *)region + at, data + i + 2, 8);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static struct vgpu_region_values values = {.device_count = 1, .priority = 1, .place_is_given = true};
    static int file = -1;
    if (file < 0) {
        file = mkstemp(path);
        if (file < 0 || atexit(remove_file) != 0) failed("mkstemp");
        for (int i = 0; i < VGPU_MAX_DEVICES; i++) values.limit[i] = (struct vgpu_limit){VGPU_UNLIMITED, 100};
    }
    struct vgpu_region_file shared, again;
    if (vgpu_region_open(&shared, path, &values) != 0) return 0;
    scribble(shared.region, data, size);
    if (vgpu_region_open(&again, path, &values) != 0) __builtin_trap();
    struct vgpu_region_slot *slot = vgpu_region_claim(&again, vgpu_process_start_time(getpid()));
    const int count = vgpu_region_process_count(again.region);
    if (count < 0 || count > VGPU_MAX_PROCESSES) __builtin_trap();
    if (slot != NULL) {
        const uint64_t limit = 1000;
        for (int device = 0; device < VGPU_MAX_DEVICES; device++) {
            (void)vgpu_region_used(again.region, device);
            if (vgpu_region_reserve(again.region, slot, device, limit + 1, limit) == 0) __builtin_trap();
            const int reserved = vgpu_region_reserve(again.region, slot, device, limit, limit);
            if (reserved == 0 && vgpu_region_reserve(again.region, slot, device, 1, limit) == 0) __builtin_trap();
            if (vgpu_region_orphan(again.region, device, limit) > limit || vgpu_region_take_orphaned(again.region, device, limit) > limit)
                __builtin_trap();
            if (reserved == 0) vgpu_region_release(again.region, slot, device, limit);
        }
        vgpu_region_reclaim(&again);
        vgpu_region_leave(&again, slot);
    }
    vgpu_region_close(&again);
    if (ftruncate(file, 0) != 0) failed("ftruncate"); /* the next input starts from a new region */
    vgpu_region_close(&shared);
    return 0;
}
