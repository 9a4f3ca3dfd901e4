#include "config/config_source.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "config/installed.h"

/* Sixty-four device lines are 7 KB. */
enum { FILE_BYTES = 16384 };

static const char *environment(const char *name) { return getenv(name); }

static struct vgpu_config_stamp stamp_of(const struct stat *status)
{
    return (struct vgpu_config_stamp){
        .device = status->st_dev, .inode = status->st_ino, .size = status->st_size, .modified = status->st_mtim};
}

/* Bytes read (at most `capacity`) or -errno. */
static ssize_t read_file(const char *path, char *text, size_t capacity, struct vgpu_config_stamp *stamp)
{
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return -errno;
    size_t used = 0;
    ssize_t got = 0;
    struct stat status;
    if (fstat(file, &status) == 0) *stamp = stamp_of(&status);
    while (used < capacity && ((got = read(file, text + used, capacity - used)) > 0 || (got < 0 && errno == EINTR)))
        if (got > 0) used += (size_t)got;
    const int error = got < 0 ? errno : 0;
    close(file);
    return error != 0 ? -error : (ssize_t)used;
}

void vgpu_config_load(const char *path, struct vgpu_config *config, struct vgpu_config_stamp *stamp)
{
    char *text = malloc(FILE_BYTES); /* as much as the whole stack of a small thread */
    *stamp = (struct vgpu_config_stamp){0};
    const ssize_t length = text != NULL ? read_file(path, text, FILE_BYTES, stamp) : -ENOMEM;
    if ((length == -ENOENT || length == -ENOTDIR) && !vgpu_limits_file_is_required()) {
        vgpu_config_parse_environment(environment, config);
    } else if (length < 0 || length == FILE_BYTES) { /* of a longer file the end would be missing */
        (void)vgpu_config_parse_file("", 0, config);
        vgpu_log(VGPU_LOG_REFUSAL, "%s: %s; no device may be used", path, strerror(length < 0 ? (int)-length : EFBIG));
    } else if (vgpu_config_parse_file(text, (size_t)length, config) != 0) {
        vgpu_log(VGPU_LOG_REFUSAL, "%s cannot be read: no device may be used", path);
    }
    free(text);
}

bool vgpu_config_changed(const char *path, const struct vgpu_config_stamp *stamp)
{
    struct stat status;
    if (stat(path, &status) != 0) return false;
    const struct vgpu_config_stamp now = stamp_of(&status);
    return now.inode != stamp->inode || now.device != stamp->device || now.size != stamp->size ||
           now.modified.tv_sec != stamp->modified.tv_sec || now.modified.tv_nsec != stamp->modified.tv_nsec;
}
