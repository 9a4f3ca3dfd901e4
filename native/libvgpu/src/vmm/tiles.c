#include "vmm/tiles.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/wipe_on_fork.h"
#include "vmm/handles.h"
#include "vmm/physical.h"

/* CUarraySparseSubresourceType; all else is taken as tiles of a level. */
enum { MIPTAIL = 1 };

/* A box of tiles of one level and layer, or a range of bytes of a mip tail. */
struct box {
    int type;
    unsigned int level, layer;
    uint64_t from[3], until[3];
};

struct tiles {
    uint64_t array;
    struct box box;
    struct vgpu_use *use;
    struct tiles *next;
};

/* By array and level: programs that stream textures have thousands of tiles. */
enum { CHAINS = 256 };
static struct VGPU_WIPED table {
    struct tiles *chain[CHAINS];
    size_t count;
} table;
VGPU_WIPE_ON_FORK(table);

static struct tiles **chain_of(uint64_t array, const struct box *box)
{
    return &table.chain[vgpu_chain_of(array + box->level * UINT64_C(31) + box->layer) % CHAINS];
}

static struct box box_of(const CUarrayMapInfo *info)
{
    unsigned int parts[8]; /* of a level: level, layer, three offsets, three extents; of a mip tail: layer, then offset and size */
    memcpy(parts, info->subresource, sizeof parts);
    if (info->subresourceType == MIPTAIL)
        return (struct box){.type = MIPTAIL,
                            .layer = parts[0],
                            .from = {info->subresource[1]},
                            .until = {info->subresource[1] + info->subresource[2], 0, 0}};
    struct box box = {.type = info->subresourceType, .level = parts[0], .layer = parts[1]};
    for (int i = 0; i < 3; i++) {
        box.from[i] = parts[2 + i];
        box.until[i] = (uint64_t)parts[2 + i] + parts[5 + i];
    }
    return box;
}

static bool covers(const struct box *outer, const struct box *inner)
{
    bool inside = outer->type == inner->type && outer->level == inner->level && outer->layer == inner->layer;
    for (int i = 0; i < 3; i++) inside = inside && outer->from[i] <= inner->from[i] && inner->until[i] <= outer->until[i];
    return inside;
}

/* Ends those of an array in a chain that lie in a box (NULL: all). */
static void end_in(struct tiles **chain, uint64_t array, const struct box *box)
{
    for (struct tiles **at = chain; *at != NULL;) {
        struct tiles *tiles = *at;
        if (tiles->array != array || (box != NULL && !covers(box, &tiles->box))) {
            at = &tiles->next;
            continue;
        }
        *at = tiles->next;
        table.count--;
        vgpu_use_end(tiles->use);
        free(tiles);
    }
}

static void add(uint64_t array, const struct box *box, struct vgpu_physical *memory)
{
    struct tiles **chain = chain_of(array, box);
    struct tiles *made = malloc(sizeof *made);
    struct vgpu_use *use = vgpu_use_new(array, 0, 0, memory);
    if (made == NULL || use == NULL) { /* counted for good, as nothing ends it */
        free(made);
        free(use);
        return;
    }
    *made = (struct tiles){.array = array, .box = *box, .use = use, .next = *chain};
    *chain = made;
    table.count++;
}

void vgpu_tiles_changed(const CUarrayMapInfo *changed, unsigned int count)
{
    vgpu_handles_lock();
    for (unsigned int i = 0; i < count; i++) {
        const uint64_t array = (uint64_t)(uintptr_t)changed[i].resource.array;
        const struct box box = box_of(&changed[i]);
        const bool maps = changed[i].memOperationType == CU_MEM_OPERATION_TYPE_MAP;
        struct vgpu_physical *memory = maps ? vgpu_handle_find(changed[i].memHandle) : NULL;
        end_in(chain_of(array, &box), array, &box);
        if (memory != NULL) add(array, &box, memory);
    }
    vgpu_physical_unlock();
}

void vgpu_tiles_gone(const void *array)
{
    vgpu_handles_lock();
    for (size_t i = 0; i < CHAINS && table.count != 0; i++) end_in(&table.chain[i], (uint64_t)(uintptr_t)array, NULL);
    vgpu_physical_unlock();
}
