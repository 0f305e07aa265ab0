// Finds races: two accesses to a byte by different threads, one of them a write, that no synchronization orders.
//
// With -DFOLIO_RACES -fsanitize=thread the compiler calls the functions at the end of this file at every access to
// memory (they replace the sanitizer's own library). A shadow of all memory that a launch touches keeps, for each byte,
// its last write and its readers. What orders two accesses:
// - within a block __syncthreads, within a warp also __syncwarp; exchanges of values between lanes do not;
// - between blocks: write, __threadfence, atomic operation; then an atomic operation of the other block on the same
//   word, __threadfence, read. At each "," and ";" a __syncthreads may pass it on to another thread of the block.
// A thread that has not yet awaited the kernels before accesses only params and shared memory: those kernels may write
// what it reads, and read what it writes.
// Products of warpgroups read shared memory from their issue until the wait for them. They see what other threads wrote
// only if these passed a proxy fence between the write and the barrier.
// An asynchronous copy writes from its issue until its thread has waited for it: no thread may touch the bytes before.

// Without -DFOLIO_RACES, nothing is recorded.

#ifdef FOLIO_RACES

#include "emulator/emulator.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

namespace emulator {

// Accesses of a block that another one may see: those of all threads before the time `all`, and those of thread t
// before own[t].
struct Seen {
  unsigned block, all;
  unsigned own[THREADS_MAX];
};

// What a thread may see of other blocks: all of both parts, and one block's.
struct View {
  const Seen *seen;
  const View *parts[2];
  unsigned visited;
};

namespace races {

enum class Kind : unsigned char { Read, Write, Atomic, Copy, Product };

// An access. Time 0: none.
struct Record {
  unsigned time, block;
  unsigned short thread;
  Kind kind;
  const void *place;
};

// The history of four bytes, or of one. Of readers two are enough: a writer is at most one of them, and two that the
// same barriers order stand for all.
struct Cell {
  Record writer, readers[2];
  Cell *bytes;  // if the bytes have different histories
};

constexpr size_t TABLE = 1 << 16;
struct Page {
  uintptr_t number;
  Cell cells[PAGE_BYTES / 4];
};

// The atomic operations on one word.
struct Word {
  const void *at;
  View *view;
  Word *next;
};

// A block's order: the time of its last __syncthreads, of each warp's last __syncwarp, and what __syncthreads has
// passed on.
struct BlockOrder {
  unsigned id, block_time, warp_times[THREADS_MAX / WARP_LANES];
  Seen fenced;
  View *pending, *acquired;
  // The last two proxy fences of each thread: one of the next tile may come while others still multiply this one.
  unsigned proxy_times[THREADS_MAX][2];
};

// Whether the address that is looked at is shared memory, which earlier blocks on this worker have used as well.
static bool is_shared;
static Page *table[TABLE];
static unsigned pages_used;
// Counts synchronizations and never starts again, so records of earlier launches are older than `launch_time`.
static unsigned now = 1, launch_time, visits;
static Word *words;

constexpr unsigned FAULTS_MAX = 8;
static unsigned faults;
static const void *places[FAULTS_MAX][2];
static char report[2048];

// Memory until the end of the launch.
struct Chunk { Chunk *next; size_t used; };
constexpr size_t CHUNK_BYTES = 1 << 20;
static Chunk *chunks;
static void *allocate(size_t bytes) {
  bytes = (bytes + 15) / 16 * 16;
  if (!chunks || chunks->used + bytes > CHUNK_BYTES) {
    Chunk *chunk = (Chunk *)malloc(CHUNK_BYTES);
    *chunk = {chunks, sizeof(Chunk)};
    chunks = chunk;
  }
  void *at = (char *)chunks + chunks->used;
  chunks->used += bytes;
  return memset(at, 0, bytes);
}

static Page &page_of(uintptr_t number) {
  for (size_t at = number * 0x9e3779b97f4a7c15u >> 48;; at = (at + 1) % TABLE) {
    if (table[at] && table[at]->number == number) return *table[at];
    if (table[at]) continue;
    if (++pages_used == TABLE) fail("too much memory to watch", "races");
    table[at] = (Page *)calloc(1, sizeof(Page));
    table[at]->number = number;
    return *table[at];
  }
}

// Whether a view holds an access of another block.
static bool holds(View *view, const Record &record) {
  if (!view || view->visited == visits) return false;
  view->visited = visits;
  const Seen *seen = view->seen;
  if (seen && seen->block == record.block && (record.time < seen->all || record.time < seen->own[record.thread]))
    return true;
  return holds((View *)view->parts[0], record) || holds((View *)view->parts[1], record);
}

static View *both(View *a, View *b) {
  if (!a || !b || a == b) return a ? a : b;
  View *view = (View *)allocate(sizeof(View));
  *view = {nullptr, {a, b}, 0};
  return view;
}

static unsigned thread_index() { return (unsigned)(self - block.threads); }

// Whether an access happened before what this thread does now.
static bool is_before(const Record &record) {
  if (record.time < launch_time) return true;
  unsigned thread = thread_index();
  if (record.block == block.order->id) {
    if (record.thread == thread || record.time < block.order->block_time) return true;
    unsigned warp = thread / WARP_LANES;
    return record.thread / WARP_LANES == warp && record.time < block.order->warp_times[warp];
  }
  visits++;
  return is_shared || holds(self->order.acquired, record) || holds(block.order->acquired, record);
}

static const char *name_of(Kind kind) {
  const char *names[] = {"read", "write", "atomic operation", "asynchronous copy", "product"};
  return names[(unsigned)kind];
}

// Reports a race, once per pair of places; without an old access, one that was too early.
static void note(const Record *old, const Record &own, bool is_unfenced = false) {
  const void *old_place = old ? old->place : nullptr;
  for (unsigned i = 0; i < faults; i++)
    if (places[i][0] == old_place && places[i][1] == own.place) return;
  if (faults == FAULTS_MAX) return;
  places[faults][0] = old_place;
  places[faults++][1] = own.place;
  Dl_info library;
  char *base = dladdr((const void *)note, &library) ? (char *)library.dli_fbase : nullptr;
  auto add = [](auto... parts) {
    size_t used = strlen(report);
    snprintf(report + used, sizeof(report) - used, parts...);
  };
  auto add_access = [&](const Record &record) {
    add("%s by thread %u of block %u at +%#lx", name_of(record.kind), record.thread, record.block,
        (long)((char *)record.place - base));
  };
  if (faults > 1) add("%s", "\n");
  add_access(own);
  if (!old) return add("%s", " before the predecessors were awaited");
  add("%s", is_unfenced ? " without a proxy fence after " : " after ");
  add_access(*old);
}

// Atomic operations do not race with each other.
static bool clash(const Record &old, const Record &own) {
  if (old.time < launch_time) return false;
  if (old.kind == Kind::Copy) return true;
  return !(old.kind == Kind::Atomic && own.kind == Kind::Atomic) && !is_before(old);
}

// Whether the writer of what a product reads has passed a proxy fence that is ordered before the product.
static bool is_fenced(const Record &writer) {
  if (writer.time < launch_time || writer.block != block.order->id) return true;
  for (unsigned time : block.order->proxy_times[writer.thread]) {
    Record fence = writer;
    fence.time = time;
    if (writer.time < time && is_before(fence)) return true;
  }
  return false;
}

static void access(Cell &cell, const Record &own) {
  if (clash(cell.writer, own)) note(&cell.writer, own);
  else if (own.kind == Kind::Product && !is_fenced(cell.writer)) note(&cell.writer, own, true);
  if (own.kind == Kind::Read || own.kind == Kind::Product) {
    // Replaces what is older for all that this reader is older for; else takes the place that tells most.
    Record *readers = cell.readers;
    for (unsigned i = 0; i < 2; i++)
      if (is_before(readers[i])) {
        readers[i] = own;
        return;
      }
    unsigned warp = readers[0].thread / WARP_LANES;
    bool is_other_warp = warp == readers[1].thread / WARP_LANES && warp != own.thread / WARP_LANES;
    if (readers[0].block == readers[1].block && (own.block != readers[0].block || is_other_warp)) readers[1] = own;
    return;
  }
  for (Record &reader : cell.readers) {
    if (clash(reader, own)) note(&reader, own);
    reader.time = 0;
  }
  cell.writer = own;
}

// Whether an address belongs to the running thread's local variables, or to the emulator.
static bool is_own(uintptr_t at) {
  auto is_in = [at](const void *begin, size_t bytes) { return at - (uintptr_t)begin < bytes; };
  return is_in(self->stack, STACK_BYTES) || is_in(&block, sizeof(Block)) || is_in(&self, sizeof(self)) ||
         is_in(block.threads, sizeof(Worker));
}

static void access(const void *first, size_t bytes, Kind kind, const void *place) {
  uintptr_t at = (uintptr_t)first, end = at + bytes;
  if (is_own(at)) return;
  // Static shared memory is thread-local, like the block's order; those lie beside each other.
  uintptr_t beside = (uintptr_t)block.order - (64 << 10);
  is_shared = at - (uintptr_t)block.shared < current.shared_bytes || at - beside < 128 << 10;
  const Record own = {now, block.order->id, (unsigned short)thread_index(), kind, place};
  bool is_param = at - (uintptr_t)current.params < current.params_bytes;
  if (!self->awaited && !is_shared && !is_param) note(nullptr, own);
  while (at < end) {
    Cell &cell = page_of(at / PAGE_BYTES).cells[at % PAGE_BYTES / 4];
    bool is_whole = at % 4 == 0 && end - at >= 4;
    if (is_whole && !cell.bytes) {
      access(cell, own);
      at += 4;
      continue;
    }
    if (!cell.bytes) {
      cell.bytes = (Cell *)malloc(4 * sizeof(Cell));
      for (unsigned i = 0; i < 4; i++) cell.bytes[i] = {cell.writer, {cell.readers[0], cell.readers[1]}, nullptr};
    }
    uintptr_t stop = ::min(end, at / 4 * 4 + 4);
    for (; at < stop; at++) access(cell.bytes[at % 4], own);
  }
}

static void watched(const void *at, size_t bytes, Kind kind, const void *place) {
  if (self) access(at, bytes, kind, place);
}
void read(const void *at, unsigned bytes, const void *place) { watched(at, bytes, Kind::Read, place); }

void product(const void *at, unsigned bytes, const void *place) { watched(at, bytes, Kind::Product, place); }
void proxy_fence() {
  unsigned(&times)[2] = block.order->proxy_times[thread_index()];
  times[0] = times[1];
  times[1] = ++now;
}

void launch_begins() {
  launch_time = ++now;
  faults = 0;
  report[0] = 0;
}

// Frees what was recorded: a device has hundreds of kernels, each with a shadow of its own.
void launch_ends() {
  words = nullptr;
  while (chunks) {
    Chunk *next = chunks->next;
    free(chunks);
    chunks = next;
  }
  for (Page *&page : table) {
    if (!page) continue;
    for (Cell &cell : page->cells) free(cell.bytes);
    free(page);
    page = nullptr;
  }
  pages_used = 0;
}

void block_begins(unsigned id) {
  static thread_local BlockOrder order;
  order = {};
  order.id = order.fenced.block = id;
  order.block_time = ++now;
  block.order = &order;
  for (unsigned i = 0; i < block.count; i++) block.threads[i].order = {};
}

void block_met() {
  unsigned all = block.order->fenced.all;
  for (unsigned i = 0; i < block.count; i++) {
    Order &own = block.threads[i].order;
    if (own.fence_time) {
      block.order->fenced.own[i] = own.fence_time;
      all = block.order->block_time;
    }
    block.order->pending = both(block.order->pending, own.pending);
    block.order->acquired = both(block.order->acquired, own.acquired);
    own = {};
  }
  block.order->fenced.all = all;
  block.order->block_time = ++now;
}

void warp_met(unsigned warp) { block.order->warp_times[warp] = ++now; }

void fence() {
  Order &own = self->order;
  own.fence_time = ++now;
  own.acquired = both(own.acquired, both(own.pending, block.order->pending));
}

void atomic(const void *at, unsigned bytes, const void *place) {
  access(at, bytes, Kind::Atomic, place);
  Order &own = self->order;
  Word *word = words;
  while (word && word->at != at) word = word->next;
  View *before = word ? word->view : nullptr;
  if (own.fence_time || block.order->fenced.all || own.acquired || block.order->acquired) {
    Seen *seen = (Seen *)allocate(sizeof(Seen));
    *seen = block.order->fenced;
    if (own.fence_time) {
      seen->all = block.order->block_time;
      seen->own[thread_index()] = own.fence_time;
    }
    View *view = (View *)allocate(sizeof(View));
    *view = {seen, {before, both(own.acquired, block.order->acquired)}, 0};
    if (!word) {
      word = (Word *)allocate(sizeof(Word));
      *word = {at, nullptr, words};
      words = word;
    }
    word->view = view;
  }
  own.pending = both(own.pending, before);
}

void copy_begins(const Copy &copy, const void *place) {
  access(copy.from, copy.bytes, Kind::Read, place);
  access(copy.to, copy.bytes, Kind::Copy, place);
}
// The bytes are now like those that this thread writes itself.
void copy_ends(const Copy &copy) {
  for (unsigned at = 0; at < copy.bytes; at += 4) {
    uintptr_t address = (uintptr_t)copy.to + at;
    Cell &cell = page_of(address / PAGE_BYTES).cells[address % PAGE_BYTES / 4];
    Cell *cells = cell.bytes ? cell.bytes : &cell;
    for (unsigned i = 0; i < (cell.bytes ? 4 : 1); i++) {
      cells[i].writer.kind = Kind::Write;
      cells[i].writer.time = now;
    }
  }
}

const char *found() { return faults ? report : nullptr; }

}  // namespace races

}  // namespace emulator

// What compilers call for -fsanitize=thread. Atomic operations are UNSEEN, so there are no calls for them.
#define SANITIZER extern "C" __attribute__((visibility("hidden"))) void
#define WATCH(name, bytes, kind)                                                                        \
  SANITIZER __tsan_##name(void *at) {                                                                   \
    emulator::races::watched(at, bytes, emulator::races::Kind::kind, __builtin_return_address(0));      \
  }
WATCH(read1, 1, Read)
WATCH(read2, 2, Read)
WATCH(read4, 4, Read)
WATCH(read8, 8, Read)
WATCH(read16, 16, Read)
WATCH(write1, 1, Write)
WATCH(write2, 2, Write)
WATCH(write4, 4, Write)
WATCH(write8, 8, Write)
WATCH(write16, 16, Write)
WATCH(unaligned_read2, 2, Read)
WATCH(unaligned_read4, 4, Read)
WATCH(unaligned_read8, 8, Read)
WATCH(unaligned_read16, 16, Read)
WATCH(unaligned_write2, 2, Write)
WATCH(unaligned_write4, 4, Write)
WATCH(unaligned_write8, 8, Write)
WATCH(unaligned_write16, 16, Write)
#undef WATCH
SANITIZER __tsan_read_range(void *at, size_t bytes) {
  emulator::races::watched(at, bytes, emulator::races::Kind::Read, __builtin_return_address(0));
}
SANITIZER __tsan_write_range(void *at, size_t bytes) {
  emulator::races::watched(at, bytes, emulator::races::Kind::Write, __builtin_return_address(0));
}
// What Clang makes of copies of structs.
extern "C" __attribute__((visibility("hidden"))) void *__tsan_memcpy(void *to, const void *from, size_t bytes) {
  emulator::races::watched(from, bytes, emulator::races::Kind::Read, __builtin_return_address(0));
  emulator::races::watched(to, bytes, emulator::races::Kind::Write, __builtin_return_address(0));
  return memcpy(to, from, bytes);
}
extern "C" __attribute__((visibility("hidden"))) void *__tsan_memset(void *to, int byte, size_t bytes) {
  emulator::races::watched(to, bytes, emulator::races::Kind::Write, __builtin_return_address(0));
  return memset(to, byte, bytes);
}
SANITIZER __tsan_init() {}
SANITIZER __tsan_func_entry(void *) {}
SANITIZER __tsan_func_exit() {}

#endif
