/* Pointer -> charge: which bytes of which device a pointer or handle of this process stands for.
 *
 * A sharded open-addressing hash table: put and take cost the same with ten blocks and with two hundred thousand.
 * Thread safe. Not usable from signal handlers. It lies in pages that a fork child finds empty (wipe_on_fork.h): a
 * shard's lock may have been held by a thread that the child does not have.
 */
#ifndef VGPU_BLOCK_TABLE_H
#define VGPU_BLOCK_TABLE_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/spin_lock.h"

enum { VGPU_BLOCK_SHARDS = 32 };

/* Addresses, objects (arrays, imports) and limits of contexts are separate number ranges: the same value may occur in
 * each. */
enum vgpu_block_kind { VGPU_BLOCK_NONE = 0, VGPU_BLOCK_POINTER = 1, VGPU_BLOCK_OBJECT = 2, VGPU_BLOCK_LIMIT = 3 };

struct vgpu_block {
    uint64_t key;
    uint64_t bytes;
    const void *owner; /* the CUDA context that it dies with, or the pool that it came from (then it outlives contexts); NULL: neither */
    uint32_t age;      /* see vgpu_block_table_forget_owner */
    int16_t device;    /* index in the region */
    uint8_t kind;      /* enum vgpu_block_kind */
    bool pooled : 1, exported : 1; /* from a pool; others may have it open */
};
/* Two to a cache line, and a shift finds them: with one byte more an allocation and its free take 4 ns longer. */
static_assert(sizeof(struct vgpu_block) == 32, "struct vgpu_block");

struct vgpu_block_shard {
    struct vgpu_spin_lock lock;
    struct vgpu_block *blocks; /* capacity entries, kind NONE = empty */
    size_t capacity, count;
};

struct vgpu_block_table {
    struct vgpu_block_shard shards[VGPU_BLOCK_SHARDS];
};

/* A zeroed table is empty and ready. */

/* Remembers `block`. 0: new. 1: the key was known already; *replaced is the old block, whose charge the caller must release.
 * -ENOMEM: not remembered. */
int vgpu_block_table_put(struct vgpu_block_table *table, const struct vgpu_block *block, struct vgpu_block *replaced);

/* Forgets the block of that key and hands it out. false: unknown key. */
bool vgpu_block_table_take(struct vgpu_block_table *table, enum vgpu_block_kind kind, uint64_t key, struct vgpu_block *taken);

/* Notes that others may have the block open. True: for the first time, and *block is it. */
bool vgpu_block_table_export(struct vgpu_block_table *table, enum vgpu_block_kind kind, uint64_t key, struct vgpu_block *block);

/* Forgets all blocks of `owner` that are no younger than `age` (numbers of 32 bits that go round): a driver may have
 * given the owner's number to another one since, whose blocks are younger. Calls forget(block) for each, with no
 * lock held: releasing one may wait for the lock of the region's file. */
void vgpu_block_table_forget_owner(struct vgpu_block_table *table, const void *owner, uint32_t age,
                                   void (*forget)(const struct vgpu_block *));

/* The same blocks become another owner's, but for limits. */
void vgpu_block_table_pass_owner(struct vgpu_block_table *table, const void *owner, uint32_t age, const void *to);

#endif
