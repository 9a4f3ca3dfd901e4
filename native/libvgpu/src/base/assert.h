/* Assertions: the rules that the headers name for locks and accounts, checked in the sanitizer builds (VGPU_ASSERTIONS), where a program
 * that breaks it ends. In releases there is no code of them. Not for what a tenant or a driver may cause. */
#ifndef VGPU_ASSERT_H
#define VGPU_ASSERT_H

#include <stdbool.h>

/* The locks that this thread holds, kept for assertions only. With a spin lock no other lock is taken; `last`: with its mutex no other
 * mutex. */
struct vgpu_held_locks {
    int mutexes, spins;
    bool last;
};
extern _Thread_local struct vgpu_held_locks vgpu_held_locks;

#ifdef VGPU_ASSERTIONS
#include <stdio.h>
#include <stdlib.h>

#define VGPU_ASSERT(condition)                                                                 \
    do {                                                                                       \
        if (!(condition)) {                                                                    \
            fprintf(stderr, "libvgpu: %s:%d: assertion %s\n", __FILE__, __LINE__, #condition); \
            abort();                                                                           \
        }                                                                                      \
    } while (0)
/* A statement that only assertions need. */
#define VGPU_FOR_ASSERT(statement) statement
#else
#define VGPU_ASSERT(condition) ((void)sizeof(condition))
#define VGPU_FOR_ASSERT(statement) ((void)0)
#endif

#endif
