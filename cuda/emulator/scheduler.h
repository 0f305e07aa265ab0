// The emulator's scheduler as kernels see it: the threads of a block as fibers, blocks as threads of the host that take
// turns. Exactly one fiber runs at any moment, and every choice follows from the launch's seed.

#pragma once

// For functions of kernels whose accesses to memory are the emulator's own. The runtime is compiled without the option.
#define UNSEEN __attribute__((no_sanitize("thread")))

namespace emulator {

constexpr unsigned WARP_LANES = 32, THREADS_MAX = 1024, WORKERS_MAX = 4;
// Not a power of two, so that the ends of all stacks do not share the same few lines of a cache.
constexpr size_t STACK_BYTES = (128 << 10) + 320, PAGE_BYTES = 4 << 10;
// What the largest GPU has, rounded up to pages.
constexpr size_t SHARED_BYTES_MAX = 228 << 10;

struct Copy { void *to; const void *from; unsigned bytes; bool landed; };

// A group of asynchronous copies that are waited for together.
constexpr unsigned COPIES_MAX = 256, GROUPS_MAX = 8;
struct Group {
  unsigned count;
  Copy copies[COPIES_MAX];
};

// When a thread's copies land, until it runs the next time: at issue, at the wait, or each at some moment between.
enum class Landing { AtIssue, AtWait, Anytime };

// A lane's inputs to a warp operation, and its results.
struct Exchange { unsigned in[16]; unsigned out[8]; };
using Operation = void (*)(Exchange *lanes, unsigned mask);

enum class State { Ready, AtBlock, AtWarp, Done };

// A product of a warpgroup in flight, as one of its warps sees it, and the sums in flight: see wgmma.h.
constexpr unsigned PRODUCTS_MAX = 64, SUMS_MAX = 4, COLUMNS_MAX = 128;
struct Product {
  const uint4 *registers[WARP_LANES];
  unsigned long long a, b;
  const char *place;
  unsigned columns, group, sums;
  bool adds, has_registers, is_done, is_ordered;
};
struct Sums {
  float4 *at[WARP_LANES];  // what will hold them
  unsigned columns;        // 0: none
  float values[16][COLUMNS_MAX];
};
// Of a warp: `count` products from the oldest one that was not waited for, in `committed` groups since the start.
struct Products {
  unsigned count, committed, issued;
  bool fenced;
  Product list[PRODUCTS_MAX];
  Sums sums[SUMS_MAX];
};

// What races.cpp knows of a thread. Views: see there.
struct View;
struct Order {
  unsigned fence_time;
  View *pending, *acquired;
};

struct Thread {
  uint3 index;
  State state;
  bool awaited;  // the kernels before this one
  char *stack;  // its lowest address
  void *top;    // the stack pointer while others run
  const char *place;
  Operation operation;
  unsigned mask;
  Exchange *exchange;
  Landing landing;
  unsigned under_way;  // copies that were not waited for: without any, the groups, which fill caches, are not looked at
  // A ring buffer: `committed` groups from `oldest` on, then the open one.
  unsigned oldest, committed;
  Group *groups;
  Products *products;  // of its warp
  Order order;
};

// What a worker runs blocks with. The scheduler looks at all threads at every turn, so they are small; the exchanges of
// a warp lie side by side.
struct Worker {
  Thread threads[THREADS_MAX];
  Exchange exchanges[THREADS_MAX];
  Group groups[THREADS_MAX][GROUPS_MAX];
  Products products[THREADS_MAX / WARP_LANES];
  unsigned char *shared_end;  // the guard page behind shared memory
};

namespace races { struct BlockOrder; }

struct Block {
  uint3 index, size, grid;
  unsigned worker;
  bool hands_over;
  unsigned char *shared;
  Thread *threads;
  unsigned count;
  void *scheduler;           // its stack pointer while a thread runs
  races::BlockOrder *order;  // what races.cpp knows of the block
};

// What all blocks of a launch share. A library of a kernel runs one launch at a time.
struct Launch {
  void (*kernel)(const void *);
  const void *params;
  size_t params_bytes;
  uint3 size, grid;
  unsigned shared_bytes, random;
  unsigned blocks, first, taken;  // `taken` blocks have begun, `first` first
  unsigned workers, turn;         // `turn`: the worker that runs
  bool works[WORKERS_MAX];
  unsigned ranks[WORKERS_MAX], turns_given;  // the lowest rank runs
  unsigned calm;                             // a high one: few changes of turns, so those who wait do so for long
};

extern Launch current;
// Whether the kernel has atomic operations or fences, so that the order of blocks may matter.
extern bool has_order;
// Its initializer runs when a library is opened that uses it.
template <typename T> struct HasOrder { static inline const bool noted = has_order = true; };

// The block and the thread that run. Only one does, so these are not thread-local, which takes calls.
extern Block block;
extern Thread *self;

}  // namespace emulator

#include "emulator/races.h"

namespace emulator {

[[noreturn]] void fail(const char *what, const char *place);

// A random number.
unsigned draw();

// Runs a kernel.
void launch(void (*kernel)(const void *), const void *params, size_t params_bytes, const unsigned *grid,
            const unsigned *size, unsigned shared_bytes, unsigned seed);

// Launches run one after another, so this thread's wait for those before only has to be noted.
inline void await_predecessors() { self->awaited = true; }

// Checks that the bytes exist and are aligned.
void prefetch(const void *global, unsigned bytes, const char *place);

// Switches to another thread of the block until the awaited event has happened.
void wait(State state, const char *place);

// Lets other threads run, perhaps of other blocks, now and then: in a restless launch one time in `times`.
void pause(unsigned times, const char *place);

// Performs one warp operation: `lane` passes its words and takes its result.
Exchange &meet(unsigned mask, Operation operation, const char *place);

// The operation of __syncwarp.
void align_lanes(Exchange *, unsigned);

// Issues an asynchronous copy of this thread.
void copy_later(void *shared, const void *global, unsigned bytes, const char *place);
void commit_group(const char *place);
// Waits until at most `left` committed groups of this thread are under way.
void wait_groups(unsigned left);

// Before a block begins, and when it has ended: see wgmma.h.
void begin_products();
void check_products();

// Orders this thread's accesses for the whole device. A template, so that only kernels that call it note its use.
template <typename T> UNSEEN inline void fence(const char *place) {
  (void)HasOrder<T>::noted;
  pause(16, place);
  races::fence();
  pause(16, place);
}

// Performs an atomic operation, before and after which other threads may run.
template <typename T, typename Change> UNSEEN __attribute__((noinline)) T atomic(T *at, Change change) {
  (void)HasOrder<T>::noted;
  pause(2, "an atomic operation");
  races::atomic(at, sizeof(T), __builtin_return_address(0));
  T old = *at;
  *at = change(old);
  pause(2, "an atomic operation");
  return old;
}

}  // namespace emulator
