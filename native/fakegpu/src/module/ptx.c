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
    size_t unit, bytes, alignment;
    enum fg_ptx_kind kind;
    bool managed;
};

static const char *declaration(const char *at, struct declaration *found)
{
    char token[TOKEN];
    size_t vector = 1;
    bool behind_pointer = false; /* what comes then is about what it points to */
    *found = (struct declaration){.kind = FG_PTX_VARIABLE, .alignment = 1};
    for (;;) {
        const char *next = next_token(at, token);
        if (token[0] == '.') {
            const size_t bytes = type_bytes(token);
            if (bytes > 0 && !behind_pointer) found->unit = bytes;
            if (is(token, ".v2")) vector = 2;
            if (is(token, ".v4")) vector = 4;
            if (is(token, ".ptr")) behind_pointer = true;
            if (is(token, ".texref")) found->kind = FG_PTX_TEXTURE;
            if (is(token, ".surfref")) found->kind = FG_PTX_SURFACE;
            if (is(token, ".managed")) found->managed = true;
            if (is(token, ".align")) {
                char *end;
                const size_t alignment = strtoull(skip_space(next), &end, 0);
                if (!behind_pointer) found->alignment = alignment;
                next = end;
            }
        } else if (token[0] == '\0' || (token[0] != '(' && token[0] != ')')) { /* ".attribute(.managed)" has brackets */
            break;
        }
        at = next;
    }
    at = next_token(at, found->name);
    found->unit *= vector;
    found->bytes = found->unit;
    if (found->unit > found->alignment) found->alignment = found->unit;
    while (*skip_space(at) == '[') {
        char *end;
        const size_t length = strtoull(skip_space(at) + 1, &end, 0);
        if (__builtin_mul_overflow(found->bytes, length, &found->bytes)) found->bytes = SIZE_MAX;
        at = skip_space(end);
        if (*at == ']') at++;
    }
    return at;
}

/* No kernel has more bytes of parameters (CUDA 12.1): what exceeds them is not kept, and the kernel refused. */
enum { PARAMETER_BYTES = 32764 };

static const char *kernel(const char *at, struct fg_ptx_item *item)
{
    char token[TOKEN];
    size_t offset = 0;
    at = next_token(at, item->name);
    if (*skip_space(at) != '(') return at;
    at = skip_space(at) + 1;
    for (;;) {
        const char *next = next_token(at, token);
        if (is(token, ")") || token[0] == '\0') return next;
        struct declaration parameter;
        at = declaration(is(token, ",") ? next_token(next, token) : next, &parameter); /* behind ".param" */
        item->is_too_wide |= parameter.bytes > PARAMETER_BYTES || parameter.alignment > PARAMETER_BYTES || offset > PARAMETER_BYTES;
        if (parameter.unit == 0 || item->is_too_wide || item->parameter_count == FG_PARAMETERS) continue;
        offset = (offset + parameter.alignment - 1) / parameter.alignment * parameter.alignment;
        item->parameters[item->parameter_count++] = (struct fg_parameter){offset, parameter.bytes};
        offset += parameter.bytes;
    }
}

static const char *variable(const char *at, struct fg_ptx_item *item, enum fg_ptx_kind *kind)
{
    struct declaration declared;
    at = skip_space(declaration(at, &declared));
    memcpy(item->name, declared.name, sizeof item->name);
    item->bytes = declared.bytes;
    item->unit = declared.unit;
    item->managed = declared.managed;
    item->initial = *at == '=' ? at + 1 : NULL;
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

/* "0f3f800000" and "0d..." are floating-point numbers by their bits, with a point they are in decimal. */
static bool number(const char *token, bool negative, size_t unit, void *to)
{
    char *end;
    uint64_t bits;
    if ((token[0] == '0' && (tolower((unsigned char)token[1]) == 'f' || tolower((unsigned char)token[1]) == 'd'))) {
        bits = strtoull(token + 2, &end, 16);
    } else if (strchr(token, '.') != NULL && (unit == sizeof(float) || unit == sizeof(double))) {
        const double value = negative ? -strtod(token, &end) : strtod(token, &end);
        const float narrow = (float)value;
        return memcpy(to, unit == sizeof narrow ? (const void *)&narrow : &value, unit), *end == '\0';
    } else {
        bits = strtoull(token, &end, 0);
        if (*end == 'U') end++;
        if (negative) bits = -bits;
    }
    if (end == token || *end != '\0') return false;
    memcpy(to, &bits, unit < sizeof bits ? unit : sizeof bits); /* little-endian, as the card */
    return true;
}

bool fg_ptx_initialise(const struct fg_ptx_item *item, void *memory)
{
    char token[TOKEN];
    size_t at_byte = 0;
    bool negative = false;
    for (const char *at = item->initial; at != NULL;) {
        at = next_token(at, token);
        if (is(token, ";") || token[0] == '\0') break;
        if (is(token, "-")) negative = true;
        if (is(token, "{") || is(token, "}") || is(token, ",") || is(token, "-")) continue;
        if (at_byte + item->unit > item->bytes || !number(token, negative, item->unit, (char *)memory + at_byte)) return false;
        at_byte += item->unit;
        negative = false;
    }
    return true;
}
