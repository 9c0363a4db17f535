/* Fibers: functions with stacks of their own that hand the processor to each other. x86-64 only. */
#ifndef EMULATOR_FIBER_H
#define EMULATOR_FIBER_H

#include <stdint.h>

#ifndef __x86_64__
#error "the emulator switches stacks by hand, and knows x86-64 alone"
#endif

/* Leaves this stack, its pointer in *from, and goes on where `to` was left. Registers that a call may change need no
 * saving. */
void fiber_switch(void **from, void *to);
__asm__(".text\n"
        ".globl fiber_switch\n"
        ".hidden fiber_switch\n"
        ".type fiber_switch, @function\n"
        "fiber_switch:\n"
        "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
        "  movq %rsp, (%rdi)\n"
        "  movq %rsi, %rsp\n"
        "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
        "  ret\n"
        ".size fiber_switch, .-fiber_switch\n");

/* What to switch to so that `begin`, which never returns, starts on the stack that ends at `top`. */
static inline void *fiber_new(char *top, void (*begin)(void)) {
    uint64_t *sp = (uint64_t *)((uintptr_t)top & ~(uintptr_t)15);
    *--sp = 0; /* a return address would lie here: the stack is aligned as after a call */
    *--sp = (uint64_t)(uintptr_t)begin;
    for (int i = 0; i < 6; i++) *--sp = 0;
    return sp;
}

#endif
