/* The ratio between the GPU time that a process really had and the time that its launches appeared to take. Pure.
 *
 * A launch is timed from its begin to its end on the card. That is longer than what it used when other tenants had turns in between, or
 * when launches of several streams overlapped. NVML knows what the process really used, but late, coarsely and with gaps. So NVML never
 * steers: it corrects the price of a launch by this ratio, and what was charged wrongly in the time of a sample is settled when the sample
 * comes. No number of SMs occurs anywhere.
 */
#ifndef VGPU_CALIBRATION_H
#define VGPU_CALIBRATION_H

#include <stdint.h>

enum {
    /* Apparent time is kept for 12.8 s in steps of 50 ms: the oldest sample that NVML delivers is a few seconds old. */
    VGPU_CALIBRATION_STEPS = 256,
    VGPU_CALIBRATION_SAMPLES = 16
};
#define VGPU_CALIBRATION_STEP_NS INT64_C(50000000)

struct vgpu_calibration {
    struct {
        int64_t number;
        double apparent_ns, charged_ns;
    } steps[VGPU_CALIBRATION_STEPS];
    struct {
        int64_t end_ns; /* 0: free */
        double least_ratio; /* NVML rounds down */
    } samples[VGPU_CALIBRATION_SAMPLES]; /* that wait until all launches of their time have ended */
    int64_t last_end_ns, sample_ns; /* 0: not known yet */
    double real_ns, apparent_ns;    /* sums that forget */
    double ratio;
};

void vgpu_calibration_start(struct vgpu_calibration *calibration);

/* Launches took `apparent_ns` in total between two moments, for which `charged_ns` were charged. */
void vgpu_calibration_took(struct vgpu_calibration *calibration, int64_t from_ns, int64_t until_ns, int64_t apparent_ns,
                           int64_t charged_ns);

/* NVML reports that this process kept the card busy for that percentage of a sample that ended at `end_ns`. 0 means
 * nothing: a card that cannot measure it answers 0 as well. */
void vgpu_calibration_sample(struct vgpu_calibration *calibration, int64_t end_ns, unsigned int percent);

/* Compares what NVML reported with what launches took, for all time before `settled_ns`, and adjusts the ratio. Returns
 * the GPU time that was charged too little in that time (negative: too much). */
int64_t vgpu_calibration_settle(struct vgpu_calibration *calibration, int64_t settled_ns);

#endif
