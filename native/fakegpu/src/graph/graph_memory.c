/* The memory that the graphs of a device share, and the addresses of their allocations, in the stand-in driver.
 *
 * A graph takes memory when it is launched (or uploaded) and keeps its share of the device's graph memory until cuDeviceGraphMemTrim;
 * what one graph has freed the next one uses.
 */
#include <search.h>
#include <stdlib.h>

#include "memory/arena.h"
#include "memory/block.h"
#include "graph/graph.h"

static struct {
    uint64_t used, reserved, used_high, reserved_high;
} memory[FG_MAX_DEVICES]; /* under fg_driver.lock */

bool fg_graph_take(int device, uint64_t bytes)
{
    pthread_mutex_lock(&fg_driver.lock);
    const uint64_t used = memory[device].used + bytes;
    const uint64_t growth = used > memory[device].reserved ? used - memory[device].reserved : 0;
    const bool fits = fg_charge(device, growth);
    if (fits) {
        memory[device].used = used;
        memory[device].reserved += growth;
        if (used > memory[device].used_high) memory[device].used_high = used;
        if (memory[device].reserved > memory[device].reserved_high) memory[device].reserved_high = memory[device].reserved;
    }
    pthread_mutex_unlock(&fg_driver.lock);
    return fits;
}

void fg_graph_give(int device, uint64_t bytes)
{
    pthread_mutex_lock(&fg_driver.lock);
    memory[device].used -= bytes;
    pthread_mutex_unlock(&fg_driver.lock);
}

CUresult cuDeviceGraphMemTrim(CUdevice device)
{
    const CUresult result = fg_check_device(device);
    if (result != CUDA_SUCCESS) return result;
    pthread_mutex_lock(&fg_driver.lock);
    fg_discharge(device, memory[device].reserved - memory[device].used);
    memory[device].reserved = memory[device].used;
    pthread_mutex_unlock(&fg_driver.lock);
    return CUDA_SUCCESS;
}

/* CUgraphMem_attribute */
enum { USED = 0, USED_HIGH = 1, RESERVED = 2, RESERVED_HIGH = 3 };

CUresult cuDeviceGetGraphMemAttribute(CUdevice device, int attribute, void *value)
{
    const CUresult result = fg_check_device(device);
    if (result != CUDA_SUCCESS) return result;
    if (value == NULL || attribute < USED || attribute > RESERVED_HIGH) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fg_driver.lock);
    const uint64_t values[] = {memory[device].used, memory[device].used_high, memory[device].reserved, memory[device].reserved_high};
    pthread_mutex_unlock(&fg_driver.lock);
    *(uint64_t *)value = values[attribute];
    return CUDA_SUCCESS;
}

struct address {
    CUdeviceptr base;
    uint64_t bytes;
    unsigned int holders; /* nodes, and the block of memory that lies there */
    bool claimed;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *addresses; /* a search tree, under `lock` */

static int by_base(const void *a, const void *b)
{
    const struct address *x = a, *y = b;
    return x->base < y->base ? -1 : x->base > y->base ? 1 : 0;
}

static struct address *at(CUdeviceptr base)
{
    const struct address probe = {.base = base};
    struct address **found = tfind(&probe, &addresses, by_base);
    return found != NULL ? *found : NULL;
}

CUdeviceptr fg_address_take(uint64_t bytes)
{
    struct address *made = calloc(1, sizeof *made);
    if (made == NULL) return 0;
    *made = (struct address){.base = fg_arena_take(bytes), .bytes = bytes, .holders = 1};
    pthread_mutex_lock(&lock);
    const bool kept = made->base != 0 && tsearch(made, &addresses, by_base) != NULL;
    pthread_mutex_unlock(&lock);
    if (kept) return made->base;
    if (made->base != 0) fg_arena_give(made->base, bytes, 0);
    free(made);
    return 0;
}

void fg_address_hold(CUdeviceptr base)
{
    pthread_mutex_lock(&lock);
    at(base)->holders++;
    pthread_mutex_unlock(&lock);
}

void fg_address_drop(CUdeviceptr base)
{
    pthread_mutex_lock(&lock);
    struct address *address = at(base);
    const bool last = --address->holders == 0;
    if (last) tdelete(address, &addresses, by_base);
    pthread_mutex_unlock(&lock);
    if (!last) return;
    fg_arena_give(address->base, address->bytes, 1);
    free(address);
}

bool fg_address_known(CUdeviceptr base)
{
    pthread_mutex_lock(&lock);
    const bool known = at(base) != NULL;
    pthread_mutex_unlock(&lock);
    return known;
}

bool fg_address_claim(CUdeviceptr base)
{
    pthread_mutex_lock(&lock);
    struct address *address = at(base);
    const bool free_before = !address->claimed;
    address->claimed = true;
    pthread_mutex_unlock(&lock);
    return free_before;
}

void fg_address_disclaim(CUdeviceptr base)
{
    pthread_mutex_lock(&lock);
    at(base)->claimed = false;
    pthread_mutex_unlock(&lock);
}
