/* libpathmap.so: bind mounts for machines without mount namespaces. Preloaded, it maps path prefixes as a container's mounts would.
 *
 *   HAMI_PATHMAP="<container path>=<host path>;<container path>=<host path>..."
 *
 * The longest container path that is a whole-component prefix of an absolute path wins. Relative paths and other paths pass as they
 * are. A stand-in for tests and local systems, no protection: a static program or a direct system call sees the real paths.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))
enum { MAX_RULES = 64 };

static struct {
    char *from, *to;
    size_t from_length;
} rules[MAX_RULES];
static int rule_count;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void drop_trailing_slash(char *path)
{
    const size_t length = strlen(path);
    if (length > 1 && path[length - 1] == '/') path[length - 1] = '\0';
}

static void read_rules(void)
{
    const char *text = getenv("HAMI_PATHMAP");
    char *copy = text != NULL ? strdup(text) : NULL, *rest;
    for (char *rule = copy != NULL ? strtok_r(copy, ";", &rest) : NULL; rule != NULL && rule_count < MAX_RULES;
         rule = strtok_r(NULL, ";", &rest)) {
        char *equals = strchr(rule, '=');
        if (equals == NULL || rule[0] != '/') continue;
        *equals = '\0';
        drop_trailing_slash(rule);
        drop_trailing_slash(equals + 1);
        rules[rule_count].from = rule;
        rules[rule_count].from_length = strlen(rule);
        rules[rule_count].to = equals + 1;
        rule_count++;
    }
}

/* The path to use in place of `path`; `buffer` holds it if it changed. */
static const char *mapped(const char *path, char buffer[PATH_MAX])
{
    pthread_once(&once, read_rules);
    if (path == NULL || path[0] != '/') return path;
    int best = -1;
    for (int i = 0; i < rule_count; i++) {
        const size_t length = rules[i].from_length;
        const char after = strncmp(path, rules[i].from, length) == 0 ? path[length] : 'x';
        if ((after == '\0' || after == '/') && (best < 0 || length > rules[best].from_length)) best = i;
    }
    if (best < 0) return path;
    const int length = snprintf(buffer, PATH_MAX, "%s%s", rules[best].to, path + rules[best].from_length);
    return length < PATH_MAX ? buffer : path;
}

/* The next definition of a function, looked up at its first call. */
#define NEXT(type, name, parameters)           \
    static type(*next) parameters;             \
    if (next == NULL) {                        \
        void *found = dlsym(RTLD_NEXT, #name); \
        memcpy(&next, &found, sizeof next);    \
    }                                          \
    if (next == NULL) return errno = ENOSYS, (type) - 1;
#define NEXT_POINTER(type, name, parameters)   \
    static type(*next) parameters;             \
    if (next == NULL) {                        \
        void *found = dlsym(RTLD_NEXT, #name); \
        memcpy(&next, &found, sizeof next);    \
    }                                          \
    if (next == NULL) return errno = ENOSYS, (type)NULL;

/* PATH(type, name, parameters, call): the path is `path`, replaced by `to` in the call. */
#define PATH(type, name, parameters, arguments) \
    EXPORT type name parameters;                \
    type name parameters                        \
    {                                           \
        char buffer[PATH_MAX];                  \
        const char *to = mapped(path, buffer);  \
        NEXT(type, name, parameters)            \
        return next arguments;                  \
    }
#define PATH_POINTER(type, name, parameters, arguments) \
    EXPORT type name parameters;                        \
    type name parameters                                \
    {                                                   \
        char buffer[PATH_MAX];                          \
        const char *to = mapped(path, buffer);          \
        NEXT_POINTER(type, name, parameters)            \
        return next arguments;                          \
    }

#include "pathmap.def"

/* The mode of a file is only passed when one is created. */
#define MODE_ARGUMENT(flags)                      \
    mode_t mode = 0;                              \
    if (((flags) & (O_CREAT | O_TMPFILE)) != 0) { \
        va_list arguments;                        \
        va_start(arguments, flags);               \
        mode = (mode_t)va_arg(arguments, int);    \
        va_end(arguments);                        \
    }
#define OPEN(name)                                     \
    EXPORT int name(const char *path, int flags, ...); \
    int name(const char *path, int flags, ...)         \
    {                                                  \
        char buffer[PATH_MAX];                         \
        const char *to = mapped(path, buffer);         \
        MODE_ARGUMENT(flags)                           \
        NEXT(int, name, (const char *, int, ...))      \
        return next(to, flags, mode);                  \
    }
#define OPENAT(name)                                               \
    EXPORT int name(int folder, const char *path, int flags, ...); \
    int name(int folder, const char *path, int flags, ...)         \
    {                                                              \
        char buffer[PATH_MAX];                                     \
        const char *to = mapped(path, buffer);                     \
        MODE_ARGUMENT(flags)                                       \
        NEXT(int, name, (int, const char *, int, ...))             \
        return next(folder, to, flags, mode);                      \
    }
OPEN(open)
OPEN(open64)
OPENAT(openat)
OPENAT(openat64)

/* Fortified programs call these in place of open and openat without a mode. */
PATH(int, __open_2, (const char *path, int flags), (to, flags))
PATH(int, __open64_2, (const char *path, int flags), (to, flags))
PATH(int, __openat_2, (int folder, const char *path, int flags), (folder, to, flags))
PATH(int, __openat64_2, (int folder, const char *path, int flags), (folder, to, flags))

/* Two paths. */
#define TWO_PATHS(name, parameters, arguments)                               \
    EXPORT int name parameters;                                              \
    int name parameters                                                      \
    {                                                                        \
        char first[PATH_MAX], second[PATH_MAX];                              \
        const char *from = mapped(path, first), *to = mapped(other, second); \
        NEXT(int, name, parameters)                                          \
        return next arguments;                                               \
    }
TWO_PATHS(rename, (const char *path, const char *other), (from, to))
TWO_PATHS(link, (const char *path, const char *other), (from, to))
TWO_PATHS(renameat, (int folder, const char *path, int other_folder, const char *other), (folder, from, other_folder, to))
TWO_PATHS(renameat2, (int folder, const char *path, int other_folder, const char *other, unsigned int flags),
          (folder, from, other_folder, to, flags))
TWO_PATHS(linkat, (int folder, const char *path, int other_folder, const char *other, int flags), (folder, from, other_folder, to, flags))

/* The target of a link is text; only the place of the link is mapped. */
PATH(int, symlink, (const char *target, const char *path), (target, to))
PATH(int, symlinkat, (const char *target, int folder, const char *path), (target, folder, to))
