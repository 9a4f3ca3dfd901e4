/* vgpu-probe: a small CUDA-driver program that reports what it sees of its cards and tries to take more than its share.
 *
 *   vgpu-probe [--once] [--bytes N] [--hold-s S] [--no-launch]
 *
 * One JSON object per line: "device" for each visible card; "allocated" once it holds all that cuMemGetInfo called free (or N bytes);
 * "refused" for one byte more ("NOT_refused", exit 3, if that succeeds; with --bytes below what is free nothing more is tried);
 * "launched"; "running". Then it launches lightly until SIGTERM or SIGINT (frees all, exit 0) or for S seconds. --once ends after the
 * checks. "error" with the failing call, exit 1. Runs on a real driver as on the stand-in; needs neither at build time.
 */
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "probe_calls.h"

enum { MAX_DEVICES = 64, MAX_BLOCKS = 4096, LAUNCHES = 64 };
enum { EXIT_USAGE = 2, EXIT_NOT_REFUSED = 3 };

/* An empty kernel that every card since Maxwell accepts. */
static const char IMAGE[] = ".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry idle()\n{\n ret;\n}\n";

static struct device {
    char uuid[64];
    CUcontext context;
    CUfunction kernel;
    size_t free_bytes;
    CUdeviceptr blocks[MAX_BLOCKS];
    int block_count;
} devices[MAX_DEVICES];
static int device_count;

static struct {
    bool once, launch, has_bytes;
    size_t bytes;
    double hold_s; /* < 0: until a signal */
} options = {.launch = true, .hold_s = -1};

static volatile sig_atomic_t stop;

static void on_signal(int number)
{
    (void)number;
    stop = 1;
}

static void format_uuid(const CUuuid *uuid, char text[64])
{
    const unsigned char *b = uuid->bytes;
    snprintf(text, 64, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1], b[2], b[3], b[4], b[5], b[6],
             b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

static void open_device(int index)
{
    struct device *device = &devices[index];
    CUdevice handle;
    CUuuid uuid;
    char name[128];
    size_t total;
    CUmodule module;
    CALL(cuDeviceGet, &handle, index);
    CALL(cuDeviceGetName, name, sizeof name, handle);
    CALL(cuDeviceGetUuid, &uuid, handle);
    format_uuid(&uuid, device->uuid);
    CALL(cuDevicePrimaryCtxRetain, &device->context, handle);
    CALL(cuCtxSetCurrent, device->context);
    CALL(cuModuleLoadData, &module, IMAGE);
    CALL(cuModuleGetFunction, &device->kernel, module, "idle");
    CALL(cuMemGetInfo_v2, &device->free_bytes, &total);
    nvmlDevice_t nvml_device;
    nvmlMemory_t memory = {0};
    const bool seen = nvml.nvmlDeviceGetHandleByUUID(device->uuid, &nvml_device) == NVML_SUCCESS &&
                      nvml.nvmlDeviceGetMemoryInfo(nvml_device, &memory) == NVML_SUCCESS;
    if (!seen) report("{\"event\":\"warning\",\"index\":%d,\"text\":\"NVML does not show this device\"}", index);
    report("{\"event\":\"device\",\"index\":%d,\"uuid\":\"%s\",\"name\":\"%s\",\"total_bytes\":%zu,\"free_bytes\":%zu,"
           "\"nvml_total_bytes\":%llu,\"nvml_free_bytes\":%llu}",
           index, device->uuid, name, total, device->free_bytes, memory.total, memory.free);
}

static CUresult allocate(struct device *device, size_t bytes)
{
    if (device->block_count == MAX_BLOCKS) return CUDA_ERROR_OUT_OF_MEMORY;
    const CUresult result = cuda.cuMemAlloc_v2(&device->blocks[device->block_count], bytes);
    if (result == CUDA_SUCCESS) device->block_count++;
    return result;
}

/* Takes up to `wanted` bytes: at once where that works, else in smaller and smaller pieces (a real card hands out 2 MiB at a time). */
static size_t fill(struct device *device, size_t wanted)
{
    size_t taken = 0, piece = wanted;
    while (piece > 0 && taken < wanted) {
        if (piece > wanted - taken) piece = wanted - taken;
        const CUresult result = allocate(device, piece);
        if (result == CUDA_SUCCESS)
            taken += piece;
        else if (result == CUDA_ERROR_OUT_OF_MEMORY)
            piece /= 2;
        else
            check("cuMemAlloc_v2", result);
    }
    return taken;
}

/* Tries one allocation that must fail. */
static int expect_refusal(int index, size_t bytes)
{
    const CUresult result = allocate(&devices[index], bytes);
    if (result == CUDA_SUCCESS) {
        report("{\"event\":\"NOT_refused\",\"index\":%d,\"bytes\":%zu}", index, bytes);
        return EXIT_NOT_REFUSED;
    }
    report("{\"event\":\"refused\",\"index\":%d,\"bytes\":%zu,\"error\":\"%s\"}", index, bytes, error_name(result));
    return result == CUDA_ERROR_OUT_OF_MEMORY ? 0 : EXIT_ERROR;
}

static int take_memory(int index)
{
    struct device *device = &devices[index];
    CALL(cuCtxSetCurrent, device->context);
    if (options.has_bytes && options.bytes > device->free_bytes) return expect_refusal(index, options.bytes);
    const size_t wanted = options.has_bytes ? options.bytes : device->free_bytes, taken = fill(device, wanted);
    report("{\"event\":\"allocated\",\"index\":%d,\"bytes\":%zu}", index, taken);
    return wanted < device->free_bytes ? 0 : expect_refusal(index, 1);
}

static void launch(struct device *device, int count)
{
    CALL(cuCtxSetCurrent, device->context);
    for (int i = 0; i < count; i++) CALL(cuLaunchKernel, device->kernel, 256, 1, 1, 256, 1, 1, 0, NULL, NULL, NULL);
    CALL(cuCtxSynchronize, );
}

static double now_s(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static void run(void)
{
    report("{\"event\":\"running\"}");
    const double end = now_s() + options.hold_s;
    while (!stop && (options.hold_s < 0 || now_s() < end)) {
        for (int i = 0; options.launch && i < device_count; i++) launch(&devices[i], 8);
        /* A tenth of a second between bursts keeps the processor almost idle and the card visibly busy. */
        nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL);
    }
}

static void close_devices(void)
{
    for (int i = 0; i < device_count; i++) {
        CALL(cuCtxSetCurrent, devices[i].context);
        while (devices[i].block_count > 0) CALL(cuMemFree_v2, devices[i].blocks[--devices[i].block_count]);
        CALL(cuDevicePrimaryCtxRelease_v2, i);
    }
}

static bool parse_options(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        char *end = NULL;
        if (strcmp(argv[i], "--once") == 0)
            options.once = true;
        else if (strcmp(argv[i], "--no-launch") == 0)
            options.launch = false;
        else if (strcmp(argv[i], "--bytes") == 0 && i + 1 < argc)
            options.has_bytes = true, options.bytes = strtoull(argv[++i], &end, 10);
        else if (strcmp(argv[i], "--hold-s") == 0 && i + 1 < argc)
            options.hold_s = strtod(argv[++i], &end);
        else
            return false;
        if (end != NULL && (*end != '\0' || end == argv[i])) return false;
    }
    return true;
}

int main(int argc, char **argv)
{
    if (!parse_options(argc, argv)) {
        fprintf(stderr, "usage: vgpu-probe [--once] [--bytes N] [--hold-s S] [--no-launch]\n");
        return EXIT_USAGE;
    }
    struct sigaction action = {.sa_handler = on_signal};
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGINT, &action, NULL);
    load_libraries();
    CALL(cuInit, 0);
    if (nvml.nvmlInit_v2() != NVML_SUCCESS) report("{\"event\":\"warning\",\"text\":\"NVML does not initialise\"}");
    CALL(cuDeviceGetCount, &device_count);
    if (device_count > MAX_DEVICES) device_count = MAX_DEVICES;
    for (int i = 0; i < device_count; i++) open_device(i);
    for (int i = 0; i < device_count; i++) {
        const int failure = take_memory(i);
        if (failure != 0) return failure;
    }
    for (int i = 0; options.launch && i < device_count; i++) launch(&devices[i], LAUNCHES);
    if (options.launch) report("{\"event\":\"launched\",\"kernels\":%d}", LAUNCHES * device_count);
    if (!options.once) run();
    close_devices();
    return 0;
}
