/* Arrays, mipmaps and imported memory: charged under their handle. Memory of another interface (Vulkan, a dma-buf) is counted by nobody
 * else, so the importer pays. */
#include "accounting/array_size.h"
#include "accounting/current.h"
#include "accounting/slice.h"
#include "config/devices.h"
#include "intercept/real.h"
#include "memory/charge.h"
#include "vmm/tiles.h"

static uint64_t flat_bytes(uint64_t width, uint64_t height, uint64_t depth, int format, unsigned int channels, unsigned int flags)
{
    const CUDA_ARRAY3D_DESCRIPTOR array = {width, height, depth, format, channels, flags};
    return vgpu_array_bytes(&array, 1);
}

/* Reserves an object's bytes on the current device. `device` becomes VGPU_DEVICE_UNKNOWN where the call is the driver's own. */
static CUresult reserve(const void *object, uint64_t bytes, int *device)
{
    *device = object != NULL && bytes != 0 ? vgpu_memory_current_device() : VGPU_DEVICE_UNKNOWN;
    return *device != VGPU_DEVICE_UNKNOWN ? vgpu_memory_reserve(*device, bytes) : CUDA_SUCCESS;
}

/* Enters the charge of an object that the driver has made (`made`), or gives its reservation back. */
static CUresult keep(CUresult made, const void *object, uint64_t bytes, int device)
{
    if (made == CUDA_SUCCESS)
        return vgpu_memory_keep(VGPU_BLOCK_OBJECT, (uint64_t)(uintptr_t)object, device, bytes, vgpu_memory_current_context());
    vgpu_slice_release(device, bytes);
    return made;
}

#define HOOK(symbol, base, version, flags, parameters)
#define OBJECT(symbol, base, version, flags, parameters, arguments, object, bytes, destroy) \
    CUresult symbol parameters                                                              \
    {                                                                                       \
        const uint64_t size = wanted != NULL ? (bytes) : 0;                                 \
        int device;                                                                         \
        CUresult result = reserve(object, size, &device);                                   \
        if (result != CUDA_SUCCESS) return result;                                          \
        const CUresult made = vgpu_cuda()->symbol arguments;                                \
        if (device == VGPU_DEVICE_UNKNOWN) return made;                                     \
        result = keep(made, made == CUDA_SUCCESS ? *object : NULL, size, device);           \
        if (result != made) (void)vgpu_cuda()->destroy(*object);                            \
        return result;                                                                      \
    }
#define FREE(symbol, base, version, flags, parameters, object)                                         \
    CUresult symbol parameters                                                                         \
    {                                                                                                  \
        struct vgpu_block block;                                                                       \
        vgpu_tiles_gone(object);                                                                       \
        const bool known = vgpu_memory_take(VGPU_BLOCK_OBJECT, (uint64_t)(uintptr_t)(object), &block); \
        const CUresult result = vgpu_cuda()->symbol(object);                                           \
        if (known) vgpu_memory_settle(&block, result);                                                 \
        return result;                                                                                 \
    }
#include "intercept/cuda.def"
