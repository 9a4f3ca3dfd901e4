/* A client of the CUDA runtime: what it sees of its card, memory within and beyond that, content, and the memory back.
 *
 *   runtime_client LIBCUDART
 *
 * One line per call: its name, its cudaError_t, its answers. A runtime that does not start ends the list after cudaGetDeviceCount. Ends with
 * 0, or with 2 when the runtime can't be loaded.
 */
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_BYTES = 16 << 20, HOST_TO_DEVICE = 1, DEVICE_TO_HOST = 2 };

static void *runtime;

static void *function(const char *name)
{
    void *found = dlsym(runtime, name);
    if (found != NULL) return found;
    fprintf(stderr, "%s is not in this runtime\n", name);
    exit(2);
}

static size_t show_memory(void)
{
    size_t free_bytes = 0, total_bytes = 0;
    const int result = ((int (*)(size_t *, size_t *))function("cudaMemGetInfo"))(&free_bytes, &total_bytes);
    printf("cudaMemGetInfo %d %zu %zu\n", result, free_bytes, total_bytes);
    return free_bytes;
}

static void *allocate(size_t bytes)
{
    void *block = NULL;
    const int result = ((int (*)(void **, size_t))function("cudaMalloc"))(&block, bytes);
    printf("cudaMalloc %d %d\n", result, block != NULL);
    return block;
}

static void release(void *block) { printf("cudaFree %d\n", ((int (*)(void *))function("cudaFree"))(block)); }

/* Fills the block, writes its first half, and reads it back. */
static void round_trip(void *block)
{
    int (*copy)(void *, const void *, size_t, int);
    *(void **)&copy = function("cudaMemcpy");
    char *sent = malloc(BLOCK_BYTES / 2), *back = calloc(1, BLOCK_BYTES);
    if (sent == NULL || back == NULL) exit(2);
    for (int i = 0; i < BLOCK_BYTES / 2; i++) sent[i] = (char)(i * 31);
    printf("cudaMemset %d\n", ((int (*)(void *, int, size_t))function("cudaMemset"))(block, 0x5a, BLOCK_BYTES));
    printf("cudaMemcpy %d\n", copy(block, sent, BLOCK_BYTES / 2, HOST_TO_DEVICE));
    printf("cudaMemcpy %d", copy(back, block, BLOCK_BYTES, DEVICE_TO_HOST));
    size_t filled = 0;
    while (filled < BLOCK_BYTES / 2 && back[BLOCK_BYTES / 2 + filled] == 0x5a) filled++;
    printf(" %d %d\n", memcmp(sent, back, BLOCK_BYTES / 2) == 0, filled == BLOCK_BYTES / 2);
    free(sent);
    free(back);
}

static void show_whether_mapped(const char *library)
{
    char line[4352];
    int found = 0;
    FILE *maps = fopen("/proc/self/maps", "r");
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL) found = found || strstr(line, library) != NULL;
    printf("%s %d\n", library, found);
    if (maps != NULL) fclose(maps);
}

int main(int argc, char **argv)
{
    int driver_version = 0, count = 0;
    runtime = argc == 2 ? dlopen(argv[1], RTLD_NOW) : NULL;
    if (runtime == NULL) return fprintf(stderr, "%s\n", argc == 2 ? dlerror() : "usage: runtime_client LIBCUDART"), 2;
    int result = ((int (*)(int *))function("cudaDriverGetVersion"))(&driver_version);
    printf("cudaDriverGetVersion %d %d\n", result, driver_version);
    result = ((int (*)(int *))function("cudaGetDeviceCount"))(&count);
    printf("cudaGetDeviceCount %d %d\n", result, count);
    show_whether_mapped("libcuda.so.1");
    if (result != 0) return 0;
    if (dlsym(runtime, "recorded_lookups_found") != NULL) printf("lookups %d\n", ((int (*)(void))function("recorded_lookups_found"))());
    show_memory();
    void *block = allocate(BLOCK_BYTES);
    const size_t left = show_memory();
    round_trip(block);
    allocate(left + 1);
    release(block);
    show_memory();
    return 0;
}
