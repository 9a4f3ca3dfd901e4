/* Fills of device memory in the stand-in driver. */
#include <stdlib.h>
#include <string.h>

#include "memory/block.h"
#include "copy/copy.h"
#include "stream/deferred.h"

static CUresult check(const CUDA_MEMSET_NODE_PARAMS *fill, bool planned)
{
    const size_t unit = fill->elementSize;
    size_t line, span;
    if (unit != 1 && unit != 2 && unit != 4) return CUDA_ERROR_INVALID_VALUE;
    if (fill->width == 0 || fill->height == 0) return CUDA_SUCCESS;
    if (fill->dst % unit != 0 || __builtin_mul_overflow(fill->width, unit, &line)) return CUDA_ERROR_INVALID_VALUE;
    if (fill->height > 1 && (fill->pitch % unit != 0 || fill->pitch < line)) return CUDA_ERROR_INVALID_VALUE;
    if (__builtin_mul_overflow(fill->height - 1, fill->pitch, &span) || __builtin_add_overflow(span, line, &span))
        return CUDA_ERROR_INVALID_VALUE;
    return (planned && fg_is_planned(fill->dst, span)) || fg_touch(fill->dst, span) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult fg_check_fill(const CUDA_MEMSET_NODE_PARAMS *fill) { return check(fill, false); }
CUresult fg_check_planned_fill(const CUDA_MEMSET_NODE_PARAMS *fill) { return check(fill, true); }

void fg_make_fill(const CUDA_MEMSET_NODE_PARAMS *fill)
{
    for (size_t y = 0; y < fill->height; y++) {
        char *line = (char *)(uintptr_t)fill->dst + y * fill->pitch;
        if (fill->elementSize == 1) memset(line, (int)fill->value, fill->width);
        for (size_t x = 0; fill->elementSize == 2 && x < fill->width; x++) ((uint16_t *)(void *)line)[x] = (uint16_t)fill->value;
        for (size_t x = 0; fill->elementSize == 4 && x < fill->width; x++) ((uint32_t *)(void *)line)[x] = fill->value;
    }
}

static void run_fill(void *data)
{
    fg_make_fill(data);
    free(data);
}

/* Fills of device memory do not wait for their end; here they have no other. */
CUresult fg_fill(const CUDA_MEMSET_NODE_PARAMS *fill, CUstream stream)
{
    CUcontext context;
    CUresult result = fg_stream_context(stream, &context);
    if (result != CUDA_SUCCESS || fg_capture_fill(stream, fill, &result)) return result;
    result = fg_check_fill(fill);
    if (result != CUDA_SUCCESS) return result;
    if (fg_pending(context, stream) == 0) return fg_make_fill(fill), CUDA_SUCCESS;
    CUDA_MEMSET_NODE_PARAMS *kept = malloc(sizeof *kept);
    if (kept == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *kept = *fill;
    if (fg_defer(context, stream, NULL, run_fill, kept) == 0) return free(kept), CUDA_ERROR_OUT_OF_MEMORY;
    return CUDA_SUCCESS;
}

static CUresult fill(CUdeviceptr to, size_t pitch, unsigned int value, unsigned int unit, size_t width, size_t height, CUstream stream)
{
    const CUDA_MEMSET_NODE_PARAMS wanted = {to, pitch, value, unit, width, height};
    return fg_fill(&wanted, stream);
}

CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count) { return fill(to, 0, value, 1, count, 1, NULL); }
CUresult cuMemsetD16_v2(CUdeviceptr to, unsigned short value, size_t count) { return fill(to, 0, value, 2, count, 1, NULL); }
CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned int value, size_t count) { return fill(to, 0, value, 4, count, 1, NULL); }

CUresult cuMemsetD2D8_v2(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height)
{
    return fill(to, pitch, value, 1, width, height, NULL);
}

CUresult cuMemsetD2D16_v2(CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height)
{
    return fill(to, pitch, value, 2, width, height, NULL);
}

CUresult cuMemsetD2D32_v2(CUdeviceptr to, size_t pitch, unsigned int value, size_t width, size_t height)
{
    return fill(to, pitch, value, 4, width, height, NULL);
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream)
{
    return fill(to, 0, value, 1, count, 1, stream);
}
CUresult cuMemsetD16Async(CUdeviceptr to, unsigned short value, size_t count, CUstream stream)
{
    return fill(to, 0, value, 2, count, 1, stream);
}
CUresult cuMemsetD32Async(CUdeviceptr to, unsigned int value, size_t count, CUstream stream)
{
    return fill(to, 0, value, 4, count, 1, stream);
}

CUresult cuMemsetD2D8Async(CUdeviceptr to, size_t pitch, unsigned char value, size_t width, size_t height, CUstream stream)
{
    return fill(to, pitch, value, 1, width, height, stream);
}

CUresult cuMemsetD2D16Async(CUdeviceptr to, size_t pitch, unsigned short value, size_t width, size_t height, CUstream stream)
{
    return fill(to, pitch, value, 2, width, height, stream);
}

CUresult cuMemsetD2D32Async(CUdeviceptr to, size_t pitch, unsigned int value, size_t width, size_t height, CUstream stream)
{
    return fill(to, pitch, value, 4, width, height, stream);
}
