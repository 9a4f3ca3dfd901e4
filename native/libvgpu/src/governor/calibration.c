#include "governor/calibration.h"

#include <string.h>

/* What is believed before the first sample of NVML weighs as much as 50 ms of launches; a sample is half forgotten
 * after 300 ms of launches. */
static const double PRIOR_NS = 50e6, MEMORY_NS = 300e6;
/* A fiftieth: so many tenants on one card are not seen. Four: NVML counts what we do not time, such as memsets. */
static const double LEAST = 0.02, MOST = 4;
/* A sample in which hardly anything was launched shows nothing of prices; what it used is owed all the same. */
static const double LEAST_BUSY = 0.02;
/* NVML reports whole hundredths, rounded down: half of one more is the best guess. But of one or two, as many processes
 * of a container have, the guess may be half of all; there our own figure counts, if it lies within what was rounded
 * away. */
static const double ROUNDED = 0.01, LITTLE = 0.025;

void vgpu_calibration_start(struct vgpu_calibration *calibration)
{
    memset(calibration, 0, sizeof *calibration);
    calibration->real_ns = calibration->apparent_ns = PRIOR_NS;
    calibration->ratio = 1;
}

void vgpu_calibration_took(struct vgpu_calibration *calibration, int64_t from_ns, int64_t until_ns, int64_t apparent_ns, int64_t charged_ns)
{
    const int64_t kept = VGPU_CALIBRATION_STEPS * VGPU_CALIBRATION_STEP_NS;
    if (until_ns <= from_ns) from_ns = until_ns - 1;
    if (from_ns < until_ns - kept) from_ns = until_ns - kept;
    const double length = (double)(until_ns - from_ns);
    while (from_ns < until_ns) {
        const int64_t number = from_ns / VGPU_CALIBRATION_STEP_NS, step_end = (number + 1) * VGPU_CALIBRATION_STEP_NS;
        const int64_t end = step_end < until_ns ? step_end : until_ns;
        const int at = (int)(number % VGPU_CALIBRATION_STEPS);
        if (calibration->steps[at].number != number) {
            calibration->steps[at].number = number;
            calibration->steps[at].apparent_ns = calibration->steps[at].charged_ns = 0;
        }
        calibration->steps[at].apparent_ns += (double)apparent_ns * (double)(end - from_ns) / length;
        calibration->steps[at].charged_ns += (double)charged_ns * (double)(end - from_ns) / length;
        from_ns = end;
    }
}

struct taken {
    double apparent_ns, charged_ns;
};

/* What launches took between two moments; steps that are cut count in part. */
static struct taken taken(const struct vgpu_calibration *calibration, int64_t from_ns, int64_t until_ns)
{
    struct taken sum = {0};
    while (from_ns < until_ns) {
        const int64_t number = from_ns / VGPU_CALIBRATION_STEP_NS, step_end = (number + 1) * VGPU_CALIBRATION_STEP_NS;
        const int64_t end = step_end < until_ns ? step_end : until_ns;
        const int at = (int)(number % VGPU_CALIBRATION_STEPS);
        const double part = (double)(end - from_ns) / (double)VGPU_CALIBRATION_STEP_NS;
        if (calibration->steps[at].number == number) {
            sum.apparent_ns += calibration->steps[at].apparent_ns * part;
            sum.charged_ns += calibration->steps[at].charged_ns * part;
        }
        from_ns = end;
    }
    return sum;
}

void vgpu_calibration_sample(struct vgpu_calibration *calibration, int64_t end_ns, unsigned int percent)
{
    /* Shorter gaps are one sample seen twice with another stamp; a longer one than before is a sample that was missed. */
    static const int64_t SHORTEST_NS = 50000000, LONGEST_NS = 1200000000;
    const int64_t gap = end_ns - calibration->last_end_ns;
    if (gap < SHORTEST_NS) return;
    if (calibration->last_end_ns != 0 && gap <= LONGEST_NS && (calibration->sample_ns == 0 || gap < calibration->sample_ns))
        calibration->sample_ns = gap;
    calibration->last_end_ns = end_ns;
    if (percent == 0 || calibration->sample_ns == 0) return;
    int oldest = 0;
    for (int i = 1; i < VGPU_CALIBRATION_SAMPLES; i++)
        if (calibration->samples[i].end_ns < calibration->samples[oldest].end_ns) oldest = i;
    calibration->samples[oldest].end_ns = end_ns;
    calibration->samples[oldest].least_ratio = percent / 100.0;
}

/* The share of a sample that `own` is the estimate of and NVML rounded down to `least`. */
static double unrounded(double own, double least)
{
    return least < LITTLE && own >= least && own <= least + ROUNDED ? own : least + ROUNDED / 2;
}

static void weigh(struct vgpu_calibration *calibration, double real_ns, double apparent_ns)
{
    const double kept = MEMORY_NS / (MEMORY_NS + apparent_ns);
    calibration->real_ns = calibration->real_ns * kept + real_ns;
    calibration->apparent_ns = calibration->apparent_ns * kept + apparent_ns;
    const double ratio = calibration->real_ns / calibration->apparent_ns;
    calibration->ratio = ratio < LEAST ? LEAST : ratio > MOST ? MOST : ratio;
}

int64_t vgpu_calibration_settle(struct vgpu_calibration *calibration, int64_t settled_ns)
{
    double owed_ns = 0;
    for (int i = 0; i < VGPU_CALIBRATION_SAMPLES; i++) {
        const int64_t end = calibration->samples[i].end_ns;
        if (end == 0 || end > settled_ns) continue;
        const double length = (double)calibration->sample_ns;
        const struct taken launches = taken(calibration, end - calibration->sample_ns, end);
        const double real_ns = unrounded(launches.apparent_ns * calibration->ratio / length, calibration->samples[i].least_ratio) * length;
        if (launches.apparent_ns > LEAST_BUSY * length) weigh(calibration, real_ns, launches.apparent_ns);
        owed_ns += real_ns - launches.charged_ns;
        calibration->samples[i].end_ns = 0;
    }
    return (int64_t)owed_ns;
}
