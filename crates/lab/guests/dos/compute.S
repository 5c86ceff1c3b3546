# COMPUTE.COM: arithmetic alone, as the small system's command `compute`.
.include "layout.inc"

.section .start, "ax"
.code16
    cld
    call do_compute
    jmp finish
