/* Arrays, mipmaps and external memory of the stand-in driver. */
#include "copy/array.h"

#include <stdlib.h>

#include "memory/block.h"
#include "driver/handle.h"

bool fg_array_ok(CUarray array) { return fg_handle_lives(array) && array->tag == FG_ARRAY; }

/* Only plain channels: the driver knows many more. */
static uint64_t element_bytes(int format, unsigned int channels)
{
    static const unsigned char bytes[] = {[0x01] = 1, [0x02] = 2, [0x03] = 4, [0x08] = 1, [0x09] = 2, [0x0a] = 4, [0x10] = 2, [0x20] = 4};
    if (format < 0 || format >= (int)sizeof bytes || (channels != 1 && channels != 2 && channels != 4)) return 0;
    return (uint64_t)bytes[format] * channels;
}

static uint64_t at_least_one(uint64_t n) { return n > 0 ? n : 1; }

static size_t halved(size_t side, unsigned int level) { return side == 0 ? 0 : at_least_one(side >> level); }

CUDA_ARRAY3D_DESCRIPTOR fg_level(const CUDA_ARRAY3D_DESCRIPTOR *first, unsigned int level)
{
    const size_t depth = (first->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0 ? first->Depth : halved(first->Depth, level);
    return (CUDA_ARRAY3D_DESCRIPTOR){
        halved(first->Width, level), halved(first->Height, level), depth, first->Format, first->NumChannels, first->Flags};
}

static uint64_t level_bytes(const CUDA_ARRAY3D_DESCRIPTOR *first, unsigned int level)
{
    const CUDA_ARRAY3D_DESCRIPTOR as = fg_level(first, level);
    return element_bytes(as.Format, as.NumChannels) * as.Width * at_least_one(as.Height) * at_least_one(as.Depth);
}

static CUresult create(CUarray *array, size_t room, const CUDA_ARRAY3D_DESCRIPTOR *wanted, unsigned int levels)
{
    CUcontext context;
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (wanted->Width == 0 || element_bytes(wanted->Format, wanted->NumChannels) == 0 || wanted->Width > 1 << 17 ||
        wanted->Height > 1 << 17 || wanted->Depth > 1 << 14 || levels > FG_MOST_LEVELS)
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t bytes = 0;
    for (unsigned int level = 0; level < levels; level++) bytes += level_bytes(wanted, level);
    const bool later = (wanted->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) != 0;
    const uint64_t charged = later ? 0 : fg_rounded(bytes);
    struct CUarray_st *made = calloc(1, room);
    if (made == NULL || !fg_charge(context->device, charged)) {
        free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *made = (struct CUarray_st){FG_ARRAY, context->device, charged, bytes, *wanted, levels};
    if (!fg_handle_begins(made)) {
        fg_discharge(context->device, charged);
        free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *array = made;
    return CUDA_SUCCESS;
}

CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *wanted)
{
    return array == NULL || wanted == NULL ? CUDA_ERROR_INVALID_VALUE : create(array, sizeof **array, wanted, 1);
}

CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR *wanted)
{
    if (wanted == NULL) return CUDA_ERROR_INVALID_VALUE;
    const CUDA_ARRAY3D_DESCRIPTOR flat = {wanted->Width, wanted->Height, 0, wanted->Format, wanted->NumChannels, 0};
    return cuArray3DCreate_v2(array, &flat);
}

CUresult cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *wanted)
{
    if (wanted == NULL) return CUDA_ERROR_INVALID_VALUE;
    const CUDA_ARRAY3D_DESCRIPTOR flat = {wanted->Width, wanted->Height, 0, wanted->Format, wanted->NumChannels, 0};
    return cuArray3DCreate_v2(array, &flat);
}

CUresult cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *wanted)
{
    if (wanted == NULL) return CUDA_ERROR_INVALID_VALUE;
    const CUDA_ARRAY3D_DESCRIPTOR wide = {wanted->Width, wanted->Height, wanted->Depth, wanted->Format, wanted->NumChannels, wanted->Flags};
    return cuArray3DCreate_v2(array, &wide);
}

/* No more levels than it takes to halve the longest side to 1; as many as wanted, and at least one. */
static unsigned int level_count(const CUDA_ARRAY3D_DESCRIPTOR *as, unsigned int wanted)
{
    const bool layers = (as->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
    size_t longest = as->Width > as->Height ? as->Width : as->Height;
    unsigned int most = 1;
    if (!layers && as->Depth > longest) longest = as->Depth;
    for (; longest > 1; longest >>= 1) most++;
    return wanted == 0 ? 1 : wanted < most ? wanted : most;
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *wanted, unsigned int levels)
{
    CUarray made;
    if (array == NULL || wanted == NULL) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = create(&made, sizeof **array, wanted, level_count(wanted, levels));
    if (result == CUDA_SUCCESS) *array = (CUmipmappedArray)made;
    return result;
}

CUresult cuArrayDestroy(CUarray array)
{
    if (!fg_array_ok(array)) return CUDA_ERROR_INVALID_HANDLE;
    fg_handle_ends(array);
    fg_unbind_tiles((uint64_t)(uintptr_t)array);
    fg_discharge(array->device, array->charged);
    free(array);
    return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) { return cuArrayDestroy(array != NULL ? &array->array : NULL); }

/* A tile is 64 KiB. Its sides are those of the standard block shapes (Vulkan, Sparse Resources), by the bytes of an element. */
CUresult fg_sparse_properties(CUDA_ARRAY_SPARSE_PROPERTIES *properties, const struct CUarray_st *array)
{
    static const unsigned short flat[][3] = {{256, 256, 1}, {256, 128, 1}, {128, 128, 1}, {128, 64, 1}, {64, 64, 1}};
    static const unsigned short deep[][3] = {{64, 32, 32}, {32, 32, 32}, {32, 32, 16}, {32, 16, 16}, {16, 16, 16}};
    enum { SINGLE_MIPTAIL = 1 };
    if (properties == NULL || (array->as.Flags & CUDA_ARRAY3D_SPARSE) == 0) return CUDA_ERROR_INVALID_VALUE;
    const bool layered = (array->as.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
    const unsigned int size = (unsigned int)__builtin_ctzll(element_bytes(array->as.Format, array->as.NumChannels));
    const unsigned short *tile = !layered && array->as.Depth > 0 ? deep[size] : flat[size];
    unsigned int first = 0;
    for (; first < array->levels; first++) {
        const CUDA_ARRAY3D_DESCRIPTOR as = fg_level(&array->as, first);
        if (as.Width < tile[0] || as.Height < tile[1] || (tile[2] > 1 && as.Depth < tile[2])) break;
    }
    *properties = (CUDA_ARRAY_SPARSE_PROPERTIES){tile[0], tile[1], tile[2], first, 0, layered ? 0 : SINGLE_MIPTAIL, {0}};
    for (unsigned int level = first; level < array->levels; level++) properties->miptailSize += level_bytes(&array->as, level);
    const uint64_t unit = 1 << 16;
    properties->miptailSize = (properties->miptailSize + unit - 1) / unit * unit;
    return CUDA_SUCCESS;
}

CUresult cuArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *properties, CUarray array)
{
    return fg_array_ok(array) ? fg_sparse_properties(properties, array) : CUDA_ERROR_INVALID_HANDLE;
}

/* Memory of another interface (Vulkan, NvSciBuf, a dma-buf): it is on the card as long as it is imported. */
CUresult cuImportExternalMemory(CUexternalMemory *memory, const CUDA_EXTERNAL_MEMORY_HANDLE_DESC *wanted)
{
    CUcontext context;
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (memory == NULL || wanted == NULL || wanted->type < 1 || wanted->type > 9 || wanted->size == 0 || wanted->flags > 1)
        return CUDA_ERROR_INVALID_VALUE;
    struct CUextMemory_st *made = calloc(1, sizeof *made);
    if (made == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *made = (struct CUextMemory_st){.tag = FG_EXTERNAL, .device = context->device, .bytes = wanted->size};
    if (!fg_charge(made->device, fg_rounded(made->bytes))) return free(made), CUDA_ERROR_OUT_OF_MEMORY;
    *memory = made;
    return CUDA_SUCCESS;
}

CUresult cuExternalMemoryGetMappedBuffer(CUdeviceptr *pointer, CUexternalMemory memory, const CUDA_EXTERNAL_MEMORY_BUFFER_DESC *wanted)
{
    if (memory == NULL || memory->tag != FG_EXTERNAL) return CUDA_ERROR_INVALID_HANDLE;
    if (pointer == NULL || wanted == NULL || wanted->size == 0 || wanted->offset > memory->bytes ||
        wanted->size > memory->bytes - wanted->offset)
        return CUDA_ERROR_INVALID_VALUE;
    struct fg_block *block;
    const struct fg_block window = {.bytes = wanted->size, .device = memory->device, .kind = FG_FOREIGN_MEMORY};
    const CUresult result = fg_add_block(&window, &block);
    if (result == CUDA_SUCCESS) *pointer = block->base;
    return result;
}

CUresult cuDestroyExternalMemory(CUexternalMemory memory)
{
    if (memory == NULL || memory->tag != FG_EXTERNAL) return CUDA_ERROR_INVALID_HANDLE;
    memory->tag = 0;
    fg_discharge(memory->device, fg_rounded(memory->bytes));
    free(memory);
    return CUDA_SUCCESS;
}
