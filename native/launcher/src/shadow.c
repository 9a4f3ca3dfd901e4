/* SPDX-License-Identifier: Apache-2.0
 * What shadows are is in shadow.h. */
#include "shadow.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

/* As many as the kernel follows itself (path_resolution(7)). */
#define MAX_SYMLINKS 40

int root_fail(struct root *root, int error, const char *format, ...)
{
    va_list args;
    int used;

    va_start(args, format);
    used = vsnprintf(root->message, root->message_size, format, args);
    va_end(args);
    if (used >= 0 && (size_t)used < root->message_size)
        snprintf(root->message + used, root->message_size - (size_t)used, ": %s", strerror(-error));
    return error;
}

int path_join(char *out, const char *dir, const char *name)
{
    const char *slash = dir[0] && dir[strlen(dir) - 1] == '/' ? "" : "/";
    int length = snprintf(out, PATH_MAX, "%s%s%s", dir, slash, name);

    return length < 0 || length >= PATH_MAX ? -ENAMETOOLONG : 0;
}

static int make_file(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);

    if (fd < 0) return -errno;
    close(fd);
    return 0;
}

/* Gives `to` (on a tmpfs of ours) what `from` is: a link, or a bind of the file or directory. */
static int mirror_entry(const char *from, const char *to)
{
    char link[PATH_MAX];
    struct stat status;
    int error;

    if (lstat(from, &status) < 0) return -errno;
    if (S_ISLNK(status.st_mode)) {
        ssize_t length = readlink(from, link, sizeof(link) - 1);

        if (length < 0) return -errno;
        link[length] = '\0';
        return symlink(link, to) < 0 ? -errno : 0;
    }
    if (S_ISDIR(status.st_mode))
        error = mkdir(to, 0755) < 0 ? -errno : 0;
    else
        error = make_file(to);
    if (error < 0) return error;
    return mount(from, to, NULL, MS_BIND | MS_REC, NULL) < 0 ? -errno : 0;
}

int shadow_mirror(struct root *root, const char *from, const char *to)
{
    char source[PATH_MAX], target[PATH_MAX];
    struct dirent *entry;
    DIR *dir = opendir(from);
    int error = 0;

    if (!dir) return root_fail(root, -errno, "can't read %s", from);
    while (error == 0 && (entry = readdir(dir)) != NULL) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        if (path_join(source, from, entry->d_name) < 0 || path_join(target, to, entry->d_name) < 0) continue;
        if (root->own_pids && strcmp(source, "/proc") == 0) continue; /* the container has its own */
        error = mirror_entry(source, target);
        if (error == -ENOENT || error == -EACCES || error == -EPERM) error = 0;
        if (error < 0) root_fail(root, error, "can't mirror %s", source);
    }
    closedir(dir);
    return error;
}

static bool is_shadow(const struct root *root, const char *directory)
{
    for (size_t i = 0; i < root->shadow_count; i++)
        if (strcmp(root->shadows[i], directory) == 0) return true;
    return false;
}

/* Whether `directory` belongs to one of the container's own mounts. */
static bool is_mounted(const struct root *root, const char *directory)
{
    for (size_t i = 0; i < root->mounted_count; i++) {
        size_t length = strlen(root->mounted[i]);

        if (strncmp(root->mounted[i], directory, length) == 0 && (directory[length] == '/' || directory[length] == '\0')) return true;
    }
    return false;
}

/* Makes `directory` of the new root (a path as the container sees it) our own, entries kept.
 * Inside a mount of the container nothing is shadowed: as container runtimes do, the missing mount
 * point is made in the mounted directory itself, where the container's files must go on to land. */
static int shadow(struct root *root, const char *directory)
{
    char at[PATH_MAX], stage[PATH_MAX];
    struct stat status;
    int error;

    if (is_shadow(root, directory) || is_mounted(root, directory)) return 0;
    if (root->shadow_count == MAX_SHADOWS) return root_fail(root, -E2BIG, "more than %d shadow directories", MAX_SHADOWS);
    if (path_join(at, root->path, directory + 1) < 0 || stat(at, &status) < 0) return root_fail(root, -errno, "no directory %s", directory);
    snprintf(stage, sizeof(stage), "%.3000s/.stage/%zu", root->path, root->shadow_count);
    if (mkdir(stage, 0755) < 0 || chmod(stage, status.st_mode & 07777) < 0) return root_fail(root, -errno, "can't make %s", stage);
    error = shadow_mirror(root, at, stage);
    if (error < 0) return error;
    if (mount(stage, at, NULL, MS_BIND | MS_REC, NULL) < 0) return root_fail(root, -errno, "can't shadow %s", directory);
    strcpy(root->shadows[root->shadow_count++], directory);
    return 0;
}

/* Replaces `path`, whose first `length` bytes name a symbolic link, by what the link points to. */
static int follow(struct root *root, char *path, size_t length, const char *at)
{
    char link[PATH_MAX], result[2 * PATH_MAX];
    ssize_t got = readlink(at, link, sizeof(link) - 1);
    size_t parent = length;

    if (got < 0) return root_fail(root, -errno, "can't read the link %s", at);
    link[got] = '\0';
    while (parent > 0 && path[parent - 1] != '/') parent--;
    snprintf(result, sizeof(result), "%.*s%s%s", link[0] == '/' ? 0 : (int)parent, path, link, path + length);
    if (strlen(result) >= PATH_MAX) return root_fail(root, -ENAMETOOLONG, "can't follow %s", at);
    strcpy(path, result);
    return 0;
}

/* Makes sure that `name` exists in `directory` of the new root; a missing one is created in a
 * shadow, never on the host. */
static int ensure(struct root *root, const char *directory, const char *at, bool as_directory)
{
    struct stat status;
    int error;

    if (lstat(at, &status) == 0) return 0;
    if (errno != ENOENT) return root_fail(root, -errno, "can't look at %s", at);
    error = shadow(root, directory);
    if (error < 0) return error;
    error = as_directory ? (mkdir(at, 0755) < 0 ? -errno : 0) : make_file(at);
    if (error < 0) return root_fail(root, error, "can't make %s", at);
    /* What we made on our tmpfs needs no shadow later. */
    if (as_directory && root->shadow_count < MAX_SHADOWS && !is_mounted(root, directory))
        strcpy(root->shadows[root->shadow_count++], at + strlen(root->path));
    return 0;
}

int shadow_target(struct root *root, char *target, bool as_directory)
{
    char at[PATH_MAX], directory[PATH_MAX] = "/";
    size_t start = 1;

    for (int links = 0; target[start] != '\0';) {
        size_t end = start + strcspn(target + start, "/");
        bool last = target[end + strspn(target + end, "/")] == '\0';
        struct stat status;
        int error;

        if (end == start) { /* a doubled slash */
            start++;
            continue;
        }
        snprintf(at, sizeof(at), "%.*s/%.*s", (int)strlen(root->path), root->path, (int)end - 1, target + 1);
        error = ensure(root, directory, at, as_directory || !last);
        if (error < 0) return error;
        if (lstat(at, &status) == 0 && S_ISLNK(status.st_mode)) {
            if (++links > MAX_SYMLINKS) return root_fail(root, -ELOOP, "can't resolve %s", target);
            error = follow(root, target, end, at);
            if (error < 0) return error;
            start = 1;
            strcpy(directory, "/");
            continue;
        }
        snprintf(directory, sizeof(directory), "%.*s", (int)end, target);
        start = target[end] ? end + 1 : end;
    }
    return 0;
}
