/* Parses and computes an expression with parentheses repeatedly, as a compiler does. */
#include "system.h"

static const char text[] = "(12 + 7) * (3 + 4 * (5 - 2)) - 100 / (2 + 3) * (9 - 4) + 8 * (7 - (6 - 5))";
static const char *at;

enum token { NUMBER, PLUS, MINUS, TIMES, OVER, OPEN, CLOSE, END };

static word value;

static enum token next(void)
{
    while (*at == ' ')
        at++;
    switch (*at) {
    case 0: return END;
    case '+': at++; return PLUS;
    case '-': at++; return MINUS;
    case '*': at++; return TIMES;
    case '/': at++; return OVER;
    case '(': at++; return OPEN;
    case ')': at++; return CLOSE;
    }
    value = 0;
    while (*at >= '0' && *at <= '9')
        value = value * 10 + (*at++ - '0');
    return NUMBER;
}

static enum token token;

static word sum(void);

static word factor(void)
{
    word number = value;
    if (token == OPEN) {
        token = next();
        number = sum();
    }
    token = next();
    return number;
}

static word product(void)
{
    word number = factor();
    while (token == TIMES || token == OVER) {
        int multiplies = token == TIMES;
        token = next();
        word other = factor();
        number = multiplies ? number * other : number / other;
    }
    return number;
}

static word sum(void)
{
    word number = product();
    while (token == PLUS || token == MINUS) {
        int adds = token == PLUS;
        token = next();
        word other = product();
        number = adds ? number + other : number - other;
    }
    return number;
}

static word result(void)
{
    word total = 0;
    for (int time = 0; time < 100; time++) {
        at = text;
        token = next();
        total = total * 31 + sum();
    }
    return total;
}
