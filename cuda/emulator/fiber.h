// Switches between stacks. A launch does so at every synchronization point of every thread, where the C library's
// setjmp, longjmp and ucontext would take a third of its time.

#pragma once

namespace emulator {

// Saves the registers that a called function keeps on the stack in use, and its stack pointer at `from`; then goes on
// where the stack `to` was left.
void switch_stacks(void **from, void *to) asm("folio_switch_stacks");

#if defined(__x86_64__)
asm(R"(
.text
folio_switch_stacks:
  push %rbp
  push %rbx
  push %r12
  push %r13
  push %r14
  push %r15
  mov %rsp, (%rdi)
  mov %rsi, %rsp
  pop %r15
  pop %r14
  pop %r13
  pop %r12
  pop %rbx
  pop %rbp
  ret
)");
// Six registers, the address to which `ret` goes, and that to which it would return.
constexpr unsigned SAVED_WORDS = 8, ENTRY_WORD = 6;
#elif defined(__aarch64__)
asm(R"(
.text
.balign 4
folio_switch_stacks:
  sub sp, sp, #160
  stp x19, x20, [sp]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
)");
// The last of twelve general registers is the address to which `ret` goes.
constexpr unsigned SAVED_WORDS = 20, ENTRY_WORD = 11;
#else
#error "the emulator runs on x86-64 and 64-bit ARM"
#endif

// The stack pointer of a stack that ends at `end`, such that switching to it calls `entry`, which must not return.
inline void *new_stack(void *end, void (*entry)()) {
  void **top = (void **)end - SAVED_WORDS;
  for (unsigned i = 0; i < SAVED_WORDS; i++) top[i] = nullptr;
  top[ENTRY_WORD] = (void *)entry;
  return top;
}

}  // namespace emulator
