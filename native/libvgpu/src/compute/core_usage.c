#include "compute/core_usage.h"

#include <time.h>

#include "intercept/missing_symbols.h"
#include "base/log.h"
#include "region/process.h"
#include "intercept/real.h"
#include "state/process_state.h"

/* More processes than this on one card are not looked through. */
enum { SAMPLES = 256 };

static void open_device(struct vgpu_core_usage *usage, int index)
{
    const struct vgpu_nvml *nvml = vgpu_nvml_begin(); /* stays initialised, one count more than the host's own */
    usage->opened = true;
    usage->unavailable = nvml == NULL || nvml->nvmlDeviceGetHandleByUUID(vgpu_state_device_uuid(index), &usage->device) != NVML_SUCCESS;
    if (nvml != NULL && usage->unavailable)
        vgpu_log(VGPU_LOG_INFO, "NVML does not know device %d: its core limit goes by the times of launches alone", index);
}

/* The node may write the pid later than the process starts. */
static void look_for_pids(struct vgpu_core_usage *usage, int64_t now_ns)
{
    if (usage->recognised || now_ns < usage->next_pids_ns) return;
    usage->next_pids_ns = now_ns + 1000000000;
    usage->pid_count = vgpu_process_own_pids(usage->pids, VGPU_OWN_PIDS);
}

static bool is_own(const struct vgpu_core_usage *usage, unsigned int pid)
{
    for (int i = 0; i < usage->pid_count; i++)
        if (usage->pids[i] == pid) return true;
    return false;
}

/* NVML stamps samples with the time of day in microseconds. */
static int64_t monotonic_ns(unsigned long long stamp_us, int64_t now_ns)
{
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    return (int64_t)stamp_us * 1000 - ((int64_t)wall.tv_sec * 1000000000 + wall.tv_nsec - now_ns);
}

/* For HAMi's monitor: the last sample, which stands until the next one, as nobody looks while nothing is launched. */
static void show(int index, unsigned int sm_percent)
{
    struct vgpu_process_state *state = vgpu_state_started();
    struct vgpu_region_slot *slot = state != NULL ? atomic_load(&state->slot) : NULL;
    if (slot != NULL) atomic_store(&vgpu_slot_util(slot, index)->sm_percent, sm_percent);
}

void vgpu_core_usage_ask(struct vgpu_core_usage *usage, struct vgpu_governor *governor, int index, int64_t now_ns)
{
    if (!usage->opened) open_device(usage, index);
    if (usage->unavailable) return;
    look_for_pids(usage, now_ns);
    static nvmlProcessUtilizationSample_t samples[SAMPLES]; /* 8 KB: with the cores' lock rather than on the stack of a small thread */
    unsigned int count = SAMPLES;
    const nvmlReturn_t result = vgpu_nvml()->nvmlDeviceGetProcessUtilization(usage->device, samples, &count, usage->last_us);
    if (result == NVML_ERROR_NOT_SUPPORTED) {
        usage->unavailable = true;
        vgpu_log(VGPU_LOG_WARN, "device %d has no utilisation per process: its core limit goes by the times of launches alone", index);
    }
    for (unsigned int i = 0; result == NVML_SUCCESS && i < count && i < SAMPLES; i++) {
        if (!is_own(usage, samples[i].pid) || samples[i].timeStamp <= usage->last_us) continue;
        usage->last_us = samples[i].timeStamp;
        usage->recognised = true;
        vgpu_governor_sample(governor, monotonic_ns(samples[i].timeStamp, now_ns), samples[i].smUtil);
        show(index, samples[i].smUtil);
        break;
    }
}
