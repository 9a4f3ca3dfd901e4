/* The simulated machine: which cards it has (FAKEGPU_CONFIG) and which of them this process may see.
 *
 * FAKEGPU_CONFIG names a JSON file:
 *   {"state": "<path of the shared state>", "driver_version": "570.124.06", "cuda_version": 12080, "context_mib": 0, "module_kib": 0,
 *    "lazy_code_kib": 0,
 *    "granularity_bytes": 512, "wave_ns": 50000, "pid_offset": 0, "time_slice_us": 2000, "context_switch_us": 50, "queue_depth": 1024,
 *    "future_location": 0, "instant_launches": false, "instant_allocations": false, "nvml_sample_ms": 167, "nvml_sample_delay_ms": 0,
 * "nvml_missing_percent": 0, "nvml_whole_samples": false, "nvml_process_utilization": true, "cuda_order": [0], "faults": [{"call":
 * "cuMemAlloc", "result": 2, "after": 0, "times": 1}], "gates": [{"call": "cuEventRecord", "card": 0, "until": "<path>"}], "devices":
 * [{"uuid": "GPU-...", "name": "...", "memory_mib": 81920, "sm_count": 108, "max_threads_per_sm": 2048, "pci_bus_id": "00000000:07:00.0",
 * "numa": 0, "major": 8, "minor": 0, "nvlinks": [1, 1, 2], "mig_slices": 7, "values": {"fan_percent": 30}, "mig": [{"uuid": "MIG-...",
 * "gpu_slices": 1, "compute_slices": 1, "memory_mib": 9728, "gpu_instance": 7, "compute_instance": 0, "start": 0}]}]} granularity_bytes:
 * what an allocation is rounded up to; wave_ns: how long a card needs for as many threads as it can hold at once; pid_offset: added to the
 * pids that NVML reports (a pid namespace); nvlinks: the peer of each link, as index in this list; mig: the card begins in MIG mode with
 * these instances (an empty list: none); mig_slices: how often it can be cut (7, or 4 as an A30). All keys, and the
 * rules of the clock, are in native/fakegpu/README.md. FAKEGPU_VISIBLE_DEVICES (uuids or indexes, "all", "none", "void"; absent = all) is
 * what the container runtime let in.
 */
#ifndef FAKEGPU_MACHINE_H
#define FAKEGPU_MACHINE_H

#include <stdbool.h>
#include <stdint.h>

#include "card/card.h"
#include "card/clock.h"
#include "machine/fault_call.h"

enum { FG_MAX_QUEUE_DEPTH = 4096 };

struct fg_machine {
    char state_path[4096];
    char driver_version[80];
    int cuda_version;
    uint64_t context_bytes, module_bytes, granularity_bytes;
    uint64_t lazy_code_bytes; /* what the code of a kernel takes at its first launch */
    int64_t wave_ns;
    int pid_offset;
    struct fg_timing timing;
    int future_location; /* a type of location that no driver has yet; 0: none */
    int queue_depth; /* launches of a context that may wait before a launch has to */
    int64_t sample_delay_ns; /* how much older than now a utilisation sample must be to be shown */
    unsigned int sample_missing_percent;
    bool instant_launches; /* kernels take no time and are not counted: to measure what stands between a program and the driver */
    bool instant_allocations; /* the same for cuMemAlloc and cuMemFree: addresses without memory, counted nowhere */
    bool process_utilization; /* false: NVML does not support it, as on MIG slices and some cards */
    int fault_count;
    struct fg_fault faults[FG_MAX_FAULTS];
    int gate_count;
    struct fg_gate gates[FG_MAX_GATES];
    int order_count, cuda_order[FG_MAX_DEVICES]; /* cards, fastest first as CUDA counts them; 0: as NVML */
    int card_count;
    struct fg_card cards[FG_MAX_DEVICES];
    int visible_count, visible[FG_MAX_DEVICES]; /* indexes into cards, in bus order, as NVML lists them */
};

/* The machine, read once per process; NULL when there is none (no FAKEGPU_CONFIG) or its file is wrong (one line on stderr has the reason).
 */
const struct fg_machine *fg_machine(void);

/* The 16 bytes of "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx". */
void fg_uuid_bytes(const char *uuid, unsigned char bytes[16]);

/* Index of the card that a list entry names: a number below `count`, or the beginning of one uuid and no other; -1 if none. */
int fg_card_named(const struct fg_machine *machine, const int *among, int count, const char *name);

#endif
