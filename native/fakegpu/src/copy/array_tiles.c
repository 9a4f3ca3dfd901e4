/* Memory for sparse and deferred arrays of the stand-in driver, tile by tile; its content is not modelled.
 *
 * As strict as a driver of 580 on an H100: tiles are mapped as a whole, from memory that was made for tiles, on devices that are named. */
#include "copy/array.h"
#include "memory/block.h"

enum { SPARSE_LEVEL = 0, MIPTAIL = 1, TILE_BYTES = 1 << 16 };

struct level_tiles {
    unsigned int level, layer, offset[3], extent[3];
};
union subresource {
    unsigned long long raw[4];
    struct level_tiles level;
    struct {
        unsigned int layer;
        unsigned long long offset, size;
    } miptail;
};

/* How many tiles a side covers; 0: none, or not as a whole, or beyond the array. A tile at the edge may be cut by it. */
static uint64_t tiles_along(unsigned int offset, unsigned int extent, unsigned int tile, uint64_t whole)
{
    const uint64_t end = (uint64_t)offset + extent, side = whole > 0 ? whole : 1;
    if (extent == 0 || end > side || offset % tile != 0 || (extent % tile != 0 && end != side)) return 0;
    return (extent + tile - 1) / tile;
}

static uint64_t mapped_bytes(const CUarrayMapInfo *info, const struct CUarray_st *array, const CUDA_ARRAY_SPARSE_PROPERTIES *needs)
{
    union subresource part;
    for (int i = 0; i < 4; i++) part.raw[i] = info->subresource[i];
    if (info->subresourceType == MIPTAIL)
        return part.miptail.offset > needs->miptailSize || part.miptail.size > needs->miptailSize - part.miptail.offset ? 0
                                                                                                                        : part.miptail.size;
    if (info->subresourceType != SPARSE_LEVEL) return 0;
    const CUDA_ARRAY3D_DESCRIPTOR as = fg_level(&array->as, part.level.level);
    const bool layered = (as.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
    return tiles_along(part.level.offset[0], part.level.extent[0], needs->tileWidth, as.Width) *
           tiles_along(part.level.offset[1], part.level.extent[1], needs->tileHeight, as.Height) *
           tiles_along(part.level.offset[2], part.level.extent[2], needs->tileDepth, layered ? 1 : as.Depth) * TILE_BYTES;
}

/* Which tile: those of a level by their place in it, a mip tail by its layer and offset, and all of a deferred array. */
enum { AT_LEVEL = 56, AT_LAYER = 40, AT_Z = 32, AT_Y = 16 };
static const uint64_t AT_MIPTAIL = UINT64_C(1) << 62;

static CUresult bind_level(uint64_t owner, const struct level_tiles *part, const CUDA_ARRAY_SPARSE_PROPERTIES *needs,
                           const struct fg_tile_memory *memory)
{
    const unsigned int sides[3] = {needs->tileWidth, needs->tileHeight, needs->tileDepth > 0 ? needs->tileDepth : 1};
    const uint64_t level = (uint64_t)part->level << AT_LEVEL | (uint64_t)part->layer << AT_LAYER;
    CUresult result = CUDA_SUCCESS;
    for (uint64_t z = part->offset[2]; z < (uint64_t)part->offset[2] + part->extent[2]; z += sides[2])
        for (uint64_t y = part->offset[1]; y < (uint64_t)part->offset[1] + part->extent[1]; y += sides[1])
            for (uint64_t x = part->offset[0]; x < (uint64_t)part->offset[0] + part->extent[0] && result == CUDA_SUCCESS; x += sides[0])
                result = fg_bind_tile(owner, level | z / sides[2] << AT_Z | y / sides[1] << AT_Y | x / sides[0], memory);
    return result;
}

static CUresult map(const CUarrayMapInfo *info, const struct CUarray_st *array, const CUDA_ARRAY_SPARSE_PROPERTIES *needs)
{
    const uint64_t owner = (uint64_t)(uintptr_t)info->resource.array;
    const unsigned int devices = (1U << fg_driver.device_count) - 1;
    const bool deferred = (array->as.Flags & CUDA_ARRAY3D_DEFERRED_MAPPING) != 0;
    union subresource part;
    if (info->deviceBitMask == 0 || (info->deviceBitMask & ~devices) != 0 || info->flags != 0) return CUDA_ERROR_INVALID_VALUE;
    const uint64_t bytes = deferred ? array->bytes : mapped_bytes(info, array, needs);
    if (bytes == 0) return CUDA_ERROR_INVALID_VALUE;
    const struct fg_tile_memory mapped = {info->memHandle, info->offset, bytes, !deferred};
    const struct fg_tile_memory *memory = info->memOperationType == CU_MEM_OPERATION_TYPE_MAP ? &mapped : NULL;
    for (int i = 0; i < 4; i++) part.raw[i] = info->subresource[i];
    if (deferred) return fg_bind_tile(owner, 0, memory);
    if (info->subresourceType == MIPTAIL)
        return fg_bind_tile(owner, AT_MIPTAIL | (uint64_t)part.miptail.layer << AT_LAYER | part.miptail.offset / TILE_BYTES, memory);
    return bind_level(owner, &part.level, needs, memory);
}

static CUresult change(const CUarrayMapInfo *info)
{
    CUDA_ARRAY_SPARSE_PROPERTIES needs = {.tileWidth = 1};
    const int operation = info->memOperationType;
    if (operation != CU_MEM_OPERATION_TYPE_MAP && operation != CU_MEM_OPERATION_TYPE_UNMAP) return CUDA_ERROR_INVALID_VALUE;
    const bool mipmap = info->resourceType == CU_RESOURCE_TYPE_MIPMAPPED_ARRAY;
    if (!mipmap && info->resourceType != CU_RESOURCE_TYPE_ARRAY) return CUDA_ERROR_INVALID_VALUE;
    CUarray array = mipmap && info->resource.mipmap != NULL ? &info->resource.mipmap->array : info->resource.array;
    if (!fg_array_ok(array)) return CUDA_ERROR_INVALID_HANDLE;
    if ((array->as.Flags & CUDA_ARRAY3D_DEFERRED_MAPPING) != 0) return map(info, array, &needs);
    const CUresult result = fg_sparse_properties(&needs, array);
    return result == CUDA_SUCCESS ? map(info, array, &needs) : result;
}

CUresult cuMemMapArrayAsync(CUarrayMapInfo *tiles, unsigned int count, CUstream stream)
{
    CUresult result = tiles != NULL && count > 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    if (!fg_stream_ok(stream)) return CUDA_ERROR_INVALID_HANDLE;
    for (unsigned int i = 0; i < count && result == CUDA_SUCCESS; i++) result = change(&tiles[i]);
    return result;
}

CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *tiles, unsigned int count, CUstream stream)
{
    return cuMemMapArrayAsync(tiles, count, stream);
}
