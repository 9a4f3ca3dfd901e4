/* Launches of kernels (of graphs: hook_graph.c): each is admitted (cores.h), made, and, if it was chosen for that, timed. */
#include "cores.h"
#include "real.h"

/* What tells launches of one function apart: blocks, and threads of each. */
static uint64_t size_of(unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                        unsigned int block_z)
{
    return (uint64_t)grid_x * grid_y * grid_z * 2048 + (uint64_t)block_x * block_y * block_z;
}

static uint64_t size_of_config(const CUlaunchConfig *c)
{
    return c != NULL ? size_of(c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY, c->blockDimZ) : 0;
}

#define MAKE(what, size, stream, call)                                            \
    const struct vgpu_cuda *cuda = vgpu_cuda();                                   \
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;                                \
    const struct vgpu_launch launch = vgpu_cores_admit((what), (size), (stream)); \
    const CUresult result = cuda->call;                                           \
    vgpu_cores_launched(&launch, result);                                         \
    return result

#define KERNEL_PARAMETERS                                                                                                              \
    (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x, unsigned int block_y,   \
     unsigned int block_z, unsigned int shared_bytes, CUstream stream, void **parameters, void **extra)
#define KERNEL_SIZE size_of(grid_x, grid_y, grid_z, block_x, block_y, block_z)
#define KERNEL_ARGUMENTS function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, parameters

CUresult cuLaunchKernel KERNEL_PARAMETERS { MAKE(function, KERNEL_SIZE, stream, cuLaunchKernel(KERNEL_ARGUMENTS, extra)); }

CUresult cuLaunchKernel_ptsz KERNEL_PARAMETERS
{
    MAKE(function, KERNEL_SIZE, vgpu_per_thread(stream), cuLaunchKernel_ptsz(KERNEL_ARGUMENTS, extra));
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
    MAKE(function, size_of_config(config), config != NULL ? config->hStream : NULL, cuLaunchKernelEx(config, function, parameters, extra));
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
    MAKE(function, size_of_config(config), vgpu_per_thread(config != NULL ? config->hStream : NULL),
         cuLaunchKernelEx_ptsz(config, function, parameters, extra));
}

CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                                   unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,
                                   CUstream stream, void **parameters)
{
    MAKE(function, KERNEL_SIZE, stream, cuLaunchCooperativeKernel(KERNEL_ARGUMENTS));
}

CUresult cuLaunchCooperativeKernel_ptsz(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                                        unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,
                                        CUstream stream, void **parameters)
{
    MAKE(function, KERNEL_SIZE, vgpu_per_thread(stream), cuLaunchCooperativeKernel_ptsz(KERNEL_ARGUMENTS));
}

/* Asks for the share of one device of a launch on several. The context of its stream is made current for that. */
static void admit_one(const struct vgpu_cuda *cuda, const CUDA_LAUNCH_PARAMS *p)
{
    CUcontext context, popped;
    if (cuda->cuStreamGetCtx(p->hStream, &context) != CUDA_SUCCESS || cuda->cuCtxPushCurrent_v2(context) != CUDA_SUCCESS) return;
    const uint64_t size = size_of(p->gridDimX, p->gridDimY, p->gridDimZ, p->blockDimX, p->blockDimY, p->blockDimZ);
    const struct vgpu_launch launch = vgpu_cores_admit(p->function, size, p->hStream);
    vgpu_cores_launched(&launch, CUDA_ERROR_NOT_READY); /* not timed: the driver makes these launches itself; NVML tells what they took */
    cuda->cuCtxPopCurrent_v2(&popped);
}

/* One kernel on each of several devices, all or none. */
CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launches, unsigned int count, unsigned int flags)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    for (unsigned int i = 0; launches != NULL && i < count; i++) admit_one(cuda, &launches[i]);
    return cuda->cuLaunchCooperativeKernelMultiDevice(launches, count, flags);
}
