/* Inside the stand-in libcuda.so.1: the objects behind the handles, and what all its files share. */
#ifndef FAKEGPU_DRIVER_H
#define FAKEGPU_DRIVER_H

#include <pthread.h>
#include <stdbool.h>

#include "driver/driver_abi.h"
#include "state/account.h"
#include "machine/fault.h"

#define FG_EXPORT __attribute__((visibility("default")))
#define FN(symbol, base, version, flags, parameters) FG_EXPORT CUresult symbol parameters;
#include "driver/driver.def"
#undef FN

/* First member of every object behind a handle: a stray pointer, or a handle of another kind, is an error and not a crash. */
enum fg_tag {
    FG_CONTEXT = 0x46474358,
    FG_DESTROYED_CONTEXT = 0x46474344,
    FG_STREAM = 0x46475354,
    FG_EVENT = 0x46474556,
    FG_MODULE = 0x46474d4f,
    FG_FUNCTION = 0x46474655,
    FG_POOL = 0x4647504f,
    FG_PHYSICAL = 0x46475048,
    FG_MULTICAST = 0x46474d43,
    FG_ARRAY = 0x46474152,
    FG_EXTERNAL = 0x46474558,
    FG_GRAPH = 0x46474752,
    FG_NODE = 0x46474e4f,
    FG_EXEC = 0x46474745
};

/* CUstream_flags */
enum { CU_STREAM_NON_BLOCKING = 1 };

enum { FG_LIMITS = 10 };

struct CUctx_st {
    enum fg_tag tag;
    int device; /* CUDA ordinal */
    _Atomic int retained; /* how often a primary context is; how often another is attached to beyond its making */
    bool primary, green;
    int multiprocessors; /* of a green context; 0: all of the device */
    unsigned int flags;
    _Atomic int64_t last_mark; /* of everything launched in it */
    int64_t marks[FG_MAX_QUEUE_DEPTH]; /* of the last launches: a ring */
    uint64_t launches;
    size_t limits[FG_LIMITS]; /* CUlimit */
    unsigned int limits_set; /* a bit for each */
    uint64_t scan_blocking, scan_legacy; /* deferred.c's */
};

struct CUstream_st {
    enum fg_tag tag;
    CUcontext context;
    _Atomic int64_t last_mark;
    struct fg_capture *capture; /* that it takes part in; NULL: it executes */
    CUstream next_member;       /* of that capture */
    unsigned int flags;
    int priority;
    uint64_t scan; /* deferred.c's */
};

struct CUevent_st {
    enum fg_tag tag;
    CUcontext context; /* NULL: not recorded */
    CUstream stream;
    uint64_t frees; /* number of the last free before it (pool/held.h) */
    int64_t mark, recorded_ns;
    int64_t reached_ns; /* 0: not known to be */
    uint64_t ticket;    /* of the action that it comes after; 0: none */
    uint64_t capture_id; /* of the capture that it was recorded in last; 0: it was recorded outside of any */
    unsigned int flags;
};

/* A variable of a module: memory of its own, inside what the module takes. */
struct fg_variable {
    CUdeviceptr at;
    size_t bytes;
    bool managed;
    char name[128];
    struct fg_variable *next;
};

struct CUmod_st {
    enum fg_tag tag;
    char *image;
    int device;
    CUfunction functions; /* those that were asked for */
    struct fg_variable *variables;
    uint64_t lazy_bytes; /* of code that was loaded at a kernel's first launch */
};

enum { FG_FUNCTION_ATTRIBUTES = 16 };

struct CUfunc_st {
    enum fg_tag tag;
    CUmodule module;
    bool is_loaded;
    unsigned int block[3]; /* for launches that do not name one */
    char name[128];
    int attributes[FG_FUNCTION_ATTRIBUTES]; /* CUfunction_attribute, where one was set */
    unsigned int attributes_set;
    int parameter_count;
    CUfunction next; /* of its module */
};

struct CUmemPoolHandle_st {
    enum fg_tag tag;
    int device; /* -1: on the host */
    int allocation_type; /* as it was asked for; the default pool of a device: pinned, there */
    CUmemLocation place;
    uint64_t threshold, reserved, used, reserved_high, used_high; /* bytes */
    bool apart;    /* an allocation in one stream does not get what is held of another */
    uint64_t held; /* of those not used: freed, and not waited for yet (pool/held.h) */
};

/* A MIG instance that CUDA shows as a device. */
struct fg_instance {
    char uuid[96]; /* empty: the device is a whole card */
    uint64_t memory_bytes;
    int sm_count;
};

/* What the process has: guarded by `lock`. */
struct fg_driver {
    pthread_mutex_t lock;
    bool initialised;
    const struct fg_machine *machine;
    struct fg_state *state;
    int device_count;
    int card_of[FG_MAX_DEVICES]; /* CUDA ordinal -> card: visible ones, by CUDA_VISIBLE_DEVICES */
    struct fg_instance instance_of[FG_MAX_DEVICES];
    struct CUctx_st primary[FG_MAX_DEVICES];
    struct CUmemPoolHandle_st pool[FG_MAX_DEVICES];
    CUmemoryPool current_pool[FG_MAX_DEVICES];
};

extern struct fg_driver fg_driver;

/* Fills device_count, card_of and instance_of as CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER want it. */
void fg_choose_devices(struct fg_driver *driver);

/* Of the card, or of the instance that the device is. */
int fg_multiprocessors(CUdevice device);

/* CUDA_SUCCESS if the driver is initialised and the ordinal exists and its card is not lost. */
CUresult fg_check_device(CUdevice device);

/* Each card has that many domains. */
enum { FG_LOCALITY_DOMAINS = 2 };

/* The device whose memory is taken for an allocation of that type at a location, -1: the host's. Managed memory that names no device, and
 * what `future_location` names, is on the device of the current context, or on the first one. */
CUresult fg_device_at(int allocation_type, const CUmemLocation *place, int *device);

/* The calling thread's context; CUDA_ERROR_INVALID_CONTEXT without one, CUDA_ERROR_CONTEXT_IS_DESTROYED where it has ended and is still
 * current. Its card must not be lost. */
CUresult fg_current(CUcontext *context);

/* The card behind a context. */
int fg_card_of(const struct CUctx_st *context);

/* Marks the block that holds the range; false when no block does. */
bool fg_touch(CUdeviceptr at, size_t bytes);

/* Frees all memory that belongs to a context, or makes it another one's. */
void fg_free_context_memory(CUcontext context);
void fg_pass_context_memory(CUcontext from, CUcontext to);

/* Bytes that go back to a stream-ordered pool, or to the memory that graphs of a device share. */
void fg_pool_give(CUmemoryPool pool, uint64_t bytes);
void fg_graph_give(int device, uint64_t bytes);

/* While a stream records a graph, an allocation in it is a node and takes no memory. false: the stream records nothing. */
bool fg_capture_alloc(CUstream stream, CUdeviceptr *pointer, size_t bytes, int device, CUresult *result);
bool fg_capture_free(CUstream stream, CUdeviceptr pointer, CUresult *result);
bool fg_capture_graph(CUstream stream, CUgraph graph, CUresult *result);
/* Whether that stream, or any, records a graph. */
bool fg_is_recording(CUstream stream);
bool fg_any_recording(void);
/* The calling thread takes responsibility for what it calls while a stream is recorded (cuThreadExchangeStreamCaptureMode). */
bool fg_thread_is_careful(void);

/* Whether a card takes a launch of those dimensions. */
bool fg_launch_ok(unsigned int grid_x, unsigned int grid_y, unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                  unsigned int block_z);

/* Whether a stream handle is usable: NULL, the two special values 1 and 2, or one of ours. */
bool fg_stream_ok(CUstream stream);

/* Runs a kernel of that length in a stream of the context: queues it, and waits while too many wait already. */
void fg_run_kernel(CUcontext context, CUstream stream, int64_t length_ns);

/* The mark at which everything in that stream (NULL: in the context) ends. */
int64_t fg_stream_mark(CUcontext context, CUstream stream);

#endif
