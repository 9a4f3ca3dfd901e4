/* vgpu-load: keeps the first card busy with kernels, and prints how many it ran.
 *
 *   vgpu-load [--seconds S] [--blocks N] [--iterations I] [--kernel-us U] [--graph K] [--sync-every N] [--cooperative] [--bench N]
 *
 * Launches kernels of N blocks of 1024 threads as fast as it may for S seconds (10); each thread counts to I, or until U microseconds have
 * gone by on the card, whatever its clock (on the stand-in driver the blocks alone decide how long a kernel takes). --graph K: graphs of K
 * kernels each. --sync-every N: waits for the card after every N launches. Prints one JSON object: launches, seconds until the last of them
 * had run, and "kernel_ms", the time of one launch that was timed alone before.
 * --bench N: launches N times in batches of 500 with a pause after each, and prints "launch_ns" instead, the least of all batches.
 * Runs on a real driver as on the stand-in.
 */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "cuda_abi.h"

#define CUDA_CALLS(X)                                                                                                                   \
    X(cuInit, (unsigned int))                                                                                                           \
    X(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                                                                                \
    X(cuCtxSetCurrent, (CUcontext))                                                                                                     \
    X(cuCtxSynchronize, (void))                                                                                                         \
    X(cuModuleLoadData, (CUmodule *, const void *))                                                                                     \
    X(cuModuleGetFunction, (CUfunction *, CUmodule, const char *))                                                                      \
    X(cuStreamCreate, (CUstream *, unsigned))                                                                                           \
    X(cuStreamBeginCapture_v2, (CUstream, int))                                                                                         \
    X(cuStreamEndCapture, (CUstream, CUgraph *))                                                                                        \
    X(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long))                                                        \
    X(cuGraphLaunch, (CUgraphExec, CUstream))                                                                                           \
    X(cuEventCreate, (CUevent *, unsigned))                                                                                             \
    X(cuEventRecord, (CUevent, CUstream))                                                                                               \
    X(cuEventElapsedTime, (float *, CUevent, CUevent))                                                                                  \
    X(cuLaunchCooperativeKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **)) \
    X(cuLaunchKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **, void **))

static struct {
#define X(name, parameters) CUresult(*name) parameters;
    CUDA_CALLS(X)
#undef X
} cuda;

static const char IMAGE[] = ".version 6.0\n.target sm_50\n.address_size 64\n"
                            ".visible .entry hold(.param .u64 length)\n{\n .reg .u64 %begin, %now, %gone, %length;\n .reg .pred %p;\n"
                            " ld.param.u64 %length, [length];\n mov.u64 %begin, %globaltimer;\nAGAIN:\n mov.u64 %now, %globaltimer;\n"
                            " sub.u64 %gone, %now, %begin;\n setp.lt.u64 %p, %gone, %length;\n @%p bra AGAIN;\n ret;\n}\n"
                            ".visible .entry count(.param .u32 limit)\n{\n .reg .u32 %i, %n;\n"
                            " .reg .pred %p;\n ld.param.u32 %n, [limit];\n mov.u32 %i, 0;\nNEXT:\n add.u32 %i, %i, 1;\n"
                            " membar.cta;\n setp.lt.u32 %p, %i, %n;\n @%p bra NEXT;\n ret;\n}\n";

static struct {
    double seconds;
    unsigned int blocks, iterations;
    unsigned long long kernel_ns; /* 0: by iterations */
    int graph, sync_every;
    long bench;
    bool cooperative;
} options = {.seconds = 10, .blocks = 216, .iterations = 1000};

static CUfunction kernel;
static CUstream stream;
static CUgraphExec graph;

static void check(const char *call, CUresult result)
{
    if (result == CUDA_SUCCESS) return;
    fprintf(stderr, "vgpu-load: %s: error %d\n", call, (int)result);
    exit(1);
}
#define CALL(function, ...) check(#function, cuda.function(__VA_ARGS__))

static void load_library(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    void *function;
#define X(name, parameters)                                                                                                 \
    function = library != NULL ? dlsym(library, #name) : NULL;                                                              \
    if (function == NULL) fprintf(stderr, "vgpu-load: %s is missing\n", library != NULL ? #name : "libcuda.so.1"), exit(1); \
    memcpy(&cuda.name, &function, sizeof function);
    CUDA_CALLS(X)
#undef X
}

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void launch_kernel(void)
{
    void *parameters[] = {options.kernel_ns != 0 ? (void *)&options.kernel_ns : (void *)&options.iterations};
    if (options.cooperative)
        CALL(cuLaunchCooperativeKernel, kernel, options.blocks, 1, 1, 1024, 1, 1, 0, stream, parameters);
    else
        CALL(cuLaunchKernel, kernel, options.blocks, 1, 1, 1024, 1, 1, 0, stream, parameters, NULL);
}

static void launch(void)
{
    if (graph != NULL)
        CALL(cuGraphLaunch, graph, stream);
    else
        launch_kernel();
}

static void record_graph(void)
{
    CUgraph recorded;
    CALL(cuStreamBeginCapture_v2, stream, 0);
    for (int i = 0; i < options.graph; i++) launch_kernel();
    CALL(cuStreamEndCapture, stream, &recorded);
    CALL(cuGraphInstantiateWithFlags, &graph, recorded, 0);
}

static double time_one_ms(void)
{
    CUevent begin, end;
    float milliseconds;
    CALL(cuEventCreate, &begin, 0);
    CALL(cuEventCreate, &end, 0);
    CALL(cuEventRecord, begin, stream);
    launch();
    CALL(cuEventRecord, end, stream);
    CALL(cuCtxSynchronize, );
    CALL(cuEventElapsedTime, &milliseconds, begin, end);
    return milliseconds;
}

static void keep_busy(void)
{
    const double kernel_ms = time_one_ms(), start = now_s();
    long launches = 0;
    for (; now_s() - start < options.seconds; launches++) {
        launch();
        if (options.sync_every > 0 && launches % options.sync_every == 0) CALL(cuCtxSynchronize, );
    }
    CALL(cuCtxSynchronize, ); /* a launch counts when it has run: a thousand and more may be queued */
    printf("{\"launches\": %ld, \"seconds\": %.3f, \"kernel_ms\": %.4f}\n", launches, now_s() - start, kernel_ms);
}

static void bench(void)
{
    enum { BATCH = 500 };
    double least = 1e9;
    for (long done = 0; done < options.bench; done += BATCH) {
        const double start = now_s();
        for (int i = 0; i < BATCH; i++) launch();
        const double each = (now_s() - start) / BATCH;
        if (each < least) least = each;
        CALL(cuCtxSynchronize, );
        nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
    }
    printf("{\"launch_ns\": %.1f}\n", least * 1e9);
}

static bool parse_options(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--cooperative") == 0) {
            options.cooperative = true;
            continue;
        }
        char *end = NULL;
        const double number = i + 1 < argc ? strtod(argv[i + 1], &end) : -1;
        if (end == NULL || end == argv[i + 1] || *end != '\0' || number < 0) return false;
        if (strcmp(argv[i], "--seconds") == 0)
            options.seconds = number;
        else if (strcmp(argv[i], "--blocks") == 0)
            options.blocks = (unsigned int)number;
        else if (strcmp(argv[i], "--iterations") == 0)
            options.iterations = (unsigned int)number;
        else if (strcmp(argv[i], "--kernel-us") == 0)
            options.kernel_ns = (unsigned long long)(number * 1e3);
        else if (strcmp(argv[i], "--graph") == 0)
            options.graph = (int)number;
        else if (strcmp(argv[i], "--sync-every") == 0)
            options.sync_every = (int)number;
        else if (strcmp(argv[i], "--bench") == 0)
            options.bench = (long)number;
        else
            return false;
        i++;
    }
    return true;
}

int main(int argc, char **argv)
{
    CUcontext context;
    CUmodule module;
    if (!parse_options(argc, argv)) {
        fprintf(stderr,
                "usage: vgpu-load [--seconds S] [--blocks N] [--iterations I] [--kernel-us U] [--graph K] [--sync-every N] [--cooperative]"
                " [--bench N]\n");
        return 2;
    }
    load_library();
    CALL(cuInit, 0);
    CALL(cuDevicePrimaryCtxRetain, &context, 0);
    CALL(cuCtxSetCurrent, context);
    CALL(cuModuleLoadData, &module, IMAGE);
    CALL(cuModuleGetFunction, &kernel, module, options.kernel_ns != 0 ? "hold" : "count");
    CALL(cuStreamCreate, &stream, 1);
    if (options.graph > 0) record_graph();
    if (options.bench > 0)
        bench();
    else
        keep_busy();
    return 0;
}
