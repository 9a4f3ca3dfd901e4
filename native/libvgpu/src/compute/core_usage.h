/* What NVML reports of this process's use of a card. NVML may be slow: one thread asks, without the card's lock, and others go on. */
#ifndef VGPU_CORE_USAGE_H
#define VGPU_CORE_USAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/mutex.h"
#include "nvml_abi.h"
#include "region/process.h"

/* More processes than this on one card are not looked through. */
enum { VGPU_USAGE_SAMPLES = 256 };

struct vgpu_core_usage {
    struct vgpu_mutex lock; /* of the thread that asks; guards the rest */
    int64_t next_ask_ns;
    bool opened, unavailable, recognised; /* recognised: a sample of this process has been seen */
    int64_t next_pids_ns;
    nvmlDevice_t device;
    unsigned long long last_us; /* stamp of the last sample */
    int pid_count;
    unsigned int pids[VGPU_OWN_PIDS];
    nvmlProcessUtilizationSample_t samples[VGPU_USAGE_SAMPLES]; /* 8 KB: not on the stack of a small thread */
};

/* As vgpu_governor_sample wants it. */
struct vgpu_core_sample {
    int64_t begin_ns, end_ns;
    unsigned int percent, newest_percent;
};

/* Fetches a new sample. false: there is none of this process, or another thread is asking, or it took so long lately that launches would
 * stand still for it. With no lock held. */
bool vgpu_core_usage_ask(struct vgpu_core_usage *usage, int index, struct vgpu_core_sample *sample);

#endif
