/* Inside the stand-in libnvidia-ml.so.1: handles and the checks that all its functions share. */
#ifndef FAKEGPU_NVML_H
#define FAKEGPU_NVML_H

#include "nvml_abi.h"
#include "nvml/nvml_monitor_abi.h"
#include "state/account.h"
#include "machine/fault.h"

typedef struct nvmlBAR1Memory_st {
    unsigned long long total, free, used;
} nvmlBAR1Memory_t;

#define FG_EXPORT __attribute__((visibility("default")))
#define FN(symbol, parameters) FG_EXPORT nvmlReturn_t symbol parameters;
#include "nvml/nvml.def"
#undef FN
FG_EXPORT const char *nvmlErrorString(nvmlReturn_t error);

struct nvmlDevice_st {
    uint32_t tag;
    unsigned int index; /* among the visible cards */
    int card;
    int mig; /* 0: the card itself; else one more than the index of its MIG device */
};

struct fg_nvml {
    const struct fg_machine *machine; /* NULL: not initialised */
    struct fg_state *state;
};
extern struct fg_nvml fg_nvml;

/* Handles of the MIG devices of each card, filled when they are asked for. */
extern struct nvmlDevice_st fg_mig_handles[FG_MAX_DEVICES][FG_MAX_MIG];

/* NVML_SUCCESS if NVML is initialised and the handle is one of ours whose card is not lost. */
nvmlReturn_t fg_check(nvmlDevice_t device);

/* The handle of a card; NULL if it is not visible. */
nvmlDevice_t fg_handle_of_card(int card);

/* Of a handle that fg_check let pass: is it a MIG device's, and that device's name and memory. */
bool fg_is_mig(nvmlDevice_t device);
const char *fg_mig_uuid(nvmlDevice_t device);
uint64_t fg_mig_bytes(nvmlDevice_t device);

/* Copies a text into the caller's buffer, all of it or nothing. */
nvmlReturn_t fg_put_text(char *to, unsigned int length, const char *text);

void fg_fill_pci(const struct fg_card *card, nvmlPciInfo_t *pci);

/* Opens the body of a function that answers from one device: refuses bad handles, lost cards and a NULL output. */
#define ANSWER(device, output)                     \
    const nvmlReturn_t checked = fg_check(device); \
    if (checked != NVML_SUCCESS) return checked;   \
    if ((output) == NULL) return NVML_ERROR_INVALID_ARGUMENT

/* The same of a card itself: an instance of it has no such thing. */
#define ANSWER_OF_CARD(device, output) \
    ANSWER(device, output);            \
    if (fg_is_mig(device)) return NVML_ERROR_NOT_SUPPORTED

/* A quantity of the card (value.def), of 32 bits at most or of 64. "Not supported": it is unknown. */
nvmlReturn_t fg_value(nvmlDevice_t device, enum fg_value value, unsigned int *found);
nvmlReturn_t fg_long_value(nvmlDevice_t device, enum fg_value value, unsigned long long *found);

/* Milliwatts of a card that is so busy. */
static inline unsigned int fg_power_mw(unsigned int busy_percent)
{
    return 60000 + busy_percent * 3400; /* 60 W idle, 400 W at full load */
}

static inline const struct fg_card *fg_card(nvmlDevice_t device) { return &fg_nvml.machine->cards[device->card]; }

#endif
