/* Long doubles, which both widths compute on the x87. */
#include "bench.h"

enum { TERMS = 1 << 14 };

static uint64_t x87_long_double(void) {
    long double sum = 0, power = 1;
    for (int term = 1; term <= TERMS; term++) {
        power *= 0.999L;
        sum += power / term;
    }
    return (uint64_t)(sum * 1e9L);
}

const struct row long_double_rows[] = {
    {"fp", "x87_longdouble", TERMS, x87_long_double},
    {0},
};
