/* Asks the driver for functions and calls them; prints whose each is and whether the call arrived. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
typedef uintptr_t cell;
typedef int (*get)(const char *, void **, int, uint64_t, int *);
int main(void)
{
    char name[64];
    char kinds[16];
    int version, flags, row, called, compared;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    get ask = (get)dlsym(library, "cuGetProcAddress_v2");
    int *noted_row = dlsym(library, "noted_row");
    cell *noted = dlsym(library, "noted");
    /* Addresses that survive a stay in 32 bits, each to readable zeroes. */
    char *canaries = mmap(0, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1, 0);
    while (scanf("%63s %d %d %d %d %d %15s", name, &version, &flags, &row, &called, &compared, kinds) == 7) {
        void *function = 0;
        Dl_info info;
        int result = ask(name, &function, version, (uint64_t)flags, 0);
        if (result != 0 || !function || !dladdr(function, &info)) {
            printf("%d none\n", row);
            continue;
        }
        const char *owner = strstr(info.dli_fname, "libvgpu.so") ? "ours" : "driver";
        const char *verdict = "exact";
        if (called) {
            cell a[11];
            for (int i = 0; i < 11; i++)
                a[i] = i < (int)strlen(kinds) && kinds[i] == 'n' ? (cell)(i + 1) : (cell)(canaries + (row % 97 + 1) * 4096 + i * 64);
            *noted_row = -1;
            result = ((int (*)(cell, cell, cell, cell, cell, cell, cell, cell, cell, cell, cell))function)(
                a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10]);
            if (*noted_row != row) verdict = "another function";
            else if (memcmp(noted, a, (size_t)compared * sizeof *a) != 0) verdict = "other arguments";
            else if (result != 201) verdict = "another result";
        }
        printf("%d %s %s\n", row, owner, verdict);
    }
    return 0;
}
