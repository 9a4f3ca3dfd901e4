/* A file that a program may close behind our back, as daemons close everything they have inherited: the number is then free for a file of
 * the program's own, which is not ours to lock, to read or to close. */
#ifndef FAKEGPU_OWN_FILE_H
#define FAKEGPU_OWN_FILE_H

#include <stdbool.h>
#include <sys/stat.h>

struct fg_own_file {
    int number; /* -1: none */
    dev_t device;
    ino_t inode;
};

static inline struct fg_own_file fg_own_file(int number)
{
    struct stat status;
    if (number < 0 || fstat(number, &status) != 0) return (struct fg_own_file){.number = -1};
    return (struct fg_own_file){.number = number, .device = status.st_dev, .inode = status.st_ino};
}

/* Whether the number is still that file. */
static inline bool fg_is_own_file(const struct fg_own_file *file)
{
    const struct fg_own_file now = fg_own_file(file->number);
    return now.number >= 0 && now.device == file->device && now.inode == file->inode;
}

#endif
