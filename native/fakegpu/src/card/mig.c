#include "card/mig.h"

#include <stdio.h>
#include <string.h>

static const struct fg_mig_profile SEVEN[] = {
    {.number = 0, .id = 19, .slices = 1, .size = 1, .count = 7, .starts = {0, 1, 2, 3, 4, 5, 6}},
    {.number = 1, .id = 14, .slices = 2, .size = 2, .count = 3, .starts = {0, 2, 4}},
    {.number = 2, .id = 9, .slices = 3, .size = 4, .count = 2, .starts = {0, 4}},
    {.number = 3, .id = 5, .slices = 4, .size = 4, .count = 1, .starts = {0}},
    {.number = 4, .id = 0, .slices = 7, .size = 8, .count = 1, .starts = {0}},
    {.number = 9, .id = 15, .slices = 1, .size = 2, .count = 4, .starts = {0, 2, 4, 6}}, /* REV2: a slice with twice the memory */
};
static const struct fg_mig_profile FOUR[] = {
    {.number = 0, .id = 14, .slices = 1, .size = 1, .count = 4, .starts = {0, 1, 2, 3}},
    {.number = 1, .id = 5, .slices = 2, .size = 2, .count = 2, .starts = {0, 2}},
    {.number = 3, .id = 0, .slices = 4, .size = 4, .count = 1, .starts = {0}},
};

static const struct fg_mig_profile *profiles_of(const struct fg_card *card, int *count)
{
    *count = card->mig_slices == 4 ? sizeof FOUR / sizeof *FOUR : sizeof SEVEN / sizeof *SEVEN;
    return card->mig_slices == 4 ? FOUR : SEVEN;
}

const struct fg_mig_profile *fg_mig_profile(const struct fg_card *card, unsigned int number)
{
    int count;
    const struct fg_mig_profile *profiles = profiles_of(card, &count);
    for (int i = 0; i < count; i++)
        if (profiles[i].number == number) return &profiles[i];
    return NULL;
}

const struct fg_mig_profile *fg_mig_profile_of_id(const struct fg_card *card, unsigned int id)
{
    int count;
    const struct fg_mig_profile *profiles = profiles_of(card, &count);
    for (int i = 0; i < count; i++)
        if (profiles[i].id == id) return &profiles[i];
    return NULL;
}

const struct fg_mig_profile *fg_mig_profile_of_slices(const struct fg_card *card, int slices)
{
    int count;
    const struct fg_mig_profile *profiles = profiles_of(card, &count);
    for (int i = 0; i < count; i++)
        if (profiles[i].slices == slices) return &profiles[i];
    return NULL;
}

static unsigned int memory_slices(const struct fg_card *card) { return card->mig_slices == 4 ? 4 : FG_MIG_MEMORY_SLICES; }

uint64_t fg_mig_memory_bytes(const struct fg_card *card, const struct fg_mig_profile *profile)
{
    static const uint64_t RESERVED_BYTES = 512ull << 20; /* an A100 with 80 GB has 9728 MiB of 10240, 19968 of 20480 */
    const uint64_t share = card->memory_bytes / memory_slices(card) * profile->size;
    return share > 2 * RESERVED_BYTES ? share - RESERVED_BYTES : share;
}

/* Slices hold multiprocessors in pairs: 14 of the 108 of an A100; the largest profile has what is usable of all. */
unsigned int fg_mig_multiprocessors(const struct fg_card *card, int slices)
{
    const int per_slice = card->sm_count / card->mig_slices / 2 * 2;
    return (unsigned int)((per_slice > 0 ? per_slice : 1) * slices);
}

void fg_mig_name(const struct fg_card *card, const struct fg_mig_profile *profile, char text[32])
{
    const uint64_t card_gib = (card->memory_bytes + (1ull << 30) - 1) >> 30;
    snprintf(text, 32, "%dg.%llugb", profile->slices,
             (unsigned long long)((card_gib * profile->size + memory_slices(card) / 2) / memory_slices(card)));
}

static void begin_instance(struct fg_mig_state *mig, const struct fg_card *card, const struct fg_mig *from)
{
    for (int i = 0; i < FG_MAX_MIG; i++) {
        struct fg_gpu_instance *instance = &mig->instances[i];
        if (instance->live && instance->id == from->gpu_instance) return;
        if (instance->live) continue;
        const struct fg_mig_profile *profile = fg_mig_profile_of_slices(card, from->gpu_slices);
        *instance = (struct fg_gpu_instance){.live = true,
                                             .id = from->gpu_instance,
                                             .profile_id = profile->id,
                                             .start = from->start,
                                             .size = profile->size,
                                             .slices = profile->slices,
                                             .memory_bytes = from->memory_bytes,
                                             .made = ++mig->made};
        return;
    }
}

void fg_mig_begin(struct fg_mig_state *mig, const struct fg_card *card)
{
    mig->mode = mig->pending = card->mig_mode;
    mig->began_as = fg_mig_mark(card);
    for (int i = 0; i < card->mig_count; i++) {
        const struct fg_mig *from = &card->migs[i];
        struct fg_mig_device *device = &mig->devices[i];
        begin_instance(mig, card, from);
        *device = (struct fg_mig_device){.live = true,
                                         .gpu_instance = from->gpu_instance,
                                         .compute_instance = from->compute_instance,
                                         .slices = from->compute_slices,
                                         .made = ++mig->made};
        snprintf(device->uuid, sizeof device->uuid, "%s", from->uuid);
    }
}

uint64_t fg_mig_mark(const struct fg_card *card)
{
    uint64_t mark = 0xcbf29ce484222325u ^ card->mig_mode ^ (uint64_t)card->mig_slices << 8 ^ (uint64_t)card->mig_count << 16;
    for (int i = 0; i < card->mig_count; i++) {
        const struct fg_mig *mig = &card->migs[i];
        for (const char *at = mig->uuid; *at != '\0'; at++) mark = (mark ^ (unsigned char)*at) * 0x100000001b3u;
        mark = (mark ^ mig->start ^ (uint64_t)mig->gpu_slices << 8 ^ (uint64_t)mig->gpu_instance << 16) * 0x100000001b3u;
    }
    return mark;
}

bool fg_mig_is_free(const struct fg_mig_state *mig, unsigned int start, unsigned int size)
{
    for (int i = 0; i < FG_MAX_MIG; i++) {
        const struct fg_gpu_instance *other = &mig->instances[i];
        if (other->live && start < other->start + other->size && other->start < start + size) return false;
    }
    return true;
}
