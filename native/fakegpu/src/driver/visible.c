/* Which devices CUDA shows, and in which order: CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER (CUDA C++ Programming Guide, environment
 * variables; MIG User Guide, device identifiers). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver/driver.h"

/* The visible cards as CUDA counts them: the fastest first, unless CUDA_DEVICE_ORDER=PCI_BUS_ID asks for NVML's order. */
static void order_devices(const struct fg_machine *machine, int ordered[FG_MAX_DEVICES])
{
    const char *order = getenv("CUDA_DEVICE_ORDER");
    int count = 0;
    memcpy(ordered, machine->visible, sizeof machine->visible);
    if (machine->order_count == 0 || (order != NULL && strcmp(order, "PCI_BUS_ID") == 0)) return;
    for (int i = 0; i < machine->order_count; i++)
        for (int j = 0; j < machine->visible_count; j++)
            if (machine->visible[j] == machine->cuda_order[i]) ordered[count++] = machine->cuda_order[i];
}

static int multiprocessors_of(const struct fg_card *card, const struct fg_mig_device *device)
{
    return (int)fg_mig_multiprocessors(card, device->slices);
}

static uint64_t memory_of(const struct fg_mig_state *mig, const struct fg_mig_device *device)
{
    for (int i = 0; i < FG_MAX_MIG; i++)
        if (mig->instances[i].live && mig->instances[i].id == device->gpu_instance) return mig->instances[i].memory_bytes;
    return 0;
}

/* "MIG-<uuid>", or "MIG-<uuid of the card>/<GPU instance>/<compute instance>" as drivers before 470 name it. */
static bool names_instance(const struct fg_card *card, const struct fg_mig_device *device, const char *name)
{
    char older[160];
    snprintf(older, sizeof older, "MIG-%s/%u/%u", card->uuid, device->gpu_instance, device->compute_instance);
    return device->live && (strcasecmp(device->uuid, name) == 0 || strcasecmp(older, name) == 0);
}

/* The instance of that name becomes the only device: a process has one. With the lock of the state. */
static bool choose_instance(struct fg_driver *driver, const char *name)
{
    for (int at = 0; at < driver->machine->visible_count; at++) {
        const int card = driver->machine->visible[at];
        const struct fg_mig_state *mig = &driver->state->cards[card].mig;
        for (int i = 0; i < FG_MAX_MIG; i++) {
            if (!names_instance(&driver->machine->cards[card], &mig->devices[i], name)) continue;
            struct fg_instance *instance = &driver->instance_of[0];
            *instance = (struct fg_instance){.memory_bytes = memory_of(mig, &mig->devices[i]),
                                             .sm_count = multiprocessors_of(&driver->machine->cards[card], &mig->devices[i])};
            snprintf(instance->uuid, sizeof instance->uuid, "%s", mig->devices[i].uuid);
            driver->card_of[0] = card;
            driver->device_count = 1;
            return true;
        }
    }
    return false;
}

/* The list ends at the first entry that names no card; one that names a card twice shows none at all. */
static void choose_cards(struct fg_driver *driver, const int *ordered, char *list)
{
    char *rest;
    for (char *name = strtok_r(list, ", ", &rest); name != NULL; name = strtok_r(NULL, ", ", &rest)) {
        const int card = fg_card_named(driver->machine, ordered, driver->machine->visible_count, name);
        if (card < 0) return;
        for (int i = 0; i < driver->device_count; i++)
            if (driver->card_of[i] == card) {
                driver->device_count = 0;
                return;
            }
        driver->card_of[driver->device_count++] = card;
    }
}

void fg_choose_devices(struct fg_driver *driver)
{
    const char *wanted = getenv("CUDA_VISIBLE_DEVICES");
    int ordered[FG_MAX_DEVICES];
    order_devices(driver->machine, ordered);
    driver->device_count = 0;
    if (wanted == NULL) {
        memcpy(driver->card_of, ordered, sizeof driver->card_of);
        driver->device_count = driver->machine->visible_count;
        return;
    }
    char list[4096];
    snprintf(list, sizeof list, "%s", wanted);
    if (strncasecmp(list, "MIG-", 4) != 0) {
        choose_cards(driver, ordered, list);
        return;
    }
    list[strcspn(list, ", ")] = '\0';
    fg_lock(driver->state);
    (void)choose_instance(driver, list);
    fg_unlock(driver->state);
}
