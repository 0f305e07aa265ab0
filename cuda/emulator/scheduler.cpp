// The emulator's scheduler: see scheduler.h.

#include "emulator/emulator.h"
#include "emulator/fiber.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

namespace emulator {

Launch current;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t turns[WORKERS_MAX] = {PTHREAD_COND_INITIALIZER, PTHREAD_COND_INITIALIZER,
                                            PTHREAD_COND_INITIALIZER, PTHREAD_COND_INITIALIZER};
// The first is kept from launch to launch.
static Worker *workers[WORKERS_MAX];
bool has_order;
Block block;
Thread *self;

[[noreturn]] void fail(const char *what, const char *place) {
  fprintf(stderr, "kernel in the emulator: %s (at %s; thread %u of block %u)\n", what, place, self ? self->index.x : 0,
          block.index.x);
  abort();
}

static void *map(size_t bytes) {
  void *at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (at == MAP_FAILED) fail("no memory for threads", "launch");
  return at;
}

static Worker &worker_of(unsigned index) {
  Worker *&worker = workers[index];
  if (worker) return *worker;
  worker = (Worker *)map(sizeof(Worker));
  // Shared memory ends at a guard page, as device memory does.
  worker->shared_end = (unsigned char *)map(SHARED_BYTES_MAX + PAGE_BYTES) + SHARED_BYTES_MAX;
  mprotect(worker->shared_end, PAGE_BYTES, PROT_NONE);
  char *stacks = (char *)map(THREADS_MAX * STACK_BYTES);
  for (unsigned t = 0; t < THREADS_MAX; t++) {
    worker->threads[t].stack = stacks + t * STACK_BYTES;
    worker->threads[t].exchange = &worker->exchanges[t];
    worker->threads[t].groups = worker->groups[t];
    worker->threads[t].products = &worker->products[t / WARP_LANES];
  }
  return *worker;
}

static void release(unsigned index) {
  Worker *&worker = workers[index];
  if (!worker) return;
  munmap(worker->threads[0].stack, THREADS_MAX * STACK_BYTES);
  munmap(worker->shared_end - SHARED_BYTES_MAX, SHARED_BYTES_MAX + PAGE_BYTES);
  munmap(worker, sizeof(Worker));
  worker = nullptr;
}

// When the library is closed: tests open hundreds.
__attribute__((destructor)) static void release_first() { release(0); }

// Marsaglia's xorshift generator.
unsigned draw() {
  unsigned &state = current.random;
  state ^= state << 13;
  state ^= state >> 17;
  return state ^= state << 5;
}

static void land(Copy &copy) {
  if (!copy.landed) memcpy(copy.to, copy.from, copy.bytes);
  copy.landed = true;
}

// Chooses when this thread's copies land, and lets some that are under way land.
static void choose_landing(Thread &thread) {
  thread.landing = (Landing)(draw() % 3);
  if (thread.landing == Landing::AtWait || thread.under_way == 0) return;
  for (unsigned i = 0; i <= thread.committed; i++) {
    Group &group = thread.groups[(thread.oldest + i) % GROUPS_MAX];
    for (unsigned copy = 0; copy < group.count; copy++)
      if (thread.landing == Landing::AtIssue || draw() % 2) land(group.copies[copy]);
  }
}

void wait(State state, const char *place) {
  self->state = state;
  self->place = place;
  switch_stacks(&self->top, block.scheduler);
}

void pause(unsigned times, const char *place) {
  if (draw() % (times << current.calm)) return;
  block.hands_over = current.workers > 1;
  wait(State::Ready, place);
}

// A thread's fiber.
static void enter() {
  current.kernel(current.params);
  self->state = State::Done;
  switch_stacks(&self->top, block.scheduler);
}

static void resume(Thread &thread) {
  choose_landing(thread);
  self = &thread;
  switch_stacks(&block.scheduler, thread.top);
  self = nullptr;
}

[[noreturn]] static void fail(Thread &thread, const char *what) {
  self = &thread;
  fail(what, thread.place);
}

void align_lanes(Exchange *, unsigned) {}

// Runs the warp operations whose lanes have all arrived. Returns whether there was one.
static bool meet_warps() {
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
        if (thread.state == State::Done) fail(leader, "a lane of the mask has left");
        if (thread.state == State::AtWarp && thread.mask == mask) {
          if (thread.operation != leader.operation) fail(leader, "lanes meet for different operations");
          here |= bit;
        }
      }
      unsigned all = end - first == WARP_LANES ? ~0u : (1u << (end - first)) - 1;
      if (here != (mask & all)) continue;
      leader.operation(block.threads[first].exchange, mask & all);
      // Other warp operations exchange values, but do not order accesses to memory.
      if (leader.operation == align_lanes) races::warp_met(first / WARP_LANES);
      for (unsigned other = first; other < end; other++)
        if (mask >> (other - first) & 1) block.threads[other].state = State::Ready;
      met = true;
    }
  }
  return met;
}

static bool meet_block() {
  bool waiting = false;
  for (unsigned i = 0; i < block.count; i++) {
    State state = block.threads[i].state;
    if (state != State::AtBlock && state != State::Done) return false;
    waiting |= state == State::AtBlock;
  }
  if (!waiting) return false;
  races::block_met();
  for (unsigned i = 0; i < block.count; i++)
    if (block.threads[i].state == State::AtBlock) block.threads[i].state = State::Ready;
  return true;
}

// Lets other workers run, and returns when it is this one's turn again: when all others have finished or have handed
// over as well. A block that stops in the middle of a protocol is thus seen by all others in that state. A worker that
// has finished gets no further turn.
static void hand_over() {
  current.ranks[block.worker] = ++current.turns_given;
  unsigned to = block.worker;
  for (unsigned i = 0; i < current.workers; i++)
    if (current.works[i] && (!current.works[to] || current.ranks[i] < current.ranks[to])) to = i;
  if (to == block.worker) return;
  const Block own = block;
  pthread_mutex_lock(&lock);
  current.turn = to;
  pthread_cond_signal(&turns[to]);
  while (current.works[own.worker] && current.turn != own.worker) pthread_cond_wait(&turns[own.worker], &lock);
  if (current.works[own.worker]) block = own;
  pthread_mutex_unlock(&lock);
}

static void run_block() {
  for (;;) {
    // Warps run in random order, and the lanes of each forwards or backwards: cheap, and different every time.
    unsigned turn = draw() % block.count, flip = draw() & 31;
    bool ran = false, left = false;
    for (unsigned i = 0; i < block.count; i++) {
      unsigned next = i + turn < block.count ? i + turn : i + turn - block.count, at = next ^ flip;
      Thread &thread = block.threads[at < block.count ? at : next];
      if (thread.state == State::Ready) {
        resume(thread);
        ran = true;
        if (block.hands_over) {
          block.hands_over = false;
          hand_over();
        }
      }
      left |= thread.state != State::Done;
    }
    bool met = meet_warps();
    met = meet_block() || met;
    if (!left && !ran) break;
    if (!ran && !met)
      for (unsigned i = 0; i < block.count; i++)
        if (block.threads[i].state == State::AtBlock || block.threads[i].state == State::AtWarp)
          fail(block.threads[i], "waits for what never comes");
  }
}

// Runs blocks until none is left.
static void work(unsigned worker) {
  block.worker = worker;
  block.size = current.size;
  block.grid = current.grid;
  block.count = current.size.x * current.size.y * current.size.z;
  Worker &own = worker_of(worker);
  Thread *threads = block.threads = own.threads;
  size_t bytes = (current.shared_bytes + 15) / 16 * 16;
  block.shared = own.shared_end - bytes;
  while (current.taken < current.blocks) {
    unsigned at = (current.first + current.taken++) % current.blocks;
    block.index = {at % block.grid.x, at / block.grid.x % block.grid.y, at / block.grid.x / block.grid.y};
    memset(block.shared, 0xff, bytes);
    for (unsigned t = 0; t < block.count; t++) {
      Thread &thread = threads[t];
      thread.index = {t % block.size.x, t / block.size.x % block.size.y, t / block.size.x / block.size.y};
      thread.state = State::Ready;
      thread.awaited = false;
      thread.top = new_stack(thread.stack + STACK_BYTES, enter);
      thread.under_way = thread.oldest = thread.committed = thread.groups[0].count = 0;
    }
    races::block_begins(at);
    begin_products();
    run_block();
    check_products();
    if (draw() % 2) hand_over();
  }
  // The first worker is kept for the next launch.
  if (worker > 0) release(worker);
  current.works[worker] = false;
  hand_over();
}

// A thread of the host for each block that runs beside others: the __shared__ variables of kernels are thread-local.
static void *work_aside(void *worker) {
  unsigned own = (unsigned)(uintptr_t)worker;
  pthread_mutex_lock(&lock);
  while (current.turn != own) pthread_cond_wait(&turns[own], &lock);
  pthread_mutex_unlock(&lock);
  work(own);
  return nullptr;
}

void launch(void (*kernel)(const void *), const void *params, size_t params_bytes, const unsigned *grid,
            const unsigned *size, unsigned shared_bytes, unsigned seed) {
  current = {};
  current.kernel = kernel;
  current.params = params;
  current.params_bytes = params_bytes;
  current.size = {size[0], size[1], size[2]};
  current.grid = {grid[0], grid[1], grid[2]};
  current.shared_bytes = shared_bytes;
  current.random = seed | 1;
  current.blocks = grid[0] * grid[1] * grid[2];
  if (size[0] * size[1] * size[2] > THREADS_MAX) fail("too many threads in a block", "launch");
  if (shared_bytes > SHARED_BYTES_MAX) fail("too much shared memory", "launch");
  if (current.blocks == 0) return;
  current.first = draw() % current.blocks;
  current.workers = has_order ? ::min(1 + draw() % WORKERS_MAX, current.blocks) : 1;
  current.calm = draw() % 8;
  races::launch_begins();
  pthread_t aside[WORKERS_MAX] = {};
  for (unsigned i = 0; i < current.workers; i++) current.works[i] = true;
  for (unsigned i = 1; i < current.workers; i++)
    if (pthread_create(&aside[i], nullptr, work_aside, (void *)(uintptr_t)i)) fail("no thread for a block", "launch");
  work(0);
  for (unsigned i = 1; i < current.workers; i++) pthread_join(aside[i], nullptr);
  races::launch_ends();
}

Exchange &meet(unsigned mask, Operation operation, const char *place) {
  self->mask = mask;
  self->operation = operation;
  if (!(mask >> ((&*self - &block.threads[0]) % WARP_LANES) & 1)) fail("a lane that its mask does not name", place);
  wait(State::AtWarp, place);
  return *self->exchange;
}

void prefetch(const void *global, unsigned bytes, const char *place) {
  if ((uintptr_t)global % 16 || bytes % 16 || bytes == 0) fail("a prefetch that is not of whole vectors", place);
  const volatile char *first = (const volatile char *)global;
  for (unsigned at = 0; at < bytes; at += 16) (void)first[at];
}

static Group &open_group() { return self->groups[(self->oldest + self->committed) % GROUPS_MAX]; }

void copy_later(void *shared, const void *global, unsigned bytes, const char *place) {
  if ((uintptr_t)shared % bytes || (uintptr_t)global % bytes) fail("an asynchronous copy that is not aligned", place);
  Group &group = open_group();
  if (group.count == COPIES_MAX) fail("too many asynchronous copies in a group", place);
  Copy &copy = group.copies[group.count++] = {shared, global, bytes, false};
  self->under_way++;
  races::copy_begins(copy, __builtin_return_address(0));
  if (self->landing == Landing::AtIssue || (self->landing == Landing::Anytime && draw() % 2)) land(copy);
}

void commit_group(const char *place) {
  if (++self->committed == GROUPS_MAX) fail("too many groups of asynchronous copies", place);
  open_group().count = 0;
}

void wait_groups(unsigned left) {
  for (; self->committed > left; self->committed--) {
    Group &group = self->groups[self->oldest];
    self->under_way -= group.count;
    for (unsigned i = 0; i < group.count; i++) {
      land(group.copies[i]);
      races::copy_ends(group.copies[i]);
    }
    self->oldest = (self->oldest + 1) % GROUPS_MAX;
  }
}

}  // namespace emulator
