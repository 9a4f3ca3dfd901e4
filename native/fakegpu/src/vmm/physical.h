/* Physical memory by handle: what mappings, multicast objects and sparse arrays have in common. */
#ifndef FAKEGPU_PHYSICAL_H
#define FAKEGPU_PHYSICAL_H

#include "driver/driver.h"

/* Physical memory comes in units of 2 MiB. */
static const uint64_t FG_PHYSICAL_UNIT = 2 << 20;

struct fg_physical {
    enum fg_tag tag;
    int device;
    uint64_t bytes;
    int handles, uses; /* released and mapped or bound how often; gone when both are 0 */
    bool foreign;
    CUmemLocation place; /* as it was asked for, or where an import is */
    bool tile_pool;   /* made for tiles of sparse arrays */
    int handle_types; /* that it may be exported as, a bit each */
    bool imported;    /* a further handle of memory that was exported, here or elsewhere */
    int shared_entry; /* one more than its entry in the machine's state, once it was exported; 0: none */
    uint32_t generation;
    struct fg_physical *next;
};

/* A mapping (owner: 0, at: address) or a binding to a multicast object or a sparse array (owner: its handle, at: offset in it) or to a
 * logical endpoint (owner: FG_ENDPOINT and its number). */
struct fg_use {
    uint64_t owner, at, bytes;
    struct fg_physical *memory;
    struct fg_use *next;
};

static const uint64_t FG_ENDPOINT = UINT64_C(1) << 63;

/* Guards all handles and uses, and is held for each of the functions below; taken before fg_driver.lock. */
extern pthread_mutex_t fg_physical_lock;

/* The object of that handle; NULL: there is none. */
struct fg_physical *fg_physical_of(CUmemGenericAllocationHandle handle);

/* The memory of a mapping that the address lies in; NULL: there is none. */
struct fg_physical *fg_mapped_over(uint64_t address);

/* Whether a handle here is of that entry of the machine's state. */
bool fg_physical_is_shared(int entry, uint32_t generation);

/* NULL: no memory. `foreign`: it is not charged to a card. */
struct fg_physical *fg_add_physical(enum fg_tag tag, int device, uint64_t bytes, bool foreign);

CUresult fg_add_use(uint64_t owner, struct fg_physical *memory, uint64_t at, uint64_t bytes);

/* Ends the mapping that begins there; its bytes, 0: there is none. */
uint64_t fg_end_mapping(uint64_t at);

/* Ends the uses of an owner in a range of offsets; whether there were any. */
bool fg_drop_uses(uint64_t owner, uint64_t from, uint64_t bytes);

#endif
