// Products of warpgroups: see wgmma.h.

#include "emulator/emulator.h"
#include "emulator/wgmma.h"

namespace emulator {

typedef unsigned long long u64;
constexpr unsigned GROUP_ROWS = 8, ROW_BYTES = 128, PIECE_BYTES = 16, DEPTH = 16;

static Worker &worker() { return *(Worker *)block.threads; }
static unsigned char *window() { return worker().shared_end - SHARED_BYTES_MAX; }
static unsigned warp_of(const Exchange *lanes) { return (unsigned)(lanes - worker().exchanges) / WARP_LANES; }

unsigned shared_address(const void *shared) {
  size_t address = (size_t)((const unsigned char *)shared - window());
  if (address > SHARED_BYTES_MAX) fail("not an address in dynamic shared memory", "shared_address");
  return (unsigned)address;
}

// A description, decoded: bytes from the start of shared memory.
struct Panels { unsigned start, panel_bytes, group_bytes; };

static Panels decode(u64 description, const char *place) {
  auto field = [=](unsigned first) { return (unsigned)(description >> first & 0x3fff) << 4; };
  if (description >> 62 != 1) fail("a description of another swizzle than of 128 bytes", place);
  if (description >> 46 & 0xffff || description >> 14 & 3 || description >> 30 & 3)
    fail("a description with bits that must be 0", place);
  Panels panels = {field(0), field(16), field(32)};
  // Else bits 49 to 51 would have to say how far the first row is from such a boundary.
  if (panels.start / ROW_BYTES % GROUP_ROWS) fail("panels that do not start at a multiple of 1024", place);
  return panels;
}

// Address of a 16-byte piece of a row, both counted from the start of the operand. The swizzle depends on the address.
static const unsigned char *piece_of(const Panels &panels, unsigned row, unsigned piece, const char *place) {
  constexpr unsigned PIECES = ROW_BYTES / PIECE_BYTES;
  unsigned address = panels.start + row / GROUP_ROWS * panels.group_bytes + row % GROUP_ROWS * ROW_BYTES +
                     piece / PIECES * panels.panel_bytes + piece % PIECES * PIECE_BYTES;
  address ^= (address / ROW_BYTES & 7) * PIECE_BYTES;
  const unsigned char *at = window() + address;
  if (at < block.shared || address + PIECE_BYTES > SHARED_BYTES_MAX) fail("a product beyond shared memory", place);
  return at;
}

// Operand b is `columns` rows of 16 elements, or, with operand a in registers, 16 rows of `columns` elements.
static const unsigned char *piece_of_b(const Product &product, const Panels &b, unsigned index) {
  const unsigned pieces = product.has_registers ? product.columns / 8 : DEPTH / 8;
  return piece_of(b, index / pieces, index % pieces, product.place);
}
static const unsigned char *piece_of_a(const Product &product, const Panels &a, unsigned warp, unsigned index) {
  return piece_of(a, warp % 4 * 16 + index / 2, index % 2, product.place);
}

// Tells of the lane's share of what its warp reads.
static void watch(const Product &product, const void *caller) {
  const unsigned thread = (unsigned)(self - block.threads), lane = thread % WARP_LANES;
  const Panels b = decode(product.b, product.place);
  for (unsigned i = lane; i < 2 * product.columns; i += WARP_LANES)
    races::product(piece_of_b(product, b, i), PIECE_BYTES, caller);
  if (product.has_registers) return;
  const Panels a = decode(product.a, product.place);
  races::product(piece_of_a(product, a, thread / WARP_LANES, lane), PIECE_BYTES, caller);
}

static void widen_piece(float *to, const unsigned char *from, unsigned stride) {
  for (unsigned i = 0; i < 8; i++) {
    uint16_t half;
    memcpy(&half, from + 2 * i, 2);
    to[i * stride] = f16_to_float(half);
  }
}

// Computes the rows of a warp: row r of these is held by lanes 4 (r % 8) to 4 (r % 8) + 3.
static void compute(Products &products, Product &product, unsigned warp) {
  static float a[16][DEPTH], b[DEPTH][COLUMNS_MAX];
  const Panels panels = decode(product.b, product.place);
  for (unsigned i = 0; i < 2 * product.columns; i++) {
    const unsigned char *from = piece_of_b(product, panels, i);
    if (product.has_registers) widen_piece(&b[i / (product.columns / 8)][i % (product.columns / 8) * 8], from, 1);
    else widen_piece(&b[i % 2 * 8][i / 2], from, COLUMNS_MAX);
  }
  for (unsigned lane = 0; lane < WARP_LANES; lane++) {
    if (!product.has_registers) {
      widen_piece(&a[lane / 2][lane % 2 * 8], piece_of_a(product, decode(product.a, product.place), warp, lane), 1);
      continue;
    }
    const uint4 &words = *product.registers[lane];
    const unsigned all[4] = {words.x, words.y, words.z, words.w};
    for (unsigned i = 0; i < 8; i++)
      a[lane / 4 + i / 2 % 2 * 8][lane % 4 * 2 + i % 2 + i / 4 * 8] = f16_to_float(all[i / 2] >> i % 2 * 16 & 0xffff);
  }
  Sums &sums = products.sums[product.sums];
  for (unsigned row = 0; row < 16; row++) {
    float *total = sums.values[row];
    if (!product.adds) memset(total, 0, sizeof sums.values[row]);
    for (unsigned k = 0; k < DEPTH; k++)
      for (unsigned column = 0; column < product.columns; column++) total[column] += a[row][k] * b[k][column];
    if (!product.is_ordered) memset(total, 0xff, sizeof sums.values[row]);
  }
  product.is_done = true;
}

// Column 8i + 2 (lane % 4) + j of rows lane / 4 and lane / 4 + 8: elements j and j + 2 of the lane's float4 i.
static void store(const Sums &sums) {
  for (unsigned lane = 0; lane < WARP_LANES; lane++)
    for (unsigned i = 0; i < sums.columns / 8; i++) {
      const float *low = &sums.values[lane / 4][8 * i + lane % 4 * 2], *high = &sums.values[lane / 4 + 8][0];
      high += 8 * i + lane % 4 * 2;
      sums.at[lane][i] = {low[0], low[1], high[0], high[1]};
    }
}

// What sums are in flight at `at`, or new ones with the values that are there.
static unsigned sums_at(Products &products, float4 *const *at, unsigned columns, const char *place) {
  unsigned free = SUMS_MAX;
  for (unsigned i = 0; i < SUMS_MAX; i++) {
    if (!products.sums[i].columns) free = i;
    else if (products.sums[i].at[0] == at[0]) return i;
  }
  if (free == SUMS_MAX) fail("too many sums in flight", place);
  Sums &sums = products.sums[free];
  sums.columns = columns;
  for (unsigned lane = 0; lane < WARP_LANES; lane++) {
    sums.at[lane] = at[lane];
    for (unsigned i = 0; i < columns / 8; i++) {
      float *low = &sums.values[lane / 4][8 * i + lane % 4 * 2], *high = &sums.values[lane / 4 + 8][0];
      high += 8 * i + lane % 4 * 2;
      const float4 four = at[lane][i];
      low[0] = four.x, low[1] = four.y, high[0] = four.z, high[1] = four.w;
    }
    memset(at[lane], 0xff, columns / 8 * sizeof(float4));
  }
  return free;
}

// Computes products in the order of their issue, up to a random one.
static void progress(Products &products, unsigned warp) {
  unsigned upto = draw() % 3 ? draw() % (products.count + 1) : products.count * (draw() % 2);
  for (unsigned i = 0; i < upto; i++)
    if (!products.list[i].is_done) compute(products, products.list[i], warp);
}

static void *pointer(const unsigned *words) { return (void *)(uintptr_t)(words[0] | (u64)words[1] << 32); }
static void set(unsigned *words, u64 value) {
  words[0] = (unsigned)value;
  words[1] = (unsigned)(value >> 32);
}

static void issue(Exchange *lanes, unsigned) {
  const unsigned warp = warp_of(lanes);
  Products &products = worker().products[warp];
  const unsigned *first = lanes[0].in;
  const char *place = (const char *)pointer(first + 10);
  if (products.count == PRODUCTS_MAX) fail("too many products in flight", place);
  float4 *at[WARP_LANES];
  Product &product = products.list[products.count];
  for (unsigned lane = 0; lane < WARP_LANES; lane++) {
    const unsigned *in = lanes[lane].in;
    if (memcmp(in + 4, first + 4, 6 * sizeof(unsigned))) fail("lanes that describe different products", place);
    at[lane] = (float4 *)pointer(in);
    product.registers[lane] = (const uint4 *)pointer(in + 2);
  }
  product.a = (u64)(uintptr_t)pointer(first + 4);
  product.b = (u64)(uintptr_t)pointer(first + 6);
  product.columns = first[8];
  product.adds = first[9] & 1;
  product.has_registers = first[9] & 2;
  product.place = place;
  product.group = products.committed;
  product.is_done = false;
  product.is_ordered = products.fenced;
  product.sums = sums_at(products, at, product.columns, place);
  products.count++;
  products.issued++;
  progress(products, warp);
}

void issue_product(float4 *sums, unsigned columns, const uint4 *registers, u64 a, u64 b, bool adds, const char *place,
                   const void *caller) {
  unsigned *in = self->exchange->in;
  Product own = {};
  own.a = a, own.b = b, own.columns = columns, own.has_registers = registers != nullptr, own.place = place;
  watch(own, caller);
  set(in, (uintptr_t)sums);
  set(in + 2, (uintptr_t)registers);
  set(in + 4, a);
  set(in + 6, b);
  in[8] = columns;
  in[9] = (unsigned)adds | (registers ? 2 : 0);
  set(in + 10, (uintptr_t)place);
  meet(~0u, issue, place);
}

void fence_products(const char *place) {
  meet(~0u, [](Exchange *lanes, unsigned) { worker().products[warp_of(lanes)].fenced = true; }, place);
}

void commit_products(const char *place) {
  meet(~0u, [](Exchange *lanes, unsigned) {
    Products &products = worker().products[warp_of(lanes)];
    products.committed++;
    progress(products, warp_of(lanes));
  }, place);
}

static void end_groups(Exchange *lanes, unsigned) {
  const unsigned warp = warp_of(lanes), left = lanes[0].in[0];
  Products &products = worker().products[warp];
  unsigned ended = 0;
  while (ended < products.count && products.list[ended].group + left < products.committed) {
    if (!products.list[ended].is_done) compute(products, products.list[ended], warp);
    ended++;
  }
  products.count -= ended;
  memmove(products.list, products.list + ended, products.count * sizeof(Product));
  for (unsigned i = 0; i < SUMS_MAX; i++) {
    bool is_used = false;
    for (unsigned p = 0; p < products.count; p++) is_used |= products.list[p].sums == i;
    if (is_used || !products.sums[i].columns) continue;
    store(products.sums[i]);
    products.sums[i].columns = 0;
  }
  products.fenced = false;
}

void wait_products(unsigned left, const char *place, const void *caller) {
  const Products &products = *self->products;
  for (unsigned i = 0; i < products.count; i++)
    if (products.list[i].group + left < products.committed) watch(products.list[i], caller);
  self->exchange->in[0] = left;
  meet(~0u, end_groups, place);
}

void begin_products() {
  for (unsigned first = 0; first < block.count; first += WARP_LANES) {
    Products &products = worker().products[first / WARP_LANES];
    products.count = products.committed = products.issued = 0;
    products.fenced = false;
    for (Sums &sums : products.sums) sums.columns = 0;
  }
}

void check_products() {
  for (unsigned first = 0; first < block.count; first += WARP_LANES) {
    const Products *all = worker().products, &own = all[first / WARP_LANES];
    if (own.count) fail("a kernel ends before its products", own.list[0].place);
    if (own.issued != all[first / WARP_LANES / 4 * 4].issued) fail("a warp without the products of its group", "end");
  }
}

}  // namespace emulator
