/* Prints the prime numbers below SIZE in columns, and the sum of their squares. The experiment `vif` has it
   compiled, assembled, linked and run inside DOS. */
#define SIZE 2000
#define COLUMNS 8

static char sieve[SIZE];
static long sum;

/* Strikes the multiples of a number. */
strike(step) int step;
{
    int i;

    for (i = step + step; i < SIZE; i += step)
        sieve[i] = 1;
}

main()
{
    int i, column;

    column = 0;
    for (i = 2; i < SIZE; i++) {
        if (sieve[i])
            continue;
        strike(i);
        sum += (long) i * i;
        printf("%d", i);
        if (++column % COLUMNS == 0)
            printf("\n");
        else
            printf(" ");
    }
    printf("sum of squares %ld\n", sum);
    return 0;
}
