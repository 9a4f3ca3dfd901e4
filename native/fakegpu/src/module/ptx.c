#include "module/ptx.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

enum { TOKEN = 128 };

static const char *skip_space(const char *at)
{
    for (;;) {
        if (isspace((unsigned char)*at)) {
            at++;
        } else if (at[0] == '/' && at[1] == '/') {
            at += strcspn(at, "\n");
        } else if (at[0] == '/' && at[1] == '*') {
            const char *end = strstr(at + 2, "*/");
            at = end != NULL ? end + 2 : at + strlen(at);
        } else {
            return at;
        }
    }
}

static bool is_token_character(char c) { return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '%' || c == '.'; }

/* The next token, or a single other character; empty at the end. What is longer than any name is cut. */
static const char *next_token(const char *at, char token[TOKEN])
{
    at = skip_space(at);
    size_t length = 0;
    if (*at == '"') {
        at++;
        at += strcspn(at, "\"");
        token[0] = '"', token[1] = '\0';
        return *at != '\0' ? at + 1 : at;
    }
    if (!is_token_character(*at)) {
        token[0] = *at, token[1] = '\0';
        return *at != '\0' ? at + 1 : at;
    }
    while (is_token_character(*at)) {
        if (length > 0 && *at == '.' && token[0] == '.') break; /* ".visible.entry" are two */
        if (length < TOKEN - 1) token[length++] = *at;
        at++;
    }
    token[length] = '\0';
    return at;
}

static bool is(const char *token, const char *other) { return strcmp(token, other) == 0; }

/* Bytes of a type (".u32"), 0 for what is none. */
static size_t type_bytes(const char *token)
{
    static const struct {
        const char *name;
        size_t bytes;
    } types[] = {{".b8", 1},  {".u8", 1},  {".s8", 1},  {".b16", 2},   {".u16", 2}, {".s16", 2}, {".f16", 2}, {".bf16", 2}, {".b32", 4},
                 {".u32", 4}, {".s32", 4}, {".f32", 4}, {".f16x2", 4}, {".b64", 8}, {".u64", 8}, {".s64", 8}, {".f64", 8},  {".b128", 16}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (is(token, types[i].name)) return types[i].bytes;
    return 0;
}

/* A declaration up to its name and dimensions: ".align 8 .v2 .f32 name[4][2]". */
struct declaration {
    char name[TOKEN];
    size_t unit, bytes;
    enum fg_ptx_kind kind;
    bool managed;
};

static const char *declaration(const char *at, struct declaration *found)
{
    char token[TOKEN];
    size_t vector = 1;
    *found = (struct declaration){.kind = FG_PTX_VARIABLE};
    for (;;) {
        const char *next = next_token(at, token);
        if (token[0] == '.') {
            const size_t bytes = type_bytes(token);
            if (bytes > 0) found->unit = bytes;
            if (is(token, ".v2")) vector = 2;
            if (is(token, ".v4")) vector = 4;
            if (is(token, ".texref") || is(token, ".surfref")) found->kind = FG_PTX_REFERENCE;
            if (is(token, ".managed")) found->managed = true;
            if (is(token, ".align")) next = next_token(next, token);
        } else if (token[0] == '\0' || (token[0] != '(' && token[0] != ')')) { /* ".attribute(.managed)" has brackets */
            break;
        }
        at = next;
    }
    at = next_token(at, found->name);
    found->unit *= vector;
    found->bytes = found->unit;
    while (*skip_space(at) == '[') {
        char *end;
        const size_t length = strtoull(skip_space(at) + 1, &end, 0);
        if (__builtin_mul_overflow(found->bytes, length, &found->bytes)) found->bytes = SIZE_MAX;
        at = skip_space(end);
        if (*at == ']') at++;
    }
    return at;
}

static const char *kernel(const char *at, struct fg_ptx_item *item)
{
    char token[TOKEN];
    at = next_token(at, item->name);
    if (*skip_space(at) != '(') return at;
    at = skip_space(at) + 1;
    for (;;) {
        const char *next = next_token(at, token);
        if (is(token, ")") || token[0] == '\0') return next;
        struct declaration parameter;
        at = declaration(is(token, ",") ? next_token(next, token) : next, &parameter); /* behind ".param" */
        if (parameter.unit > 0) item->parameter_count++;
    }
}

static const char *variable(const char *at, struct fg_ptx_item *item, enum fg_ptx_kind *kind)
{
    struct declaration declared;
    at = skip_space(declaration(at, &declared));
    memcpy(item->name, declared.name, sizeof item->name);
    item->bytes = declared.bytes;
    item->managed = declared.managed;
    *kind = declared.kind;
    return at + strcspn(at, ";");
}

enum fg_ptx_kind fg_ptx_next(const char **at, struct fg_ptx_item *item)
{
    char token[TOKEN];
    int depth = 0;
    bool external = false;
    enum fg_ptx_kind kind = FG_PTX_KERNEL;
    for (;;) {
        *at = next_token(*at, token);
        if (token[0] == '\0') return FG_PTX_END;
        if (is(token, "{")) depth++;
        if (is(token, "}") && depth > 0) depth--;
        if (is(token, ".extern")) external = true;
        if (is(token, ";")) external = false;
        if (depth > 0 || (!is(token, ".entry") && !is(token, ".global") && !is(token, ".const"))) continue;
        *item = (struct fg_ptx_item){.external = external};
        *at = is(token, ".entry") ? kernel(*at, item) : variable(*at, item, &kind);
        return kind;
    }
}

bool fg_ptx_find(const char *image, enum fg_ptx_kind kind, const char *name, struct fg_ptx_item *item)
{
    enum fg_ptx_kind found;
    while ((found = fg_ptx_next(&image, item)) != FG_PTX_END)
        if (found == kind && !item->external && is(item->name, name)) return true;
    return false;
}
