/* Kernels as objects in the stand-in driver: attributes, occupancy, and kernels of libraries. */
#include <stdlib.h>
#include <string.h>

#include "driver/driver.h"

/* CUfunction_attribute: of a kernel without registers, shared memory or constants, since none is compiled. */
enum { MAX_THREADS_PER_BLOCK = 0, PTX_VERSION = 5, BINARY_VERSION = 6, MAX_DYNAMIC_SHARED = 8, SHARED_CARVEOUT = 9, LAST_ATTRIBUTE = 15 };
enum { THREADS_PER_BLOCK = 1024, WARP = 32, BLOCKS_PER_SM = 32, SHARED_PER_BLOCK = 49152, SHARED_PER_SM = 167936 };

static bool is_function(CUfunction function) { return function != NULL && function->tag == FG_FUNCTION; }

CUresult cuFuncGetAttribute(int *value, int attribute, CUfunction function)
{
    if (!is_function(function)) return CUDA_ERROR_INVALID_HANDLE;
    if (value == NULL || attribute < 0 || attribute > LAST_ATTRIBUTE) return CUDA_ERROR_INVALID_VALUE;
    const struct fg_card *card = &fg_driver.machine->cards[fg_driver.card_of[function->module->device]];
    if ((function->attributes_set >> attribute & 1) != 0)
        *value = function->attributes[attribute];
    else if (attribute == MAX_THREADS_PER_BLOCK)
        *value = THREADS_PER_BLOCK;
    else if (attribute == PTX_VERSION || attribute == BINARY_VERSION)
        *value = card->major * 10 + card->minor;
    else
        *value = attribute == MAX_DYNAMIC_SHARED ? SHARED_PER_BLOCK : attribute == SHARED_CARVEOUT ? -1 : 0;
    return CUDA_SUCCESS;
}

CUresult cuFuncSetAttribute(CUfunction function, int attribute, int value)
{
    if (!is_function(function)) return CUDA_ERROR_INVALID_HANDLE;
    if (attribute < MAX_DYNAMIC_SHARED || attribute > LAST_ATTRIBUTE) return CUDA_ERROR_INVALID_VALUE; /* the others can only be read */
    if (attribute == SHARED_CARVEOUT ? value < -1 || value > 100 : value < 0) return CUDA_ERROR_INVALID_VALUE;
    if (attribute == MAX_DYNAMIC_SHARED && value > SHARED_PER_SM) return CUDA_ERROR_INVALID_VALUE;
    function->attributes[attribute] = value;
    function->attributes_set |= 1U << attribute;
    return CUDA_SUCCESS;
}

static CUresult check_choice(CUfunction function, int config, int most)
{
    if (!is_function(function)) return CUDA_ERROR_INVALID_HANDLE;
    return config >= 0 && config <= most ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuFuncSetCacheConfig(CUfunction function, int config) { return check_choice(function, config, 3); }
CUresult cuFuncSetSharedMemConfig(CUfunction function, int config) { return check_choice(function, config, 2); }

CUresult cuFuncGetName(const char **name, CUfunction function)
{
    if (name == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!is_function(function)) return CUDA_ERROR_INVALID_HANDLE;
    *name = function->name;
    return CUDA_SUCCESS;
}

CUresult cuFuncGetModule(CUmodule *module, CUfunction function)
{
    if (module == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!is_function(function)) return CUDA_ERROR_INVALID_HANDLE;
    *module = function->module;
    return CUDA_SUCCESS;
}

/* Blocks that a multiprocessor holds at once: threads, shared memory and the number of blocks bound them. */
static int blocks_at_once(CUfunction function, int block_size, size_t shared_bytes)
{
    const int threads = fg_driver.machine->cards[fg_driver.card_of[function->module->device]].max_threads_per_sm;
    const int warps = (block_size + WARP - 1) / WARP;
    int blocks = threads / (warps * WARP);
    if (blocks > BLOCKS_PER_SM) blocks = BLOCKS_PER_SM;
    if (shared_bytes > 0 && SHARED_PER_SM / shared_bytes < (size_t)blocks) blocks = (int)(SHARED_PER_SM / shared_bytes);
    return blocks;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction function, int block_size, size_t shared_bytes,
                                                              unsigned int flags)
{
    if (!is_function(function)) return CUDA_ERROR_INVALID_HANDLE;
    if (blocks == NULL || block_size <= 0 || flags > 1) return CUDA_ERROR_INVALID_VALUE;
    *blocks = block_size > THREADS_PER_BLOCK ? 0 : blocks_at_once(function, block_size, shared_bytes);
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int block_size, size_t shared_bytes)
{
    return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, block_size, shared_bytes, 0);
}

/* The largest block size of those with which most threads run at once. */
CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid_size, int *block_size, CUfunction function, CUoccupancyB2DSize shared_of,
                                                   size_t shared_bytes, int limit, unsigned int flags)
{
    int best = 0;
    if (!is_function(function)) return CUDA_ERROR_INVALID_HANDLE;
    if (grid_size == NULL || block_size == NULL || limit < 0 || flags > 1) return CUDA_ERROR_INVALID_VALUE;
    for (int size = limit > 0 && limit < THREADS_PER_BLOCK ? limit : THREADS_PER_BLOCK; size > 0; size = (size - 1) / WARP * WARP) {
        const int blocks = blocks_at_once(function, size, shared_of != NULL ? shared_of(size) : shared_bytes);
        if (blocks * size <= best) continue;
        best = blocks * size;
        *block_size = size;
        *grid_size = blocks * fg_multiprocessors(function->module->device);
    }
    return best > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuOccupancyMaxPotentialBlockSize(int *grid_size, int *block_size, CUfunction function, CUoccupancyB2DSize shared_of,
                                          size_t shared_bytes, int limit)
{
    return cuOccupancyMaxPotentialBlockSizeWithFlags(grid_size, block_size, function, shared_of, shared_bytes, limit, 0);
}

CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, CUfunction function, int blocks, int block_size)
{
    if (!is_function(function)) return CUDA_ERROR_INVALID_HANDLE;
    if (bytes == NULL || blocks <= 0 || block_size <= 0 || blocks > blocks_at_once(function, block_size, 0))
        return CUDA_ERROR_INVALID_VALUE;
    *bytes = (size_t)SHARED_PER_SM / (size_t)blocks;
    return CUDA_SUCCESS;
}

/* Clusters came with compute capability 9.0: up to 8 blocks anywhere, 16 where the kernel was allowed more than is portable. */
static CUresult cluster_of(CUfunction function, const CUlaunchConfig *config, int *largest, int *wanted)
{
    enum { FIRST_MAJOR = 9, PORTABLE = 8, LARGEST = 16, CLUSTER_DIMENSION = 4, NON_PORTABLE_ALLOWED = 14 };
    if (!is_function(function)) return CUDA_ERROR_INVALID_HANDLE;
    if (config == NULL || (config->numAttrs > 0 && config->attrs == NULL) ||
        !fg_launch_ok(config->gridDimX, config->gridDimY, config->gridDimZ, config->blockDimX, config->blockDimY, config->blockDimZ))
        return CUDA_ERROR_INVALID_VALUE;
    if (fg_driver.machine->cards[fg_driver.card_of[function->module->device]].major < FIRST_MAJOR) return CUDA_ERROR_NOT_SUPPORTED;
    *largest =
        (function->attributes_set >> NON_PORTABLE_ALLOWED & 1) != 0 && function->attributes[NON_PORTABLE_ALLOWED] != 0 ? LARGEST : PORTABLE;
    *wanted = 1;
    for (unsigned int i = 0; i < config->numAttrs; i++) {
        const struct fg_launch_attribute *attribute = (const struct fg_launch_attribute *)config->attrs + i;
        unsigned int sides[3];
        if (attribute->id != CLUSTER_DIMENSION) continue;
        memcpy(sides, &attribute->value, sizeof sides);
        const uint64_t blocks = (uint64_t)sides[0] * sides[1] * sides[2];
        if (blocks == 0 || blocks > (uint64_t)*largest) return CUDA_ERROR_INVALID_CLUSTER_SIZE;
        *wanted = (int)blocks;
    }
    return CUDA_SUCCESS;
}

static int blocks_of(CUfunction function, const CUlaunchConfig *config)
{
    const int threads = (int)(config->blockDimX * config->blockDimY * config->blockDimZ);
    return blocks_at_once(function, threads, config->sharedMemBytes) * fg_multiprocessors(function->module->device);
}

CUresult cuOccupancyMaxPotentialClusterSize(int *size, CUfunction function, const CUlaunchConfig *config)
{
    int largest, wanted;
    const CUresult result = size != NULL ? cluster_of(function, config, &largest, &wanted) : CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS) return result;
    const int blocks = blocks_of(function, config);
    *size = blocks < largest ? blocks : largest;
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveClusters(int *count, CUfunction function, const CUlaunchConfig *config)
{
    int largest, wanted;
    const CUresult result = count != NULL ? cluster_of(function, config, &largest, &wanted) : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) *count = blocks_of(function, config) / wanted;
    return result;
}

/* A library's kernel is its module's function: there is one device's code only. */
CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
    if (function == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!is_function((CUfunction)(void *)kernel)) return CUDA_ERROR_INVALID_HANDLE;
    *function = (CUfunction)(void *)kernel;
    return CUDA_SUCCESS;
}

CUresult cuKernelGetName(const char **name, CUkernel kernel) { return cuFuncGetName(name, (CUfunction)(void *)kernel); }

CUresult cuKernelGetAttribute(int *value, int attribute, CUkernel kernel, CUdevice device)
{
    const CUresult result = fg_check_device(device);
    return result == CUDA_SUCCESS ? cuFuncGetAttribute(value, attribute, (CUfunction)(void *)kernel) : result;
}

CUresult cuKernelSetAttribute(int attribute, int value, CUkernel kernel, CUdevice device)
{
    const CUresult result = fg_check_device(device);
    return result == CUDA_SUCCESS ? cuFuncSetAttribute((CUfunction)(void *)kernel, attribute, value) : result;
}

CUresult cuKernelSetCacheConfig(CUkernel kernel, int config, CUdevice device)
{
    const CUresult result = fg_check_device(device);
    return result == CUDA_SUCCESS ? cuFuncSetCacheConfig((CUfunction)(void *)kernel, config) : result;
}
