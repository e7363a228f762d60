/*
 * Spans of addresses, ordered, that do not overlap: what is allocated and what is free are both kept in such trees.
 *
 * In: nodes that live inside the caller's records. Out: the span that holds an address, the first that has room, neighbours. A
 * treap: expected logarithmic, no allocation of its own. Not here: locking, which is the caller's. Invariant: no two spans of a
 * tree share an address, and `longest` is the greatest size below and at a node.
 */
#ifndef VCUDA_EMULATOR_SPANS_H
#define VCUDA_EMULATOR_SPANS_H

#include <stdint.h>

struct span {
    uint64_t start, size;
    uint64_t longest;
    uint32_t rank;
    struct span *left, *right;
};

struct spans {
    struct span *root;
    uint32_t seed;
};

void spans_insert(struct spans *spans, struct span *span);
void spans_remove(struct spans *spans, struct span *span);
/* A span of the tree grows or shrinks in place; it must not pass a neighbour. */
void spans_resize(struct spans *spans, struct span *span, uint64_t start, uint64_t size);

struct span *spans_holding(const struct spans *spans, uint64_t address);    /* NULL: none holds it */
struct span *spans_at_or_after(const struct spans *spans, uint64_t address);    /* the lowest whose start is not below */
struct span *spans_before(const struct spans *spans, uint64_t address);     /* the highest whose start is below */
/* The lowest with `size` bytes from an address that is a multiple of `alignment`; that address in *at. */
struct span *spans_with_room(const struct spans *spans, uint64_t size, uint64_t alignment, uint64_t *at);

/* The member that a span is embedded in, `span` being its first one: NULL stays NULL. */
#define SPAN_OWNER(type, pointer) ((type *)(void *)(pointer))

#endif
