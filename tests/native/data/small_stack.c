/* Makes all its driver calls from a thread of 16 KiB, the least that POSIX allows here. Its argument is the first call that matters:
 *
 *   small_stack init|alloc|launch|nvml|child
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STACK_BYTES = 16384, LAUNCHES = 100, CHILD_FAILED = 5 };

static void *driver, *management;

static void *function(void *library, const char *name)
{
    void *found = dlsym(library, name);
    if (found == NULL) _exit(3);
    return found;
}

static void check(int result)
{
    if (result != 0) _exit(4);
}

static void open_device(void)
{
    void *context;
    check(((int (*)(unsigned))function(driver, "cuInit"))(0));
    check(((int (*)(void **, int))function(driver, "cuDevicePrimaryCtxRetain"))(&context, 0));
    check(((int (*)(void *))function(driver, "cuCtxSetCurrent"))(context));
}

static void allocate(void)
{
    uint64_t block;
    check(((int (*)(uint64_t *, size_t))function(driver, "cuMemAlloc_v2"))(&block, 1 << 20));
    check(((int (*)(uint64_t))function(driver, "cuMemFree_v2"))(block));
}

/* So many that the core limit asks NVML how busy the card is. */
static void launch(void)
{
    static const char image[] = ".version 6.0\n.target sm_50\n.visible .entry idle()\n{ ret; }\n";
    void *module, *kernel;
    check(((int (*)(void **, const void *))function(driver, "cuModuleLoadData"))(&module, image));
    check(((int (*)(void **, void *, const char *))function(driver, "cuModuleGetFunction"))(&kernel, module, "idle"));
    int (*start)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
    *(void **)&start = function(driver, "cuLaunchKernel");
    for (int i = 0; i < LAUNCHES; i++) check(start(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL));
    check(((int (*)(void))function(driver, "cuCtxSynchronize"))());
}

static void ask_management(void)
{
    uint64_t memory[3]; /* total, free, used */
    void *device;
    check(((int (*)(void))function(management, "nvmlInit_v2"))());
    check(((int (*)(unsigned, void **))function(management, "nvmlDeviceGetHandleByIndex_v2"))(0, &device));
    check(((int (*)(void *, void *))function(management, "nvmlDeviceGetMemoryInfo"))(device, memory));
}

static void *work(void *argument)
{
    const char *first = argument;
    if (strcmp(first, "nvml") == 0) ask_management();
    open_device();
    if (strcmp(first, "launch") == 0) launch();
    if (strcmp(first, "alloc") == 0) allocate();
    if (strcmp(first, "child") == 0) {
        int status;
        const pid_t child = fork();
        if (child == 0) {
            allocate();
            _exit(0);
        }
        if (waitpid(child, &status, 0) != child || status != 0) _exit(CHILD_FAILED);
    }
    return NULL;
}

int main(int count, char **argument)
{
    pthread_attr_t small;
    pthread_t thread;
    driver = dlopen("libcuda.so.1", RTLD_NOW);
    management = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (count != 2 || driver == NULL || management == NULL) return 2;
    pthread_attr_init(&small);
    if (pthread_attr_setstacksize(&small, STACK_BYTES) != 0 || pthread_create(&thread, &small, work, argument[1]) != 0) return 2;
    return pthread_join(thread, NULL);
}
