#include <pthread.h>

#include "check.h"
#include "accounting/block_table.h"

enum { BLOCKS = 50000, THREADS = 4 };

static struct vgpu_block_table table;
static uint64_t forgotten;

static struct vgpu_block block(uint64_t key, const void *context)
{
    return (struct vgpu_block){.key = key, .bytes = key * 3, .owner = context, .device = (int16_t)(key % 16), .kind = VGPU_BLOCK_POINTER};
}

static void forget(const struct vgpu_block *gone) { forgotten += gone->bytes; }

static void put_and_take(void)
{
    struct vgpu_block replaced, taken, wanted;
    for (uint64_t key = 1; key <= BLOCKS; key++) {
        wanted = block(key * 512, NULL);
        CHECK(vgpu_block_table_put(&table, &wanted, &replaced) == 0);
    }
    wanted = block(512, NULL);
    wanted.bytes = 7;
    CHECK(vgpu_block_table_put(&table, &wanted, &replaced) == 1 && replaced.bytes == 1536);
    CHECK(!vgpu_block_table_take(&table, VGPU_BLOCK_OBJECT, 512, &taken)); /* another kind of number */
    for (uint64_t key = 2; key <= BLOCKS; key += 2)
        CHECK(vgpu_block_table_take(&table, VGPU_BLOCK_POINTER, key * 512, &taken) && taken.bytes == key * 1536);
    for (uint64_t key = 3; key <= BLOCKS; key += 2)
        CHECK(vgpu_block_table_take(&table, VGPU_BLOCK_POINTER, key * 512, &taken) && taken.bytes == key * 1536);
    CHECK(vgpu_block_table_take(&table, VGPU_BLOCK_POINTER, 512, &taken) && taken.bytes == 7);
    CHECK(!vgpu_block_table_take(&table, VGPU_BLOCK_POINTER, 512, &taken));
}

static void contexts(void)
{
    static const char one, two;
    struct vgpu_block replaced, taken, wanted;
    uint64_t expected = 0;
    for (uint64_t key = 1; key <= 1000; key++) {
        wanted = block(key, key % 3 == 0 ? &one : &two);
        if (key % 3 == 0) expected += wanted.bytes;
        CHECK(vgpu_block_table_put(&table, &wanted, &replaced) == 0);
    }
    struct vgpu_block younger = block(2000, &one);
    younger.age = 1; /* another owner, of the same number */
    CHECK(vgpu_block_table_put(&table, &younger, &replaced) == 0);
    vgpu_block_table_forget_owner(&table, &one, 0, forget);
    CHECK(forgotten == expected);
    CHECK(vgpu_block_table_take(&table, VGPU_BLOCK_POINTER, 2000, &taken) && taken.bytes == younger.bytes);
    for (uint64_t key = 1; key <= 1000; key++) CHECK(vgpu_block_table_take(&table, VGPU_BLOCK_POINTER, key, &taken) == (key % 3 != 0));
}

/* Another thread puts and takes, and one block in each shard, while a block is released, which may wait. */
static void forget_slowly(const struct vgpu_block *gone)
{
    struct vgpu_block replaced, taken;
    const struct vgpu_block again = block(gone->key, NULL);
    forgotten += gone->bytes;
    CHECK(vgpu_block_table_put(&table, &again, &replaced) == 0);
    CHECK(vgpu_block_table_take(&table, VGPU_BLOCK_POINTER, gone->key, &taken));
    if (gone->key % 2 == 0) CHECK(vgpu_block_table_put(&table, &again, &replaced) == 0); /* moves others */
}

static void released_without_a_lock(void)
{
    static const char one;
    struct vgpu_block replaced, taken, wanted;
    uint64_t expected = 0;
    forgotten = 0;
    for (uint64_t key = 1; key <= 1000; key++) {
        wanted = block(key * 256, &one);
        expected += wanted.bytes;
        CHECK(vgpu_block_table_put(&table, &wanted, &replaced) == 0);
    }
    vgpu_block_table_forget_owner(&table, &one, 0, forget_slowly);
    CHECK(forgotten == expected);
    for (uint64_t key = 1; key <= 1000; key++)
        CHECK(vgpu_block_table_take(&table, VGPU_BLOCK_POINTER, key * 256, &taken) && taken.owner == NULL);
}

static void passed_on(void)
{
    static int one, two;
    struct vgpu_block replaced, taken;
    struct vgpu_block old = block(4096, &one), younger = block(8192, &one), limit = block(12288, &one), others = block(16384, &two);
    younger.age = 1;
    limit.kind = VGPU_BLOCK_LIMIT;
    for (int i = 0; i < 4; i++)
        CHECK(vgpu_block_table_put(&table, (struct vgpu_block *[]){&old, &younger, &limit, &others}[i], &replaced) == 0);
    vgpu_block_table_pass_owner(&table, &one, 0, &two);
    CHECK(vgpu_block_table_take(&table, VGPU_BLOCK_POINTER, 4096, &taken) && taken.owner == &two && taken.bytes == old.bytes);
    CHECK(vgpu_block_table_take(&table, VGPU_BLOCK_POINTER, 8192, &taken) && taken.owner == &one);
    CHECK(vgpu_block_table_take(&table, VGPU_BLOCK_LIMIT, 12288, &taken) && taken.owner == &one);
    CHECK(vgpu_block_table_take(&table, VGPU_BLOCK_POINTER, 16384, &taken) && taken.owner == &two);
}

static void shared_by_handle(void)
{
    struct vgpu_block replaced, shared, taken;
    const struct vgpu_block wanted = block(4096, NULL);
    CHECK(!vgpu_block_table_export(&table, VGPU_BLOCK_POINTER, 4096, &shared));
    CHECK(vgpu_block_table_put(&table, &wanted, &replaced) == 0);
    CHECK(vgpu_block_table_export(&table, VGPU_BLOCK_POINTER, 4096, &shared) && shared.bytes == wanted.bytes);
    CHECK(!vgpu_block_table_export(&table, VGPU_BLOCK_POINTER, 4096, &shared)); /* counted once */
    CHECK(vgpu_block_table_take(&table, VGPU_BLOCK_POINTER, 4096, &taken) && taken.exported);
}

static void *work(void *argument)
{
    const uint64_t base = (uint64_t)(size_t)argument << 32;
    struct vgpu_block replaced, taken;
    for (uint64_t round = 0; round < 20; round++) {
        for (uint64_t key = 1; key <= 1000; key++) {
            const struct vgpu_block wanted = block(base + key, NULL);
            CHECK(vgpu_block_table_put(&table, &wanted, &replaced) == 0);
        }
        for (uint64_t key = 1; key <= 1000; key++) CHECK(vgpu_block_table_take(&table, VGPU_BLOCK_POINTER, base + key, &taken));
    }
    return NULL;
}

static void threads(void)
{
    pthread_t thread[THREADS];
    for (size_t i = 0; i < THREADS; i++) CHECK(pthread_create(&thread[i], NULL, work, (void *)(i + 1)) == 0);
    for (size_t i = 0; i < THREADS; i++) pthread_join(thread[i], NULL);
    for (size_t i = 0; i < VGPU_BLOCK_SHARDS; i++) CHECK(table.shards[i].count == 0);
}

int main(void)
{
    put_and_take();
    contexts();
    released_without_a_lock();
    passed_on();
    shared_by_handle();
    threads();
    return 0;
}
