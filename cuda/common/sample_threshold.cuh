// Exact thresholds by radix search: histograms of 2048 bins between two keys, narrowed to the threshold's bin until a
// bin is a single key. Weights are integers, so the order of summation does not matter.

#pragma once
#include "common/sample_row.cuh"

// The keys that a threshold is computed over.
struct Walk {
  Source source;
  u32 listed;    // if not 0: the number of listed keys to visit instead of the row
  bool is_tied;  // visit the inverted ids of the row's keys that equal `tie`, instead of keys
  u32 tie;

  // Calls visit(key), equally often in every thread; 0 means no key.
  template <typename Visit> __device__ __forceinline__ void each(const u32 *list, Visit visit) const {
    const u32 begin = threadIdx.x;
    if (listed != 0) {
      for (u32 base = 0; base < listed; base += THREADS) visit(base + begin < listed ? list[base + begin] : 0);
      return;
    }
    each_four<THREADS, 1>(source, 0, ceil_div(source.vocab, 4), [&](uint4 v, u32 four) {
#pragma unroll 1
      for (u32 i = 0; i < 4; i++) {
        const u32 key = key_of(part_of_four(v, i));
        visit(!is_tied ? key : key == tie ? ~(four * 4 + i) : 0);
      }
    });
  }
};

// The sum of weights to reach.
struct Target {
  u32 low, high;  // range of keys to include
  u32 share;      // if not 0: the target is share / 2²⁰ of the total
  u64 sum;        // the target if share is 0
};

__device__ __forceinline__ void add_weight(Shared &shared, u32 bin, u32 weight) {
  atomicAdd(&shared.bins_low[bin], weight & 0xfffu);
  if (weight > 0xfffu) atomicAdd(&shared.bins_high[bin], weight >> 12);
}

// All lanes of a warp must call this. If many have the same bin, one lane adds for all, to avoid serialized atomics.
__device__ __forceinline__ void add_to_bins(Shared &shared, bool is_in, u32 bin, u32 weight) {
  const u32 lanes = __ballot_sync(ALL_LANES, is_in);
  if (lanes == 0) return;
  const u32 leader = __ffs(lanes) - 1;
  const u32 first = __shfl_sync(ALL_LANES, bin, leader);
  const bool is_peer = is_in && bin == first;
  const u32 peers = __ballot_sync(ALL_LANES, is_peer);
  const bool is_joined = is_peer && __popc(peers) >= 4;
  if (is_joined) {
    const u32 sum = __reduce_add_sync(peers, weight);
    if (threadIdx.x % 32 == leader) add_weight(shared, bin, sum);
  } else if (is_in) {
    add_weight(shared, bin, weight);
  }
}

__device__ __forceinline__ u64 bin_sum(const Shared &shared, u32 bin) {
  return (static_cast<u64>(shared.bins_high[bin]) << 12) + shared.bins_low[bin];
}

// Finds the bin where the sum from the highest bin downwards reaches the target; stores it in shared.found, with the
// rest of the target within that bin. Returns false if the target is never reached. Each thread has two bins, the first
// thread the highest. In the first round the target may be a share.
__device__ __forceinline__ bool find_bin(Shared &shared, u32 share, u64 &target) {
  const u32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const u32 bin = BINS - 2 - 2 * threadIdx.x;
  const u64 upper = bin_sum(shared, bin + 1), own = upper + bin_sum(shared, bin);
  u64 end = own;
  for (u32 lanes = 1; lanes < 32; lanes <<= 1) {
    const u64 other = shuffle(end, (lane - lanes) & 31);
    end += lane >= lanes ? other : 0;
  }
  if (lane == 31) shared.warps[warp] = end;
  __syncthreads();
  const u64 of_warp = shared.warps[lane];
  end += warp_sum(lane < warp ? of_warp : 0ull);
  const u64 total = warp_sum(of_warp);
  if (share != 0) target = (total * share + 0xfffffu) >> 20;
  const u64 start = end - own;
  if (start < target && target <= end) {
    const bool is_upper = target <= start + upper;
    shared.found = bin + (is_upper ? 1 : 0);
    shared.left = target - start - (is_upper ? 0 : upper);
  }
  __syncthreads();
  return total >= target;
}

// The largest key such that the sum of weigh(key) from there upwards reaches the target, or `none` if it never does.
template <typename Weigh>
__device__ __forceinline__ u32 threshold(Shared &shared, const Walk &walk, const Target &target, u32 none,
                                         Weigh weigh) {
  u32 low = target.low, range = target.high - target.low, share = target.share;
  u64 sum = target.sum;
  if (target.high < target.low) return none;
  for (;;) {
    const u32 bits = 32 - __clz(range);
    const u32 shift = bits > BIN_BITS ? bits - BIN_BITS : 0;
    for (u32 bin = threadIdx.x; bin < BINS; bin += THREADS) {
      shared.bins_low[bin] = 0;
      shared.bins_high[bin] = 0;
    }
    __syncthreads();
    walk.each(shared.keys, [&](u32 key) {
      const u32 weight = key - low <= range ? weigh(key) : 0;
      add_to_bins(shared, weight > 0, (key - low) >> shift, weight);
    });
    __syncthreads();
    if (!find_bin(shared, share, sum)) return none;
    const u32 offset = shared.found << shift;
    low += offset;
    range = min(range - offset, (1u << shift) - 1);
    sum = shared.left;
    share = 0;
    if (shift == 0) return low;
  }
}
