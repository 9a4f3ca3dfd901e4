/* The file of the region: opening it, knowing it again, and an exclusive lock on it between processes, which the kernel
 * drops when its owner dies. */
#ifndef VGPU_REGION_FILE_H
#define VGPU_REGION_FILE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "vgpu_region.h"

/* The caller holds the process's lock, or the process has one thread. */
struct vgpu_region_file {
    struct vgpu_region *region; /* NULL: closed */
    int file;                   /* -1: memory of this process alone, after the file could not be used */
    dev_t device;               /* what distinguishes that file from any other */
    ino_t inode;
    char path[PATH_MAX];
    int device_count; /* that this process knows of */
};

/* Opens the file at `path`, made if absent, as a descriptor that is not one of the standard three: programs close these
 * and expect to get them again. Follows no symbolic link (-ELOOP) and waits for no pipe. -errno on failure. */
int vgpu_region_open_file(const char *path);

/* Whether the descriptor is still the file that was mapped. Programs close all descriptors (closefrom) and get our
 * number for a file of theirs, which is not ours to lock or to close. */
bool vgpu_region_file_is_ours(const struct vgpu_region_file *opened);

/* Takes the lock: a POSIX record lock on the file's first byte. It belongs to the process (threads share it: hold a
 * mutex) and not to its fork children, so that a child can never keep what its killed parent held. Closing any
 * descriptor of the file drops it. A descriptor that the program has closed is replaced. A region of this process alone
 * needs no lock, and answers 0. 0, -ETIMEDOUT after 5 s (an owner that is stopped, not dead), -ESTALE when the path has
 * become another file, or another -errno. */
int vgpu_region_lock(struct vgpu_region_file *opened);

void vgpu_region_unlock(const struct vgpu_region_file *opened);

/* Locks the byte that stands for a slot of this process, in the same way, for as long as the process lives: so processes of other pid
 * namespaces see that it does. Does nothing when the descriptor is not ours any more; the next lock opens another. */
void vgpu_region_hold_slot(const struct vgpu_region_file *opened, int slot);

/* Whether another process holds that slot's byte; true when that cannot be known. With the file lock. */
bool vgpu_region_slot_is_held(const struct vgpu_region_file *opened, int slot);

/* Blocks of the disk for a part of the file, so that a store into it cannot fail later. File systems that cannot
 * promise it (old NFS, FUSE) are believed. 0, or -errno. */
int vgpu_region_allocate(const struct vgpu_region_file *opened, size_t from, size_t bytes);

/* So many slots at once: most containers never have more processes, and on a tmpfs this is memory. */
enum { VGPU_SLOTS_AT_ONCE = 8 };

/* Slots 0..last of every bank that is in use, and what stands before them. */
int vgpu_region_allocate_slots(const struct vgpu_region_file *opened, int last);

#endif
