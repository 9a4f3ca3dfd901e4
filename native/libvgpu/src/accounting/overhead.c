#include "accounting/overhead.h"

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
/* So often where NVML does not list us; the node writes pids within seconds. */
static const int64_t LOOK_AGAIN_MS = 1000;
/* What NVML answers for "not known". */
static const unsigned long long UNKNOWN_BYTES = ~0ULL;
/* More processes than one card ever has. */
enum { PROCESSES = 1024, DEVICES = 64 };
/* A load that took less of the card is small beside what a look costs; those come in bursts. */
static const uint64_t LARGE_LOAD_BYTES = 1 << 20;

static _Atomic bool changed, unlisted;
static _Atomic int64_t next_look_ms;

static int64_t now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static bool list_processes(const struct vgpu_nvml *nvml, nvmlDevice_t device, nvmlProcessInfo_v2_t *found, unsigned int *count)
{
    nvmlReturn_t result = nvml->nvmlDeviceGetComputeRunningProcesses_v3(device, count, found);
    if (result == NVML_ERROR_NOT_FOUND) result = nvml->nvmlDeviceGetComputeRunningProcesses_v2(device, count, found); /* older drivers */
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
    nvmlDevice_t device;
    unsigned int count = PROCESSES;
    struct look seen = {0};
    nvmlProcessInfo_v2_t *found = calloc(PROCESSES, sizeof *found);
    const struct vgpu_nvml *nvml = found != NULL ? vgpu_nvml_begin() : NULL;
    if (nvml == NULL) return free(found), seen;
    if (nvml->nvmlDeviceGetHandleByUUID(uuid, &device) == NVML_SUCCESS && list_processes(nvml, device, found, &count)) {
        const nvmlProcessInfo_v2_t *own = own_entry(found, count);
        seen = (struct look){.known = own == NULL || own->usedGpuMemory != UNKNOWN_BYTES, .listed = own != NULL};
        if (own != NULL && seen.known) seen.bytes = own->usedGpuMemory;
    }
    nvml->nvmlShutdown();
    free(found);
    return seen;
}

/* Whether NVML listed the process. */
static bool settle(CUdevice device)
{
    if (!vgpu_state_start()) return false;
    const int index = vgpu_state_cuda_device(device);
    const char *uuid = index >= 0 ? vgpu_state_device_uuid(index) : NULL;
    if (uuid == NULL) return true;
    const struct look seen = look_at(uuid);
    if (seen.known) vgpu_slice_set_overhead(index, seen.bytes);
    return seen.listed || !seen.known;
}

/* There is a context and it is not listed: the node may write our pid later than the process starts. */
static void look_again_later(void)
{
    atomic_store(&next_look_ms, now_ms() + LOOK_AGAIN_MS);
    atomic_store(&changed, true);
}

void vgpu_overhead_settle(CUdevice device)
{
    const bool listed = settle(device);
    atomic_store(&unlisted, !listed);
    if (!listed) look_again_later();
}

void vgpu_overhead_settle_current(void)
{
    CUdevice device;
    if (vgpu_cuda()->cuCtxGetDevice(&device) == CUDA_SUCCESS) vgpu_overhead_settle(device);
}

void vgpu_overhead_settle_all(void)
{
    int count = 0;
    if (vgpu_cuda()->cuDeviceGetCount(&count) != CUDA_SUCCESS) return;
    for (CUdevice device = 0; device < count && device < DEVICES; device++) (void)settle(device);
}

void vgpu_overhead_changed(void)
{
    atomic_store(&changed, true);
    vgpu_overhead_look_if_changed();
}

static void look(void)
{
    atomic_store(&next_look_ms, now_ms() + LOOK_EVERY_MS);
    if (atomic_exchange(&changed, false)) vgpu_overhead_settle_current();
}

void vgpu_overhead_look_if_changed(void)
{
    if (atomic_load_explicit(&changed, memory_order_relaxed) && now_ms() >= atomic_load(&next_look_ms)) look();
}

void vgpu_overhead_look_before_answer(void)
{
    if (!atomic_load_explicit(&changed, memory_order_relaxed)) return;
    if (!atomic_load(&unlisted) || now_ms() >= atomic_load(&next_look_ms)) look();
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
    if (free_of_card() + LARGE_LOAD_BYTES > before->free_bytes) {
        vgpu_overhead_changed();
        return true;
    }
    atomic_store(&changed, true);
    look();
    return vgpu_slice_overhead(before->device) <= before->own_bytes || vgpu_slice_used(before->device) <= vgpu_slice_limit(before->device);
}
