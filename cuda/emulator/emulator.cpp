// Operations of warps: see emulator.h.

#include "emulator/emulator.h"

unsigned __shfl_xor_sync(unsigned mask, unsigned value, unsigned lanes) {
  emulator::self->exchange->in[0] = value;
  emulator::self->exchange->in[1] = lanes;
  return emulator::meet(mask, [](emulator::Exchange *e, unsigned m) {
    for (unsigned i = 0; i < 32; i++) if (m >> i & 1) e[i].out[0] = e[(i ^ e[i].in[1]) & 31].in[0];
  }, __func__).out[0];
}
unsigned __shfl_sync(unsigned mask, unsigned value, unsigned lane) {
  emulator::self->exchange->in[0] = value;
  emulator::self->exchange->in[1] = lane;
  return emulator::meet(mask, [](emulator::Exchange *e, unsigned m) {
    for (unsigned i = 0; i < 32; i++) if (m >> i & 1) e[i].out[0] = e[e[i].in[1] & 31].in[0];
  }, __func__).out[0];
}
unsigned __ballot_sync(unsigned mask, bool predicate) {
  emulator::self->exchange->in[0] = predicate;
  return emulator::meet(mask, [](emulator::Exchange *e, unsigned m) {
    unsigned votes = 0;
    for (unsigned i = 0; i < 32; i++) votes |= (m >> i & 1) && e[i].in[0] ? 1u << i : 0;
    for (unsigned i = 0; i < 32; i++) e[i].out[0] = votes;
  }, __func__).out[0];
}
unsigned __reduce_add_sync(unsigned mask, unsigned value) {
  emulator::self->exchange->in[0] = value;
  return emulator::meet(mask, [](emulator::Exchange *e, unsigned m) {
    unsigned sum = 0;
    for (unsigned i = 0; i < 32; i++) if (m >> i & 1) sum += e[i].in[0];
    for (unsigned i = 0; i < 32; i++) e[i].out[0] = sum;
  }, __func__).out[0];
}

namespace emulator {
template <bool TRANSPOSED> static uint4 load_matrices(const void *row, const char *place, const void *caller) {
  if ((uintptr_t)row % 16) fail("a matrix row that is not aligned", place);
  races::read(row, 16, caller);
  unsigned long long address = (unsigned long long)row;
  self->exchange->in[0] = (unsigned)address;
  self->exchange->in[1] = (unsigned)(address >> 32);
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

template <float WIDEN(unsigned)> static void multiply(float4 &sum, uint4 a, uint2 b, const char *place) {
  unsigned words[10] = {a.x, a.y, a.z, a.w, b.x, b.y, bits_of(sum.x), bits_of(sum.y), bits_of(sum.z), bits_of(sum.w)};
  memcpy(self->exchange->in, words, sizeof words);
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
    // Columns innermost: the compiler then adds to several at once, each in the same order.
    float sums[16][8];
    auto row = [](unsigned lane, unsigned i) { return lane / 4 + i / 2 * 8; };
    auto column = [](unsigned lane, unsigned i) { return lane % 4 * 2 + i % 2; };
    for (unsigned lane = 0; lane < 32; lane++)
      for (unsigned i = 0; i < 4; i++) sums[row(lane, i)][column(lane, i)] = float_of(e[lane].in[6 + i]);
    for (unsigned m = 0; m < 16; m++)
      for (unsigned k = 0; k < 16; k++)
        for (unsigned n = 0; n < 8; n++) sums[m][n] += left[m][k] * right[k][n];
    for (unsigned lane = 0; lane < 32; lane++)
      for (unsigned i = 0; i < 4; i++) e[lane].out[i] = bits_of(sums[row(lane, i)][column(lane, i)]);
  }, place);
  sum = {float_of(e.out[0]), float_of(e.out[1]), float_of(e.out[2]), float_of(e.out[3])};
}
}  // namespace emulator

uint4 load_matrices(const void *row) {
  return emulator::load_matrices<false>(row, __func__, __builtin_return_address(0));
}
uint4 load_matrices_transposed(const void *row) {
  return emulator::load_matrices<true>(row, __func__, __builtin_return_address(0));
}
void multiply_bf16(float4 &sum, uint4 a, uint2 b) {
  emulator::multiply<emulator::bf16_to_float>(sum, a, b, __func__);
}
void multiply_f16(float4 &sum, uint4 a, uint2 b) {
  emulator::multiply<emulator::f16_to_float>(sum, a, b, __func__);
}
