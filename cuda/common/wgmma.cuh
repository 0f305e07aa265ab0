// Products of a warpgroup (four warps) on Hopper's tensor cores: wgmma, for sm_90a only. emulator/wgmma.h replaces the
// PTX instructions with C++.
//
// They run asynchronously, in the order of their issue. What they add to, and the operands in registers, may be touched
// again only after products_wait; before the first product, and before the next one after a wait, products_fence orders
// the registers. They read shared memory through the asynchronous proxy: a thread that wrote operands, or waited for
// its own asynchronous copies of them, passes proxy_fence before the barrier behind which others multiply them. To
// overwrite operands, a barrier after products_wait is enough.
//
// Operands in shared memory are panels of 64 f16, that is rows of 128 bytes, in groups of eight rows (1024 bytes,
// aligned to as much). The hardware's swizzle for such rows: bits 4 to 6 of an address, the 16-byte piece of a row, are
// XORed with bits 7 to 9, the row of a group.

#pragma once
#include "common/prelude.cuh"

constexpr u32 PANEL_COLUMNS = 64, PANEL_ROW = 128, PANEL_GROUP = 8 * PANEL_ROW, PANEL_ALIGN = 1024;

// Offset of a 16-byte piece of a row within a panel.
__device__ __forceinline__ u32 panel_offset(u32 row, u32 piece) { return row * PANEL_ROW + (piece ^ row % 8) * 16; }

#ifdef FOLIO_EMULATOR
#include "emulator/wgmma.h"
#else

// Orders this thread's earlier writes to shared memory before reads of products.
__device__ __forceinline__ void proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void products_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// Ends a group of products.
__device__ __forceinline__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until all but the last LEFT groups have ended.
template <int LEFT> __device__ __forceinline__ void products_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(LEFT) : "memory");
}
// Keeps the compiler, which does not know that products run later, from moving accesses to sums, or to operands in
// registers, across this place.
template <u32 COUNT> __device__ __forceinline__ void products_hold(float4 (&sums)[COUNT]) {
#pragma unroll
  for (u32 i = 0; i < COUNT; i++)
    asm volatile("" : "+f"(sums[i].x), "+f"(sums[i].y), "+f"(sums[i].z), "+f"(sums[i].w)::"memory");
}
template <u32 COUNT> __device__ __forceinline__ void products_hold(uint4 (&operands)[COUNT]) {
#pragma unroll
  for (u32 i = 0; i < COUNT; i++)
    asm volatile("" : "+r"(operands[i].x), "+r"(operands[i].y), "+r"(operands[i].z), "+r"(operands[i].w)::"memory");
}

#define SUM_4(s, i) "+f"(s[i].x), "+f"(s[i].y), "+f"(s[i].z), "+f"(s[i].w)
#define SUM_16(s, i) SUM_4(s, i), SUM_4(s, i + 1), SUM_4(s, i + 2), SUM_4(s, i + 3)
#define SUM_32(s, i) SUM_16(s, i), SUM_16(s, i + 4)
#define NAMES_32                                                                                         \
  "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, " \
  "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_64                                                                                            \
  NAMES_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, "   \
           "%50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

// sums (64 × 128) = a · bᵀ, or sums += a · bᵀ: `a` is 64 rows, `b` 128 rows of 16 f16 in shared memory.
__device__ __forceinline__ void multiply_rows(float4 (&sums)[16], u64 a, u64 b, bool adds) {
  asm volatile(
      "{ .reg .pred adds; setp.ne.b32 adds, %66, 0;"
      " wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" NAMES_64 "}, %64, %65, adds, 1, 1, 0, 0; }"
      : SUM_32(sums, 0), SUM_32(sums, 8)
      : "l"(a), "l"(b), "r"(static_cast<u32>(adds))
      : "memory");
}
// sums (64 × N) += a · b: `a` is 64 rows of 16 f16 in registers, `b` 16 rows of N f16 in shared memory.
__device__ __forceinline__ void multiply_columns(float4 (&sums)[16], const uint4 &a, u64 b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 {" NAMES_64 "}, {%64, %65, %66, %67}, %68, 1, 1, 1, 1;"
      : SUM_32(sums, 0), SUM_32(sums, 8)
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b)
      : "memory");
}
__device__ __forceinline__ void multiply_columns(float4 (&sums)[8], const uint4 &a, u64 b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {" NAMES_32 "}, {%32, %33, %34, %35}, %36, 1, 1, 1, 1;"
      : SUM_32(sums, 0)
      : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b)
      : "memory");
}
#undef SUM_4
#undef SUM_16
#undef SUM_32
#undef NAMES_32
#undef NAMES_64
#endif

// Describes an operand in panels to the tensor cores: its address in units of 16 bytes, in bits 0 to 13; in bits 16 to
// 29 the bytes between panels, used where the panels lie along the sums' columns (multiply_columns); in bits 32 to 45
// the bytes between groups of eight rows; in bits 62 and 63 the kind of swizzle.
__device__ __forceinline__ u64 describe_panels(const void *shared, u32 panel_bytes) {
  const u64 address = (shared_address(shared) & 0x3ffff) >> 4;
  return address | static_cast<u64>(panel_bytes >> 4) << 16 | static_cast<u64>(PANEL_GROUP >> 4) << 32 | 1ull << 62;
}
// Moves a description by a multiple of 16 bytes.
__device__ __forceinline__ u64 moved(u64 description, u32 bytes) { return description + (bytes >> 4); }
