/* Launches of kernels (of graphs: hook_graph.c): each is admitted (cores.h), made, and, if it was chosen for that, timed. */
#include "compute/cores.h"
#include "intercept/real.h"

/* What distinguishes launches of one function: blocks, and threads of each. */
static uint64_t size_of(unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                        unsigned int block_z)
{
    return (uint64_t)grid_x * grid_y * grid_z * 2048 + (uint64_t)block_x * block_y * block_z;
}

static uint64_t size_of_config(const CUlaunchConfig *c)
{
    return c != NULL ? size_of(c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY, c->blockDimZ) : 0;
}

/* Each launch has two halves of the same parameters. The one that programs call only jumps, to the driver or to the other half: eleven
 * arguments stay where the caller has put them. */
#define PASS(what, size, slow_half, call)                                                        \
    const struct vgpu_cuda *cuda = vgpu_cuda_at_hand();                                          \
    if (__builtin_expect(cuda != NULL && vgpu_cores_pass((what), (size)), 1)) return cuda->call; \
    return slow_half

#define MAKE(what, size, stream, call)                                            \
    const struct vgpu_cuda *cuda = vgpu_cuda();                                   \
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;                                \
    const struct vgpu_launch launch = vgpu_cores_admit((what), (size), (stream)); \
    const CUresult result = cuda->call;                                           \
    vgpu_cores_launched(&launch, result);                                         \
    return result

#define SLOW static __attribute__((noinline)) CUresult

#define KERNEL_PARAMETERS                                                                                                            \
    (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x, unsigned int block_y, \
     unsigned int block_z, unsigned int shared_bytes, CUstream stream, void **parameters, void **extra)
#define COOPERATIVE_PARAMETERS                                                                                                       \
    (CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x, unsigned int block_y, \
     unsigned int block_z, unsigned int shared_bytes, CUstream stream, void **parameters)
#define KERNEL_SIZE size_of(grid_x, grid_y, grid_z, block_x, block_y, block_z)
#define COOPERATIVE_ARGUMENTS (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, parameters)
#define KERNEL_ARGUMENTS (function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, parameters, extra)
#define CONFIG_PARAMETERS (const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
#define CONFIG_ARGUMENTS (config, function, parameters, extra)
#define CONFIG_STREAM (config != NULL ? config->hStream : NULL)

/* One call: its name, what distinguishes its launches, and its parameters. */
#define LAUNCH(name, size, at, PARAMETERS, ARGUMENTS)                         \
    SLOW slow_##name PARAMETERS { MAKE(function, size, at, name ARGUMENTS); } \
    CUresult name PARAMETERS { PASS(function, size, slow_##name ARGUMENTS, name ARGUMENTS); }

LAUNCH(cuLaunchKernel, KERNEL_SIZE, stream, KERNEL_PARAMETERS, KERNEL_ARGUMENTS)
LAUNCH(cuLaunchKernel_ptsz, KERNEL_SIZE, vgpu_per_thread(stream), KERNEL_PARAMETERS, KERNEL_ARGUMENTS)
LAUNCH(cuLaunchKernelEx, size_of_config(config), CONFIG_STREAM, CONFIG_PARAMETERS, CONFIG_ARGUMENTS)
LAUNCH(cuLaunchKernelEx_ptsz, size_of_config(config), vgpu_per_thread(CONFIG_STREAM), CONFIG_PARAMETERS, CONFIG_ARGUMENTS)
LAUNCH(cuLaunchCooperativeKernel, KERNEL_SIZE, stream, COOPERATIVE_PARAMETERS, COOPERATIVE_ARGUMENTS)
LAUNCH(cuLaunchCooperativeKernel_ptsz, KERNEL_SIZE, vgpu_per_thread(stream), COOPERATIVE_PARAMETERS, COOPERATIVE_ARGUMENTS)

/* The block's shape was set before (cuFuncSetBlockShape), and seldom changes. */
#define GRID_SIZE size_of((unsigned int)grid_x, (unsigned int)grid_y, 1, 0, 0, 0)
LAUNCH(cuLaunch, 1, NULL, (CUfunction function), (function))
LAUNCH(cuLaunchGrid, GRID_SIZE, NULL, (CUfunction function, int grid_x, int grid_y), (function, grid_x, grid_y))
LAUNCH(cuLaunchGridAsync, GRID_SIZE, stream, (CUfunction function, int grid_x, int grid_y, CUstream stream),
       (function, grid_x, grid_y, stream))

/* Asks for the share of one device of a launch on several. The context of its stream is made current for that. */
static void admit_one(const struct vgpu_cuda *cuda, const CUDA_LAUNCH_PARAMS *p)
{
    CUcontext context, popped;
    if (cuda->cuStreamGetCtx(p->hStream, &context) != CUDA_SUCCESS || cuda->cuCtxPushCurrent_v2(context) != CUDA_SUCCESS) return;
    vgpu_cores_device_changed();
    const uint64_t size = size_of(p->gridDimX, p->gridDimY, p->gridDimZ, p->blockDimX, p->blockDimY, p->blockDimZ);
    const struct vgpu_launch launch = vgpu_cores_admit(p->function, size, p->hStream);
    vgpu_cores_launched(&launch, CUDA_ERROR_NOT_READY); /* not timed: the driver makes these launches itself; NVML reports what they took */
    cuda->cuCtxPopCurrent_v2(&popped);
    vgpu_cores_device_changed();
}

/* One kernel on each of several devices, all or none. */
CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launches, unsigned int count, unsigned int flags)
{
    const struct vgpu_cuda *cuda = vgpu_cuda();
    if (cuda == NULL) return CUDA_ERROR_NOT_FOUND;
    for (unsigned int i = 0; launches != NULL && i < count; i++) admit_one(cuda, &launches[i]);
    return cuda->cuLaunchCooperativeKernelMultiDevice(launches, count, flags);
}
