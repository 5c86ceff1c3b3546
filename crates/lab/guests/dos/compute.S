# COMPUTE.COM: only arithmetic, like the small system's command `compute`.
.include "layout.inc"

.section .start, "ax"
.code16
    cld
    call do_compute
    jmp finish
