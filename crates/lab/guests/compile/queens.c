/* Counts the ways to place eight queens on a board so that none attacks another. */
#include "system.h"

enum { SIZE = 8 };

struct board {
    char columns[SIZE];
    char rising[2 * SIZE];
    char falling[2 * SIZE];
};

static struct board board;

static int is_free(int row, int column)
{
    return !board.columns[column] && !board.rising[row + column] &&
           !board.falling[row - column + SIZE];
}

static void put(int row, int column, char taken)
{
    board.columns[column] = taken;
    board.rising[row + column] = taken;
    board.falling[row - column + SIZE] = taken;
}

static word ways(int row)
{
    word count = 0;
    if (row == SIZE)
        return 1;
    for (int column = 0; column < SIZE; column++) {
        if (!is_free(row, column))
            continue;
        put(row, column, 1);
        count += ways(row + 1);
        put(row, column, 0);
    }
    return count;
}

static word result(void)
{
    return ways(0);
}
