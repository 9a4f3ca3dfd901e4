#include "accounting/overhead.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>

#include "intercept/missing_symbols.h"
#include "accounting/current.h"
#include "region/process.h"
#include "intercept/real.h"
#include "state/process_state.h"
#include "accounting/slice.h"

/* Programs load modules in bursts; a look costs NVML some hundred microseconds. */
static const int64_t LOOK_EVERY_MS = 100;
/* So often where NVML does not list us (the node writes pids within seconds), and where what others do with memory that is shared changes
 * what NVML counts for us. */
static const int64_t LOOK_AGAIN_MS = 1000;
/* So often where a slice is nearly full, and code that is loaded at its first launch may take the rest: a load takes less than that many
 * bytes. */
static const int64_t LOOK_NEARLY_FULL_MS = 10;
static const uint64_t NEARLY_FULL_BYTES = 512 << 20;
/* What NVML answers for "not known". */
static const unsigned long long UNKNOWN_BYTES = ~0ULL;
/* More processes than one card ever has. */
enum { PROCESSES = 1024, DEVICES = 64 };
/* A load that took less of the card is small beside what a look costs; those come in bursts. */
static const uint64_t LARGE_LOAD_BYTES = 1 << 20;

/* What the next look waits for: AGAIN: nothing is known to have changed, and may have. */
enum { NOTHING, AGAIN, CHANGED };
static _Atomic int wanted;
static _Atomic bool unlisted;
static _Atomic int64_t last_look_ms;
/* A bit for each device (index) of which this process has had shared memory, and for each that it has loaded code for: the driver puts a
 * kernel's code on the card when it is launched first. */
static _Atomic uint64_t sharing, loading;
static_assert(VGPU_MAX_DEVICES <= 64, "sharing");

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static nvmlReturn_t list_processes(const struct vgpu_nvml *nvml, const char *uuid, nvmlProcessInfo_v2_t *found, unsigned int *count)
{
    nvmlDevice_t device;
    nvmlReturn_t result = nvml->nvmlDeviceGetHandleByUUID(uuid, &device);
    if (result != NVML_SUCCESS) return result;
    result = nvml->nvmlDeviceGetComputeRunningProcesses_v3(device, count, found);
    return result == NVML_ERROR_NOT_FOUND ? nvml->nvmlDeviceGetComputeRunningProcesses_v2(device, count, found)
                                          : result; /* older drivers */
}

/* Once more where the program has shut NVML down behind our back. */
static bool ask_nvml(const char *uuid, nvmlProcessInfo_v2_t *found, unsigned int *count)
{
    enum { TRIES = 2 };
    nvmlReturn_t result = NVML_ERROR_UNINITIALIZED;
    for (int i = 0; i < TRIES && result == NVML_ERROR_UNINITIALIZED; i++) {
        const struct vgpu_nvml *nvml = vgpu_nvml_kept();
        if (nvml == NULL) return false;
        result = list_processes(nvml, uuid, found, count);
        if (result == NVML_ERROR_UNINITIALIZED) vgpu_nvml_lost();
    }
    return result == NVML_SUCCESS;
}

/* This process among those that NVML lists; NULL: it is not. The pid that the node wrote comes last and counts first: where a driver lists
 * the host's pids, our own number may be somebody else's there. */
static const nvmlProcessInfo_v2_t *own_entry(const nvmlProcessInfo_v2_t *found, unsigned int count)
{
    unsigned int pids[VGPU_OWN_PIDS];
    for (int at = vgpu_process_own_pids(pids, VGPU_OWN_PIDS) - 1; at >= 0; at--)
        for (unsigned int i = 0; i < count && i < PROCESSES; i++)
            if (found[i].pid == pids[at]) return &found[i];
    return NULL;
}

/* What the driver holds, as NVML reports, for this process. Not listed: it has no context there, or the list has pids
 * of another namespace that the node has not written yet; either way nothing is known to be held. */
struct look {
    bool known, listed;
    uint64_t bytes;
};

static struct look look_at(const char *uuid)
{
    unsigned int count = PROCESSES;
    struct look seen = {0};
    nvmlProcessInfo_v2_t *found = calloc(PROCESSES, sizeof *found);
    if (found != NULL && ask_nvml(uuid, found, &count)) {
        const nvmlProcessInfo_v2_t *own = own_entry(found, count);
        seen = (struct look){.known = own == NULL || own->usedGpuMemory != UNKNOWN_BYTES, .listed = own != NULL};
        if (own != NULL && seen.known) seen.bytes = own->usedGpuMemory;
    }
    free(found);
    return seen;
}

/* Whether NVML listed the process. */
static bool settle(int index)
{
    const char *uuid = index >= 0 ? vgpu_state_device_uuid(index) : NULL;
    if (uuid == NULL) return true;
    const struct look seen = look_at(uuid);
    if (seen.known) vgpu_slice_set_overhead(index, seen.bytes);
    return seen.listed || !seen.known;
}

static void look_again_later(void)
{
    int before = NOTHING;
    atomic_store(&last_look_ms, now_ms());
    atomic_compare_exchange_strong(&wanted, &before, AGAIN);
}

/* There is a context; if it is not listed, the node may write our pid later than the process starts. */
static void settle_context(int index)
{
    const bool listed = settle(index);
    atomic_store(&unlisted, !listed);
    if (!listed) look_again_later();
}

void vgpu_overhead_settle(CUdevice device)
{
    if (vgpu_state_start()) settle_context(vgpu_state_cuda_device(device));
}

void vgpu_overhead_settle_current(void)
{
    const int index = vgpu_memory_current_device();
    if (index >= 0) settle_context(index);
}

void vgpu_overhead_settle_all(void)
{
    int count = 0;
    if (vgpu_cuda()->cuDeviceGetCount(&count) != CUDA_SUCCESS || !vgpu_state_start()) return;
    for (CUdevice device = 0; device < count && device < DEVICES; device++) (void)settle(vgpu_state_cuda_device(device));
}

void vgpu_overhead_changed(void)
{
    atomic_store(&wanted, CHANGED);
    vgpu_overhead_look_if_changed();
}

void vgpu_overhead_shared(int index)
{
    if (index < 0) return;
    atomic_fetch_or(&sharing, UINT64_C(1) << index);
    atomic_store(&wanted, CHANGED);
}

static void look(void)
{
    atomic_store(&last_look_ms, now_ms());
    if (atomic_exchange(&wanted, NOTHING) == NOTHING) return;
    vgpu_overhead_settle_current();
    const int current = vgpu_memory_current_device();
    const uint64_t again = atomic_load(&sharing) | atomic_load(&loading);
    for (uint64_t left = again; left != 0; left &= left - 1)
        if (__builtin_ctzll(left) != current) (void)settle(__builtin_ctzll(left));
    if (again != 0) look_again_later();
}

static bool is_due(int what)
{
    return now_ms() >= atomic_load(&last_look_ms) + (what == CHANGED && !atomic_load(&unlisted) ? LOOK_EVERY_MS : LOOK_AGAIN_MS);
}

void vgpu_overhead_look_if_changed(void)
{
    const int what = atomic_load_explicit(&wanted, memory_order_relaxed);
    if (what != NOTHING && is_due(what)) look();
}

/* Apart, so that the way of an allocation stays short. */
__attribute__((noinline, cold)) static void look_if_nearly_full(int what, int index, uint64_t bytes)
{
    const bool loads = index >= 0 && (atomic_load(&loading) >> index & 1) != 0;
    if (is_due(what) ||
        (loads && now_ms() >= atomic_load(&last_look_ms) + LOOK_NEARLY_FULL_MS && vgpu_slice_left(index, bytes) < NEARLY_FULL_BYTES))
        look();
}

void vgpu_overhead_look_before_taking(int index, uint64_t bytes)
{
    const int what = atomic_load_explicit(&wanted, memory_order_relaxed);
    if (__builtin_expect(what == NOTHING || (what == AGAIN && !vgpu_state_has_looked()), 1)) return;
    look_if_nearly_full(what, index, bytes);
}

void vgpu_overhead_look_before_answer(void)
{
    const int what = atomic_load_explicit(&wanted, memory_order_relaxed);
    if (what != NOTHING && ((what == CHANGED && !atomic_load(&unlisted)) || is_due(what))) look();
}

bool vgpu_overhead_look_before_refusal(int index)
{
    if (index < 0 || (atomic_load(&sharing) >> index & 1) == 0) return false;
    return settle(index);
}

static uint64_t free_of_card(void)
{
    size_t free_bytes = 0, total;
    return vgpu_cuda()->cuMemGetInfo_v2(&free_bytes, &total) == CUDA_SUCCESS ? free_bytes : 0;
}

struct vgpu_overhead_before vgpu_overhead_before(void)
{
    const int device = vgpu_memory_current_device();
    if (device < 0) return (struct vgpu_overhead_before){.device = device};
    return (struct vgpu_overhead_before){device, free_of_card(), vgpu_slice_overhead(device)};
}

bool vgpu_overhead_fits(const struct vgpu_overhead_before *before)
{
    if (before->device >= 0) atomic_fetch_or(&loading, UINT64_C(1) << before->device);
    if (free_of_card() + LARGE_LOAD_BYTES > before->free_bytes) {
        vgpu_overhead_changed();
        return true;
    }
    atomic_store(&wanted, CHANGED);
    look();
    return vgpu_slice_overhead(before->device) <= before->own_bytes || vgpu_slice_used(before->device) <= vgpu_slice_limit(before->device);
}
