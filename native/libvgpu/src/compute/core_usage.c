#include "compute/core_usage.h"

#include <time.h>

#include "intercept/missing_symbols.h"
#include "base/log.h"
#include "region/process.h"
#include "intercept/real.h"
#include "state/process_state.h"

/* Of a thread's time NVML gets a tenth at most. */
enum { PAUSES_PER_ASK = 9 };

static void open_device(struct vgpu_core_usage *usage, int index)
{
    const struct vgpu_nvml *nvml = vgpu_nvml_kept();
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

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int64_t wall_ns(void)
{
    struct timespec wall;
    clock_gettime(CLOCK_REALTIME, &wall);
    return (int64_t)wall.tv_sec * 1000000000 + wall.tv_nsec;
}

/* NVML stamps samples with the time of day in microseconds. */
static int64_t monotonic_ns(unsigned long long stamp_us, int64_t now_ns) { return (int64_t)stamp_us * 1000 - (wall_ns() - now_ns); }

/* For HAMi's monitor: the last sample, which stands until the next one, as nobody looks while nothing is launched. */
static void show(int index, unsigned int sm_percent)
{
    struct vgpu_process_state *state = vgpu_state_started();
    struct vgpu_region_slot *slot = state != NULL ? atomic_load(&state->slot) : NULL;
    if (slot != NULL) atomic_store(&vgpu_slot_util(slot, index)->sm_percent, sm_percent);
}

/* The newest sample of this process since a stamp: the mean of all since then. false: there is none. */
static bool ask(struct vgpu_core_usage *usage, int index, unsigned long long since_us, nvmlProcessUtilizationSample_t *own)
{
    nvmlProcessUtilizationSample_t *samples = usage->samples;
    unsigned int count = VGPU_USAGE_SAMPLES;
    const nvmlReturn_t result = vgpu_nvml()->nvmlDeviceGetProcessUtilization(usage->device, samples, &count, since_us);
    if (result == NVML_ERROR_UNINITIALIZED) {
        vgpu_nvml_lost();
        usage->opened = false;
    }
    if (result == NVML_ERROR_NOT_SUPPORTED) {
        usage->unavailable = true;
        vgpu_log(VGPU_LOG_WARN, "device %d has no utilisation per process: its core limit goes by the times of launches alone", index);
    }
    for (unsigned int i = 0; result == NVML_SUCCESS && i < count && i < VGPU_USAGE_SAMPLES; i++) {
        if (!is_own(usage, samples[i].pid) || samples[i].timeStamp <= since_us) continue;
        *own = samples[i];
        return true;
    }
    return false;
}

static bool fetch(struct vgpu_core_usage *usage, int index, struct vgpu_core_sample *sample)
{
    /* Below it a hundredth is much, and the newest sample alone is asked for as well. */
    static const unsigned int LITTLE_PERCENT = 3;
    const int64_t now = now_ns();
    if (!usage->opened) open_device(usage, index);
    if (usage->unavailable) return false;
    look_for_pids(usage, now);
    /* What was before the first launch is no launch. And a clock that was set back stamps new samples with earlier times. */
    const unsigned long long wall_us = (unsigned long long)wall_ns() / 1000;
    if (usage->last_us == 0 || usage->last_us > wall_us) usage->last_us = wall_us;
    nvmlProcessUtilizationSample_t mean, newest;
    if (!ask(usage, index, usage->last_us, &mean)) return false;
    if (mean.smUtil >= LITTLE_PERCENT || !ask(usage, index, mean.timeStamp - 1, &newest)) newest = mean;
    /* The first one began before anybody asked: nobody knows when. */
    const int64_t begin_ns = usage->recognised ? monotonic_ns(usage->last_us, now) : 0;
    usage->last_us = mean.timeStamp;
    usage->recognised = true;
    *sample = (struct vgpu_core_sample){begin_ns, monotonic_ns(mean.timeStamp, now), mean.smUtil, newest.smUtil};
    show(index, mean.smUtil);
    return true;
}

bool vgpu_core_usage_ask(struct vgpu_core_usage *usage, int index, struct vgpu_core_sample *sample)
{
    if (!vgpu_mutex_trylock(&usage->lock)) return false;
    const int64_t begin = now_ns();
    const bool fetched = begin >= usage->next_ask_ns && fetch(usage, index, sample);
    const int64_t end = now_ns();
    if (begin >= usage->next_ask_ns) usage->next_ask_ns = end + PAUSES_PER_ASK * (end - begin);
    vgpu_mutex_unlock(&usage->lock);
    return fetched;
}
