#include "memory/arena.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

/* Ranges are powers of two of at least 512 bytes (what CUDA aligns to). Address space is free of charge: 16 TiB if we may have them. */
enum { SMALLEST_SHIFT = 9, CLASSES = 40 };

struct free_range {
    uint64_t address;
    struct free_range *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t next_address, end_address;
static struct free_range *free_ranges[CLASSES];
static struct free_range *spare_nodes;

static int class_of(uint64_t bytes)
{
    int class = 0;
    while ((UINT64_C(1) << (class + SMALLEST_SHIFT)) < bytes && class < CLASSES - 1) class++;
    return class;
}

static void reserve_space(void)
{
    for (int shift = 44; shift >= 32 && next_address == 0; shift -= 2) {
        void *space = mmap(NULL, (size_t)1 << shift, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (space == MAP_FAILED) continue;
        next_address = (uint64_t)space;
        end_address = next_address + (UINT64_C(1) << shift);
    }
}

uint64_t fg_arena_take(uint64_t bytes)
{
    const int class = class_of(bytes);
    const uint64_t size = UINT64_C(1) << (class + SMALLEST_SHIFT);
    uint64_t address = 0;
    pthread_mutex_lock(&lock);
    if (next_address == 0) reserve_space();
    struct free_range *range = free_ranges[class];
    if (range != NULL) {
        free_ranges[class] = range->next;
        address = range->address;
        range->next = spare_nodes;
        spare_nodes = range;
    } else if (next_address != 0 && size <= end_address - next_address) {
        address = next_address;
        next_address += size;
    }
    pthread_mutex_unlock(&lock);
    return address;
}

void fg_arena_give(uint64_t address, uint64_t bytes, int touched)
{
    const int class = class_of(bytes);
    if (touched && bytes >= 4096) madvise((void *)((address + 4095) & ~UINT64_C(4095)), bytes & ~UINT64_C(4095), MADV_DONTNEED);
    pthread_mutex_lock(&lock);
    struct free_range *range = spare_nodes;
    if (range != NULL)
        spare_nodes = range->next;
    else
        range = malloc(sizeof *range);
    if (range != NULL) {
        *range = (struct free_range){.address = address, .next = free_ranges[class]};
        free_ranges[class] = range;
    }
    pthread_mutex_unlock(&lock);
}
