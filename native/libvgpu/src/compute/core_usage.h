/* What NVML reports of this process's use of a card. The caller holds the cores' lock. */
#ifndef VGPU_CORE_USAGE_H
#define VGPU_CORE_USAGE_H

#include <stdbool.h>
#include <stdint.h>

#include "governor/governor.h"
#include "nvml_abi.h"
#include "region/process.h"

struct vgpu_core_usage {
    bool opened, unavailable, recognised; /* recognised: a sample of this process has been seen */
    int64_t next_pids_ns;
    nvmlDevice_t device;
    unsigned long long last_us; /* stamp of the last sample */
    int pid_count;
    unsigned int pids[VGPU_OWN_PIDS];
};

/* Fetches a new sample, if there is one of this process, and hands it to the governor. */
void vgpu_core_usage_ask(struct vgpu_core_usage *usage, struct vgpu_governor *governor, int index, int64_t now_ns);

#endif
