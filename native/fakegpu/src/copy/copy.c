/* Copies of lines in the stand-in driver, and what all copies have in common (copy.h). */
#include "copy/copy.h"

#include <stdlib.h>
#include <string.h>

#include "memory/block.h"
#include "stream/deferred.h"

/* One end of a copy. */
struct end {
    int type;
    char *host;
    CUdeviceptr device;
    CUarray array;
    size_t x, y, z, pitch, height;
};

static struct end source(const CUDA_MEMCPY3D *c)
{
    return (struct end){
        c->srcMemoryType, (char *)(uintptr_t)c->srcHost, c->srcDevice, c->srcArray, c->srcXInBytes, c->srcY, c->srcZ, c->srcPitch,
        c->srcHeight};
}

static struct end target(const CUDA_MEMCPY3D *c)
{
    return (struct end){c->dstMemoryType, c->dstHost, c->dstDevice, c->dstArray, c->dstXInBytes,
                        c->dstY,          c->dstZ,    c->dstPitch,  c->dstHeight};
}

/* A pitch of 0 means lines without gaps, a height of 0 layers without gaps. */
static size_t pitch_of(const struct end *end, const CUDA_MEMCPY3D *c) { return end->pitch != 0 ? end->pitch : c->WidthInBytes + end->x; }
static size_t height_of(const struct end *end, const CUDA_MEMCPY3D *c) { return end->height != 0 ? end->height : c->Height + end->y; }

static bool span_of(const struct end *end, const CUDA_MEMCPY3D *c, size_t *bytes)
{
    size_t lines, last;
    if (__builtin_mul_overflow(end->z + c->Depth - 1, height_of(end, c), &lines) ||
        __builtin_add_overflow(lines, end->y + c->Height - 1, &lines) || __builtin_mul_overflow(lines, pitch_of(end, c), &last))
        return false;
    return !__builtin_add_overflow(last, end->x + c->WidthInBytes, bytes);
}

static CUresult check_end(const struct end *end, const CUDA_MEMCPY3D *c, bool planned)
{
    size_t bytes;
    CUdeviceptr base;
    if (end->type == CU_MEMORYTYPE_ARRAY) {
        if (fg_array_element(end->array) == 0) return CUDA_ERROR_INVALID_HANDLE;
        return fg_in_array(end->array, end->x, end->y, end->z, c->WidthInBytes, c->Height, c->Depth) ? CUDA_SUCCESS
                                                                                                     : CUDA_ERROR_INVALID_VALUE;
    }
    if (pitch_of(end, c) < c->WidthInBytes + end->x || height_of(end, c) < c->Height + end->y || !span_of(end, c, &bytes))
        return CUDA_ERROR_INVALID_VALUE;
    if (planned && end->type != CU_MEMORYTYPE_HOST && fg_is_planned(end->device, bytes)) return CUDA_SUCCESS;
    switch (end->type) {
    case CU_MEMORYTYPE_HOST: return end->host != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_MEMORYTYPE_DEVICE: return fg_touch(end->device, bytes) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_MEMORYTYPE_UNIFIED: /* host memory, wherever no block begins before it and ends behind it */
        if (end->device == 0) return CUDA_ERROR_INVALID_VALUE;
        if (fg_touch(end->device, bytes)) return CUDA_SUCCESS;
        return cuMemGetAddressRange_v2(&base, NULL, end->device) != CUDA_SUCCESS ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

static bool is_empty(const CUDA_MEMCPY3D *c) { return c->WidthInBytes == 0 || c->Height == 0 || c->Depth == 0; }

static CUresult check(const CUDA_MEMCPY3D *copy, bool planned)
{
    const struct end from = source(copy), to = target(copy);
    if (is_empty(copy)) return CUDA_SUCCESS;
    const CUresult result = check_end(&from, copy, planned);
    return result == CUDA_SUCCESS ? check_end(&to, copy, planned) : result;
}

CUresult fg_check_copy(const CUDA_MEMCPY3D *copy) { return check(copy, false); }
CUresult fg_check_planned_copy(const CUDA_MEMCPY3D *copy) { return check(copy, true); }

static char *line_of(const struct end *end, const CUDA_MEMCPY3D *c, size_t y, size_t z)
{
    const size_t pitch = pitch_of(end, c), height = height_of(end, c);
    if (end->type == CU_MEMORYTYPE_ARRAY) return fg_array_at(end->array, end->x, end->y + y, end->z + z);
    char *base = end->type == CU_MEMORYTYPE_HOST ? end->host : (char *)(uintptr_t)end->device;
    return base + ((end->z + z) * height + end->y + y) * pitch + end->x;
}

void fg_make_copy(const CUDA_MEMCPY3D *copy)
{
    const struct end from = source(copy), to = target(copy);
    if (is_empty(copy)) return;
    for (size_t z = 0; z < copy->Depth; z++)
        for (size_t y = 0; y < copy->Height; y++) memmove(line_of(&to, copy, y, z), line_of(&from, copy, y, z), copy->WidthInBytes);
}

static void run_copy(void *data)
{
    fg_make_copy(data);
    free(data);
}

CUresult fg_copy(const CUDA_MEMCPY3D *copy, CUstream stream, bool wait)
{
    CUcontext context;
    CUresult result = fg_stream_context(stream, &context);
    if (result != CUDA_SUCCESS || (!wait && fg_capture_copy(stream, copy, &result))) return result;
    result = fg_check_copy(copy);
    if (result != CUDA_SUCCESS) return result;
    if (wait) fg_drain(context, stream);
    if (wait || fg_pending(context, stream) == 0) return fg_make_copy(copy), CUDA_SUCCESS;
    CUDA_MEMCPY3D *kept = malloc(sizeof *kept);
    if (kept == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *kept = *copy;
    if (fg_defer(context, stream, NULL, run_copy, kept) == 0) return free(kept), CUDA_ERROR_OUT_OF_MEMORY;
    return CUDA_SUCCESS;
}

static CUDA_MEMCPY3D line(size_t bytes) { return (CUDA_MEMCPY3D){.WidthInBytes = bytes, .Height = 1, .Depth = 1}; }

static CUDA_MEMCPY3D to_device(CUdeviceptr to, const void *from, size_t bytes)
{
    CUDA_MEMCPY3D copy = line(bytes);
    copy.srcMemoryType = CU_MEMORYTYPE_HOST, copy.srcHost = from;
    copy.dstMemoryType = CU_MEMORYTYPE_DEVICE, copy.dstDevice = to;
    return copy;
}

static CUDA_MEMCPY3D to_host(void *to, CUdeviceptr from, size_t bytes)
{
    CUDA_MEMCPY3D copy = line(bytes);
    copy.srcMemoryType = CU_MEMORYTYPE_DEVICE, copy.srcDevice = from;
    copy.dstMemoryType = CU_MEMORYTYPE_HOST, copy.dstHost = to;
    return copy;
}

static CUDA_MEMCPY3D between(int type, CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    CUDA_MEMCPY3D copy = line(bytes);
    copy.srcMemoryType = copy.dstMemoryType = type;
    copy.srcDevice = from, copy.dstDevice = to;
    return copy;
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes)
{
    const CUDA_MEMCPY3D copy = to_device(to, from, bytes);
    return fg_copy(&copy, NULL, true);
}

CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes)
{
    const CUDA_MEMCPY3D copy = to_host(to, from, bytes);
    return fg_copy(&copy, NULL, true);
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    const CUDA_MEMCPY3D copy = between(CU_MEMORYTYPE_DEVICE, to, from, bytes);
    return fg_copy(&copy, NULL, true);
}

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    const CUDA_MEMCPY3D copy = between(CU_MEMORYTYPE_UNIFIED, to, from, bytes);
    return fg_copy(&copy, NULL, true);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    const CUDA_MEMCPY3D copy = to_device(to, from, bytes);
    return fg_copy(&copy, stream, false);
}

CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    const CUDA_MEMCPY3D copy = to_host(to, from, bytes);
    return fg_copy(&copy, stream, false);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    const CUDA_MEMCPY3D copy = between(CU_MEMORYTYPE_DEVICE, to, from, bytes);
    return fg_copy(&copy, stream, false);
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    const CUDA_MEMCPY3D copy = between(CU_MEMORYTYPE_UNIFIED, to, from, bytes);
    return fg_copy(&copy, stream, false);
}

static bool context_ok(CUcontext context) { return context != NULL && context->tag == FG_CONTEXT; }

CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes)
{
    return context_ok(to_context) && context_ok(from_context) ? cuMemcpyDtoD_v2(to, from, bytes) : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes, CUstream stream)
{
    return context_ok(to_context) && context_ok(from_context) ? cuMemcpyDtoDAsync_v2(to, from, bytes, stream) : CUDA_ERROR_INVALID_CONTEXT;
}

/* All are checked before the first is made. */
static CUresult copy_batch(const CUdeviceptr *to, const CUdeviceptr *from, const size_t *bytes, size_t count, CUstream stream,
                           size_t *failed)
{
    if (failed != NULL) *failed = SIZE_MAX;
    if (to == NULL || from == NULL || bytes == NULL || count == 0 || stream == NULL || (uintptr_t)stream == 1)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        const CUDA_MEMCPY3D copy = between(CU_MEMORYTYPE_UNIFIED, to[i], from[i], bytes[i]);
        const CUresult result = bytes[i] == 0 ? CUDA_ERROR_INVALID_VALUE : fg_check_copy(&copy);
        if (result == CUDA_SUCCESS) continue;
        if (failed != NULL) *failed = i;
        return result;
    }
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) result = cuMemcpyAsync(to[i], from[i], bytes[i], stream);
    return result;
}

CUresult cuMemcpyBatchAsync(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count, CUmemcpyAttributes *attributes,
                            size_t *indexes, size_t attribute_count, size_t *failed, CUstream stream)
{
    if (attributes == NULL || indexes == NULL || attribute_count == 0 || attribute_count > count) return CUDA_ERROR_INVALID_VALUE;
    return copy_batch(to, from, bytes, count, stream, failed);
}

CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count, CUmemcpyAttributes *attributes,
                               size_t *indexes, size_t attribute_count, CUstream stream)
{
    return cuMemcpyBatchAsync(to, from, bytes, count, attributes, indexes, attribute_count, NULL, stream);
}
