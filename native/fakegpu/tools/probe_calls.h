/* The functions of the CUDA driver and of NVML that the probe calls, and how it ends when one fails. */
#ifndef VGPU_PROBE_CALLS_H
#define VGPU_PROBE_CALLS_H

#include "cuda_abi.h"
#include "nvml_abi.h"

enum { EXIT_ERROR = 1 };

/* All that the probe calls, by the name to look up. */
#define CUDA_CALLS(X)                                                                                                                 \
    X(cuInit, (unsigned int))                                                                                                         \
    X(cuDeviceGetCount, (int *))                                                                                                      \
    X(cuDeviceGet, (CUdevice *, int))                                                                                                 \
    X(cuDeviceGetName, (char *, int, CUdevice))                                                                                       \
    X(cuDeviceGetUuid, (CUuuid *, CUdevice))                                                                                          \
    X(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                                                                              \
    X(cuDevicePrimaryCtxRelease_v2, (CUdevice))                                                                                       \
    X(cuCtxSetCurrent, (CUcontext))                                                                                                   \
    X(cuCtxSynchronize, (void))                                                                                                       \
    X(cuMemGetInfo_v2, (size_t *, size_t *))                                                                                          \
    X(cuMemAlloc_v2, (CUdeviceptr *, size_t))                                                                                         \
    X(cuMemFree_v2, (CUdeviceptr))                                                                                                    \
    X(cuModuleLoadData, (CUmodule *, const void *))                                                                                   \
    X(cuModuleGetFunction, (CUfunction *, CUmodule, const char *))                                                                    \
    X(cuLaunchKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **)) \
    X(cuGetErrorName, (CUresult, const char **))
#define NVML_CALLS(X)                                            \
    X(nvmlInit_v2, (void))                                       \
    X(nvmlDeviceGetHandleByUUID, (const char *, nvmlDevice_t *)) \
    X(nvmlDeviceGetMemoryInfo, (nvmlDevice_t, nvmlMemory_t *))

struct cuda_calls {
#define X(name, parameters) CUresult(*name) parameters;
    CUDA_CALLS(X)
#undef X
};
struct nvml_calls {
#define X(name, parameters) nvmlReturn_t(*name) parameters;
    NVML_CALLS(X)
#undef X
};
extern struct cuda_calls cuda;
extern struct nvml_calls nvml;

/* Opens both libraries and finds the functions. Ends the program where one is missing. */
void load_libraries(void);

/* One line of JSON, at once: readers act on it. */
__attribute__((format(printf, 1, 2))) void report(const char *format, ...);

const char *error_name(CUresult error);

/* Ends the program, after a line of what failed, unless the call succeeded. */
void check(const char *call, CUresult result);
#define CALL(function, ...) check(#function, cuda.function(__VA_ARGS__))

#endif
