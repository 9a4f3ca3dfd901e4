/* Arrays, mipmaps and imported memory: charged under their handle. */
#include "accounting/array_size.h"
#include "memory/charge.h"
#include "accounting/current.h"
#include "vmm/tiles.h"
#include "intercept/real.h"
#include "accounting/slice.h"

/* Reserves, creates through the driver (`real_call` writes *handle), enters the charge. One body for the functions that
 * make a handle. */
#define CREATE(handle, bytes, real_call, real_destroy)                                                                                 \
    do {                                                                                                                               \
        const uint64_t bytes_ = (bytes);                                                                                               \
        const int device_ = (handle) != NULL && bytes_ != 0 ? vgpu_memory_current_device() : -1;                                       \
        if (device_ == -1) return (real_call);                                                                                         \
        CUresult result_ = vgpu_memory_reserve(device_, bytes_);                                                                       \
        if (result_ != CUDA_SUCCESS) return result_;                                                                                   \
        result_ = (real_call);                                                                                                         \
        if (result_ != CUDA_SUCCESS) {                                                                                                 \
            vgpu_slice_release(device_, bytes_);                                                                                       \
            return result_;                                                                                                            \
        }                                                                                                                              \
        result_ = vgpu_memory_keep(VGPU_BLOCK_OBJECT, (uint64_t)(uintptr_t)*(handle), device_, bytes_, vgpu_memory_current_context()); \
        if (result_ != CUDA_SUCCESS) (void)(real_destroy);                                                                             \
        return result_;                                                                                                                \
    } while (0)

static uint64_t flat_bytes(uint64_t width, uint64_t height, uint64_t depth, int format, unsigned int channels, unsigned int flags)
{
    const CUDA_ARRAY3D_DESCRIPTOR array = {width, height, depth, format, channels, flags};
    return vgpu_array_bytes(&array, 1);
}

CUresult cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *wanted)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    CREATE(array, wanted != NULL ? flat_bytes(wanted->Width, wanted->Height, 0, wanted->Format, wanted->NumChannels, 0) : 0,
           cuda->cuArrayCreate(array, wanted), cuda->cuArrayDestroy(*array));
}

CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *wanted)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    CREATE(array, wanted != NULL ? flat_bytes(wanted->Width, wanted->Height, 0, wanted->Format, wanted->NumChannels, 0) : 0,
           cuda->cuArrayCreate_v2(array, wanted), cuda->cuArrayDestroy(*array));
}

CUresult cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *wanted)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    CREATE(array,
           wanted != NULL ? flat_bytes(wanted->Width, wanted->Height, wanted->Depth, wanted->Format, wanted->NumChannels, wanted->Flags)
                          : 0,
           cuda->cuArray3DCreate(array, wanted), cuda->cuArrayDestroy(*array));
}

CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *wanted)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    CREATE(array, wanted != NULL ? vgpu_array_bytes(wanted, 1) : 0, cuda->cuArray3DCreate_v2(array, wanted), cuda->cuArrayDestroy(*array));
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *wanted, unsigned int levels)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    CREATE(array, wanted != NULL ? vgpu_array_bytes(wanted, levels) : 0, cuda->cuMipmappedArrayCreate(array, wanted, levels),
           cuda->cuMipmappedArrayDestroy(*array));
}

CUresult cuArrayDestroy(CUarray array)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    vgpu_tiles_gone(array);
    VGPU_MEMORY_FREE(VGPU_BLOCK_OBJECT, (uintptr_t)array, cuda->cuArrayDestroy(array));
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    vgpu_tiles_gone(array);
    VGPU_MEMORY_FREE(VGPU_BLOCK_OBJECT, (uintptr_t)array, cuda->cuMipmappedArrayDestroy(array));
}

/* Memory of another interface (Vulkan, a dma-buf): nobody else counts it, so the importer pays. */
CUresult cuImportExternalMemory(CUexternalMemory *memory, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *wanted)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    CREATE(memory, wanted != NULL ? wanted->size : 0, cuda->cuImportExternalMemory(memory, wanted), cuda->cuDestroyExternalMemory(*memory));
}

CUresult cuDestroyExternalMemory(CUexternalMemory memory)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    VGPU_MEMORY_FREE(VGPU_BLOCK_OBJECT, (uintptr_t)memory, cuda->cuDestroyExternalMemory(memory));
}
