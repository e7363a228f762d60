/* See spans.h. A treap by start, with the greatest size of every subtree. */
#include "spans.h"

#include <stdbool.h>
#include <stddef.h>

static uint64_t longest(const struct span *span)
{
    return span == NULL ? 0 : span->longest;
}

static void update(struct span *span)
{
    uint64_t left = longest(span->left), right = longest(span->right), most = left > right ? left : right;
    span->longest = span->size > most ? span->size : most;
}

static uint32_t next_rank(struct spans *spans)
{
    uint32_t x = spans->seed == 0 ? UINT32_C(0x9e3779b9) : spans->seed;
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    return spans->seed = x;
}

/* Everything below `start` to *left, the rest to *right. */
static void split(struct span *tree, uint64_t start, struct span **left, struct span **right)
{
    if (tree == NULL) {
        *left = *right = NULL;
    } else if (tree->start < start) {
        split(tree->right, start, &tree->right, right);
        *left = tree;
        update(tree);
    } else {
        split(tree->left, start, left, &tree->left);
        *right = tree;
        update(tree);
    }
}

static struct span *merge(struct span *left, struct span *right)
{
    if (left == NULL || right == NULL)
        return left == NULL ? right : left;
    if (left->rank > right->rank) {
        left->right = merge(left->right, right);
        update(left);
        return left;
    }
    right->left = merge(left, right->left);
    update(right);
    return right;
}

static struct span *insert(struct span *tree, struct span *span)
{
    if (tree == NULL || span->rank > tree->rank) {
        split(tree, span->start, &span->left, &span->right);
        update(span);
        return span;
    }
    if (span->start < tree->start)
        tree->left = insert(tree->left, span);
    else
        tree->right = insert(tree->right, span);
    update(tree);
    return tree;
}

void spans_insert(struct spans *spans, struct span *span)
{
    span->rank = next_rank(spans);
    span->left = span->right = NULL;
    spans->root = insert(spans->root, span);
}

static struct span *without(struct span *tree, const struct span *span)
{
    if (tree == span)
        return merge(tree->left, tree->right);
    if (span->start < tree->start)
        tree->left = without(tree->left, span);
    else
        tree->right = without(tree->right, span);
    update(tree);
    return tree;
}

void spans_remove(struct spans *spans, struct span *span)
{
    spans->root = without(spans->root, span);
    span->left = span->right = NULL;
}

/* The path is the same before and after: only order among neighbours decides it. */
static void update_path(struct span *tree, const struct span *span)
{
    if (tree != span)
        update_path(span->start < tree->start ? tree->left : tree->right, span);
    update(tree);
}

void spans_resize(struct spans *spans, struct span *span, uint64_t start, uint64_t size)
{
    span->start = start;
    span->size = size;
    update_path(spans->root, span);
}

struct span *spans_before(const struct spans *spans, uint64_t address)
{
    struct span *found = NULL;
    for (struct span *at = spans->root; at != NULL;) {
        if (at->start < address) {
            found = at;
            at = at->right;
        } else {
            at = at->left;
        }
    }
    return found;
}

struct span *spans_at_or_after(const struct spans *spans, uint64_t address)
{
    struct span *found = NULL;
    for (struct span *at = spans->root; at != NULL;) {
        if (at->start >= address) {
            found = at;
            at = at->left;
        } else {
            at = at->right;
        }
    }
    return found;
}

struct span *spans_holding(const struct spans *spans, uint64_t address)
{
    struct span *found = address == UINT64_MAX ? NULL : spans_before(spans, address + 1);
    return found != NULL && address - found->start < found->size ? found : NULL;
}

static bool has_room(const struct span *span, uint64_t size, uint64_t alignment, uint64_t *at)
{
    uint64_t aligned = (span->start + alignment - 1) / alignment * alignment, skipped = aligned - span->start;
    *at = aligned;
    return skipped <= span->size && span->size - skipped >= size;
}

static struct span *find_room(struct span *tree, uint64_t size, uint64_t alignment, uint64_t *at)
{
    if (longest(tree) < size)
        return NULL;
    struct span *found = find_room(tree->left, size, alignment, at);
    if (found != NULL)
        return found;
    if (has_room(tree, size, alignment, at))
        return tree;
    return find_room(tree->right, size, alignment, at);
}

struct span *spans_with_room(const struct spans *spans, uint64_t size, uint64_t alignment, uint64_t *at)
{
    return find_room(spans->root, size, alignment, at);
}
