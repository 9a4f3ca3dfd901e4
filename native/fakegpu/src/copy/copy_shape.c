/* Copies of rectangles, boxes and arrays in the stand-in driver. */
#include <string.h>

#include "copy/copy.h"

static CUDA_MEMCPY3D boxed(const CUDA_MEMCPY2D *c)
{
    return (CUDA_MEMCPY3D){
        .srcXInBytes = c->srcXInBytes,
        .srcY = c->srcY,
        .srcMemoryType = c->srcMemoryType,
        .srcHost = c->srcHost,
        .srcDevice = c->srcDevice,
        .srcArray = c->srcArray,
        .srcPitch = c->srcPitch,
        .dstXInBytes = c->dstXInBytes,
        .dstY = c->dstY,
        .dstMemoryType = c->dstMemoryType,
        .dstHost = c->dstHost,
        .dstDevice = c->dstDevice,
        .dstArray = c->dstArray,
        .dstPitch = c->dstPitch,
        .WidthInBytes = c->WidthInBytes,
        .Height = c->Height,
        .Depth = 1,
    };
}

static CUresult copy_2d(const CUDA_MEMCPY2D *wanted, CUstream stream, bool wait)
{
    if (wanted == NULL) return CUDA_ERROR_INVALID_VALUE;
    const CUDA_MEMCPY3D copy = boxed(wanted);
    return fg_copy(&copy, stream, wait);
}

CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *copy) { return copy_2d(copy, NULL, true); }
CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *copy) { return copy_2d(copy, NULL, true); }
CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *copy, CUstream stream) { return copy_2d(copy, stream, false); }

CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *copy) { return copy == NULL ? CUDA_ERROR_INVALID_VALUE : fg_copy(copy, NULL, true); }
CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *copy, CUstream stream)
{
    return copy == NULL ? CUDA_ERROR_INVALID_VALUE : fg_copy(copy, stream, false);
}

static bool contexts_ok(const CUDA_MEMCPY3D_PEER *c)
{
    const CUcontext from = c->srcContext, to = c->dstContext;
    return from != NULL && from->tag == FG_CONTEXT && to != NULL && to->tag == FG_CONTEXT;
}

static CUresult copy_peer(const CUDA_MEMCPY3D_PEER *copy, CUstream stream, bool wait)
{
    if (copy == NULL) return CUDA_ERROR_INVALID_VALUE;
    return contexts_ok(copy) ? fg_copy(copy, stream, wait) : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuMemcpy3DPeer(const CUDA_MEMCPY3D_PEER *copy) { return copy_peer(copy, NULL, true); }
CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *copy, CUstream stream) { return copy_peer(copy, stream, false); }

/* One end of a copy of a batch: widths of arrays are in elements, of pointers in bytes. */
static bool add_end(const CUmemcpy3DOperand *end, bool is_source, size_t element, CUDA_MEMCPY3D *copy)
{
    const bool array = end->type == CU_MEMCPY_OPERAND_TYPE_ARRAY;
    if (!array && end->type != CU_MEMCPY_OPERAND_TYPE_POINTER) return false;
    const int type = array ? CU_MEMORYTYPE_ARRAY : CU_MEMORYTYPE_UNIFIED;
    if (is_source) {
        copy->srcMemoryType = type;
        if (array)
            copy->srcArray = end->op.array.array, copy->srcXInBytes = end->op.array.x * element, copy->srcY = end->op.array.y,
            copy->srcZ = end->op.array.z;
        else
            copy->srcDevice = end->op.ptr.ptr, copy->srcPitch = end->op.ptr.rowLength * element, copy->srcHeight = end->op.ptr.layerHeight;
    } else {
        copy->dstMemoryType = type;
        if (array)
            copy->dstArray = end->op.array.array, copy->dstXInBytes = end->op.array.x * element, copy->dstY = end->op.array.y,
            copy->dstZ = end->op.array.z;
        else
            copy->dstDevice = end->op.ptr.ptr, copy->dstPitch = end->op.ptr.rowLength * element, copy->dstHeight = end->op.ptr.layerHeight;
    }
    return true;
}

static size_t element_of(const CUmemcpy3DOperand *end)
{
    return end->type == CU_MEMCPY_OPERAND_TYPE_ARRAY ? fg_array_element(end->op.array.array) : 0;
}

static CUresult as_copy(const CUDA_MEMCPY3D_BATCH_OP *wanted, CUDA_MEMCPY3D *copy)
{
    const size_t from = element_of(&wanted->src), to = element_of(&wanted->dst), element = from != 0 ? from : to != 0 ? to : 1;
    *copy = (CUDA_MEMCPY3D){.WidthInBytes = wanted->width * element, .Height = wanted->height, .Depth = wanted->depth};
    if (wanted->width == 0 || wanted->height == 0 || wanted->depth == 0) return CUDA_ERROR_INVALID_VALUE;
    if (!add_end(&wanted->src, true, element, copy) || !add_end(&wanted->dst, false, element, copy)) return CUDA_ERROR_INVALID_VALUE;
    return fg_check_copy(copy);
}

CUresult cuMemcpy3DBatchAsync(size_t count, CUDA_MEMCPY3D_BATCH_OP *wanted, size_t *failed, unsigned long long flags, CUstream stream)
{
    CUDA_MEMCPY3D copy;
    CUresult result = CUDA_SUCCESS;
    if (failed != NULL) *failed = SIZE_MAX;
    if (count == 0 || wanted == NULL || flags != 0 || stream == NULL || (uintptr_t)stream == 1) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        result = as_copy(&wanted[i], &copy);
        if (result == CUDA_SUCCESS) continue;
        if (failed != NULL) *failed = i;
        return result;
    }
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++) {
        result = as_copy(&wanted[i], &copy);
        if (result == CUDA_SUCCESS) result = fg_copy(&copy, stream, false);
    }
    return result;
}

CUresult cuMemcpy3DBatchAsync_v2(size_t count, CUDA_MEMCPY3D_BATCH_OP *wanted, unsigned long long flags, CUstream stream)
{
    return cuMemcpy3DBatchAsync(count, wanted, NULL, flags, stream);
}

static CUresult copy_array(CUarray to_array, size_t to_at, CUdeviceptr to, void *to_host, CUarray from_array, size_t from_at,
                           CUdeviceptr from, const void *from_host, size_t bytes, CUstream stream, bool wait)
{
    const CUDA_MEMCPY3D copy = {
        .srcMemoryType = from_array != NULL  ? CU_MEMORYTYPE_ARRAY
                         : from_host != NULL ? CU_MEMORYTYPE_HOST
                                             : CU_MEMORYTYPE_DEVICE,
        .srcArray = from_array,
        .srcXInBytes = from_at,
        .srcDevice = from,
        .srcHost = from_host,
        .dstMemoryType = to_array != NULL  ? CU_MEMORYTYPE_ARRAY
                         : to_host != NULL ? CU_MEMORYTYPE_HOST
                                           : CU_MEMORYTYPE_DEVICE,
        .dstArray = to_array,
        .dstXInBytes = to_at,
        .dstDevice = to,
        .dstHost = to_host,
        .WidthInBytes = bytes,
        .Height = 1,
        .Depth = 1,
    };
    return fg_copy(&copy, stream, wait);
}

CUresult cuMemcpyAtoA_v2(CUarray to, size_t to_at, CUarray from, size_t from_at, size_t bytes)
{
    if (to == NULL || from == NULL) return CUDA_ERROR_INVALID_HANDLE;
    return copy_array(to, to_at, 0, NULL, from, from_at, 0, NULL, bytes, NULL, true);
}

CUresult cuMemcpyAtoD_v2(CUdeviceptr to, CUarray from, size_t at, size_t bytes)
{
    return from == NULL ? CUDA_ERROR_INVALID_HANDLE : copy_array(NULL, 0, to, NULL, from, at, 0, NULL, bytes, NULL, true);
}

CUresult cuMemcpyDtoA_v2(CUarray to, size_t at, CUdeviceptr from, size_t bytes)
{
    return to == NULL ? CUDA_ERROR_INVALID_HANDLE : copy_array(to, at, 0, NULL, NULL, 0, from, NULL, bytes, NULL, true);
}

CUresult cuMemcpyAtoHAsync_v2(void *to, CUarray from, size_t at, size_t bytes, CUstream stream)
{
    if (from == NULL) return CUDA_ERROR_INVALID_HANDLE;
    return to == NULL ? CUDA_ERROR_INVALID_VALUE : copy_array(NULL, 0, 0, to, from, at, 0, NULL, bytes, stream, false);
}

CUresult cuMemcpyHtoAAsync_v2(CUarray to, size_t at, const void *from, size_t bytes, CUstream stream)
{
    if (to == NULL) return CUDA_ERROR_INVALID_HANDLE;
    return from == NULL ? CUDA_ERROR_INVALID_VALUE : copy_array(to, at, 0, NULL, NULL, 0, 0, from, bytes, stream, false);
}

CUresult cuMemcpyAtoH_v2(void *to, CUarray from, size_t at, size_t bytes)
{
    if (from == NULL) return CUDA_ERROR_INVALID_HANDLE;
    return to == NULL ? CUDA_ERROR_INVALID_VALUE : copy_array(NULL, 0, 0, to, from, at, 0, NULL, bytes, NULL, true);
}

CUresult cuMemcpyHtoA_v2(CUarray to, size_t at, const void *from, size_t bytes)
{
    if (to == NULL) return CUDA_ERROR_INVALID_HANDLE;
    return from == NULL ? CUDA_ERROR_INVALID_VALUE : copy_array(to, at, 0, NULL, NULL, 0, 0, from, bytes, NULL, true);
}
