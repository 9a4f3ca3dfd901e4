/* A library that is linked with the driver: its own dependencies come before everything else. As escape.c does. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
int cuMemAlloc_v2(uint64_t *, size_t), cuMemGetInfo_v2(size_t *, size_t *);
int attempt(void)
{
    void *context;
    uint64_t pointer;
    size_t left, total = 0, bytes;
    if (cuInit(0) != 0 || cuDevicePrimaryCtxRetain(&context, 0) != 0) return 1;
    cuCtxSetCurrent(context);
    int result = cuMemAlloc_v2(&pointer, 8 << 20);
    cuMemGetInfo_v2(&left, &total);
    do {
        printf("%d %zu\n", result, total);
        fflush(stdout);
        if (scanf("%zu", &bytes) != 1) return 0;
        result = cuMemAlloc_v2(&pointer, bytes);
    } while (1);
}
