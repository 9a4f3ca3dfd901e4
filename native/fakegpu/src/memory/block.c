/* Device memory of the stand-in driver: blocks with real content, charged to the machine's ledger. */
#include "memory/block.h"

#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "memory/arena.h"
#include "graph/graph.h"
#include "memory/instant.h"

/* A search tree by address range, under fg_driver.lock. */
static void *blocks;

/* An address inside a block compares equal to the block. */
static int by_range(const void *a, const void *b)
{
    const struct fg_block *x = a, *y = b;
    return x->base + x->bytes <= y->base ? -1 : x->base >= y->base + y->bytes ? 1 : 0;
}

static struct fg_block *block_at(uint64_t address, uint64_t bytes)
{
    const struct fg_block probe = {.base = address, .bytes = bytes > 0 ? bytes : 1};
    struct fg_block **found = tfind(&probe, &blocks, by_range);
    if (found == NULL || address < (*found)->base || bytes > (*found)->base + (*found)->bytes - address) return NULL;
    return *found;
}

uint64_t fg_rounded(uint64_t bytes)
{
    const uint64_t unit = fg_driver.machine->granularity_bytes;
    return bytes > UINT64_MAX - unit ? UINT64_MAX : (bytes + unit - 1) / unit * unit;
}

bool fg_charge(int device, uint64_t bytes)
{
    if (bytes == 0) return true;
    fg_lock(fg_driver.state);
    const bool fits = fg_take(fg_driver.state, fg_driver.card_of[device], bytes);
    fg_unlock(fg_driver.state);
    return fits;
}

void fg_discharge(int device, uint64_t bytes)
{
    if (bytes == 0) return;
    fg_lock(fg_driver.state);
    fg_give(fg_driver.state, fg_driver.card_of[device], bytes);
    fg_unlock(fg_driver.state);
}

static CUresult keep_block(const struct fg_block *wanted, struct fg_block **made)
{
    struct fg_block *block = malloc(sizeof *block), **place = NULL;
    if (block == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *block = *wanted;
    pthread_mutex_lock(&fg_driver.lock);
    if (block->base != 0) place = tsearch(block, &blocks, by_range);
    /* Still with the lock: the place is a node of the tree, which another thread's free may take away. */
    const CUresult result = place == NULL ? CUDA_ERROR_OUT_OF_MEMORY : *place != block ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
    pthread_mutex_unlock(&fg_driver.lock);
    if (result == CUDA_SUCCESS)
        *made = block;
    else
        free(block);
    return result;
}

CUresult fg_add_block(const struct fg_block *wanted, struct fg_block **made)
{
    struct fg_block block = *wanted;
    block.base = fg_arena_take(block.bytes);
    return keep_block(&block, made);
}

CUresult fg_add_window(const struct fg_block *wanted)
{
    struct fg_block *made;
    return keep_block(wanted, &made);
}

CUresult fg_change_block(uint64_t base, CUresult (*change)(struct fg_block *block))
{
    pthread_mutex_lock(&fg_driver.lock);
    struct fg_block *block = block_at(base, 1);
    const CUresult result = block != NULL ? change(block) : CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&fg_driver.lock);
    return result;
}

struct fg_block *fg_remove_block(uint64_t base, unsigned int kinds)
{
    const struct fg_block probe = {.base = base, .bytes = 1};
    pthread_mutex_lock(&fg_driver.lock);
    struct fg_block **found = tfind(&probe, &blocks, by_range), *block = found != NULL ? *found : NULL;
    if (block != NULL && block->base == base && (kinds & (1U << block->kind)) != 0)
        tdelete(block, &blocks, by_range);
    else
        block = NULL;
    pthread_mutex_unlock(&fg_driver.lock);
    return block;
}

void fg_drop_block(struct fg_block *block)
{
    if (block->kind == FG_GRAPH_MEMORY)
        fg_address_drop(block->base); /* a graph may give it memory again */
    else if (block->shared_entry != 0)
        fg_leave_shared(block); /* its addresses stay: pages of it are other processes' too */
    else if (block->kind != FG_MAPPED_MEMORY)
        fg_arena_give(block->base, block->bytes, block->touched);
    fg_discharge(block->device, block->charged);
    if (block->kind == FG_POOL_MEMORY) fg_pool_give(block->pool, fg_rounded(block->bytes));
    if (block->kind == FG_GRAPH_MEMORY) fg_graph_give(block->device, fg_rounded(block->bytes));
    free(block);
}

CUresult fg_allocate(CUdeviceptr *pointer, uint64_t bytes, enum fg_block_kind kind, CUmemoryPool pool, int device)
{
    CUcontext context;
    CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (pointer == NULL || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    const int fault = fg_fault(FG_CALL_ALLOCATE);
    if (fault != 0) return (CUresult)fault;
    struct fg_block *block, wanted = {.bytes = bytes, .device = device, .kind = kind, .pool = pool};
    if (kind == FG_DEVICE_MEMORY) wanted.context = context, wanted.charged = fg_rounded(bytes);
    if (!fg_charge(device, wanted.charged)) return CUDA_ERROR_OUT_OF_MEMORY;
    result = fg_add_block(&wanted, &block);
    if (result == CUDA_SUCCESS)
        *pointer = block->base;
    else
        fg_discharge(device, wanted.charged);
    return result;
}

/* With the lock: glibc before 2.30 hands a visitor nothing else. */
static struct sweep {
    CUcontext context;
    struct fg_block *found;
} sweep;

static void match_context(const void *node, VISIT visit, int depth)
{
    (void)depth;
    if ((visit == postorder || visit == leaf) && (*(struct fg_block *const *)node)->context == sweep.context)
        sweep.found = *(struct fg_block *const *)node;
}

void fg_free_context_memory(CUcontext context)
{
    struct fg_block *found;
    do {
        pthread_mutex_lock(&fg_driver.lock);
        sweep = (struct sweep){.context = context};
        twalk(blocks, match_context);
        found = sweep.found;
        if (found != NULL) tdelete(found, &blocks, by_range);
        pthread_mutex_unlock(&fg_driver.lock);
        if (found != NULL) fg_drop_block(found);
    } while (found != NULL);
}

static struct passing {
    CUcontext from, to;
} passing;

static void pass_context(const void *node, VISIT visit, int depth)
{
    (void)depth;
    if ((visit == postorder || visit == leaf) && (*(struct fg_block *const *)node)->context == passing.from)
        (*(struct fg_block *const *)node)->context = passing.to;
}

void fg_pass_context_memory(CUcontext from, CUcontext to)
{
    pthread_mutex_lock(&fg_driver.lock);
    passing = (struct passing){from, to};
    twalk(blocks, pass_context);
    pthread_mutex_unlock(&fg_driver.lock);
}

CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    CUcontext context;
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (free_bytes == NULL || total_bytes == NULL) return CUDA_ERROR_INVALID_VALUE;
    fg_lock(fg_driver.state);
    fg_sweep(fg_driver.state);
    const struct fg_card_state *card = &fg_driver.state->cards[fg_card_of(context)];
    const struct fg_instance *instance = &fg_driver.instance_of[context->device];
    *total_bytes = instance->uuid[0] != '\0' ? instance->memory_bytes : card->total_bytes;
    *free_bytes = *total_bytes > card->used_bytes ? *total_bytes - card->used_bytes : 0;
    fg_unlock(fg_driver.state);
    return CUDA_SUCCESS;
}

static CUresult allocate(CUdeviceptr *pointer, size_t bytes)
{
    CUcontext context;
    const CUresult result = fg_current(&context);
    return result == CUDA_SUCCESS ? fg_allocate(pointer, bytes, FG_DEVICE_MEMORY, NULL, context->device) : result;
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
    CUcontext context;
    if (!fg_driver.initialised || !fg_driver.machine->instant_allocations) return allocate(pointer, bytes);
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    *pointer = fg_instant_take();
    return *pointer != 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width_bytes, size_t height, unsigned int element_bytes)
{
    if (pitch == NULL || width_bytes == 0 || height == 0 || (element_bytes != 4 && element_bytes != 8 && element_bytes != 16))
        return CUDA_ERROR_INVALID_VALUE;
    const size_t row = (width_bytes + 511) / 512 * 512;
    size_t bytes;
    if (row < width_bytes || __builtin_mul_overflow(row, height, &bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    const CUresult result = allocate(pointer, bytes);
    if (result == CUDA_SUCCESS) *pitch = row;
    return result;
}

/* Managed memory lives on the card while there is room, else in the host's memory: only as much as fits is taken. */
CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned int flags)
{
    CUcontext context;
    CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (pointer == NULL || bytes == 0 || (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)) return CUDA_ERROR_INVALID_VALUE;
    struct fg_block *block, wanted = {.bytes = bytes, .device = context->device, .context = context, .managed = true, .touched = true};
    if (fg_charge(context->device, fg_rounded(bytes))) wanted.charged = fg_rounded(bytes);
    result = fg_add_block(&wanted, &block);
    if (result == CUDA_SUCCESS)
        *pointer = block->base;
    else
        fg_discharge(context->device, wanted.charged);
    return result;
}

CUresult cuMemFree_v2(CUdeviceptr pointer)
{
    CUcontext context;
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_DEVICE_UNAVAILABLE) return result;
    if (pointer == 0) return CUDA_SUCCESS;
    if (fg_driver.machine->instant_allocations) return fg_instant_give(pointer), CUDA_SUCCESS;
    const unsigned int freeable = 1U << FG_DEVICE_MEMORY | 1U << FG_POOL_MEMORY | 1U << FG_GRAPH_MEMORY | 1U << FG_FOREIGN_MEMORY;
    struct fg_block *block = fg_remove_block(pointer, freeable);
    if (block == NULL) return CUDA_ERROR_INVALID_VALUE;
    fg_drop_block(block);
    return CUDA_SUCCESS;
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr pointer)
{
    pthread_mutex_lock(&fg_driver.lock);
    const struct fg_block *block = block_at(pointer, 1);
    if (block != NULL && base != NULL) *base = block->base;
    if (block != NULL && bytes != NULL) *bytes = block->bytes;
    pthread_mutex_unlock(&fg_driver.lock);
    return block != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

bool fg_find_block(CUdeviceptr at, struct fg_block *found)
{
    pthread_mutex_lock(&fg_driver.lock);
    const struct fg_block *block = block_at(at, 1);
    if (block != NULL) *found = *block;
    pthread_mutex_unlock(&fg_driver.lock);
    return block != NULL;
}

bool fg_touch(CUdeviceptr at, size_t bytes)
{
    pthread_mutex_lock(&fg_driver.lock);
    struct fg_block *block = block_at(at, bytes);
    if (block != NULL) block->touched = true;
    pthread_mutex_unlock(&fg_driver.lock);
    return block != NULL;
}
