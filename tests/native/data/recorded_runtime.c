/* A libcudart.so that asks the driver for what NVIDIA's runtimes 12.8 and 13.0 ask for, in the forms in which they ask (runtime-requests.txt,
 * named by RUNTIME_REQUESTS), and makes each call of the runtime with the functions found so: on the device's primary context and the legacy
 * default stream. NVIDIA's own runtime does not start on a driver that isn't NVIDIA's.
 */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REQUESTS = 1024, INITIALIZATION_ERROR = 3, HOST_TO_DEVICE = 1, PER_THREAD = 2 };

struct request {
    char name[64];
    int version, flags;
    void *found;
};

static struct request requests[REQUESTS];
static int request_count;
static int started; /* 0: not yet; 1: yes; -1: failed */

/* The newest version of a function of the legacy stream that was found. */
static void *function(const char *name)
{
    struct request *newest = NULL;
    for (struct request *each = requests; each < requests + request_count; each++)
        if (strcmp(each->name, name) == 0 && each->flags != PER_THREAD && each->found != NULL && (newest == NULL || each->version > newest->version))
            newest = each;
    if (newest == NULL) fprintf(stderr, "recorded_runtime: the driver has no %s\n", name);
    return newest != NULL ? newest->found : NULL;
}

static int look_everything_up(void *driver)
{
    char line[256];
    int (*get)(const char *, void **, int, uint64_t, int *);
    *(void **)&get = dlsym(driver, "cuGetProcAddress_v2");
    FILE *file = fopen(getenv("RUNTIME_REQUESTS"), "r");
    while (file != NULL && get != NULL && fgets(line, sizeof line, file) != NULL && request_count < REQUESTS) {
        struct request *next = &requests[request_count];
        char *rest = strchr(line, ' ');
        if (line[0] == '#' || rest == NULL || rest - line >= (long)sizeof next->name) continue;
        memcpy(next->name, line, (size_t)(rest - line));
        next->version = (int)strtol(rest, &rest, 10);
        next->flags = (int)strtol(rest, NULL, 10);
        if (get(next->name, &next->found, next->version, (uint64_t)next->flags, NULL) != 0) next->found = NULL;
        request_count++;
    }
    if (file != NULL) fclose(file);
    return request_count > 0;
}

static int start(void)
{
    int (*init)(unsigned), (*retain)(void **, int), (*set)(void *);
    void *context, *driver;
    if (started != 0) return started > 0;
    started = -1;
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == NULL || !look_everything_up(driver)) return 0;
    *(void **)&init = function("cuInit");
    *(void **)&retain = function("cuDevicePrimaryCtxRetain");
    *(void **)&set = function("cuCtxSetCurrent");
    if (init == NULL || retain == NULL || set == NULL) return 0;
    if (init(0) != 0 || retain(&context, 0) != 0 || set(context) != 0) return 0;
    started = 1;
    return 1;
}

/* Calls a function of the driver; CUresult and cudaError_t have the same number for what is asked here (success, out of memory). */
#define CALL(type, name, ...)                                                       \
    do {                                                                            \
        int(*call) type = NULL;                                                     \
        if (start()) *(void **)&call = function(name);                              \
        return call != NULL ? call(__VA_ARGS__) : INITIALIZATION_ERROR;             \
    } while (0)

int cudaDriverGetVersion(int *version) { CALL((int *), "cuDriverGetVersion", version); }
int cudaGetDeviceCount(int *count) { CALL((int *), "cuDeviceGetCount", count); }
int cudaMemGetInfo(size_t *left, size_t *total) { CALL((size_t *, size_t *), "cuMemGetInfo", left, total); }
int cudaMalloc(void **block, size_t bytes) { CALL((void **, size_t), "cuMemAlloc", block, bytes); }
int cudaFree(void *block) { CALL((void *), "cuMemFree", block); }
int cudaMemset(void *block, int value, size_t bytes) { CALL((void *, unsigned char, size_t), "cuMemsetD8", block, (unsigned char)value, bytes); }

int cudaMemcpy(void *to, const void *from, size_t bytes, int kind)
{
    CALL((void *, const void *, size_t), kind == HOST_TO_DEVICE ? "cuMemcpyHtoD" : "cuMemcpyDtoH", to, from, bytes);
}

int recorded_lookups_found(void)
{
    int found = 0;
    if (!start()) return -1;
    for (int i = 0; i < request_count; i++) found += requests[i].found != NULL;
    return found;
}
