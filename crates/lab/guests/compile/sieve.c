/* The sum of the primes below 10,000. */
#include "system.h"

enum { LIMIT = 10000 };

static char is_composite[LIMIT];

static word result(void)
{
    word sum = 0;
    for (word number = 2; number < LIMIT; number++) {
        if (is_composite[number])
            continue;
        sum += number;
        for (word multiple = number * number; multiple < LIMIT; multiple += number)
            is_composite[multiple] = 1;
    }
    return sum;
}
