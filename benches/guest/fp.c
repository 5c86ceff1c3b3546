/* Floating point with doubles. For i386 this is built twice: for the x87, and with
 * SSE2 defined for SSE2. */
#include "bench.h"
#include <math.h>
#include <string.h>

enum { N = 128 };

/* Sums differ in their last digits where the x87 has a greater precision. */
static uint64_t digits(double value) { return (uint64_t)(int64_t)(value * 1e6) & INT64_MAX; }

static uint64_t matmul(void) {
    static double a[N][N], b[N][N], c[N][N];
    if (a[1][1] == 0)
        for (int row = 0; row < N; row++)
            for (int column = 0; column < N; column++) {
                a[row][column] = (row * 7 + column) % 13 + 0.5;
                b[row][column] = (row + column * 5) % 11 - 2.25;
            }
    memset(c, 0, sizeof c);
    for (int row = 0; row < N; row++)
        for (int inner = 0; inner < N; inner++)
            for (int column = 0; column < N; column++)
                c[row][column] += a[row][inner] * b[inner][column];
    return digits(c[3][5] + c[N - 1][N - 1]);
}

enum { BODIES = 5, BODY_STEPS = 2000 };

struct body {
    double position[3], velocity[3], mass;
};

static uint64_t nbody(void) {
    struct body bodies[BODIES];
    for (int index = 0; index < BODIES; index++)
        bodies[index] = (struct body){
            {index * 4.0, index * index - 3.0, 1.0 - index},
            {0.1 * index, 0.2 - 0.05 * index, 0.01 * index},
            index ? 0.01 * index : 40.0,
        };
    for (int step = 0; step < BODY_STEPS; step++) {
        for (int first = 0; first < BODIES; first++)
            for (int second = first + 1; second < BODIES; second++) {
                struct body *a = &bodies[first], *b = &bodies[second];
                double difference[3], square = 0.05;
                for (int axis = 0; axis < 3; axis++) {
                    difference[axis] = a->position[axis] - b->position[axis];
                    square += difference[axis] * difference[axis];
                }
                double pull = 0.0005 / (square * sqrt(square));
                for (int axis = 0; axis < 3; axis++) {
                    a->velocity[axis] -= difference[axis] * b->mass * pull;
                    b->velocity[axis] += difference[axis] * a->mass * pull;
                }
            }
        for (int index = 0; index < BODIES; index++)
            for (int axis = 0; axis < 3; axis++)
                bodies[index].position[axis] += 0.0005 * bodies[index].velocity[axis];
    }
    return digits(bodies[1].position[0]);
}

enum { WIDTH = 64, DEPTH = 200 };

static uint64_t mandel(void) {
    unsigned inside = 0;
    for (int line = 0; line < WIDTH; line++)
        for (int point = 0; point < WIDTH; point++) {
            /* The constants are exact in binary, so that the count is the same everywhere. */
            double cr = point / 32.0 - 1.5, ci = line / 32.0 - 1.0, r = 0, i = 0;
            int depth = 0;
            while (depth < DEPTH && r * r + i * i < 4) {
                double next = r * r - i * i + cr;
                i = 2 * r * i + ci;
                r = next;
                depth++;
            }
            inside += depth == DEPTH;
        }
    return inside > 1000 && inside < 3000;
}

enum { ROOTS = 1 << 14 };

static uint64_t sqrt_div(void) {
    double sum = 0;
    for (int index = 1; index <= ROOTS; index++)
        sum += sqrt(index) / (index + 0.5);
    return digits(sum);
}

static uint64_t convert(void) {
    int32_t sum = 0;
    double scale = 1.25;
    for (int32_t index = 0; index < ROOTS; index++) {
        sum += (int32_t)(index * scale);
        OPAQUE(sum);
    }
    return sum;
}

#ifdef SSE2
#define ROW(name) name "_sse2"
const struct row fp_sse2_rows[] = {
#else
#define ROW(name) name
const struct row fp_rows[] = {
#endif
    {"fp", ROW("matmul128"), N *N *N, matmul},
    {"fp", ROW("nbody"), BODY_STEPS, nbody},
    {"fp", ROW("mandel"), WIDTH *WIDTH, mandel},
    {"fp", ROW("sqrtdiv"), ROOTS, sqrt_div},
    {"fp", ROW("cvt"), ROOTS, convert},
    {0},
};
