/* Turns among the processes of one container that share a bucket. Pure, lock free, and indifferent to a member that was
 * killed.
 *
 * The process that has had least goes first: one that must wait marks itself with a time; one that could launch lets a
 * waiting one with less go before it. A time that is old belongs to somebody who is gone, or no longer wants anything.
 * (Start-time fair queueing: Goyal, Vin, Cheng, 1996. A process that comes back from idling starts level with the
 * others and has saved nothing up.)
 */
#ifndef VGPU_FAIRNESS_H
#define VGPU_FAIRNESS_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* One process's cells, in memory that all can write. */
struct vgpu_member {
    _Atomic uint64_t *had_ns;     /* GPU time charged so far */
    _Atomic uint64_t *waiting_at_ns; /* last time it marked itself as waiting; 0: it does not wait */
};

struct vgpu_members {
    int count;
    struct vgpu_member (*member)(const struct vgpu_members *members, int index); /* had_ns NULL: nobody there */
    void *context;
};

/* Whether `own` has to let another one go first. Marks it as waiting. */
bool vgpu_fairness_waits(const struct vgpu_members *members, struct vgpu_member own, int64_t now_ns);

/* `own` waits, but not for its turn to launch: others need not care. */
void vgpu_fairness_withdraw(struct vgpu_member own);

/* `own` was charged (negative: was given back). */
void vgpu_fairness_had(struct vgpu_member own, int64_t gpu_ns);

/* `own` starts after a pause: level with the least of those that wait. */
void vgpu_fairness_rejoin(const struct vgpu_members *members, struct vgpu_member own, int64_t now_ns);

#endif
