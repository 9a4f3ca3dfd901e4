/* Blocks of device memory of this process: what all allocating files of the stand-in driver share. */
#ifndef FAKEGPU_BLOCK_H
#define FAKEGPU_BLOCK_H

#include "driver/driver.h"
#include "state/own_file.h"

enum fg_block_kind {
    FG_DEVICE_MEMORY,
    FG_POOL_MEMORY,
    FG_GRAPH_MEMORY,  /* charged by its graph, not by itself */
    FG_MAPPED_MEMORY, /* a window onto physical memory; not freed by cuMemFree */
    FG_FOREIGN_MEMORY, /* a window onto external memory */
    FG_MODULE_MEMORY,  /* a module's variable; ends with its module or context */
    FG_OPENED_MEMORY   /* another process's, opened by its handle; ended by cuIpcCloseMemHandle */
};

struct fg_block {
    uint64_t base, bytes;
    uint64_t charged; /* bytes taken from the card; 0: somebody else's */
    CUcontext context; /* NULL: it outlives contexts */
    CUmemoryPool pool;
    int device;
    enum fg_block_kind kind;
    bool touched, managed;
    int shared_entry; /* one more than its entry in the machine's state, once another process may open it; 0: none */
    uint32_t generation;
    struct fg_own_file file; /* then: what holds its pages */
};

/* Bytes as the card gives them out. */
uint64_t fg_rounded(uint64_t bytes);

/* Takes bytes of a device's card; false: not that much is free. */
bool fg_charge(int device, uint64_t bytes);
void fg_discharge(int device, uint64_t bytes);

/* A block with `wanted`'s properties at an address of its own, charged by the caller. */
CUresult fg_add_block(const struct fg_block *wanted, struct fg_block **made);

/* A window at a given address, inside a range of addresses that was reserved. */
CUresult fg_add_window(const struct fg_block *wanted);

/* Takes the block that begins at `base` and has one of the kinds (bits 1 << kind) out of the tree; NULL when there is none. */
struct fg_block *fg_remove_block(uint64_t base, unsigned int kinds);

/* Ends a removed block: address and charge go back. */
void fg_drop_block(struct fg_block *block);

/* A copy of the block that holds the address; false: none does. */
bool fg_find_block(CUdeviceptr at, struct fg_block *found);

/* Changes the block that holds the address, with fg_driver.lock. */
CUresult fg_change_block(uint64_t base, CUresult (*change)(struct fg_block *block));

/* Lets go of a block that processes share. */
void fg_leave_shared(struct fg_block *block);

/* Host memory that the driver knows: allocated or registered. `base` is where its range begins. */
bool fg_is_host_memory(CUdeviceptr at, CUdeviceptr *base, size_t *bytes);

/* Ordinary memory of the current context. */
CUresult fg_allocate(CUdeviceptr *pointer, uint64_t bytes, enum fg_block_kind kind, CUmemoryPool pool, int device);

/* Physical memory that is mapped into a sparse array: it lives until its last tile is unmapped, mapped from other memory, or gone with the
 * array. */
struct fg_tile_memory {
    CUmemGenericAllocationHandle handle;
    uint64_t offset, bytes;
    bool tile_pool; /* it must have been made for tiles */
};
/* `at`: which tile of the array. NULL: the tile has no memory any more. */
CUresult fg_bind_tile(uint64_t owner, uint64_t at, const struct fg_tile_memory *wanted);
void fg_unbind_tiles(uint64_t owner);

#endif
