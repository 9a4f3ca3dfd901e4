/* A driver of functions that note who was called with what; the test fills in @STUBS@ and @ROWS@. */
#include <stdint.h>
#include <string.h>
typedef uintptr_t cell;
int noted_row; cell noted[11];
int cuGetProcAddress_v2();
int cuGetProcAddress();
#define STUB(i) static int stub_##i(cell a, cell b, cell c, cell d, cell e, cell f, cell g, cell h, cell j, cell k, cell l) \
    { cell all[] = {a, b, c, d, e, f, g, h, j, k, l}; noted_row = i; memcpy(noted, all, sizeof all); return 201; }
@STUBS@
static const struct { const char *name; int version; uint64_t flags; void *function; } rows[] = {
@ROWS@
};
int cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, int *status)
{
    *found = 0;
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].name, name) == 0 && rows[i].version == version && rows[i].flags == flags)
            *found = rows[i].function;
    if (status) *status = *found ? 0 : 1;
    return *found ? 0 : 500;
}
int cuGetProcAddress(const char *name, void **found, int version, uint64_t flags)
{
    return cuGetProcAddress_v2(name, found, version, flags, 0);
}
