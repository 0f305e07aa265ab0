// Runs kernels on the host, for tests without a GPU: CUDA's threads as fibers, its barriers and warp operations as
// synchronization points. Compiled with the kernels by any C++20 compiler on Linux or macOS; common/prelude.cuh
// includes it.
//
// Errors it detects:
// - Between two synchronization points the threads of a block run one after another, in a new random order each time:
//   code that lacks a barrier reads data that is not written yet.
// - An asynchronous copy happens only when it is waited for. Shared memory starts as NaN.
// - A warp operation synchronizes exactly the lanes in its mask; a thread that waits forever is reported with the place
//   where it waits.
// - Device memory ends at a guard page (src/backend/cuda/emulator.rs).
//
// It does not detect races between blocks (they run one after another, in a random order), or the behavior of a real
// memory system, assembler or tensor core.

#pragma once
// Only C headers: this is compiled again for every variant of every kernel.
#include <math.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>

struct uint2 { unsigned x, y; };
struct uint3 { unsigned x, y, z; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct alignas(8) float2 { float x, y; };
struct alignas(16) float4 { float x, y, z, w; };
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }

template <typename T> inline T max(T a, T b) { return a < b ? b : a; }
template <typename T> inline T min(T a, T b) { return b < a ? b : a; }

namespace emulator {

constexpr unsigned WARP_LANES = 32, THREADS_MAX = 1024;
constexpr size_t STACK_BYTES = 128 << 10;

struct Copy { void *to; const void *from; unsigned bytes; };

// A group of asynchronous copies that are waited for together.
constexpr unsigned COPIES_MAX = 256, GROUPS_MAX = 8;
struct Group {
  unsigned count;
  Copy copies[COPIES_MAX];
};

// A lane's inputs to a warp operation, and its results.
struct Exchange { unsigned in[16]; unsigned out[8]; };
using Operation = void (*)(Exchange *lanes, unsigned mask);

enum class State { Ready, AtBlock, AtWarp, Done };

struct Thread {
  uint3 index;
  State state;
  bool started;
  jmp_buf registers;
  ucontext_t context;
  void *stack;
  const char *place;
  Operation operation;
  unsigned mask;
  Exchange exchange;
  // A ring buffer: `committed` groups from `oldest` on, then the open one.
  unsigned oldest, committed;
  Group groups[GROUPS_MAX];
};

struct Block {
  uint3 index, size, grid;
  unsigned char *shared;
  Thread *threads;
  unsigned threads_made, count;
  jmp_buf scheduler;
  void (*kernel)(const void *);
  const void *params;
};

inline thread_local Block block;
inline thread_local Thread *self;

[[noreturn]] inline void fail(const char *what, const char *place) {
  fprintf(stderr, "kernel in the emulator: %s (at %s; thread %u of block %u)\n", what, place, self ? self->index.x : 0,
               block.index.x);
  abort();
}

// Switches to another thread of the block until the awaited event has happened.
inline void wait(State state, const char *place) {
  self->state = state;
  self->place = place;
  if (!_setjmp(self->registers)) _longjmp(block.scheduler, 1);
}

inline void enter() {
  block.kernel(block.params);
  self->state = State::Done;
  _longjmp(block.scheduler, 1);
}

inline void resume(Thread &thread) {
  self = &thread;
  if (_setjmp(block.scheduler)) return;
  if (thread.started) _longjmp(thread.registers, 1);
  thread.started = true;
  getcontext(&thread.context);
  thread.context.uc_stack.ss_sp = thread.stack;
  thread.context.uc_stack.ss_size = STACK_BYTES;
  thread.context.uc_link = nullptr;
  makecontext(&thread.context, enter, 0);
  setcontext(&thread.context);
}

// Runs the warp operations whose lanes have all arrived. Returns whether there was one.
inline bool meet_warps() {
  bool met = false;
  for (unsigned first = 0; first < block.count; first += WARP_LANES) {
    unsigned end = ::min(first + WARP_LANES, block.count);
    for (unsigned lane = first; lane < end; lane++) {
      Thread &leader = block.threads[lane];
      if (leader.state != State::AtWarp) continue;
      unsigned mask = leader.mask, here = 0;
      for (unsigned other = first; other < end; other++) {
        Thread &thread = block.threads[other];
        unsigned bit = 1u << (other - first);
        if (!(mask & bit)) continue;
        if (thread.state == State::Done) fail("a lane of the mask has left", leader.place);
        if (thread.state == State::AtWarp && thread.mask == mask) {
          if (thread.operation != leader.operation) fail("lanes meet for different operations", leader.place);
          here |= bit;
        }
      }
      unsigned all = end - first == WARP_LANES ? ~0u : (1u << (end - first)) - 1;
      if (here != (mask & all)) continue;
      Exchange exchange[WARP_LANES];
      for (unsigned other = first; other < end; other++) exchange[other - first] = block.threads[other].exchange;
      leader.operation(exchange, mask & all);
      for (unsigned other = first; other < end; other++) {
        if (!(mask >> (other - first) & 1)) continue;
        block.threads[other].exchange = exchange[other - first];
        block.threads[other].state = State::Ready;
      }
      met = true;
    }
  }
  return met;
}

inline bool meet_block() {
  bool waiting = false;
  for (unsigned i = 0; i < block.count; i++) {
    State state = block.threads[i].state;
    if (state != State::AtBlock && state != State::Done) return false;
    waiting |= state == State::AtBlock;
  }
  if (waiting)
    for (unsigned i = 0; i < block.count; i++)
      if (block.threads[i].state == State::AtBlock) block.threads[i].state = State::Ready;
  return waiting;
}

// Marsaglia's xorshift generator.
inline unsigned draw(unsigned &state) {
  state ^= state << 13;
  state ^= state >> 17;
  return state ^= state << 5;
}

inline void run_block(unsigned &random) {
  for (;;) {
    // Warps run in random order, and the lanes of each forwards or backwards: cheap, and different every time.
    unsigned turn = draw(random) % block.count, flip = draw(random) & 31;
    bool ran = false, left = false;
    for (unsigned i = 0; i < block.count; i++) {
      unsigned at = (i + turn) % block.count ^ flip;
      Thread &thread = block.threads[at < block.count ? at : (i + turn) % block.count];
      if (thread.state == State::Ready) {
        resume(thread);
        ran = true;
      }
      left |= thread.state != State::Done;
    }
    bool met = meet_warps();
    met = meet_block() || met;
    if (!left && !ran) break;
    if (!ran && !met) {
      for (unsigned i = 0; i < block.count; i++)
        if (block.threads[i].state != State::Done && block.threads[i].state != State::Ready) {
          self = &block.threads[i];
          fail("waits for what never comes", self->place);
        }
    }
  }
}

inline void launch(void (*kernel)(const void *), const void *params, const unsigned *grid, const unsigned *size,
                   unsigned shared_bytes, unsigned seed) {
  unsigned random = seed | 1;
  block.count = size[0] * size[1] * size[2];
  if (block.count > THREADS_MAX) fail("too many threads in a block", "launch");
  block.kernel = kernel;
  block.params = params;
  block.grid = {grid[0], grid[1], grid[2]};
  block.size = {size[0], size[1], size[2]};
  if (!block.threads) block.threads = (Thread *)calloc(THREADS_MAX, sizeof(Thread));
  for (; block.threads_made < block.count; block.threads_made++)
    block.threads[block.threads_made].stack =
        mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  // Shared memory ends at a guard page, as device memory does.
  size_t page = 4096, bytes = (shared_bytes + 15) / 16 * 16, pages = (bytes + page - 1) / page * page;
  unsigned char *mapped = (unsigned char *)mmap(nullptr, pages + page, PROT_READ | PROT_WRITE,
                                                MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  mprotect(mapped + pages, page, PROT_NONE);
  block.shared = mapped + pages - bytes;
  unsigned blocks = grid[0] * grid[1] * grid[2], first = blocks ? draw(random) % blocks : 0;
  for (unsigned i = 0; i < blocks; i++) {
    unsigned at = (i + first) % blocks;
    block.index = {at % grid[0], at / grid[0] % grid[1], at / grid[0] / grid[1]};
    memset(block.shared, 0xff, bytes);
    for (unsigned t = 0; t < block.count; t++) {
      Thread &thread = block.threads[t];
      thread.index = {t % size[0], t / size[0] % size[1], t / size[0] / size[1]};
      thread.state = State::Ready;
      thread.started = false;
      thread.oldest = thread.committed = thread.groups[0].count = 0;
    }
    run_block(random);
  }
  munmap(mapped, pages + page);
}

// Performs one warp operation: `lane` passes its words and takes its result.
inline Exchange &meet(unsigned mask, Operation operation, const char *place) {
  self->mask = mask;
  self->operation = operation;
  if (!(mask >> ((&*self - &block.threads[0]) % WARP_LANES) & 1)) fail("a lane that its mask does not name", place);
  wait(State::AtWarp, place);
  return self->exchange;
}

inline float float_of(unsigned bits) { float value; memcpy(&value, &bits, 4); return value; }
inline unsigned bits_of(float value) { unsigned bits; memcpy(&bits, &value, 4); return bits; }

inline float bf16_to_float(unsigned half) { return float_of(half << 16); }

inline unsigned bf16_from_float(float value) {
  unsigned bits = bits_of(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return 0x7fff;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

inline float f16_to_float(unsigned half) {
  unsigned sign = (half & 0x8000) << 16, exponent = half >> 10 & 31, mantissa = half & 1023;
  if (exponent == 31) return float_of(sign | 0x7f800000 | mantissa << 13);
  if (exponent == 0) {
    float value = ldexpf((float)mantissa, -24);
    return sign ? -value : value;
  }
  return float_of(sign | (exponent + 112) << 23 | mantissa << 13);
}

// Rounds to nearest, ties to even; beyond the range, infinity.
inline unsigned f16_from_float(float value) {
  unsigned bits = bits_of(value), sign = bits >> 16 & 0x8000;
  float magnitude = fabsf(value);
  if (magnitude != magnitude) return 0x7fff;
  if (magnitude >= 65520.0f) return sign | 0x7c00;
  if (magnitude < 6.103515625e-05f) return sign | (unsigned)nearbyintf(ldexpf(magnitude, 24));
  unsigned rounded = (bits & 0x7fffffff) + 0xfff + (bits >> 13 & 1);
  return sign | (rounded - (112u << 23)) >> 13;
}

}  // namespace emulator

#define threadIdx (emulator::self->index)
#define blockIdx (emulator::block.index)
#define blockDim (emulator::block.size)
#define gridDim (emulator::block.grid)
#define __device__
#define __forceinline__ inline
#define __shared__ static thread_local
#define __constant__ static const
#define __restrict__ __restrict
#define __syncthreads() emulator::wait(emulator::State::AtBlock, __func__)
#define __syncwarp() (void)emulator::meet(~0u, [](emulator::Exchange *, unsigned) {}, __func__)
#define __threadfence() ((void)0)

#define KERNEL(name, threads, blocks)                                                                              \
  static void name(const Params &params);                                                                          \
  extern "C" void folio_launch(const void *params, const unsigned *grid, const unsigned *size, unsigned shared,    \
                               unsigned seed) {                                                                    \
    if (size[0] * size[1] * size[2] > threads) emulator::fail("more threads than the kernel is built for", #name);     \
    emulator::launch([](const void *p) { name(*(const Params *)p); }, params, grid, size, shared, seed);               \
  }                                                                                                                \
  extern "C" unsigned folio_params_bytes() { return sizeof(Params); }                                              \
  static void name(const Params &params)
#define DYNAMIC_SHARED(type, name) type *name = (type *)emulator::block.shared

inline unsigned __shfl_xor_sync(unsigned mask, unsigned value, unsigned lanes) {
  emulator::self->exchange.in[0] = value;
  emulator::self->exchange.in[1] = lanes;
  return emulator::meet(mask, [](emulator::Exchange *e, unsigned m) {
    for (unsigned i = 0; i < 32; i++) if (m >> i & 1) e[i].out[0] = e[(i ^ e[i].in[1]) & 31].in[0];
  }, __func__).out[0];
}
inline float __shfl_xor_sync(unsigned mask, float value, unsigned lanes) {
  return emulator::float_of(__shfl_xor_sync(mask, emulator::bits_of(value), lanes));
}
inline unsigned __shfl_sync(unsigned mask, unsigned value, unsigned lane) {
  emulator::self->exchange.in[0] = value;
  emulator::self->exchange.in[1] = lane;
  return emulator::meet(mask, [](emulator::Exchange *e, unsigned m) {
    for (unsigned i = 0; i < 32; i++) if (m >> i & 1) e[i].out[0] = e[e[i].in[1] & 31].in[0];
  }, __func__).out[0];
}
inline float __shfl_sync(unsigned mask, float value, unsigned lane) {
  return emulator::float_of(__shfl_sync(mask, emulator::bits_of(value), lane));
}
inline unsigned __ballot_sync(unsigned mask, bool predicate) {
  emulator::self->exchange.in[0] = predicate;
  return emulator::meet(mask, [](emulator::Exchange *e, unsigned m) {
    unsigned votes = 0;
    for (unsigned i = 0; i < 32; i++) votes |= (m >> i & 1) && e[i].in[0] ? 1u << i : 0;
    for (unsigned i = 0; i < 32; i++) e[i].out[0] = votes;
  }, __func__).out[0];
}
inline unsigned __reduce_add_sync(unsigned mask, unsigned value) {
  emulator::self->exchange.in[0] = value;
  return emulator::meet(mask, [](emulator::Exchange *e, unsigned m) {
    unsigned sum = 0;
    for (unsigned i = 0; i < 32; i++) if (m >> i & 1) sum += e[i].in[0];
    for (unsigned i = 0; i < 32; i++) e[i].out[0] = sum;
  }, __func__).out[0];
}
inline bool __any_sync(unsigned mask, bool predicate) { return __ballot_sync(mask, predicate) != 0; }
inline bool __all_sync(unsigned mask, bool predicate) { return __ballot_sync(mask, !predicate) == 0; }

inline unsigned atomicAdd(unsigned *at, unsigned value) { return __atomic_fetch_add(at, value, __ATOMIC_RELAXED); }
inline unsigned long long atomicAdd(unsigned long long *at, unsigned long long value) {
  return __atomic_fetch_add(at, value, __ATOMIC_RELAXED);
}
inline unsigned atomicMax(unsigned *at, unsigned value) { unsigned old = *at; *at = ::max(old, value); return old; }
inline unsigned atomicMin(unsigned *at, unsigned value) { unsigned old = *at; *at = ::min(old, value); return old; }
inline unsigned atomicOr(unsigned *at, unsigned value) { unsigned old = *at; *at = old | value; return old; }
inline unsigned long long atomicMax(unsigned long long *at, unsigned long long value) {
  unsigned long long old = *at; *at = ::max(old, value); return old;
}
inline unsigned atomicExch(unsigned *at, unsigned value) { unsigned old = *at; *at = value; return old; }
inline unsigned long long atomicExch(unsigned long long *at, unsigned long long value) {
  unsigned long long old = *at; *at = value; return old;
}

inline float __uint_as_float(unsigned bits) { return emulator::float_of(bits); }
inline unsigned __float_as_uint(float value) { return emulator::bits_of(value); }
inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)((unsigned long long)a * b >> 32); }
inline unsigned __popc(unsigned bits) { return (unsigned)__builtin_popcount(bits); }
inline unsigned __ffs(unsigned bits) { return (unsigned)__builtin_ffs((int)bits); }
inline unsigned __clz(unsigned bits) { return bits ? (unsigned)__builtin_clz(bits) : 32; }
// Rounds every operation separately, even if the compiler would fuse them.
inline float __fadd_rn(float a, float b) { volatile float sum = a + b; return sum; }
inline float __fsub_rn(float a, float b) { volatile float difference = a - b; return difference; }
inline float __fmul_rn(float a, float b) { volatile float product = a * b; return product; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
  unsigned long long both = (unsigned long long)b << 32 | a;
  unsigned result = 0;
  for (unsigned i = 0; i < 4; i++) result |= (unsigned)(both >> 8 * (selector >> 4 * i & 7) & 255) << 8 * i;
  return result;
}
// --- replacements for the PTX of common/prelude.cuh ---

inline unsigned pack_bf16(float low, float high) {
  return emulator::bf16_from_float(low) | emulator::bf16_from_float(high) << 16;
}
inline unsigned pack_f16(float low, float high) {
  return emulator::f16_from_float(low) | emulator::f16_from_float(high) << 16;
}
inline float f16_low(unsigned pair) { return emulator::f16_to_float(pair & 0xffff); }
inline float f16_high(unsigned pair) { return emulator::f16_to_float(pair >> 16); }

// Multiplies both numbers of `a` and `b`, adds those of `c`, and rounds once.
inline unsigned fma_bf16x2(unsigned a, unsigned b, unsigned c) {
  auto half = [](unsigned x, unsigned shift) { return (double)emulator::bf16_to_float(x >> shift & 0xffff); };
  // Sums of products of 8-bit mantissas are exact in a double; an intermediate float could cause double rounding.
  auto rounded = [](double value) {
    float single = (float)value;
    if (single != value && (emulator::bits_of(single) & 0xffff) == 0x8000)
      single = emulator::float_of(emulator::bits_of(single) + ((fabs(value) > fabs(single)) ? 1 : -1));
    return emulator::bf16_from_float(single);
  };
  return rounded(half(a, 0) * half(b, 0) + half(c, 0)) | rounded(half(a, 16) * half(b, 16) + half(c, 16)) << 16;
}

inline unsigned add_f16x2(unsigned a, unsigned b) {
  // The f32 sum of two f16 is either exact, or far enough from a tie that rounding again gives the correct result.
  return pack_f16(f16_low(a) + f16_low(b), f16_high(a) + f16_high(b));
}
inline float exp2_near(float value) { return exp2f(value); }
inline float reciprocal_near(float value) { return 1.0f / value; }
inline float4 load_fresh(const float4 *from) { return *from; }
inline float2 load_fresh(const float2 *from) { return *from; }

namespace emulator {
inline Group &open_group() { return self->groups[(self->oldest + self->committed) % GROUPS_MAX]; }
inline void copy_later(void *shared, const void *global, unsigned bytes, const char *place) {
  if ((uintptr_t)shared % bytes || (uintptr_t)global % bytes) fail("an asynchronous copy that is not aligned", place);
  Group &group = open_group();
  if (group.count == COPIES_MAX) fail("too many asynchronous copies in a group", place);
  group.copies[group.count++] = {shared, global, bytes};
}
}  // namespace emulator

inline void copy_async_16(void *shared, const void *global) { emulator::copy_later(shared, global, 16, __func__); }
inline void copy_async_4(void *shared, const void *global) { emulator::copy_later(shared, global, 4, __func__); }
inline void copy_async_zero_16(void *shared) {
  static const uint4 zero{};
  emulator::copy_later(shared, &zero, 16, __func__);
}
inline void copy_async_16_or_zero(void *shared, const void *global, bool is_there) {
  if (is_there) copy_async_16(shared, global);
  else copy_async_zero_16(shared);
}
inline void copy_async_commit() {
  if (++emulator::self->committed == emulator::GROUPS_MAX)
    emulator::fail("too many groups of asynchronous copies", __func__);
  emulator::open_group().count = 0;
}
template <int LEFT> inline void copy_async_wait() {
  emulator::Thread &thread = *emulator::self;
  for (; thread.committed > LEFT; thread.committed--) {
    emulator::Group &group = thread.groups[thread.oldest];
    for (unsigned i = 0; i < group.count; i++) memcpy(group.copies[i].to, group.copies[i].from, group.copies[i].bytes);
    thread.oldest = (thread.oldest + 1) % emulator::GROUPS_MAX;
  }
}

namespace emulator {
template <bool TRANSPOSED> inline uint4 load_matrices(const void *row, const char *place) {
  if ((uintptr_t)row % 16) fail("a matrix row that is not aligned", place);
  unsigned long long address = (unsigned long long)row;
  self->exchange.in[0] = (unsigned)address;
  self->exchange.in[1] = (unsigned)(address >> 32);
  Exchange &e = meet(~0u, [](Exchange *e, unsigned) {
    const uint16_t *rows[32];
    for (unsigned i = 0; i < 32; i++) rows[i] = (const uint16_t *)(e[i].in[0] | (unsigned long long)e[i].in[1] << 32);
    for (unsigned matrix = 0; matrix < 4; matrix++)
      for (unsigned lane = 0; lane < 32; lane++) {
        unsigned major = lane / 4, minor = lane % 4 * 2;
        e[lane].out[matrix] =
            TRANSPOSED ? rows[8 * matrix + minor][major] | (unsigned)rows[8 * matrix + minor + 1][major] << 16
                       : rows[8 * matrix + major][minor] | (unsigned)rows[8 * matrix + major][minor + 1] << 16;
      }
  }, place);
  return {e.out[0], e.out[1], e.out[2], e.out[3]};
}

template <float WIDEN(unsigned)> inline void multiply(float4 &sum, uint4 a, uint2 b, const char *place) {
  unsigned words[10] = {a.x, a.y, a.z, a.w, b.x, b.y, bits_of(sum.x), bits_of(sum.y), bits_of(sum.z), bits_of(sum.w)};
  memcpy(self->exchange.in, words, sizeof words);
  Exchange &e = meet(~0u, [](Exchange *e, unsigned) {
    float left[16][16], right[16][8];
    for (unsigned lane = 0; lane < 32; lane++) {
      unsigned g = lane / 4, t = lane % 4 * 2;
      const unsigned *in = e[lane].in;
      for (unsigned half = 0; half < 2; half++) {
        auto part = [half](unsigned word) { return WIDEN(word >> 16 * half & 0xffff); };
        left[g][t + half] = part(in[0]);
        left[g + 8][t + half] = part(in[1]);
        left[g][t + 8 + half] = part(in[2]);
        left[g + 8][t + 8 + half] = part(in[3]);
        right[t + half][g] = part(in[4]);
        right[t + 8 + half][g] = part(in[5]);
      }
    }
    for (unsigned lane = 0; lane < 32; lane++)
      for (unsigned i = 0; i < 4; i++) {
        unsigned row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
        float total = float_of(e[lane].in[6 + i]);
        for (unsigned k = 0; k < 16; k++) total += left[row][k] * right[k][column];
        e[lane].out[i] = bits_of(total);
      }
  }, place);
  sum = {float_of(e.out[0]), float_of(e.out[1]), float_of(e.out[2]), float_of(e.out[3])};
}
}  // namespace emulator

inline uint4 load_matrices(const void *row) { return emulator::load_matrices<false>(row, __func__); }
inline uint4 load_matrices_transposed(const void *row) { return emulator::load_matrices<true>(row, __func__); }
inline void multiply_bf16(float4 &sum, uint4 a, uint2 b) {
  emulator::multiply<emulator::bf16_to_float>(sum, a, b, __func__);
}
inline void multiply_f16(float4 &sum, uint4 a, uint2 b) {
  emulator::multiply<emulator::f16_to_float>(sum, a, b, __func__);
}
