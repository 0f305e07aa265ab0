// Replacements for the PTX of common/wgmma.cuh: products of a warpgroup from their descriptions of shared memory.
//
// Each warp computes its own 16 rows of a product at some moment between its issue and the wait for it: it reads shared
// memory, and operands in registers, as they are then. Errors it detects:
// - Sums are NaN from the issue of a product until the wait for it.
// - Products that no products_fence orders after the start of the kernel, or after the last wait, give NaN.
// - A description must be one of common/wgmma.cuh's kind, the same in all lanes, and within shared memory.
// - Nobody waits for a product, or the four warps of a warpgroup do not issue as many.
// - With -DFOLIO_RACES: operands that were written without a proxy fence by the writer, and those that are overwritten
//   before the wait.

#pragma once

namespace emulator {

// Where shared memory starts for descriptions: 228 KiB before its end.
unsigned shared_address(const void *shared);
// `registers`: operand a, or null.
void issue_product(float4 *sums, unsigned columns, const uint4 *registers, unsigned long long a, unsigned long long b,
                   bool adds, const char *place, const void *caller);
void fence_products(const char *place);
void commit_products(const char *place);
void wait_products(unsigned left, const char *place, const void *caller);

}  // namespace emulator

inline unsigned shared_address(const void *shared) { return emulator::shared_address(shared); }
inline void proxy_fence() { emulator::races::proxy_fence(); }
inline void products_fence() { emulator::fence_products(__func__); }
inline void products_commit() { emulator::commit_products(__func__); }
template <int LEFT> __attribute__((noinline)) void products_wait() {
  emulator::wait_products(LEFT, __func__, __builtin_return_address(0));
}
template <typename T, unsigned COUNT> inline void products_hold(T (&)[COUNT]) {}
__attribute__((noinline)) inline void multiply_rows(float4 (&sums)[16], unsigned long long a, unsigned long long b,
                                                    bool adds) {
  emulator::issue_product(sums, 128, nullptr, a, b, adds, __func__, __builtin_return_address(0));
}
template <unsigned COUNT>
__attribute__((noinline)) void multiply_columns(float4 (&sums)[COUNT], const uint4 &a, unsigned long long b) {
  emulator::issue_product(sums, 8 * COUNT, &a, 0, b, true, __func__, __builtin_return_address(0));
}
