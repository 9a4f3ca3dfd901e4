/* The table of physical memory by handle, and the lock of all that this room keeps of it. A fork child finds both empty. */
#ifndef VGPU_HANDLES_H
#define VGPU_HANDLES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda_abi.h"

struct vgpu_physical {
    CUmemGenericAllocationHandle handle;
    uint64_t bytes;
    int device;
    int holds; /* handles given out and not released */
    int uses;  /* mappings and bindings */
    bool exported; /* others may have it open */
    bool foreign;  /* imported: its maker is charged; `bytes` is as much as was seen mapped, VGPU_UNKNOWN_SIZE before */
    struct vgpu_physical *next;
};

/* 4096 chains: a card of 80 GiB in pieces of 2 MiB makes 40,000 mappings, ten to a chain. */
enum { VGPU_CHAINS = 4096 };

static inline size_t vgpu_chain_of(uint64_t key) { return (key * UINT64_C(0x9E3779B97F4A7C15)) >> 52; }

/* Never held while the driver is called. */
void vgpu_handles_lock(void);
void vgpu_handles_unlock(void);

/* With the lock. NULL: there is none of that handle. */
struct vgpu_physical *vgpu_handle_find(CUmemGenericAllocationHandle handle);
void vgpu_handle_link(struct vgpu_physical *memory);
void vgpu_handle_unlink(struct vgpu_physical *memory);

#endif
