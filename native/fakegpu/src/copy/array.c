/* Arrays, mipmaps and external memory of the stand-in driver. */
#include "copy/array.h"

#include <stdlib.h>

#include "memory/arena.h"
#include "memory/block.h"
#include "copy/copy.h"
#include "driver/handle.h"

bool fg_array_ok(CUarray array) { return fg_handle_lives(array) && array->tag == FG_ARRAY; }

/* Only plain channels: the driver knows many more. */
uint64_t fg_element_bytes(int format, unsigned int channels)
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

uint64_t fg_level_bytes(const CUDA_ARRAY3D_DESCRIPTOR *first, unsigned int level)
{
    const CUDA_ARRAY3D_DESCRIPTOR as = fg_level(first, level);
    return fg_element_bytes(as.Format, as.NumChannels) * as.Width * at_least_one(as.Height) * at_least_one(as.Depth);
}

static CUresult create(struct CUarray_st *array, const CUDA_ARRAY3D_DESCRIPTOR *wanted, unsigned int levels, bool foreign)
{
    CUcontext context;
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (wanted->Width == 0 || fg_element_bytes(wanted->Format, wanted->NumChannels) == 0 || wanted->Width > 1 << 17 ||
        wanted->Height > 1 << 17 || wanted->Depth > 1 << 14)
        return CUDA_ERROR_INVALID_VALUE;
    uint64_t bytes = 0;
    for (unsigned int level = 0; level < levels; level++) bytes += fg_level_bytes(wanted, level);
    const bool later = (wanted->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) != 0;
    *array =
        (struct CUarray_st){.tag = FG_ARRAY, .device = context->device, .charged = later || foreign ? 0 : fg_rounded(bytes), .as = *wanted};
    array->content_bytes = bytes;
    array->content = fg_arena_take(array->content_bytes);
    if (array->content == 0) return CUDA_ERROR_OUT_OF_MEMORY;
    if (fg_charge(array->device, array->charged)) {
        if (fg_handle_begins(array)) return CUDA_SUCCESS;
        fg_discharge(array->device, array->charged);
    }
    fg_arena_give(array->content, array->content_bytes, 0);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *wanted)
{
    if (array == NULL || wanted == NULL) return CUDA_ERROR_INVALID_VALUE;
    struct CUarray_st *made = calloc(1, sizeof *made);
    if (made == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    const CUresult result = create(made, wanted, 1, false);
    if (result != CUDA_SUCCESS)
        free(made);
    else
        *array = made;
    return result;
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

static CUresult destroy(struct CUarray_st *array)
{
    if (!fg_array_ok(array) || array->is_level) return CUDA_ERROR_INVALID_HANDLE;
    fg_handle_ends(array);
    fg_unbind_tiles((uint64_t)(uintptr_t)array);
    fg_discharge(array->device, array->charged);
    fg_arena_give(array->content, array->content_bytes, 1);
    free(array);
    return CUDA_SUCCESS;
}

size_t fg_array_element(CUarray array)
{
    return fg_array_ok(array) ? (size_t)fg_element_bytes(array->as.Format, array->as.NumChannels) : 0;
}

static bool within(size_t from, size_t length, size_t all) { return from <= all && length <= all - from; }

bool fg_in_array(CUarray array, size_t x, size_t y, size_t z, size_t width_bytes, size_t height, size_t depth)
{
    return within(x, width_bytes, fg_array_element(array) * array->as.Width) && within(y, height, at_least_one(array->as.Height)) &&
           within(z, depth, at_least_one(array->as.Depth));
}

char *fg_array_at(CUarray array, size_t x, size_t y, size_t z)
{
    const size_t line = fg_element_bytes(array->as.Format, array->as.NumChannels) * array->as.Width;
    return (char *)(uintptr_t)array->content + (z * at_least_one(array->as.Height) + y) * line + x;
}

CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *as, CUarray array)
{
    if (as == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!fg_array_ok(array)) return CUDA_ERROR_INVALID_HANDLE;
    *as = array->as;
    return CUDA_SUCCESS;
}

CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *as, CUarray array)
{
    CUDA_ARRAY3D_DESCRIPTOR wide;
    const CUresult result = as != NULL ? cuArray3DGetDescriptor_v2(&wide, array) : CUDA_ERROR_INVALID_VALUE;
    if (result == CUDA_SUCCESS) *as = (CUDA_ARRAY_DESCRIPTOR){wide.Width, wide.Height, wide.Format, wide.NumChannels};
    return result;
}

CUresult cuArrayDestroy(CUarray array) { return destroy(array); }

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

CUresult fg_make_mipmap(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *wanted, unsigned int levels, bool foreign)
{
    struct CUmipmappedArray_st *made = calloc(1, sizeof *made);
    if (made == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    made->levels = level_count(wanted, levels);
    const CUresult result = made->levels <= FG_MOST_LEVELS ? create(&made->array, wanted, made->levels, foreign) : CUDA_ERROR_INVALID_VALUE;
    if (result != CUDA_SUCCESS) return free(made), result;
    uint64_t at = made->array.content;
    for (unsigned int level = 0; level < made->levels; level++) {
        const uint64_t bytes = fg_level_bytes(wanted, level);
        made->level[level] = (struct CUarray_st){.tag = FG_ARRAY,
                                                 .device = made->array.device,
                                                 .as = fg_level(wanted, level),
                                                 .content = at,
                                                 .content_bytes = bytes,
                                                 .is_level = true};
        if (!fg_handle_begins(&made->level[level])) return cuMipmappedArrayDestroy(made), CUDA_ERROR_OUT_OF_MEMORY;
        at += bytes;
    }
    *array = made;
    return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR *wanted, unsigned int levels)
{
    return array == NULL || wanted == NULL ? CUDA_ERROR_INVALID_VALUE : fg_make_mipmap(array, wanted, levels, false);
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array)
{
    if (array == NULL || !fg_array_ok(&array->array)) return CUDA_ERROR_INVALID_HANDLE;
    for (unsigned int level = 0; level < array->levels; level++) fg_handle_ends(&array->level[level]);
    return destroy(&array->array);
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
