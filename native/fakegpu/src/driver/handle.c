#include "driver/handle.h"

#include <pthread.h>
#include <search.h>
#include <stdint.h>
#include <stdlib.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static void *handles; /* a search tree by address, under `lock` */

static int by_address(const void *a, const void *b) { return (uintptr_t)a<(uintptr_t)b ? -1 : (uintptr_t)a>(uintptr_t) b; }

bool fg_handle_begins(const void *handle)
{
    pthread_mutex_lock(&lock);
    const bool kept = tsearch(handle, &handles, by_address) != NULL;
    pthread_mutex_unlock(&lock);
    return kept;
}

void fg_handle_ends(const void *handle)
{
    pthread_mutex_lock(&lock);
    tdelete(handle, &handles, by_address);
    pthread_mutex_unlock(&lock);
}

bool fg_handle_lives(const void *handle)
{
    pthread_mutex_lock(&lock);
    const bool lives = tfind(handle, &handles, by_address) != NULL;
    pthread_mutex_unlock(&lock);
    return lives;
}
