/* A small JSON reader for the configuration file: objects, arrays, strings, numbers, true, false, null. Not for hostile input sizes. */
#ifndef FAKEGPU_JSON_H
#define FAKEGPU_JSON_H

#include <stdbool.h>
#include <stddef.h>

enum json_type { JSON_NULL, JSON_BOOL, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT };

struct json {
    enum json_type type;
    double number;       /* BOOL: 0 or 1 */
    char *text;          /* STRING */
    char *name;          /* of a member of an object */
    struct json *child;  /* first member or element */
    struct json *next;   /* sibling */
};

/* Parses text. NULL with *message (a static sentence) and *line when it is not JSON. */
struct json *json_parse(const char *text, const char **message, int *line);
void json_free(struct json *value);

/* Member of an object; NULL if absent or if `object` is none. */
const struct json *json_member(const struct json *object, const char *name);
/* Member as number or string, else the default. */
double json_number(const struct json *object, const char *name, double otherwise);
const char *json_text(const struct json *object, const char *name, const char *otherwise);

#endif
