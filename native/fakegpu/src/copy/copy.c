/* Copies and fills of the stand-in driver: both ends are memory of this process, so they are made for real, and at once. Waits that are
 * in the stream's way (deferred.h) are waited for first; a copy that returns when it is done waits for the kernels too. A stream that
 * records takes none: they are no nodes of graphs here.
 */
#include <string.h>

#include "capture/capture.h"
#include "memory/block.h"
#include "stream/deferred.h"

static CUresult begin(CUstream stream, bool wait)
{
    CUcontext context;
    const CUresult result = fg_stream_context(stream, &context);
    if (result != CUDA_SUCCESS) return result;
    if (fg_capture_broken(stream)) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (wait || fg_pending(context, stream) != 0) fg_drain(context, stream);
    return CUDA_SUCCESS;
}

static bool is_on_device(CUdeviceptr at, size_t bytes) { return bytes == 0 || fg_touch(at, bytes); }

static bool is_anywhere(CUdeviceptr at, size_t bytes)
{
    CUdeviceptr base;
    size_t whole;
    return is_on_device(at, bytes) || (fg_is_host_memory(at, &base, &whole) && bytes <= base + whole - at);
}

static void *at(CUdeviceptr pointer) { return (void *)(uintptr_t)pointer; }

static CUresult copy(void *to, const void *from, size_t bytes, bool ok, CUstream stream, bool wait)
{
    const CUresult result = begin(stream, wait);
    if (result != CUDA_SUCCESS) return result;
    if (!ok || (bytes > 0 && (to == NULL || from == NULL))) return CUDA_ERROR_INVALID_VALUE;
    if (bytes > 0) memmove(to, from, bytes);
    return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes)
{
    return copy(at(to), from, bytes, is_on_device(to, bytes), NULL, true);
}

CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes)
{
    return copy(to, at(from), bytes, is_on_device(from, bytes), NULL, true);
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    return copy(at(to), at(from), bytes, is_on_device(to, bytes) && is_on_device(from, bytes), NULL, true);
}

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    return copy(at(to), at(from), bytes, is_anywhere(to, bytes) && is_anywhere(from, bytes), NULL, true);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    return copy(at(to), from, bytes, is_on_device(to, bytes), stream, false);
}

CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    return copy(to, at(from), bytes, is_on_device(from, bytes), stream, false);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    return copy(at(to), at(from), bytes, is_on_device(to, bytes) && is_on_device(from, bytes), stream, false);
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    return copy(at(to), at(from), bytes, is_anywhere(to, bytes) && is_anywhere(from, bytes), stream, false);
}

static CUresult fill(CUdeviceptr to, const void *value, size_t unit, size_t count, CUstream stream)
{
    size_t bytes;
    const CUresult result = begin(stream, false);
    if (result != CUDA_SUCCESS) return result;
    if (__builtin_mul_overflow(unit, count, &bytes) || to % unit != 0 || !is_on_device(to, bytes)) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) memcpy((char *)at(to) + i * unit, value, unit);
    return CUDA_SUCCESS;
}

CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) { return fill(to, &value, sizeof value, count, NULL); }
CUresult cuMemsetD16_v2(CUdeviceptr to, unsigned short value, size_t count) { return fill(to, &value, sizeof value, count, NULL); }
CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned int value, size_t count) { return fill(to, &value, sizeof value, count, NULL); }

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream)
{
    return fill(to, &value, sizeof value, count, stream);
}

CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream stream)
{
    return fill(to, &value, sizeof value, count, stream);
}

CUresult cuMemsetD32Async(CUdeviceptr to, unsigned int value, size_t count, CUstream stream)
{
    return fill(to, &value, sizeof value, count, stream);
}
