/* Calls the main function of a program whose code and data have a segment each. The library leaves ES at
   DOS's own data after it has read the arguments; string instructions need it at the program's. */

main(argc, argv)
int argc;
char **argv;
{
#asm
  push ds
  pop es
#endasm
    return real_main(argc, argv);
}
