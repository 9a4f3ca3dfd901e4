#include "probe_calls.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct cuda_calls cuda;
struct nvml_calls nvml;

void report(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    putchar('\n');
    fflush(stdout);
}

const char *error_name(CUresult error)
{
    const char *name = NULL;
    if (cuda.cuGetErrorName == NULL || cuda.cuGetErrorName(error, &name) != CUDA_SUCCESS || name == NULL) return "CUDA_ERROR_UNKNOWN";
    return name;
}

void check(const char *call, CUresult result)
{
    if (result == CUDA_SUCCESS) return;
    report("{\"event\":\"error\",\"call\":\"%s\",\"error\":\"%s\",\"code\":%d}", call, error_name(result), (int)result);
    exit(EXIT_ERROR);
}

static void *open_library(const char *name)
{
    void *library = dlopen(name, RTLD_NOW);
    if (library == NULL) {
        report("{\"event\":\"error\",\"call\":\"dlopen\",\"error\":\"%s cannot be loaded\"}", name);
        exit(EXIT_ERROR);
    }
    return library;
}

static void look_up(void *library, const char *name, void *slot)
{
    void *function = dlsym(library, name);
    if (function == NULL) {
        report("{\"event\":\"error\",\"call\":\"dlsym\",\"error\":\"%s is missing\"}", name);
        exit(EXIT_ERROR);
    }
    memcpy(slot, &function, sizeof function);
}

void load_libraries(void)
{
    void *library = open_library("libcuda.so.1");
#define X(name, parameters) look_up(library, #name, &cuda.name);
    CUDA_CALLS(X)
#undef X
    library = open_library("libnvidia-ml.so.1");
#define X(name, parameters) look_up(library, #name, &nvml.name);
    NVML_CALLS(X)
#undef X
}
