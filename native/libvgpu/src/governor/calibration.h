/* The ratio between the GPU time that a process really had and the time that its launches appeared to take. Pure.
 *
 * A launch is timed from its begin to its end on the card. That is longer than what it used when other tenants had turns in between, or
 * when launches of several streams overlapped. NVML knows what the process really used, but late and coarsely. So NVML never steers: it
 * corrects the price of a launch by this ratio, and what was charged wrongly in the time of a sample is settled when the sample comes. No
 * number of SMs occurs anywhere.
 *
 * NVML's figure is the mean of the driver's own samples (of 200 ms on an H100) since the sample that was asked for last. While a process is
 * alone on the card it is exact. Beside others an H100 counts each of its samples as a whole for one of the processes that ran in it: the
 * figure is right in the mean of many samples, and one of them means nothing. That shows in figures that miss what is expected by much, now
 * to this side and now to that; then it is only the mean of the last minute that corrects prices, and nothing is settled.
 */
#ifndef VGPU_CALIBRATION_H
#define VGPU_CALIBRATION_H

#include <stdbool.h>
#include <stdint.h>

enum {
    /* Apparent time is kept for 12.8 s in steps of 50 ms: the oldest sample that NVML delivers is a few seconds old. */
    VGPU_CALIBRATION_STEPS = 256,
    VGPU_CALIBRATION_SAMPLES = 16
};
#define VGPU_CALIBRATION_STEP_NS INT64_C(50000000)

struct vgpu_usage_sample {
    int64_t begin_ns, end_ns; /* end 0: free */
    double least_ratio;       /* NVML rounds down */
    double newest_ns;         /* what the newest of the driver's own samples in it shows */
};

struct vgpu_calibration {
    struct {
        int64_t number;
        double apparent_ns, charged_ns;
    } steps[VGPU_CALIBRATION_STEPS];
    struct vgpu_usage_sample samples[VGPU_CALIBRATION_SAMPLES]; /* that wait until all launches of their time have ended */
    int64_t since_ns;            /* the first launch; what the process did before, such as making a context, are no launches */
    int64_t shortest_ns;         /* of all samples; 0: none so far */
    double error_ns, spread_ns;  /* of the last sample, and of samples in general */
    double noise;                /* how errors differ from one sample to the next (squared), in what they may */
    bool noisy;                  /* single samples mean nothing */
    double real_ns, apparent_ns, count; /* sums that forget; of samples the number */
    double ratio, doubt;         /* what is to be paid for a nanosecond, and how far that may be off */
};

void vgpu_calibration_start(struct vgpu_calibration *calibration);

/* Launches took `apparent_ns` in total between two moments, for which `charged_ns` were charged. */
void vgpu_calibration_took(struct vgpu_calibration *calibration, int64_t from_ns, int64_t until_ns, int64_t apparent_ns,
                           int64_t charged_ns);

/* NVML reports that this process kept the card busy for that percentage of the time between two moments; `begin_ns` 0: nobody knows since
 * when. `newest_percent`: the same of the driver's newest sample alone. 0 means nothing: a card that cannot measure it answers 0 as well.
 */
void vgpu_calibration_sample(struct vgpu_calibration *calibration, int64_t begin_ns, int64_t end_ns, unsigned int percent,
                             unsigned int newest_percent);

/* Compares what NVML reported with what launches took, for all time before `settled_ns`, and adjusts the ratio. Returns
 * the GPU time that was charged too little in that time (negative: too much). */
int64_t vgpu_calibration_settle(struct vgpu_calibration *calibration, int64_t settled_ns, int64_t longest_ns);

/* The price of a nanosecond of a launch that is shorter than a turn. Its timings are true with others on the card too, so only a ratio that
 * cannot be chance corrects it. */
double vgpu_calibration_short_ratio(const struct vgpu_calibration *calibration);

#endif
