/* The calls that the configuration can make fail. */
#ifndef FAKEGPU_FAULT_CALL_H
#define FAKEGPU_FAULT_CALL_H

/* The places that can be made to fail; each stands for all functions that do that. */
#define FG_FAULT_CALLS(X)                                                         \
    X(FG_CALL_INIT, "cuInit")                                                     \
    X(FG_CALL_CONTEXT, "cuCtxCreate")                                             \
    X(FG_CALL_ALLOCATE, "cuMemAlloc")                                             \
    X(FG_CALL_LAUNCH, "cuLaunchKernel")                                           \
    X(FG_CALL_RECORD, "cuEventRecord")                                            \
    X(FG_CALL_GRAPH_LAUNCH, "cuGraphLaunch")                                      \
    X(FG_CALL_NVML_INIT, "nvmlInit")                                              \
    X(FG_CALL_NVML_MEMORY, "nvmlDeviceGetMemoryInfo")                             \
    X(FG_CALL_NVML_USE, "nvmlDeviceGetProcessUtilization")                        \
    X(FG_CALL_NVML_MAKE_GPU_INSTANCE, "nvmlDeviceCreateGpuInstance")              \
    X(FG_CALL_NVML_MAKE_COMPUTE_INSTANCE, "nvmlGpuInstanceCreateComputeInstance") \
    X(FG_CALL_NVML_DESTROY_INSTANCE, "nvmlGpuInstanceDestroy")

enum fg_call {
#define X(name, text) name,
    FG_FAULT_CALLS(X)
#undef X
        FG_CALLS
};

enum { FG_MAX_FAULTS = 16 };

struct fg_fault {
    enum fg_call call;
    int result, after, times; /* `after` good calls of the process, then `times` bad ones (0: all) */
};

enum { FG_MAX_GATES = 8 };

/* Calls on a card that wait until a file is there. Who waits leaves a file of that name with ".waiting" behind it. */
struct fg_gate {
    enum fg_call call;
    int card;
    char until[512];
};

/* The call of that name; FG_CALLS if it is none of them. */
enum fg_call fg_call_named(const char *name);

#endif
