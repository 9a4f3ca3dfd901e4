/* SPDX-License-Identifier: Apache-2.0
 * The root of a container; what it is made of is in root.h. */
#include "root.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

/* As many as the kernel follows itself (path_resolution(7)). */
#define MAX_SYMLINKS 40
/* A container needs some five; the limit only bounds the table. */
#define MAX_SHADOWS 64

struct root {
	const char *path;                /* where the new root lies, seen from the old one */
	char shadows[MAX_SHADOWS][PATH_MAX]; /* directories of the new root that are our own */
	size_t shadow_count;
	char **mounted;                  /* targets of the mounts made so far */
	size_t mounted_count;
	bool own_pids;
	char *message;
	size_t message_size;
};

/* Writes a sentence with the reason of `error` (-errno); returns `error`. */
static int fail(struct root *root, int error, const char *format, ...)
{
	va_list args;
	int used;

	va_start(args, format);
	used = vsnprintf(root->message, root->message_size, format, args);
	va_end(args);
	if (used >= 0 && (size_t)used < root->message_size)
		snprintf(root->message + used, root->message_size - (size_t)used, ": %s",
			 strerror(-error));
	return error;
}

/* dir + "/" + name into out[PATH_MAX]; returns 0 or -ENAMETOOLONG. */
static int join(char *out, const char *dir, const char *name)
{
	const char *slash = dir[0] && dir[strlen(dir) - 1] == '/' ? "" : "/";
	int length = snprintf(out, PATH_MAX, "%s%s%s", dir, slash, name);

	return length < 0 || length >= PATH_MAX ? -ENAMETOOLONG : 0;
}

static int write_file(const char *path, const char *text)
{
	int error = 0, fd = open(path, O_WRONLY | O_CLOEXEC);

	if (fd < 0)
		return -errno;
	if (write(fd, text, strlen(text)) < 0)
		error = -errno;
	close(fd);
	return error;
}

static int make_file(const char *path)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);

	if (fd < 0)
		return -errno;
	close(fd);
	return 0;
}

/* Gives `to` (on a tmpfs of ours) what `from` is: a link, or a bind of the file or directory. */
static int mirror_entry(const char *from, const char *to)
{
	char link[PATH_MAX];
	struct stat status;
	int error;

	if (lstat(from, &status) < 0)
		return -errno;
	if (S_ISLNK(status.st_mode)) {
		ssize_t length = readlink(from, link, sizeof(link) - 1);

		if (length < 0)
			return -errno;
		link[length] = '\0';
		return symlink(link, to) < 0 ? -errno : 0;
	}
	if (S_ISDIR(status.st_mode))
		error = mkdir(to, 0755) < 0 ? -errno : 0;
	else
		error = make_file(to);
	if (error < 0)
		return error;
	return mount(from, to, NULL, MS_BIND | MS_REC, NULL) < 0 ? -errno : 0;
}

/* Mirrors every entry of `from` into the directory `to`. An entry that has vanished, or that
 * this user may not reach, is left out: the container could not have used it either. */
static int mirror_directory(struct root *root, const char *from, const char *to)
{
	char source[PATH_MAX], target[PATH_MAX];
	struct dirent *entry;
	DIR *dir = opendir(from);
	int error = 0;

	if (!dir)
		return fail(root, -errno, "can't read %s", from);
	while (error == 0 && (entry = readdir(dir)) != NULL) {
		if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
			continue;
		if (join(source, from, entry->d_name) < 0 || join(target, to, entry->d_name) < 0)
			continue;
		if (root->own_pids && strcmp(source, "/proc") == 0)
			continue; /* the container has its own */
		error = mirror_entry(source, target);
		if (error == -ENOENT || error == -EACCES || error == -EPERM)
			error = 0;
		if (error < 0)
			fail(root, error, "can't mirror %s", source);
	}
	closedir(dir);
	return error;
}

static bool is_shadow(const struct root *root, const char *directory)
{
	for (size_t i = 0; i < root->shadow_count; i++)
		if (strcmp(root->shadows[i], directory) == 0)
			return true;
	return false;
}

/* Whether `directory` belongs to one of the container's own mounts. */
static bool is_mounted(const struct root *root, const char *directory)
{
	for (size_t i = 0; i < root->mounted_count; i++) {
		size_t length = strlen(root->mounted[i]);

		if (strncmp(root->mounted[i], directory, length) == 0 &&
		    (directory[length] == '/' || directory[length] == '\0'))
			return true;
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

	if (is_shadow(root, directory) || is_mounted(root, directory))
		return 0;
	if (root->shadow_count == MAX_SHADOWS)
		return fail(root, -E2BIG, "more than %d shadow directories", MAX_SHADOWS);
	if (join(at, root->path, directory + 1) < 0 || stat(at, &status) < 0)
		return fail(root, -errno, "no directory %s", directory);
	snprintf(stage, sizeof(stage), "%.3000s/.stage/%zu", root->path, root->shadow_count);
	if (mkdir(stage, 0755) < 0 || chmod(stage, status.st_mode & 07777) < 0)
		return fail(root, -errno, "can't make %s", stage);
	error = mirror_directory(root, at, stage);
	if (error < 0)
		return error;
	if (mount(stage, at, NULL, MS_BIND | MS_REC, NULL) < 0)
		return fail(root, -errno, "can't shadow %s", directory);
	strcpy(root->shadows[root->shadow_count++], directory);
	return 0;
}

/* Replaces `path`, whose first `length` bytes name a symbolic link, by what the link points to. */
static int follow(struct root *root, char *path, size_t length, const char *at)
{
	char link[PATH_MAX], result[2 * PATH_MAX];
	ssize_t got = readlink(at, link, sizeof(link) - 1);
	size_t parent = length;

	if (got < 0)
		return fail(root, -errno, "can't read the link %s", at);
	link[got] = '\0';
	while (parent > 0 && path[parent - 1] != '/')
		parent--;
	snprintf(result, sizeof(result), "%.*s%s%s", link[0] == '/' ? 0 : (int)parent, path, link,
		 path + length);
	if (strlen(result) >= PATH_MAX)
		return fail(root, -ENAMETOOLONG, "can't follow %s", at);
	strcpy(path, result);
	return 0;
}

/* Makes sure that `name` exists in `directory` of the new root; a missing one is created in a
 * shadow, never on the host. */
static int ensure(struct root *root, const char *directory, const char *at, bool as_directory)
{
	struct stat status;
	int error;

	if (lstat(at, &status) == 0)
		return 0;
	if (errno != ENOENT)
		return fail(root, -errno, "can't look at %s", at);
	error = shadow(root, directory);
	if (error < 0)
		return error;
	error = as_directory ? (mkdir(at, 0755) < 0 ? -errno : 0) : make_file(at);
	if (error < 0)
		return fail(root, error, "can't make %s", at);
	/* What we made on our tmpfs needs no shadow later. */
	if (as_directory && root->shadow_count < MAX_SHADOWS && !is_mounted(root, directory))
		strcpy(root->shadows[root->shadow_count++], at + strlen(root->path));
	return 0;
}

/* Walks `target` (PATH_MAX bytes, changed to its resolved form) and creates what is missing; the
 * last component becomes a directory or an empty file. */
static int ensure_target(struct root *root, char *target, bool as_directory)
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
		snprintf(at, sizeof(at), "%.*s/%.*s", (int)strlen(root->path), root->path,
			 (int)end - 1, target + 1);
		error = ensure(root, directory, at, as_directory || !last);
		if (error < 0)
			return error;
		if (lstat(at, &status) == 0 && S_ISLNK(status.st_mode)) {
			if (++links > MAX_SYMLINKS)
				return fail(root, -ELOOP, "can't resolve %s", target);
			error = follow(root, target, end, at);
			if (error < 0)
				return error;
			start = 1;
			strcpy(directory, "/");
			continue;
		}
		snprintf(directory, sizeof(directory), "%.*s", (int)end, target);
		start = target[end] ? end + 1 : end;
	}
	return 0;
}

/* A bind can only be made read-only by a second call, which must repeat the flags that a user
 * namespace may not clear (mount_namespaces(7)). */
static int make_read_only(const char *path)
{
	struct statvfs status;
	unsigned long flags = MS_BIND | MS_REMOUNT | MS_RDONLY;

	if (statvfs(path, &status) < 0)
		return -errno;
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

	if (stat(mount_->source, &status) < 0)
		return fail(root, -errno, "mount source %s of %s", mount_->source, mount_->target);
	if (strlen(mount_->target) >= sizeof(target))
		return fail(root, -ENAMETOOLONG, "mount target %s", mount_->target);
	strcpy(target, mount_->target);
	error = ensure_target(root, target, S_ISDIR(status.st_mode));
	if (error < 0)
		return error;
	if (join(at, root->path, target + 1) < 0)
		return fail(root, -ENAMETOOLONG, "mount target %s", target);
	if (mount(mount_->source, at, NULL, MS_BIND | MS_REC, NULL) < 0)
		return fail(root, -errno, "can't mount %s at %s", mount_->source, target);
	root->mounted[root->mounted_count] = strdup(target);
	if (!root->mounted[root->mounted_count++])
		return fail(root, -ENOMEM, "%s", target);
	error = mount_->read_only ? make_read_only(at) : 0;
	return error < 0 ? fail(root, error, "can't make %s read-only", target) : 0;
}

/* The processes of the container's pid namespace, and no others. */
static int mount_proc(struct root *root)
{
	char at[PATH_MAX];

	if (join(at, root->path, "proc") < 0 || mkdir(at, 0555) < 0)
		return fail(root, -errno, "can't make /proc");
	if (mount("proc", at, "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL) == 0)
		return 0;
	fail(root, -errno, "can't mount a /proc of the container's own");
	return ROOT_NO_PROC;
}

/* Two tmpfs: the root itself, unbindable so that the binds of host directories above it leave it
 * out; and the stage for shadows, which must be bindable. */
static int prepare(struct root *root)
{
	char stage[PATH_MAX];
	int error;

	if (mount("hami-root", root->path, "tmpfs", 0, "mode=0755") < 0)
		return fail(root, -errno, "can't mount a tmpfs at %s", root->path);
	if (mount(NULL, root->path, NULL, MS_UNBINDABLE, NULL) < 0)
		return fail(root, -errno, "can't set propagation of %s", root->path);
	if (join(stage, root->path, ".stage") < 0)
		return fail(root, -ENAMETOOLONG, "%s", root->path);
	if (mkdir(stage, 0700) < 0 || mount("hami-stage", stage, "tmpfs", 0, "mode=0755") < 0)
		return fail(root, -errno, "can't mount a tmpfs at %s", stage);
	strcpy(root->shadows[root->shadow_count++], "/");
	error = mirror_directory(root, "/", root->path);
	return error == 0 && root->own_pids ? mount_proc(root) : error;
}

static int pivot(struct root *root)
{
	/* The old root is stacked over the new one and taken away again (pivot_root(2)). */
	if (chdir(root->path) < 0)
		return fail(root, -errno, "can't enter %s", root->path);
	if (syscall(SYS_pivot_root, ".", ".") == 0) {
		if (umount2(".", MNT_DETACH) < 0)
			return fail(root, -errno, "can't leave the old root");
	} else if (chroot(".") < 0) { /* an initramfs can't be pivoted away from */
		return fail(root, -errno, "can't change the root to %s", root->path);
	}
	if (chdir("/") < 0)
		return fail(root, -errno, "can't enter the new root");
	if (umount2("/.stage", MNT_DETACH) == 0)
		rmdir("/.stage");
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
	if (!root.mounted)
		return fail(&root, -ENOMEM, "%s", launch->rootfs);
	error = prepare(&root);
	for (size_t i = 0; error == 0 && i < launch->mount_count; i++)
		error = apply_mount(&root, &launch->mounts[i]);
	return error < 0 ? error : pivot(&root);
}

int root_map_ids(uid_t uid, gid_t gid)
{
	char line[64];
	int error = write_file("/proc/self/setgroups", "deny");

	snprintf(line, sizeof(line), "%u %u 1", uid, uid);
	if (error == 0)
		error = write_file("/proc/self/uid_map", line);
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
		if (unshare(CLONE_NEWUSER | CLONE_NEWNS) < 0)
			return fail(&root, -errno, "no mount namespace on this machine");
		error = root_map_ids(uid, gid);
		if (error < 0)
			return fail(&root, error, "can't map the user in a user namespace");
	}
	if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0)
		return fail(&root, -errno, "can't make the mounts private");
	return 0;
}
