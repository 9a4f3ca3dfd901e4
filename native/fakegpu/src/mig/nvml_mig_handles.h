/* Handles of GPU instances, as the two halves of the making of instances share them. */
#ifndef FAKEGPU_NVML_MIG_HANDLES_H
#define FAKEGPU_NVML_MIG_HANDLES_H

#include "nvml/nvml.h"

/* Of one process; `made` differs between an instance and a later one in its slot. */
struct nvmlGpuInstance_st {
    uint32_t tag, made;
    int card, slot;
};

static inline struct fg_mig_state *state_of(int card) { return &fg_nvml.state->cards[card].mig; }

static inline const struct fg_card *card_at(int card) { return &fg_nvml.machine->cards[card]; }

static inline nvmlReturn_t check_card(int card) { return fg_nvml.state->cards[card].lost ? NVML_ERROR_GPU_IS_LOST : NVML_SUCCESS; }

static inline struct fg_gpu_instance *gpu_instance(nvmlGpuInstance_t handle) { return &state_of(handle->card)->instances[handle->slot]; }

nvmlGpuInstance_t fg_gpu_handle(int card, int slot);

/* NVML_SUCCESS if the handle is one of ours, its instance is still there and its card not lost. */
nvmlReturn_t fg_check_gpu_instance(nvmlGpuInstance_t handle);

#endif
