#include "pool/held.h"

#include <stdatomic.h>
#include <stdlib.h>

struct held {
    CUmemoryPool pool;
    CUcontext context;
    CUstream stream; /* NULL: a special one */
    uint64_t bytes, number;
    struct held *next;
};
static struct held *all; /* under fg_driver.lock */
static _Atomic uint64_t numbers;

static CUstream named(CUstream stream) { return (uintptr_t)stream <= 2 ? NULL : stream; }

uint64_t fg_held_next(void) { return atomic_fetch_add(&numbers, 1) + 1; }

uint64_t fg_held_last(void) { return atomic_load(&numbers); }

bool fg_held_add(CUmemoryPool pool, CUcontext context, CUstream stream, uint64_t bytes, uint64_t number)
{
    struct held *at = all;
    while (at != NULL && (at->pool != pool || at->context != context || at->stream != named(stream))) at = at->next;
    if (at == NULL) {
        at = malloc(sizeof *at);
        if (at == NULL) return false;
        *at = (struct held){.pool = pool, .context = context, .stream = named(stream), .next = all};
        all = at;
    }
    at->bytes += bytes;
    if (at->number < number) at->number = number;
    pool->held += bytes;
    return true;
}

uint64_t fg_held_of_others(CUmemoryPool pool, CUstream stream)
{
    uint64_t bytes = 0;
    for (const struct held *at = all; at != NULL; at = at->next)
        if (at->pool == pool && at->stream != named(stream)) bytes += at->bytes;
    return bytes;
}

static void drop(struct held **at)
{
    struct held *gone = *at;
    *at = gone->next;
    gone->pool->held -= gone->bytes;
    free(gone);
}

void fg_held_cut(CUmemoryPool pool, uint64_t bytes)
{
    for (struct held **at = &all; *at != NULL && pool->held > bytes;) {
        struct held *held = *at;
        const uint64_t beyond = pool->held - bytes;
        if (held->pool != pool) {
            at = &held->next;
        } else if (held->bytes > beyond) {
            held->bytes -= beyond;
            pool->held -= beyond;
        } else {
            drop(at);
        }
    }
}

CUmemoryPool fg_held_waited(CUcontext context, CUstream stream, uint64_t number)
{
    for (struct held **at = &all; *at != NULL; at = &(*at)->next) {
        CUmemoryPool pool = (*at)->pool;
        if ((*at)->context != context || (named(stream) != NULL && (*at)->stream != stream) || (*at)->number > number) continue;
        drop(at);
        return pool;
    }
    return NULL;
}
