/* Modules, streams, events and kernels of the stand-in driver. A kernel does nothing but take its time on the card's clock. */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

/* No kernel is shorter: launching costs that much. */
static const int64_t SHORTEST_NS = 2000;

/* Special stream handles: legacy and per-thread default. */
static bool special(CUstream stream) { return stream == NULL || (uintptr_t)stream == 1 || (uintptr_t)stream == 2; }

bool fg_stream_ok(CUstream stream) { return special(stream) || stream->tag == FG_STREAM; }

int64_t fg_stream_mark(CUcontext context, CUstream stream) { return special(stream) ? context->last_mark : stream->last_mark; }

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    CUcontext context;
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (module == NULL || image == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (strstr(image, ".entry") == NULL) return CUDA_ERROR_INVALID_IMAGE; /* PTX text is all this driver knows */
    struct CUmod_st *loaded = calloc(1, sizeof *loaded);
    char *copy = strdup(image);
    if (loaded == NULL || copy == NULL) return free(loaded), free(copy), CUDA_ERROR_OUT_OF_MEMORY;
    *loaded = (struct CUmod_st){.tag = FG_MODULE, .image = copy};
    *module = loaded;
    return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module)
{
    if (module == NULL || module->tag != FG_MODULE) return CUDA_ERROR_INVALID_HANDLE;
    free(module->image);
    module->tag = 0; /* kept: functions of it still point here and then fail */
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    if (module == NULL || module->tag != FG_MODULE) return CUDA_ERROR_INVALID_HANDLE;
    if (function == NULL || name == NULL || *name == '\0') return CUDA_ERROR_INVALID_VALUE;
    if (strstr(module->image, name) == NULL) return CUDA_ERROR_NOT_FOUND;
    struct CUfunc_st *found = calloc(1, sizeof *found);
    if (found == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *found = (struct CUfunc_st){.tag = FG_FUNCTION, .module = module};
    *function = found;
    return CUDA_SUCCESS;
}

/* Threads of a launch, or -1 when a dimension is 0 or beyond what a card takes. */
static double threads_of(const CUlaunchConfig *c)
{
    const uint64_t block = (uint64_t)c->blockDimX * c->blockDimY * c->blockDimZ;
    if (c->gridDimX == 0 || c->gridDimY == 0 || c->gridDimZ == 0 || block == 0 || block > 1024 || c->gridDimX > 0x7fffffffU ||
        c->gridDimY > 65535 || c->gridDimZ > 65535)
        return -1;
    return (double)c->gridDimX * c->gridDimY * c->gridDimZ * (double)block;
}

static int64_t kernel_ns(CUcontext context, double threads)
{
    const struct fg_card *card = &fg_driver.machine->cards[fg_card_of(context)];
    const double waves = threads / ((double)card->sm_count * card->max_threads_per_sm);
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

static CUresult launch(const CUlaunchConfig *config, CUfunction function)
{
    CUcontext context;
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (function == NULL || function->tag != FG_FUNCTION || function->module->tag != FG_MODULE || !fg_stream_ok(config->hStream))
        return CUDA_ERROR_INVALID_HANDLE;
    const double threads = threads_of(config);
    if (threads < 0) return CUDA_ERROR_INVALID_VALUE;
    CUresult recorded;
    if (fg_capture_kernel(config, function, &recorded)) return recorded;
    fg_run_kernel(context, config->hStream, kernel_ns(context, threads));
    return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,
                        unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, CUstream stream, void **parameters,
                        void **extra)
{
    (void)parameters, (void)extra;
    const CUlaunchConfig config = {grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, NULL, 0};
    return launch(&config, function);
}

CUresult cuLaunchKernel_ptsz(CUfunction function, unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x,
                             unsigned int block_y, unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                             void **parameters, void **extra)
{
    return cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, parameters, extra);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
    (void)parameters, (void)extra;
    if (config == NULL || (config->numAttrs > 0 && config->attrs == NULL)) return CUDA_ERROR_INVALID_VALUE;
    return launch(config, function);
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction function, void **parameters, void **extra)
{
    return cuLaunchKernelEx(config, function, parameters, extra);
}

CUresult cuStreamCreate(CUstream *stream, unsigned int flags)
{
    CUcontext context;
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (stream == NULL || flags > 1) return CUDA_ERROR_INVALID_VALUE;
    struct CUstream_st *created = calloc(1, sizeof *created);
    if (created == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    *created = (struct CUstream_st){.tag = FG_STREAM, .context = context};
    *stream = created;
    return CUDA_SUCCESS;
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority)
{
    (void)priority; /* every number is clamped to what the card has; here that is one level */
    return cuStreamCreate(stream, flags);
}

CUresult cuStreamGetDevice(CUstream stream, CUdevice *device)
{
    CUcontext context;
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (!fg_stream_ok(stream) || device == NULL) return CUDA_ERROR_INVALID_VALUE;
    *device = special(stream) ? context->device : stream->context->device;
    return CUDA_SUCCESS;
}

CUresult cuStreamDestroy_v2(CUstream stream)
{
    if (special(stream) || stream->tag != FG_STREAM) return CUDA_ERROR_INVALID_HANDLE;
    stream->tag = 0;
    free(stream);
    return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream)
{
    CUcontext context;
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (!fg_stream_ok(stream)) return CUDA_ERROR_INVALID_HANDLE;
    fg_sleep_until_reached(fg_driver.state, fg_card_of(context), fg_stream_mark(context, stream));
    return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize_ptsz(CUstream stream) { return cuStreamSynchronize(stream); }

CUresult cuStreamQuery(CUstream stream)
{
    CUcontext context;
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (!fg_stream_ok(stream)) return CUDA_ERROR_INVALID_HANDLE;
    return fg_reached_ns(fg_driver.state, fg_card_of(context), fg_stream_mark(context, stream)) == 0 ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent *event, unsigned int flags)
{
    CUcontext context;
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (event == NULL || flags > 7) return CUDA_ERROR_INVALID_VALUE;
    struct CUevent_st *created = calloc(1, sizeof *created);
    if (created == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    created->tag = FG_EVENT;
    *event = created;
    return CUDA_SUCCESS;
}

static bool event_ok(CUevent event) { return event != NULL && event->tag == FG_EVENT; }

CUresult cuEventDestroy_v2(CUevent event)
{
    if (!event_ok(event)) return CUDA_ERROR_INVALID_HANDLE;
    event->tag = 0;
    free(event);
    return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream)
{
    CUcontext context;
    const CUresult result = fg_current(&context);
    if (result != CUDA_SUCCESS) return result;
    if (!event_ok(event) || !fg_stream_ok(stream)) return CUDA_ERROR_INVALID_HANDLE;
    event->context = context;
    event->mark = fg_stream_mark(context, stream);
    event->recorded_ns = fg_now_ns();
    event->reached_ns = 0;
    return CUDA_SUCCESS;
}

/* When the event came, 0 if it has not; found out once. An event in an empty stream comes at once. */
static int64_t came_ns(CUevent event)
{
    if (event->reached_ns != 0 || event->context == NULL) return event->reached_ns;
    const int64_t reached = fg_reached_ns(fg_driver.state, fg_card_of(event->context), event->mark);
    if (reached != 0) event->reached_ns = reached > event->recorded_ns ? reached : event->recorded_ns;
    return event->reached_ns;
}

CUresult cuEventQuery(CUevent event)
{
    if (!event_ok(event)) return CUDA_ERROR_INVALID_HANDLE;
    return event->context != NULL && came_ns(event) == 0 ? CUDA_ERROR_NOT_READY : CUDA_SUCCESS;
}

CUresult cuEventSynchronize(CUevent event)
{
    if (!event_ok(event)) return CUDA_ERROR_INVALID_HANDLE;
    if (event->context != NULL) fg_sleep_until_reached(fg_driver.state, fg_card_of(event->context), event->mark);
    return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
    if (milliseconds == NULL) return CUDA_ERROR_INVALID_VALUE;
    if (!event_ok(start) || !event_ok(end) || start->context == NULL || end->context == NULL) return CUDA_ERROR_INVALID_HANDLE;
    const int64_t from = came_ns(start), until = came_ns(end);
    if (from == 0 || until == 0) return CUDA_ERROR_NOT_READY;
    *milliseconds = (float)(until - from) / 1e6F;
    return CUDA_SUCCESS;
}
