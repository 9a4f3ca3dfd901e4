#include "memory/instant.h"

#include <pthread.h>
#include <stdlib.h>

/* Blocks lie as far apart as a card puts them. */
static const uint64_t FIRST = UINT64_C(0x7f0000000000), STEP = 512;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t *free_ones; /* as many places as addresses were ever handed out: giving back needs no memory */
static uint64_t free_count, made, room;

static uint64_t take_new(void)
{
    if (made == room) {
        const uint64_t grown = room == 0 ? 1024 : 2 * room;
        uint64_t *moved = realloc(free_ones, grown * sizeof *moved);
        if (moved == NULL) return 0;
        free_ones = moved;
        room = grown;
    }
    return FIRST + STEP * made++;
}

uint64_t fg_instant_take(void)
{
    pthread_mutex_lock(&lock);
    const uint64_t address = free_count > 0 ? free_ones[--free_count] : take_new();
    pthread_mutex_unlock(&lock);
    return address;
}

void fg_instant_give(uint64_t address)
{
    pthread_mutex_lock(&lock);
    if (free_count < made) free_ones[free_count++] = address;
    pthread_mutex_unlock(&lock);
}
