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

static CUstream stream_of(const CUlaunchConfig *config) { return config != NULL ? config->hStream : NULL; }

/* Each launch has two halves of the same parameters. The one that programs call only jumps, to the driver or to the other half: eleven
 * arguments stay where the caller has put them. Of the launches before CUDA 4 the block's shape was set before (cuFuncSetBlockShape), and
 * seldom changes. */
#define HOOK(symbol, base, version, flags, parameters)
#define LAUNCH(symbol, base, version, flags, parameters, arguments, size, stream)                                \
    static __attribute__((noinline)) CUresult slow_##symbol parameters                                           \
    {                                                                                                            \
        const struct vgpu_cuda *cuda = vgpu_cuda();                                                              \
        const struct vgpu_launch launch = vgpu_cores_admit(function, size, stream);                              \
        const CUresult result = cuda->symbol arguments;                                                          \
        vgpu_cores_launched(&launch, result);                                                                    \
        return result;                                                                                           \
    }                                                                                                            \
    CUresult symbol parameters                                                                                   \
    {                                                                                                            \
        const struct vgpu_cuda *cuda = vgpu_cuda_at_hand();                                                      \
        if (__builtin_expect(cuda != NULL && vgpu_cores_pass(function, size), 1)) return cuda->symbol arguments; \
        return slow_##symbol arguments;                                                                          \
    }
#include "intercept/cuda.def"

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
    for (unsigned int i = 0; launches != NULL && i < count; i++) admit_one(cuda, &launches[i]);
    return cuda->cuLaunchCooperativeKernelMultiDevice(launches, count, flags);
}
