/* A card as the configuration has it. */
#ifndef FAKEGPU_CARD_H
#define FAKEGPU_CARD_H

#include <stdint.h>

#include "card/value.h"

enum { FG_MAX_DEVICES = 64, FG_MAX_LINKS = 18, FG_MAX_MIG = 7 };

struct fg_mig {
    char uuid[96];
    int gpu_slices, compute_slices;
    unsigned int gpu_instance, compute_instance, start;
    uint64_t memory_bytes;
};

struct fg_card {
    char uuid[96];
    char name[96];
    char pci_bus_id[32]; /* as NVML writes it: 00000000:07:00.0 */
    unsigned int pci_domain, pci_bus, pci_device;
    uint64_t memory_bytes;
    int sm_count, max_threads_per_sm, numa, major, minor;
    int link_count, link_peer[FG_MAX_LINKS];
    unsigned int mig_mode; /* at the beginning */
    int mig_slices, mig_count;
    struct fg_mig migs[FG_MAX_MIG];
    int64_t values[FG_VALUES]; /* at the beginning */
};

#endif
