#include "accounting/block_table.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* 64 blocks of 32 bytes are half a page per shard; most processes never grow beyond. */
enum { FIRST_CAPACITY = 64 };

/* Blocks that lie side by side on the card lie side by side here: a driver hands out small blocks one after the other, and each would
 * cost a cache line and a page of its own. 32 granules of the 256 bytes to which every driver aligns are a neighbourhood. Handles of
 * objects may be any numbers and have none. */
enum { GRANULE_BITS = 8, NEIGHBOUR_BITS = 5 };

/* Of the neighbourhood, or of the handle. They differ in few middle bits; a multiplicative hash (2^64 / golden ratio) spreads them. */
static uint64_t hash_of(unsigned int kind, uint64_t key)
{
    const uint64_t number = kind == VGPU_BLOCK_POINTER ? key >> (GRANULE_BITS + NEIGHBOUR_BITS) : key;
    const uint64_t hash = (number ^ ((uint64_t)kind << 60)) * UINT64_C(0x9E3779B97F4A7C15);
    return hash ^ (hash >> 32);
}

/* Where the search for a key begins, in a table of mask + 1 places. */
static size_t home_of(unsigned int kind, uint64_t key, size_t mask)
{
    const uint64_t hash = hash_of(kind, key);
    if (kind != VGPU_BLOCK_POINTER) return hash & mask;
    return ((hash << NEIGHBOUR_BITS) | ((key >> GRANULE_BITS) & ((1U << NEIGHBOUR_BITS) - 1))) & mask;
}

static struct vgpu_block_shard *shard_of(struct vgpu_block_table *table, uint64_t hash)
{
    /* The top bits: places within a shard come from the low ones, and the two must not overlap. */
    return &table->shards[(hash >> 59) % VGPU_BLOCK_SHARDS];
}

/* Index of the block of that key, or of the empty place where it belongs. The table is never full. */
static size_t find(const struct vgpu_block_shard *shard, unsigned int kind, uint64_t key)
{
    size_t at = home_of(kind, key, shard->capacity - 1);
    while (shard->blocks[at].kind != VGPU_BLOCK_NONE && (shard->blocks[at].kind != kind || shard->blocks[at].key != key))
        at = (at + 1) & (shard->capacity - 1);
    return at;
}

__attribute__((noinline, cold)) static int grow(struct vgpu_block_shard *shard)
{
    struct vgpu_block_shard grown = {.capacity = shard->capacity == 0 ? FIRST_CAPACITY : shard->capacity * 2};
    grown.blocks = calloc(grown.capacity, sizeof *grown.blocks);
    if (grown.blocks == NULL) return -ENOMEM;
    for (size_t i = 0; i < shard->capacity; i++) {
        const struct vgpu_block *block = &shard->blocks[i];
        if (block->kind != VGPU_BLOCK_NONE) grown.blocks[find(&grown, block->kind, block->key)] = *block;
    }
    free(shard->blocks);
    shard->blocks = grown.blocks;
    shard->capacity = grown.capacity;
    return 0;
}

static inline int make_room(struct vgpu_block_shard *shard)
{
    /* At most half full: to put one looks at two and a half places on average, to take at as many; at three quarters it would be eight. */
    return shard->capacity != 0 && (shard->count + 1) * 2 <= shard->capacity ? 0 : grow(shard);
}

/* Empties place `at` and moves later blocks of the same run back, so that no tombstones are needed. */
static void remove_at(struct vgpu_block_shard *shard, size_t at)
{
    const size_t mask = shard->capacity - 1;
    size_t hole = at;
    for (size_t next = (at + 1) & mask; shard->blocks[next].kind != VGPU_BLOCK_NONE; next = (next + 1) & mask) {
        const size_t home = home_of(shard->blocks[next].kind, shard->blocks[next].key, mask);
        if (((next - home) & mask) < ((next - hole) & mask)) continue; /* it would land before its home */
        shard->blocks[hole] = shard->blocks[next];
        hole = next;
    }
    shard->blocks[hole].kind = VGPU_BLOCK_NONE;
    shard->count--;
}

int vgpu_block_table_put(struct vgpu_block_table *table, const struct vgpu_block *block, struct vgpu_block *replaced)
{
    struct vgpu_block_shard *shard = shard_of(table, hash_of(block->kind, block->key));
    vgpu_spin_lock(&shard->lock);
    int result = make_room(shard);
    if (result == 0) {
        struct vgpu_block *place = &shard->blocks[find(shard, block->kind, block->key)];
        if (place->kind != VGPU_BLOCK_NONE) {
            *replaced = *place;
            result = 1;
        } else {
            shard->count++;
        }
        *place = *block;
    }
    VGPU_ASSERT(shard->count * 2 <= shard->capacity);
    vgpu_spin_unlock(&shard->lock);
    return result;
}

bool vgpu_block_table_take(struct vgpu_block_table *table, enum vgpu_block_kind kind, uint64_t key, struct vgpu_block *taken)
{
    struct vgpu_block_shard *shard = shard_of(table, hash_of(kind, key));
    bool known = false;
    vgpu_spin_lock(&shard->lock);
    if (shard->count != 0) {
        const size_t at = find(shard, kind, key);
        known = shard->blocks[at].kind != VGPU_BLOCK_NONE;
        if (known) {
            *taken = shard->blocks[at];
            remove_at(shard, at);
        }
    }
    vgpu_spin_unlock(&shard->lock);
    return known;
}

bool vgpu_block_table_export(struct vgpu_block_table *table, enum vgpu_block_kind kind, uint64_t key, struct vgpu_block *block)
{
    struct vgpu_block_shard *shard = shard_of(table, hash_of(kind, key));
    bool noted = false;
    vgpu_spin_lock(&shard->lock);
    if (shard->count != 0) {
        struct vgpu_block *found = &shard->blocks[find(shard, kind, key)];
        noted = found->kind != VGPU_BLOCK_NONE && !found->exported;
        if (noted) {
            found->exported = true;
            *block = *found;
        }
    }
    vgpu_spin_unlock(&shard->lock);
    return noted;
}

static bool is_of(const struct vgpu_block *block, const void *owner, uint32_t age)
{
    return block->kind != VGPU_BLOCK_NONE && block->owner == owner && (int32_t)(block->age - age) <= 0;
}

/* Takes out blocks of an owner from a place on, `room` at most. With the lock. */
static size_t take_of(struct vgpu_block_shard *shard, const void *owner, uint32_t age, size_t *at, struct vgpu_block *taken, size_t room)
{
    size_t count = 0;
    while (*at < shard->capacity && count < room) {
        if (is_of(&shard->blocks[*at], owner, age)) {
            taken[count++] = shard->blocks[*at];
            /* A later block of the run may move to this place, so look at it again. None moves to a place already passed. */
            remove_at(shard, *at);
        } else {
            (*at)++;
        }
    }
    return count;
}

/* Whether there were any. */
static bool forget_in_shard(struct vgpu_block_shard *shard, const void *owner, uint32_t age, void (*forget)(const struct vgpu_block *))
{
    enum { ROOM = 16 }; /* half a KiB of the stack */
    struct vgpu_block taken[ROOM];
    size_t at = 0, count;
    bool any = false;
    do {
        vgpu_spin_lock(&shard->lock);
        count = take_of(shard, owner, age, &at, taken, ROOM);
        vgpu_spin_unlock(&shard->lock);
        for (size_t i = 0; i < count; i++) forget(&taken[i]);
        any = any || count > 0;
    } while (count == ROOM);
    return any;
}

void vgpu_block_table_pass_owner(struct vgpu_block_table *table, const void *owner, uint32_t age, const void *to)
{
    for (size_t i = 0; i < VGPU_BLOCK_SHARDS; i++) {
        struct vgpu_block_shard *shard = &table->shards[i];
        vgpu_spin_lock(&shard->lock);
        for (size_t at = 0; at < shard->capacity; at++)
            if (shard->blocks[at].kind != VGPU_BLOCK_LIMIT && is_of(&shard->blocks[at], owner, age)) shard->blocks[at].owner = to;
        vgpu_spin_unlock(&shard->lock);
    }
}

void vgpu_block_table_forget_owner(struct vgpu_block_table *table, const void *owner, uint32_t age,
                                   void (*forget)(const struct vgpu_block *))
{
    /* What others put and take between two batches moves blocks to places already passed: until a whole round finds none. */
    for (size_t i = 0; i < VGPU_BLOCK_SHARDS; i++)
        while (forget_in_shard(&table->shards[i], owner, age, forget)) {
        }
}
