#include "machine/json.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

/* Deeper than any sensible configuration; bounds the recursion. */
enum { MAX_DEPTH = 32 };

struct reader {
    const char *at;
    const char *message;
    int line, depth;
};

static struct json *parse_value(struct reader *r);

static void skip_blank(struct reader *r)
{
    for (; isspace((unsigned char)*r->at); r->at++)
        if (*r->at == '\n') r->line++;
}

static struct json *fail(struct reader *r, const char *message)
{
    if (r->message == NULL) r->message = message;
    return NULL;
}

/* After the opening quote. \uXXXX is kept for Latin-1 only: nothing in a configuration needs more. */
static char *parse_text(struct reader *r)
{
    char *text = malloc(strlen(r->at) + 1), *out = text;
    if (text == NULL) return NULL;
    for (; *r->at != '"'; r->at++) {
        if (*r->at == '\0' || *r->at == '\n') {
            free(text);
            fail(r, "a string is not closed");
            return NULL;
        }
        if (*r->at != '\\') {
            *out++ = *r->at;
            continue;
        }
        r->at++;
        static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
        const char *known = *r->at != '\0' ? strchr(from, *r->at) : NULL;
        if (known == NULL) {
            free(text);
            fail(r, "an escape other than \\\" \\\\ \\/ \\b \\f \\n \\r \\t");
            return NULL;
        }
        *out++ = to[known - from];
    }
    r->at++;
    *out = '\0';
    return text;
}

/* Members of an object or elements of an array, after the opening bracket. */
static int parse_children(struct reader *r, struct json *parent, char close)
{
    struct json **last = &parent->child;
    skip_blank(r);
    if (*r->at == close) return r->at++, 0;
    for (;;) {
        char *name = NULL;
        skip_blank(r);
        if (close == '}') {
            if (*r->at != '"') return fail(r, "a member wants a name in quotes"), -1;
            r->at++;
            if ((name = parse_text(r)) == NULL) return -1;
            skip_blank(r);
            if (*r->at != ':') return free(name), fail(r, "a name wants a colon"), -1;
            r->at++;
        }
        struct json *child = parse_value(r);
        if (child == NULL) return free(name), -1;
        child->name = name;
        *last = child;
        last = &child->next;
        skip_blank(r);
        if (*r->at == close) return r->at++, 0;
        if (*r->at++ != ',') return fail(r, "a comma or a closing bracket is missing"), -1;
    }
}

static int parse_scalar(struct reader *r, struct json *value)
{
    static const struct {
        const char *text;
        enum json_type type;
        double number;
    } literals[] = {{"true", JSON_BOOL, 1}, {"false", JSON_BOOL, 0}, {"null", JSON_NULL, 0}};
    for (size_t i = 0; i < sizeof literals / sizeof *literals; i++)
        if (strncmp(r->at, literals[i].text, strlen(literals[i].text)) == 0) {
            value->type = literals[i].type;
            value->number = literals[i].number;
            r->at += strlen(literals[i].text);
            return 0;
        }
    char *end;
    value->type = JSON_NUMBER;
    value->number = strtod(r->at, &end);
    if (end == r->at) return fail(r, "a value is missing"), -1;
    r->at = end;
    return 0;
}

static struct json *parse_value(struct reader *r)
{
    skip_blank(r);
    if (r->depth >= MAX_DEPTH) return fail(r, "nested too deeply");
    struct json *value = calloc(1, sizeof *value);
    if (value == NULL) return fail(r, "out of memory");
    r->depth++;
    int error = 0;
    if (*r->at == '{' || *r->at == '[') {
        const char close = *r->at++ == '{' ? '}' : ']';
        value->type = close == '}' ? JSON_OBJECT : JSON_ARRAY;
        error = parse_children(r, value, close);
    } else if (*r->at == '"') {
        r->at++;
        value->type = JSON_STRING;
        error = (value->text = parse_text(r)) == NULL ? -1 : 0;
    } else {
        error = parse_scalar(r, value);
    }
    r->depth--;
    if (error == 0) return value;
    json_free(value);
    return NULL;
}

struct json *json_parse(const char *text, const char **message, int *line)
{
    struct reader r = {.at = text, .line = 1};
    struct json *value = parse_value(&r);
    skip_blank(&r);
    if (value != NULL && *r.at != '\0') {
        json_free(value);
        value = fail(&r, "text after the end");
    }
    *message = r.message != NULL ? r.message : "out of memory";
    *line = r.line;
    return value;
}

void json_free(struct json *value)
{
    while (value != NULL) {
        struct json *next = value->next;
        json_free(value->child);
        free(value->text);
        free(value->name);
        free(value);
        value = next;
    }
}

const struct json *json_member(const struct json *object, const char *name)
{
    if (object == NULL || object->type != JSON_OBJECT) return NULL;
    for (const struct json *child = object->child; child != NULL; child = child->next)
        if (strcmp(child->name, name) == 0) return child;
    return NULL;
}

double json_number(const struct json *object, const char *name, double otherwise)
{
    const struct json *member = json_member(object, name);
    return member != NULL && (member->type == JSON_NUMBER || member->type == JSON_BOOL) ? member->number : otherwise;
}

const char *json_text(const struct json *object, const char *name, const char *otherwise)
{
    const struct json *member = json_member(object, name);
    return member != NULL && member->type == JSON_STRING ? member->text : otherwise;
}
