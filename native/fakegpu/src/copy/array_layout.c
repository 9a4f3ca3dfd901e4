/* Levels of mipmaps, and what sparse and deferred arrays need, in the stand-in driver. */
#include <string.h>

#include "copy/array.h"
#include "memory/block.h"
#include "vmm/physical.h"

CUresult cuMipmappedArrayGetLevel(CUarray *level, CUmipmappedArray array, unsigned int number)
{
    if (array == NULL || !fg_array_ok(&array->array)) return CUDA_ERROR_INVALID_HANDLE;
    if (level == NULL || number >= array->levels) return CUDA_ERROR_INVALID_VALUE;
    *level = &array->level[number];
    return CUDA_SUCCESS;
}

/* Planes are those of formats for video, of which this driver knows none: no array has any. */
CUresult cuArrayGetPlane(CUarray *plane, CUarray array, unsigned int number)
{
    (void)plane, (void)number;
    return fg_array_ok(array) ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE;
}

static CUresult requirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *needs, const struct CUarray_st *array, CUdevice device)
{
    const CUresult result = fg_check_device(device);
    if (result != CUDA_SUCCESS) return result;
    if (needs == NULL || (array->as.Flags & CUDA_ARRAY3D_DEFERRED_MAPPING) == 0) return CUDA_ERROR_INVALID_VALUE;
    const uint64_t bytes = (array->content_bytes + FG_PHYSICAL_UNIT - 1) / FG_PHYSICAL_UNIT * FG_PHYSICAL_UNIT;
    *needs = (CUDA_ARRAY_MEMORY_REQUIREMENTS){.size = bytes, .alignment = FG_PHYSICAL_UNIT};
    return CUDA_SUCCESS;
}

CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *needs, CUarray array, CUdevice device)
{
    return fg_array_ok(array) ? requirements(needs, array, device) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *needs, CUmipmappedArray array, CUdevice device)
{
    return array != NULL && fg_array_ok(&array->array) ? requirements(needs, &array->array, device) : CUDA_ERROR_INVALID_HANDLE;
}

/* A tile is 64 KiB. Its sides are those of the standard block shapes (Vulkan, Sparse Resources), by the bytes of an element. */
static CUresult sparse(CUDA_ARRAY_SPARSE_PROPERTIES *properties, const struct CUarray_st *array, unsigned int levels)
{
    static const unsigned short flat[][3] = {{256, 256, 1}, {256, 128, 1}, {128, 128, 1}, {128, 64, 1}, {64, 64, 1}};
    static const unsigned short deep[][3] = {{64, 32, 32}, {32, 32, 32}, {32, 32, 16}, {32, 16, 16}, {16, 16, 16}};
    enum { SINGLE_MIPTAIL = 1 };
    if (properties == NULL || (array->as.Flags & CUDA_ARRAY3D_SPARSE) == 0) return CUDA_ERROR_INVALID_VALUE;
    const bool layered = (array->as.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
    const unsigned int size = (unsigned int)__builtin_ctzll(fg_element_bytes(array->as.Format, array->as.NumChannels));
    const unsigned short *tile = !layered && array->as.Depth > 0 ? deep[size] : flat[size];
    unsigned int first = 0;
    for (; first < levels; first++) {
        const CUDA_ARRAY3D_DESCRIPTOR as = fg_level(&array->as, first);
        if (as.Width < tile[0] || as.Height < tile[1] || (tile[2] > 1 && as.Depth < tile[2])) break;
    }
    *properties = (CUDA_ARRAY_SPARSE_PROPERTIES){tile[0], tile[1], tile[2], first, 0, layered ? 0 : SINGLE_MIPTAIL, {0}};
    for (unsigned int level = first; level < levels; level++) properties->miptailSize += fg_level_bytes(&array->as, level);
    const uint64_t unit = 1 << 16;
    properties->miptailSize = (properties->miptailSize + unit - 1) / unit * unit;
    return CUDA_SUCCESS;
}

CUresult cuArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *properties, CUarray array)
{
    return fg_array_ok(array) ? sparse(properties, array, 1) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuMipmappedArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *properties, CUmipmappedArray array)
{
    return array != NULL && fg_array_ok(&array->array) ? sparse(properties, &array->array, array->levels) : CUDA_ERROR_INVALID_HANDLE;
}

/* The memory is on the card already, by its import. */
CUresult cuExternalMemoryGetMappedMipmappedArray(CUmipmappedArray *array, CUexternalMemory memory,
                                                 const CUDA_EXTERNAL_MEMORY_MIPMAPPED_ARRAY_DESC *wanted)
{
    if (memory == NULL || memory->tag != FG_EXTERNAL) return CUDA_ERROR_INVALID_HANDLE;
    if (array == NULL || wanted == NULL || wanted->numLevels == 0 || wanted->offset > memory->bytes) return CUDA_ERROR_INVALID_VALUE;
    CUmipmappedArray made;
    const CUresult result = fg_make_mipmap(&made, &wanted->arrayDesc, wanted->numLevels, true);
    if (result != CUDA_SUCCESS) return result;
    if (made->array.content_bytes > memory->bytes - wanted->offset) return cuMipmappedArrayDestroy(made), CUDA_ERROR_INVALID_VALUE;
    *array = made;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetTexture1DLinearMaxWidth(size_t *width, int format, unsigned int channels, CUdevice device)
{
    static const size_t MOST_TEXELS = (size_t)1 << 28;
    const CUresult result = fg_check_device(device);
    if (result != CUDA_SUCCESS) return result;
    if (width == NULL || fg_element_bytes(format, channels) == 0) return CUDA_ERROR_INVALID_VALUE;
    *width = MOST_TEXELS;
    return CUDA_SUCCESS;
}
