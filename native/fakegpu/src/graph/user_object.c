/* User objects of the stand-in driver: what a program wants to be ended when no graph needs it any more. */
#include <limits.h>
#include <stdlib.h>

#include "driver/handle.h"
#include "graph/graph.h"

struct CUuserObject_st {
    enum fg_tag tag;
    unsigned int count;
    CUhostFn destroy;
    void *data;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* for all counts */

static bool object_ok(CUuserObject object) { return fg_handle_lives(object) && object->tag == FG_USER_OBJECT; }

static CUresult hold(CUuserObject object, unsigned int count)
{
    pthread_mutex_lock(&lock);
    const bool fits = count <= INT_MAX - object->count;
    if (fits) object->count += count;
    pthread_mutex_unlock(&lock);
    return fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* Runs the destructor with the last reference. More than there are: an error, and nothing changes. */
static CUresult drop(CUuserObject object, unsigned int count)
{
    pthread_mutex_lock(&lock);
    const bool held = count <= object->count;
    if (held) object->count -= count;
    const bool last = held && object->count == 0;
    if (last) fg_handle_ends(object);
    pthread_mutex_unlock(&lock);
    if (last) {
        object->destroy(object->data);
        free(object);
    }
    return held ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuUserObjectCreate(CUuserObject *object, void *data, CUhostFn destroy, unsigned int count, unsigned int flags)
{
    enum { NO_DESTRUCTOR_SYNC = 1 };
    if (!fg_driver.initialised) return CUDA_ERROR_NOT_INITIALIZED;
    if (object == NULL || destroy == NULL || count == 0 || count > INT_MAX || flags != NO_DESTRUCTOR_SYNC) return CUDA_ERROR_INVALID_VALUE;
    CUuserObject made = calloc(1, sizeof *made);
    if (made == NULL || !fg_handle_begins(made)) return free(made), CUDA_ERROR_OUT_OF_MEMORY;
    *made = (struct CUuserObject_st){FG_USER_OBJECT, count, destroy, data};
    *object = made;
    return CUDA_SUCCESS;
}

CUresult cuUserObjectRetain(CUuserObject object, unsigned int count)
{
    return object_ok(object) && count > 0 && count <= INT_MAX ? hold(object, count) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuUserObjectRelease(CUuserObject object, unsigned int count)
{
    return object_ok(object) && count > 0 && count <= INT_MAX ? drop(object, count) : CUDA_ERROR_INVALID_VALUE;
}

static struct fg_retained **place_of(CUgraph graph, CUuserObject object)
{
    struct fg_retained **at = &graph->retained;
    while (*at != NULL && (*at)->object != object) at = &(*at)->next;
    return at;
}

/* References that already are the graph's, or become so. */
static CUresult give(CUgraph graph, CUuserObject object, unsigned int count)
{
    struct fg_retained **at = place_of(graph, object);
    if (*at == NULL) *at = calloc(1, sizeof **at);
    if (*at == NULL) return CUDA_ERROR_OUT_OF_MEMORY;
    if (count > INT_MAX - (*at)->count) return CUDA_ERROR_INVALID_VALUE;
    (*at)->object = object;
    (*at)->count += count;
    return CUDA_SUCCESS;
}

CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count, unsigned int flags)
{
    enum { MOVE = 1 };
    if (!fg_graph_ok(graph) || !object_ok(object) || count == 0 || count > INT_MAX || flags > MOVE) return CUDA_ERROR_INVALID_VALUE;
    if (flags == MOVE && count > object->count) return CUDA_ERROR_INVALID_VALUE;
    CUresult result = flags == MOVE ? CUDA_SUCCESS : hold(object, count);
    if (result != CUDA_SUCCESS) return result;
    result = give(graph, object, count);
    if (result != CUDA_SUCCESS && flags != MOVE) (void)drop(object, count);
    return result;
}

CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned int count)
{
    if (!fg_graph_ok(graph) || !object_ok(object) || count == 0) return CUDA_ERROR_INVALID_VALUE;
    struct fg_retained **at = place_of(graph, object), *found = *at;
    if (found == NULL || count > found->count) return CUDA_ERROR_INVALID_VALUE;
    found->count -= count;
    if (found->count == 0) {
        *at = found->next;
        free(found);
    }
    return drop(object, count);
}

CUresult fg_copy_retained(CUgraph from, CUgraph to)
{
    CUresult result = CUDA_SUCCESS;
    for (struct fg_retained *at = from->retained; at != NULL && result == CUDA_SUCCESS; at = at->next)
        result = cuGraphRetainUserObject(to, at->object, at->count, 0);
    return result;
}

struct fg_retained *fg_take_retained(CUgraph graph)
{
    struct fg_retained *all = graph->retained;
    graph->retained = NULL;
    return all;
}

void fg_release_retained(void *retained)
{
    for (struct fg_retained *at = retained, *next; at != NULL; at = next) {
        next = at->next;
        (void)drop(at->object, at->count);
        free(at);
    }
}
