/* How cards are cut: the profiles of the simulated cards, and the instances that are there, in the shared state.
 *
 * A card has 8 memory slices (4 as an A30). A GPU instance takes a run of them; its compute instances, which programs see as devices,
 * share its multiprocessors. Profiles and placements are those that NVIDIA's MIG user guide lists for A100, H100, H200 and A30.
 */
#ifndef FAKEGPU_MIG_H
#define FAKEGPU_MIG_H

#include <stdbool.h>
#include <stdint.h>

#include "card/card.h"

enum { FG_MIG_MEMORY_SLICES = 8 };

struct fg_mig_profile {
    unsigned int number; /* NVML_GPU_INSTANCE_PROFILE_... */
    unsigned int id;     /* what instances of it are made by */
    int slices;          /* of multiprocessors */
    unsigned int size;   /* in memory slices */
    int count;           /* how many fit on an empty card */
    unsigned int starts[FG_MAX_MIG];
};

struct fg_gpu_instance {
    bool live;
    bool busy; /* fakegpu-ctl marked it as used by a program: it can't be destroyed */
    unsigned int id, profile_id, start, size;
    int slices;
    uint64_t memory_bytes;
    uint32_t made; /* which of all that were ever made */
};

/* A compute instance. */
struct fg_mig_device {
    bool live;
    unsigned int gpu_instance, compute_instance;
    int slices;
    char uuid[96];
    uint32_t made;
};

struct fg_mig_state {
    uint64_t began_as; /* fg_mig_mark of the configuration */
    unsigned int mode, pending;
    uint32_t made; /* instances ever; no two have one name */
    struct fg_gpu_instance instances[FG_MAX_MIG];
    struct fg_mig_device devices[FG_MAX_MIG];
};

/* The profiles of a card by number, by id, and by slices (the first that has so many); NULL: it has no such one. */
const struct fg_mig_profile *fg_mig_profile(const struct fg_card *card, unsigned int number);
const struct fg_mig_profile *fg_mig_profile_of_id(const struct fg_card *card, unsigned int id);
const struct fg_mig_profile *fg_mig_profile_of_slices(const struct fg_card *card, int slices);

/* Memory and multiprocessors of an instance. */
uint64_t fg_mig_memory_bytes(const struct fg_card *card, const struct fg_mig_profile *profile);
unsigned int fg_mig_multiprocessors(const struct fg_card *card, int slices);

/* "1g.10gb". */
void fg_mig_name(const struct fg_card *card, const struct fg_mig_profile *profile, char text[32]);

/* The instances that the configuration gives the card. */
void fg_mig_begin(struct fg_mig_state *mig, const struct fg_card *card);
/* Equal for configurations that begin alike. */
uint64_t fg_mig_mark(const struct fg_card *card);

/* The memory slices [start, start + size) are nobody's. */
bool fg_mig_is_free(const struct fg_mig_state *mig, unsigned int start, unsigned int size);

#endif
