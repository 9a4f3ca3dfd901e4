/* Copies to and from the device memory of the stand-in driver; both ends are memory of this process. */
#include "driver.h"

#include <string.h>

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes)
{
    if (!fg_driver.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (bytes == 0) return CUDA_SUCCESS;
    if (from == NULL || !fg_touch(to, bytes)) return CUDA_ERROR_INVALID_VALUE;
    memcpy((void *)to, from, bytes);
    return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes)
{
    if (!fg_driver.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (bytes == 0) return CUDA_SUCCESS;
    if (to == NULL || !fg_touch(from, bytes)) return CUDA_ERROR_INVALID_VALUE;
    memcpy(to, (const void *)from, bytes);
    return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    return fg_touch(from, bytes) ? cuMemcpyHtoD_v2(to, (const void *)from, bytes) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    /* Unified addressing: either end may be host memory. */
    if (!fg_driver.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (to == 0 || from == 0) return CUDA_ERROR_INVALID_VALUE;
    (void)fg_touch(to, bytes);
    memcpy((void *)to, (const void *)from, bytes);
    return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    return fg_stream_ok(stream) ? cuMemcpyHtoD_v2(to, from, bytes) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    return fg_stream_ok(stream) ? cuMemcpyDtoH_v2(to, from, bytes) : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuMemsetD8_v2(CUdeviceptr to, unsigned char value, size_t count)
{
    if (!fg_driver.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (!fg_touch(to, count)) return CUDA_ERROR_INVALID_VALUE;
    memset((void *)to, value, count);
    return CUDA_SUCCESS;
}

CUresult cuMemsetD32_v2(CUdeviceptr to, unsigned int value, size_t count)
{
    if (!fg_driver.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (to % 4 != 0 || count > SIZE_MAX / 4 || !fg_touch(to, count * 4)) return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) ((unsigned int *)to)[i] = value;
    return CUDA_SUCCESS;
}
