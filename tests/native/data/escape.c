/* A tenant who tries to take 8 MiB of a slice of 1 MiB: ./escape WAY [PATH]. Prints "<CUresult> <total>" of cuMemAlloc and
 * cuMemGetInfo as found in that way, or "none" where it finds nothing. Then it takes as many bytes more as each line of its input has, and
 * holds everything until that ends. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef void *(*finder)(const char *);
static void *handle;
static void *(*lookup)(void *, const char *) = NULL;

static void *by_dlsym(const char *name) { return (lookup != NULL ? lookup : dlsym)(handle, name); }

static void *by_version(const char *name)
{
    static int (*ask)(const char *, void **, int, uint64_t, int *);
    void *found = NULL;
    int status;
    char base[64];
    if (ask == NULL) *(void **)&ask = by_dlsym("cuGetProcAddress_v2");
    snprintf(base, sizeof base, "%s", name);
    char *end = strstr(base, "_v2");
    if (end != NULL) *end = '\0';
    return ask != NULL && ask(base, &found, 12080, 0, &status) == 0 ? found : NULL;
}

/* Reads the object's own symbol table, as a debugger would. */
static void *by_elf(const char *name)
{
    struct link_map *map = handle;
    const ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    const uint32_t *hash = NULL;
    for (const ElfW(Dyn) *at = map->l_ld; at->d_tag != DT_NULL; at++) {
        if (at->d_tag == DT_SYMTAB) symbols = (const void *)at->d_un.d_ptr;
        if (at->d_tag == DT_STRTAB) strings = (const void *)at->d_un.d_ptr;
        if (at->d_tag == DT_GNU_HASH) hash = (const void *)at->d_un.d_ptr;
    }
    const uint32_t *buckets = hash + 4 + hash[2] * 2, *chains = buckets + hash[0];
    for (uint32_t b = 0; b < hash[0]; b++)
        for (uint32_t i = buckets[b]; i != 0; i++) {
            if (strcmp(strings + symbols[i].st_name, name) == 0) return (void *)(map->l_addr + symbols[i].st_value);
            if (chains[i - hash[1]] & 1) break;
        }
    return NULL;
}

static int take(finder find)
{
    int (*init)(unsigned), (*retain)(void **, int), (*current)(void *), (*alloc)(uint64_t *, size_t), (*info)(size_t *, size_t *);
    void *context;
    uint64_t pointer;
    size_t left, total = 0, bytes;
    *(void **)&init = find("cuInit");
    *(void **)&retain = find("cuDevicePrimaryCtxRetain");
    *(void **)&current = find("cuCtxSetCurrent");
    *(void **)&alloc = find("cuMemAlloc_v2");
    *(void **)&info = find("cuMemGetInfo_v2");
    if (init == NULL || retain == NULL || current == NULL || alloc == NULL || info == NULL) return puts("none"), 0;
    if (init(0) != 0 || retain(&context, 0) != 0 || current(context) != 0) return puts("no device"), 0;
    int result = alloc(&pointer, 8 << 20);
    (void)info(&left, &total);
    do {
        printf("%d %zu\n", result, total);
        fflush(stdout);
        if (scanf("%zu", &bytes) != 1) return 0;
        result = alloc(&pointer, bytes);
    } while (1);
}

int main(int count, char **arguments)
{
    const char *way = arguments[1], *path = count > 2 ? arguments[2] : "libcuda.so.1";
    const int flags = RTLD_NOW | (strstr(way, "deepbind") ? RTLD_DEEPBIND : 0) | (strstr(way, "global") ? RTLD_GLOBAL : 0);
    if (strstr(way, "both")) dlopen("libcuda.so.1", RTLD_NOW);
    handle = strstr(way, "namespace") ? dlmopen(LM_ID_NEWLM, path, RTLD_NOW) : dlopen(path, flags);
    if (handle == NULL) return fprintf(stderr, "%s\n", dlerror()), 2;
    if (strstr(way, "foreign-dlsym")) *(void **)&lookup = dlsym(dlmopen(LM_ID_NEWLM, "libc.so.6", RTLD_NOW), "dlsym");
    if (strstr(way, "next")) handle = RTLD_NEXT;
    if (strstr(way, "default")) handle = RTLD_DEFAULT;
    if (strstr(way, "library")) return ((int (*)(void))dlsym(handle, "attempt"))();
    return take(strstr(way, "elf") ? by_elf : strstr(way, "version") ? by_version : by_dlsym);
}
