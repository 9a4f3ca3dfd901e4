/* SPDX-License-Identifier: Apache-2.0
 * The root of a container; what it is made of is in root.h. */
#include "root.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shadow.h"

static int write_file(const char *path, const char *text)
{
    int error = 0, fd = open(path, O_WRONLY | O_CLOEXEC);

    if (fd < 0) return -errno;
    if (write(fd, text, strlen(text)) < 0) error = -errno;
    close(fd);
    return error;
}

/* A bind can only be made read-only by a second call, which must repeat the flags that a user
 * namespace may not clear (mount_namespaces(7)). */
static int make_read_only(const char *path)
{
    struct statvfs status;
    unsigned long flags = MS_BIND | MS_REMOUNT | MS_RDONLY;

    if (statvfs(path, &status) < 0) return -errno;
    flags |= status.f_flag & ST_NOSUID ? MS_NOSUID : 0;
    flags |= status.f_flag & ST_NODEV ? MS_NODEV : 0;
    flags |= status.f_flag & ST_NOEXEC ? MS_NOEXEC : 0;
    flags |= status.f_flag & ST_NOATIME ? MS_NOATIME : 0;
    flags |= status.f_flag & ST_NODIRATIME ? MS_NODIRATIME : 0;
    flags |= status.f_flag & ST_RELATIME ? MS_RELATIME : 0;
    return mount(NULL, path, NULL, flags, NULL) < 0 ? -errno : 0;
}

static int apply_mount(struct root *root, const struct launch_mount *mount_)
{
    char target[PATH_MAX], at[PATH_MAX];
    struct stat status;
    int error;

    if (stat(mount_->source, &status) < 0) return root_fail(root, -errno, "mount source %s of %s", mount_->source, mount_->target);
    if (strlen(mount_->target) >= sizeof(target)) return root_fail(root, -ENAMETOOLONG, "mount target %s", mount_->target);
    strcpy(target, mount_->target);
    error = shadow_target(root, target, S_ISDIR(status.st_mode));
    if (error < 0) return error;
    if (path_join(at, root->path, target + 1) < 0) return root_fail(root, -ENAMETOOLONG, "mount target %s", target);
    if (mount(mount_->source, at, NULL, MS_BIND | MS_REC, NULL) < 0)
        return root_fail(root, -errno, "can't mount %s at %s", mount_->source, target);
    root->mounted[root->mounted_count] = strdup(target);
    if (!root->mounted[root->mounted_count++]) return root_fail(root, -ENOMEM, "%s", target);
    error = mount_->read_only ? make_read_only(at) : 0;
    return error < 0 ? root_fail(root, error, "can't make %s read-only", target) : 0;
}

/* The processes of the container's pid namespace, and no others. */
static int mount_proc(struct root *root)
{
    char at[PATH_MAX];

    if (path_join(at, root->path, "proc") < 0 || mkdir(at, 0555) < 0) return root_fail(root, -errno, "can't make /proc");
    if (mount("proc", at, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) == 0) return 0;
    root_fail(root, -errno, "can't mount a /proc of the container's own");
    return ROOT_NO_PROC;
}

/* Two tmpfs: the root itself, unbindable so that the binds of host directories above it leave it
 * out; and the stage for shadows, which must be bindable. */
static int prepare(struct root *root)
{
    char stage[PATH_MAX];
    int error;

    if (mount("hami-root", root->path, "tmpfs", 0, "mode=0755") < 0)
        return root_fail(root, -errno, "can't mount a tmpfs at %s", root->path);
    if (mount(NULL, root->path, NULL, MS_UNBINDABLE, NULL) < 0) return root_fail(root, -errno, "can't set propagation of %s", root->path);
    if (path_join(stage, root->path, ".stage") < 0) return root_fail(root, -ENAMETOOLONG, "%s", root->path);
    if (mkdir(stage, 0700) < 0 || mount("hami-stage", stage, "tmpfs", 0, "mode=0755") < 0)
        return root_fail(root, -errno, "can't mount a tmpfs at %s", stage);
    strcpy(root->shadows[root->shadow_count++], "/");
    error = shadow_mirror(root, "/", root->path);
    return error == 0 && root->own_pids ? mount_proc(root) : error;
}

static int pivot(struct root *root)
{
    /* The old root is stacked over the new one and taken away again (pivot_root(2)). */
    if (chdir(root->path) < 0) return root_fail(root, -errno, "can't enter %s", root->path);
    if (syscall(SYS_pivot_root, ".", ".") == 0) {
        if (umount2(".", MNT_DETACH) < 0) return root_fail(root, -errno, "can't leave the old root");
    } else if (chroot(".") < 0) { /* an initramfs can't be pivoted away from */
        return root_fail(root, -errno, "can't change the root to %s", root->path);
    }
    if (chdir("/") < 0) return root_fail(root, -errno, "can't enter the new root");
    if (umount2("/.stage", MNT_DETACH) == 0) rmdir("/.stage");
    return 0;
}

int root_enter(const struct launch *launch, char *message, size_t size)
{
    static struct root root;
    int error;

    root.path = launch->rootfs;
    root.own_pids = launch->own_pids;
    root.message = message;
    root.message_size = size;
    root.mounted = calloc(launch->mount_count + 1, sizeof(*root.mounted));
    if (!root.mounted) return root_fail(&root, -ENOMEM, "%s", launch->rootfs);
    error = prepare(&root);
    for (size_t i = 0; error == 0 && i < launch->mount_count; i++) error = apply_mount(&root, &launch->mounts[i]);
    return error < 0 ? error : pivot(&root);
}

int root_map_ids(uid_t uid, gid_t gid)
{
    char line[64];
    int error = write_file("/proc/self/setgroups", "deny");

    snprintf(line, sizeof(line), "%u %u 1", uid, uid);
    if (error == 0) error = write_file("/proc/self/uid_map", line);
    snprintf(line, sizeof(line), "%u %u 1", gid, gid);
    return error < 0 ? error : write_file("/proc/self/gid_map", line);
}

int root_unshare(char *message, size_t size)
{
    struct root root = {.message = message, .message_size = size};
    uid_t uid = geteuid();
    gid_t gid = getegid();
    int error;

    if (unshare(CLONE_NEWNS) < 0) {
        if (unshare(CLONE_NEWUSER | CLONE_NEWNS) < 0) return root_fail(&root, -errno, "no mount namespace on this machine");
        error = root_map_ids(uid, gid);
        if (error < 0) return root_fail(&root, error, "can't map the user in a user namespace");
    }
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0) return root_fail(&root, -errno, "can't make the mounts private");
    return 0;
}
