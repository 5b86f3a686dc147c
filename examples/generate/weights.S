/* weights.S -- links a file of weights into the program, for generate.c with -DGPT_LINKED: -DWEIGHTS='"FILE"'. */
    .section .rodata
    .balign 64
    .globl gpt_weights
    .globl gpt_weights_end
gpt_weights:
    .incbin WEIGHTS
gpt_weights_end:
    .byte 0
    .section .note.GNU-stack, "", %progbits
