#include "governor/calibration.h"

#include <math.h>
#include <string.h>

/* What is believed before the first sample of NVML weighs as much as 50 ms of launches; a sample is half forgotten
 * after 300 ms of launches, or after 10 s where single samples mean nothing. */
static const double PRIOR_NS = 50e6, MEMORY_NS = 300e6, LONG_MEMORY_NS = 10e9;
/* Errors that differ by a fifth of a sample from one to the next are no errors of prices. */
static const double NOISE = 0.2, NOISE_KEPT = 0.8, NOISE_KEPT_LOWER = 0.97;
/* So many standard deviations are no chance. */
static const double SURE = 3;
/* A fiftieth: so many tenants on one card are not seen. Four: NVML counts what we do not time, such as memsets. */
static const double LEAST = 0.02, MOST = 4;
/* A sample in which hardly anything was launched shows nothing of prices; what it used is owed all the same. */
static const double LEAST_BUSY = 0.02;
/* NVML reports whole hundredths, rounded down: half of one more is the best guess. But of one or two, as many processes
 * of a container have, the guess may be half of all; there our own figure counts, if it lies within what was rounded
 * away; and where all of it was in one of the driver's samples, the figure of that one. */
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

void vgpu_calibration_sample(struct vgpu_calibration *calibration, int64_t begin_ns, int64_t end_ns, unsigned int percent,
                             unsigned int newest_percent)
{
    /* Shorter ones are one sample seen twice with another stamp; of longer ones it is no longer known what was launched. */
    static const int64_t SHORTEST_NS = 50000000, LONGEST_NS = (VGPU_CALIBRATION_STEPS - 16) * VGPU_CALIBRATION_STEP_NS;
    const int64_t length_ns = end_ns - begin_ns, before_ns = calibration->since_ns - begin_ns;
    if (before_ns > length_ns / 16 || length_ns < SHORTEST_NS || length_ns > LONGEST_NS || percent == 0) return;
    if (calibration->shortest_ns == 0 || length_ns < calibration->shortest_ns) calibration->shortest_ns = length_ns;
    int oldest = 0;
    for (int i = 1; i < VGPU_CALIBRATION_SAMPLES; i++)
        if (calibration->samples[i].end_ns < calibration->samples[oldest].end_ns) oldest = i;
    calibration->samples[oldest].begin_ns = begin_ns;
    calibration->samples[oldest].end_ns = end_ns;
    calibration->samples[oldest].least_ratio = percent / 100.0;
    calibration->samples[oldest].newest_ns = (newest_percent + 0.5) / 100 * (double)calibration->shortest_ns;
}

static bool is_rounded_to(double ratio, double least) { return ratio >= least && ratio <= least + ROUNDED; }

/* The share of a sample that NVML rounded down to `least`: of little, `own`, our own figure, or what the newest of the driver's samples
 * shows, if that can be all of it. */
static double unrounded(double least, double newest, double own)
{
    if (least >= LITTLE) return least + ROUNDED / 2;
    return is_rounded_to(own, least) ? own : is_rounded_to(newest, least) ? newest : least + ROUNDED / 2;
}

/* Whether single samples mean anything, now that one has come: errors of prices are the same in one sample as in the next, but for a launch
 * that lies in both. */
static void judge(struct vgpu_calibration *calibration, double error_ns, int64_t longest_ns)
{
    const double allowed_ns = NOISE * (double)calibration->shortest_ns + (double)longest_ns,
                 change = (error_ns - calibration->error_ns) / allowed_ns;
    calibration->error_ns = error_ns;
    const double squared = change * change / 2, kept = squared > calibration->noise ? NOISE_KEPT : NOISE_KEPT_LOWER;
    calibration->noise = calibration->noise * kept + squared * (1 - kept);
    calibration->noisy = calibration->noise > 1;
    calibration->spread_ns = sqrt(calibration->noise) * allowed_ns;
}

static void weigh(struct vgpu_calibration *calibration, double real_ns, double apparent_ns)
{
    const double memory_ns = calibration->noisy ? LONG_MEMORY_NS : MEMORY_NS, kept = memory_ns / (memory_ns + apparent_ns);
    calibration->real_ns = calibration->real_ns * kept + real_ns;
    calibration->apparent_ns = calibration->apparent_ns * kept + apparent_ns;
    calibration->count = calibration->count * kept + 1;
    const double ratio = calibration->real_ns / calibration->apparent_ns;
    calibration->ratio = ratio < LEAST ? LEAST : ratio > MOST ? MOST : ratio;
    calibration->doubt = calibration->spread_ns * sqrt(calibration->count) / calibration->apparent_ns;
}

/* One sample: the GPU time that was charged too little in its time. */
static double settle(struct vgpu_calibration *calibration, const struct vgpu_usage_sample *sample, int64_t longest_ns)
{
    const struct taken launches = taken(calibration, sample->begin_ns, sample->end_ns);
    const double length_ns = (double)(sample->end_ns - sample->begin_ns), own = launches.apparent_ns * calibration->ratio / length_ns;
    const double real_ns = unrounded(sample->least_ratio, sample->newest_ns / length_ns, own) * length_ns;
    judge(calibration, real_ns - launches.apparent_ns * calibration->ratio, longest_ns);
    if (launches.apparent_ns > LEAST_BUSY * length_ns) weigh(calibration, real_ns, launches.apparent_ns);
    return calibration->noisy ? 0 : real_ns - launches.charged_ns;
}

int64_t vgpu_calibration_settle(struct vgpu_calibration *calibration, int64_t settled_ns, int64_t longest_ns)
{
    double owed_ns = 0;
    for (int i = 0; i < VGPU_CALIBRATION_SAMPLES; i++) {
        struct vgpu_usage_sample *sample = &calibration->samples[i];
        if (sample->end_ns == 0 || sample->end_ns > settled_ns) continue;
        owed_ns += settle(calibration, sample, longest_ns);
        sample->end_ns = 0;
    }
    return (int64_t)owed_ns;
}

double vgpu_calibration_short_ratio(const struct vgpu_calibration *calibration)
{
    if (!calibration->noisy) return calibration->ratio;
    const double beyond = fabs(calibration->ratio - 1) - SURE * calibration->doubt;
    return beyond <= 0 ? 1 : calibration->ratio > 1 ? 1 + beyond : 1 - beyond;
}
