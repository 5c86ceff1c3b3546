/* Pointer chases: each load needs the previous one, in a random order over all lines. */
#include "bench.h"

enum { LINE = 64, STEPS = 1 << 15 };

struct node {
    struct node *next;
    uint32_t number;
};

/* One cycle of pointers through `bytes` of memory (Sattolo's shuffle of the lines). */
static struct node *chain(size_t bytes) {
    uint32_t count = bytes / LINE, random = 5;
    uint8_t *memory = pages(bytes);
    uint32_t *order = pages(count * sizeof *order);
    for (uint32_t index = 0; index < count; index++)
        order[index] = index;
    for (uint32_t index = count - 1; index > 0; index--) {
        uint32_t other = next_random(&random) % index, swapped = order[index];
        order[index] = order[other];
        order[other] = swapped;
    }
    struct node *node = NULL;
    for (uint32_t index = 0; index <= count; index++) {
        struct node *next = (struct node *)(memory + (size_t)LINE * order[index % count]);
        next->number = order[index % count];
        if (node)
            node->next = next;
        node = next;
    }
    return node;
}

static uint64_t chase(struct node **start, size_t bytes) {
    if (!*start)
        *start = chain(bytes);
    struct node *node = *start;
    for (int step = 0; step < STEPS; step++)
        node = node->next;
    return node->number;
}

#define CHASE(name, bytes)                                                                         \
    static uint64_t name(void) {                                                                   \
        static struct node *start;                                                                 \
        return chase(&start, bytes);                                                               \
    }
CHASE(chase_32k, 32 << 10)
CHASE(chase_1m, 1 << 20)
CHASE(chase_64m, 64 << 20)

const struct row chase_rows[] = {
    {"mem", "chase32K", STEPS, chase_32k},
    {"mem", "chase1M", STEPS, chase_1m},
    {"mem", "chase64M", STEPS, chase_64m},
    {0},
};
