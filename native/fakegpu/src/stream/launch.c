/* Modules and kernels of the stand-in driver. A kernel does nothing but take its time on the card's clock. */
#include "capture/capture.h"
#include "context/green.h"
#include "memory/block.h"

#include <string.h>

/* No kernel is shorter: launching costs that much. */
static const int64_t SHORTEST_NS = 2000;

/* Special stream handles: legacy and per-thread default. */
static bool special(CUstream stream) { return stream == NULL || (uintptr_t)stream == 1 || (uintptr_t)stream == 2; }

bool fg_stream_ok(CUstream stream) { return special(stream) || stream->tag == FG_STREAM; }

int64_t fg_stream_mark(CUcontext context, CUstream stream) { return special(stream) ? context->last_mark : stream->last_mark; }

/* Threads of a launch, or -1 when a dimension is 0 or beyond what a card takes. */
static double threads_of(const CUlaunchConfig *c)
{
    const uint64_t block = (uint64_t)c->blockDimX * c->blockDimY * c->blockDimZ;
    if (c->gridDimX == 0 || c->gridDimY == 0 || c->gridDimZ == 0 || block == 0 || block > 1024 || c->gridDimX > 0x7fffffffU ||
        c->gridDimY > 65535 || c->gridDimZ > 65535)
        return -1;
    return (double)c->gridDimX * c->gridDimY * c->gridDimZ * (double)block;
}

bool fg_launch_ok(unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                  unsigned int block_z)
{
    const CUlaunchConfig config = {
        .gridDimX = grid_x, .gridDimY = grid_y, .gridDimZ = grid_z, .blockDimX = block_x, .blockDimY = block_y, .blockDimZ = block_z};
    return threads_of(&config) > 0;
}

static int64_t kernel_ns(CUcontext context, double threads)
{
    const struct fg_card *card = &fg_driver.machine->cards[fg_card_of(context)];
    const double waves = threads / ((double)fg_context_multiprocessors(context) * card->max_threads_per_sm);
    const double length = waves * (double)fg_driver.machine->wave_ns;
    return length > SHORTEST_NS ? (int64_t)length : SHORTEST_NS;
}

void fg_run_kernel(CUcontext context, CUstream stream, int64_t length_ns)
{
    const int card = fg_card_of(context);
    fg_lock(fg_driver.state);
    const int64_t mark = fg_queue_kernel(fg_driver.state, card, length_ns);
    const uint64_t depth = (uint64_t)fg_driver.machine->queue_depth, number = context->launches++;
    const int64_t room = number >= depth ? context->marks[(number - depth) % FG_MAX_QUEUE_DEPTH] : 0;
    context->marks[number % FG_MAX_QUEUE_DEPTH] = mark;
    context->last_mark = mark;
    if (!special(stream)) stream->last_mark = mark;
    fg_unlock(fg_driver.state);
    fg_sleep_until_reached(fg_driver.state, card, room);
}

/* As with lazy loading, a kernel's code is put on the card when it is launched first. */
static CUresult load_code(CUfunction function)
{
    const uint64_t bytes = fg_driver.machine->lazy_code_bytes;
    if (bytes == 0 || function->is_loaded) return CUDA_SUCCESS;
    if (!fg_charge(function->module->device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    function->is_loaded = true;
    function->module->lazy_bytes += bytes;
    return CUDA_SUCCESS;
}

static CUresult launch(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
    CUcontext context;
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (function == NULL || function->tag != FG_FUNCTION || function->module->tag != FG_MODULE || !fg_stream_ok(config->hStream))
        return CUDA_ERROR_INVALID_HANDLE;
    const double threads = threads_of(config);
    if (threads < 0 || (parameters == NULL && extra == NULL && function->parameter_count > 0)) return CUDA_ERROR_INVALID_VALUE;
    CUresult recorded;
    if (fg_capture_kernel(config, function, parameters, extra, &recorded)) return recorded;
    fg_gate(FG_CALL_LAUNCH, fg_card_of(context));
    const int fault = fg_fault(FG_CALL_LAUNCH);
    if (fault != 0) return (CUresult)fault;
    const CUresult loaded = load_code(function);
    if (loaded != CUDA_SUCCESS) return loaded;
    if (!fg_driver.machine->instant_launches) fg_run_kernel(context, config->hStream, kernel_ns(context, threads));
    return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,
                        unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, CUstream stream, void **parameters,
                        void **extra)
{
    const CUlaunchConfig config = {grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, NULL, 0};
    return launch(&config, function, parameters, extra);
}

CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,
                             unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, CUstream stream, void **parameters,
                             void **extra)
{
    return cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, parameters, extra);
}

static bool is_function(CUfunction function) { return function != NULL && function->tag == FG_FUNCTION; }

CUresult cuFuncSetBlockShape(CUfunction function, int x, int y, int z)
{
    if (!is_function(function)) return CUDA_ERROR_INVALID_HANDLE;
    if (x <= 0 || y <= 0 || z <= 0) return CUDA_ERROR_INVALID_VALUE;
    memcpy(function->block, (const unsigned int[]){(unsigned int)x, (unsigned int)y, (unsigned int)z}, sizeof function->block);
    return CUDA_SUCCESS;
}

CUresult cuLaunchGridAsync(CUfunction function, int grid_x, int grid_y, CUstream stream)
{
    if (!is_function(function)) return CUDA_ERROR_INVALID_HANDLE;
    if (grid_x <= 0 || grid_y <= 0) return CUDA_ERROR_INVALID_VALUE;
    const unsigned int *block = function->block;
    return cuLaunchKernel(function, (unsigned int)grid_x, (unsigned int)grid_y, 1, block[0], block[1], block[2], 0, stream, NULL, NULL);
}

CUresult cuLaunchGrid(CUfunction function, int grid_x, int grid_y) { return cuLaunchGridAsync(function, grid_x, grid_y, NULL); }

CUresult cuLaunch(CUfunction function) { return cuLaunchGridAsync(function, 1, 1, NULL); }

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
    if (config == NULL || (config->numAttrs > 0 && config->attrs == NULL)) return CUDA_ERROR_INVALID_VALUE;
    return launch(config, function, parameters, extra);
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
    return cuLaunchKernelEx(config, function, parameters, extra);
}

CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,
                                   unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                                   void **parameters)
{
    return cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, parameters, NULL);
}

CUresult cuLaunchCooperativeKernel_ptsz(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z,
                                        unsigned int block_x, unsigned int block_y, unsigned int block_z, unsigned int shared_bytes,
                                        CUstream stream, void **parameters)
{
    return cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, parameters, NULL);
}

/* Each in a stream of its own device; the streams may not be the legacy one. */
CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *launches, unsigned int count, unsigned int flags)
{
    if (!fg_driver.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (launches == NULL || count == 0 || count > (unsigned int)fg_driver.device_count || flags > 3) return CUDA_ERROR_INVALID_VALUE;
    for (unsigned int i = 0; i < count; i++) {
        const CUDA_LAUNCH_PARAMS *p = &launches[i];
        if (special(p->hStream) || !fg_stream_ok(p->hStream)) return CUDA_ERROR_INVALID_HANDLE;
        for (unsigned int j = 0; j < i; j++)
            if (launches[j].hStream->context->device == p->hStream->context->device) return CUDA_ERROR_INVALID_DEVICE;
    }
    CUresult result = CUDA_SUCCESS;
    for (unsigned int i = 0; i < count && result == CUDA_SUCCESS; i++) {
        const CUDA_LAUNCH_PARAMS *p = &launches[i];
        CUcontext popped;
        result = cuCtxPushCurrent_v2(p->hStream->context);
        if (result != CUDA_SUCCESS) break;
        result = cuLaunchKernel(p->function, p->gridDimX, p->gridDimY, p->gridDimZ, p->blockDimX, p->blockDimY, p->blockDimZ,
                                p->sharedMemBytes, p->hStream, p->kernelParams, NULL);
        cuCtxPopCurrent_v2(&popped);
    }
    return result;
}
