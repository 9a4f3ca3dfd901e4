/* Device memory of the stand-in driver: blocks with real content, charged to the machine's ledger. */
#include "driver.h"

#include <search.h>
#include <stdlib.h>
#include <string.h>

#include "arena.h"

enum block_kind { DEVICE_MEMORY, POOL_MEMORY, PHYSICAL_HANDLE };

struct block {
    uint64_t base, bytes, charged;
    CUcontext context; /* NULL: it outlives contexts */
    int device;
    enum block_kind kind;
    bool touched, managed;
};

/* Two search trees, under fg_driver.lock: by address range, and by handle. */
static void *blocks, *handles;

/* An address inside a block compares equal to the block. */
static int by_range(const void *a, const void *b)
{
    const struct block *x = a, *y = b;
    return x->base + x->bytes <= y->base ? -1 : x->base >= y->base + y->bytes ? 1 : 0;
}

static struct block *block_at(uint64_t address, uint64_t bytes)
{
    const struct block probe = {.base = address, .bytes = bytes > 0 ? bytes : 1};
    struct block **found = tfind(&probe, &blocks, by_range);
    if (found == NULL || address < (*found)->base || bytes > (*found)->base + (*found)->bytes - address) return NULL;
    return *found;
}

static uint64_t rounded(uint64_t bytes)
{
    const uint64_t unit = fg_driver.machine->granularity_bytes;
    return bytes > UINT64_MAX - unit ? UINT64_MAX : (bytes + unit - 1) / unit * unit;
}

static bool charge(int device, uint64_t bytes)
{
    fg_lock(fg_driver.state);
    const bool fits = fg_take(fg_driver.state, fg_driver.card_of[device], bytes);
    fg_unlock(fg_driver.state);
    return fits;
}

static void discharge(int device, uint64_t bytes)
{
    fg_lock(fg_driver.state);
    fg_give(fg_driver.state, fg_driver.card_of[device], bytes);
    fg_unlock(fg_driver.state);
}

static CUresult make_block(void **tree, const struct block *wanted, struct block **made)
{
    struct block *block = malloc(sizeof *block);
    if (block == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *block = *wanted;
    block->charged = rounded(block->bytes);
    if (!charge(block->device, block->charged)) return free(block), CUDA_ERROR_OUT_OF_MEMORY;
    block->base = fg_arena_take(block->bytes);
    pthread_mutex_lock(&fg_driver.lock);
    const bool kept = block->base != 0 && tsearch(block, tree, by_range) != NULL;
    pthread_mutex_unlock(&fg_driver.lock);
    if (!kept) {
        discharge(block->device, block->charged);
        free(block);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *made = block;
    return CUDA_SUCCESS;
}

static void drop_block(struct block *block)
{
    fg_arena_give(block->base, block->bytes, block->touched);
    discharge(block->device, block->charged);
    free(block);
}

static CUresult free_block(void **tree, uint64_t base)
{
    const struct block probe = {.base = base, .bytes = 1};
    pthread_mutex_lock(&fg_driver.lock);
    struct block **found = tfind(&probe, tree, by_range), *block = found != NULL ? *found : NULL;
    if (block != NULL && block->base == base)
        tdelete(block, tree, by_range);
    else
        block = NULL;
    pthread_mutex_unlock(&fg_driver.lock);
    if (block == NULL) return CUDA_ERROR_INVALID_VALUE;
    drop_block(block);
    return CUDA_SUCCESS;
}

static CUresult allocate(CUdeviceptr *pointer, uint64_t bytes, enum block_kind kind, bool managed)
{
    CUcontext context;
    CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (pointer == NULL || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    struct block *block, wanted = {.bytes = bytes, .device = context->device, .kind = kind, .managed = managed, .touched = managed};
    if (kind == DEVICE_MEMORY) wanted.context = context;
    result = make_block(&blocks, &wanted, &block);
    if (result == CUDA_SUCCESS) *pointer = block->base;
    return result;
}

struct sweep {
    CUcontext context;
    struct block *found;
};

static void match_context(const void *node, VISIT visit, void *data)
{
    struct sweep *sweep = data;
    if ((visit == postorder || visit == leaf) && (*(struct block *const *)node)->context == sweep->context)
        sweep->found = *(struct block *const *)node;
}

void fg_free_context_memory(CUcontext context)
{
    struct sweep sweep;
    do {
        sweep = (struct sweep){.context = context};
        pthread_mutex_lock(&fg_driver.lock);
        twalk_r(blocks, match_context, &sweep);
        if (sweep.found != NULL) tdelete(sweep.found, &blocks, by_range);
        pthread_mutex_unlock(&fg_driver.lock);
        if (sweep.found != NULL) drop_block(sweep.found);
    } while (sweep.found != NULL);
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
    *free_bytes = card->total_bytes - card->used_bytes;
    *total_bytes = card->total_bytes;
    fg_unlock(fg_driver.state);
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes) { return allocate(pointer, bytes, DEVICE_MEMORY, false); }

CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width_bytes, size_t height, unsigned int element_bytes)
{
    if (pitch == NULL || width_bytes == 0 || height == 0 || (element_bytes != 4 && element_bytes != 8 && element_bytes != 16))
        return CUDA_ERROR_INVALID_VALUE;
    const size_t row = (width_bytes + 511) / 512 * 512;
    size_t bytes;
    if (row < width_bytes || __builtin_mul_overflow(row, height, &bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    const CUresult result = allocate(pointer, bytes, DEVICE_MEMORY, false);
    if (result == CUDA_SUCCESS) *pitch = row;
    return result;
}

CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned int flags)
{
    if (flags != 1 && flags != 2) return CUDA_ERROR_INVALID_VALUE; /* attach global or host */
    return allocate(pointer, bytes, DEVICE_MEMORY, true);
}

CUresult cuMemFree_v2(CUdeviceptr pointer)
{
    CUcontext context;
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS && result != CUDA_ERROR_DEVICE_UNAVAILABLE) return result;
    return pointer == 0 ? CUDA_SUCCESS : free_block(&blocks, pointer);
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr pointer)
{
    pthread_mutex_lock(&fg_driver.lock);
    const struct block *block = block_at(pointer, 1);
    if (block != NULL && base != NULL) *base = block->base;
    if (block != NULL && bytes != NULL) *bytes = block->bytes;
    pthread_mutex_unlock(&fg_driver.lock);
    return block != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr pointer)
{
    enum { CONTEXT = 1, MEMORY_TYPE = 2, DEVICE_POINTER = 3, IS_MANAGED = 8, DEVICE_ORDINAL = 9 };
    if (data == NULL) return CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_lock(&fg_driver.lock);
    const struct block *block = block_at(pointer, 1);
    CUresult result = block != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (block != NULL) {
        switch (attribute) {
        case CONTEXT: *(CUcontext *)data = block->context; break;
        case MEMORY_TYPE: *(unsigned int *)data = 2; break;
        case DEVICE_POINTER: *(CUdeviceptr *)data = pointer; break;
        case IS_MANAGED: *(unsigned int *)data = block->managed; break;
        case DEVICE_ORDINAL: *(int *)data = block->device; break;
        default: result = CUDA_ERROR_NOT_SUPPORTED; break;
        }
    }
    pthread_mutex_unlock(&fg_driver.lock);
    return result;
}

CUresult cuMemAllocHost_v2(void **pointer, size_t bytes)
{
    CUcontext context;
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (pointer == NULL || bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    void *memory = NULL;
    if (posix_memalign(&memory, 4096, bytes) != 0) return CUDA_ERROR_OUT_OF_MEMORY;
    *pointer = memory;
    return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned int flags)
{
    return flags > 7 ? CUDA_ERROR_INVALID_VALUE : cuMemAllocHost_v2(pointer, bytes);
}

CUresult cuMemFreeHost(void *pointer)
{
    if (pointer == NULL) return CUDA_ERROR_INVALID_VALUE;
    free(pointer);
    return CUDA_SUCCESS;
}

CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream stream)
{
    return fg_stream_ok(stream) ? allocate(pointer, bytes, POOL_MEMORY, false) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUstream stream) { return cuMemAllocAsync(pointer, bytes, stream); }

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    if (pool == NULL || pool->tag != FG_POOL) return CUDA_ERROR_INVALID_VALUE;
    return cuMemAllocAsync(pointer, bytes, stream);
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool, CUstream stream)
{
    return cuMemAllocFromPoolAsync(pointer, bytes, pool, stream);
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream stream)
{
    if (!fg_stream_ok(stream)) return CUDA_ERROR_INVALID_HANDLE;
    return pointer == 0 ? CUDA_ERROR_INVALID_VALUE : cuMemFree_v2(pointer);
}

CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream stream) { return cuMemFreeAsync(pointer, stream); }

static CUresult check_properties(const CUmemAllocationProp *properties)
{
    if (properties == NULL || properties->type != 1 || properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    return fg_check_device(properties->location.id);
}

/* Physical memory comes in units of 2 MiB. */
enum { PHYSICAL_UNIT = 2 << 20 };

CUresult cuMemGetAllocationGranularity(size_t *bytes, const CUmemAllocationProp *properties, int option)
{
    const CUresult result = check_properties(properties);
    if (result != CUDA_SUCCESS) return result;
    if (bytes == NULL || option < 0 || option > 1) return CUDA_ERROR_INVALID_VALUE;
    *bytes = PHYSICAL_UNIT;
    return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes, const CUmemAllocationProp *properties, unsigned long long flags)
{
    CUresult result = check_properties(properties);
    if (result != CUDA_SUCCESS) return result;
    if (handle == NULL || flags != 0 || bytes == 0 || bytes % PHYSICAL_UNIT != 0) return CUDA_ERROR_INVALID_VALUE;
    struct block *block;
    const struct block wanted = {.bytes = bytes, .device = properties->location.id, .kind = PHYSICAL_HANDLE};
    result = make_block(&handles, &wanted, &block);
    if (result == CUDA_SUCCESS) *handle = block->base;
    return result;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    return fg_driver.initialised ? free_block(&handles, handle) : CUDA_ERROR_NOT_INITIALIZED;
}

bool fg_touch(CUdeviceptr at, size_t bytes)
{
    pthread_mutex_lock(&fg_driver.lock);
    struct block *block = block_at(at, bytes);
    if (block != NULL) block->touched = true;
    pthread_mutex_unlock(&fg_driver.lock);
    return block != NULL;
}
