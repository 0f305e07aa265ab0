// Shared by all phases of `sample`: bindings and a row's keys.
// Variants: ADJUST (keys come from the scratch rows, after bias, penalties and mask).

#import sample
#import sample_logits

@group(0) @binding(3) var<storage, read> parts: array<u32>;
@group(0) @binding(4) var<storage, read_write> scratch: array<u32>;
@group(0) @binding(5) var<storage, read_write> feed: array<u32>;
@group(0) @binding(6) var<storage, read_write> results: array<u32>;

// The row that the workgroup processes.
struct Row {
    index: u32, // index of the sample row in the batch
    part: u32, // record of its first part
    vocab: u32, // 0 for a workgroup without a row
    logits: u32, // first word in logits
    scratch: u32, // first word in scratch
}

fn raw_key(row: Row, id: u32) -> u32 {
    return key_of(logit_at(row.logits, id));
}

fn raw_keys(row: Row, four: u32) -> vec4<u32> {
    let bits = logits_four(row.logits, four, row.vocab);
    return vec4<u32>(key_of(bits.x), key_of(bits.y), key_of(bits.z), key_of(bits.w));
}

// The key of a token.
fn key_at(row: Row, id: u32, is_raw: bool) -> u32 {
#ifdef ADJUST
    if !is_raw {
        return scratch[row.scratch + id];
    }
#endif
    return raw_key(row, id);
}

// The keys of four tokens; past the end, keys that are never kept.
fn keys_of(row: Row, four: u32, is_raw: bool) -> vec4<u32> {
#ifdef ADJUST
    if !is_raw {
        var keys = vec4<u32>(KEY_LOWEST);
#for i 4
        if 4u * four + i < row.vocab {
            keys[i] = scratch[row.scratch + 4u * four + i];
        }
#endfor
        return keys;
    }
#endif
    return raw_keys(row, four);
}
