// The lanes of attend_paged_decode: a workgroup of 128 is divided into groups of LANES lanes, which share their keys
// and sum 8 scores in a turn: of every row and key. Numbers: LANES, LANE_DOUBLINGS = log2(LANES / 8).
// SUBGROUPS: a subgroup of any size holds whole groups. Without, sums pass through workgroup memory.

#import invocation
#ifdef SUBGROUPS
#import lanes
#endif

const THREADS: u32 = 128u;
const KEY_GROUPS: u32 = THREADS / LANES;
alias Scores = array<f32, 8>; // [row][key]

// A lane of a group of lanes.
struct Lane {
    index: u32,
    group: u32,
    thread: u32, // group * LANES + index
}

// Sums of every score over the group's lanes, returned to all of them. In uniform control flow.
#ifdef SUBGROUPS
// The order of invocations in subgroups is the driver's choice, so lanes are numbered by subgroups.
fn lane_of(at: Invocation) -> Lane {
    let thread = at.subgroup * (THREADS / at.subgroups) + at.subgroup_lane;
    return Lane(thread % LANES, thread / LANES, thread);
}

// Shuffles over fixed distances, which GPUs do within the addition.
fn group_sums(lane: Lane, parts: Scores) -> Scores {
    var sums: Scores;
#for i 8
    sums[i] = lanes_sum(parts[i]);
#for doubling LANE_DOUBLINGS
    sums[i] += subgroupShuffleXor(sums[i], 8u << doubling);
#endfor
#endfor
    return sums;
}
#else
var<workgroup> exchange: array<f32, 8u * THREADS>; // [score][thread]
var<workgroup> shared_sums: array<f32, 8u * KEY_GROUPS>; // [group][score]

fn lane_of(at: Invocation) -> Lane {
    return Lane(at.local % LANES, at.local / LANES, at.local);
}

// Every lane sums score number index % 8 over the group.
fn group_sums(lane: Lane, parts: Scores) -> Scores {
#for i 8
    exchange[i * THREADS + lane.thread] = parts[i];
#endfor
    workgroupBarrier();
    let first = (lane.index & 7u) * THREADS + lane.group * LANES;
    var sum = 0.0;
    // Every lane starts elsewhere, so that the lanes read different banks.
    for (var i = 0u; i < LANES; i++) {
        sum += exchange[first + (i + lane.index) % LANES];
    }
    if (lane.index < 8u) {
        shared_sums[lane.group * 8u + lane.index] = sum;
    }
    workgroupBarrier();
    var sums: Scores;
#for i 8
    sums[i] = shared_sums[lane.group * 8u + i];
#endfor
    return sums;
}
#endif
