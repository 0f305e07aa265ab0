// Applies bias, penalties and mask: turns a row's logits into keys in its scratch row.

#import sample_row

var<workgroup> is_pending_known: atomic<u32>;

fn adjusted(row: Row, id: u32) -> f32 {
    return bitcast<f32>(scratch[row.scratch + id]);
}

fn penalise(row: Row, id: u32, generated: u32) {
    let repetition = row_float(row.index, SAMPLE_REPETITION_PENALTY);
    let y = adjusted(row, id);
    var result = select(y * repetition, y / repetition, y > 0.0);
    if generated > 0u {
        result -= f32(generated) * row_float(row.index, SAMPLE_FREQUENCY_PENALTY);
        result -= row_float(row.index, SAMPLE_PRESENCE_PENALTY);
    }
    scratch[row.scratch + id] = bitcast<u32>(result);
}

fn penalise_history(row: Row, local: u32) {
    let pending_slot = row_word(row.index, SAMPLE_PENDING_SLOT);
    var pending = NONE;
    if pending_slot != NONE && row.vocab > 0u {
        pending = feed[pending_slot];
    }
    if local == 0u {
        atomicStore(&is_pending_known, 0u);
    }
    workgroupBarrier();
    let start = row_word(row.index, SAMPLE_HISTORY_START);
    let count = select(0u, row_word(row.index, SAMPLE_HISTORY_LEN), row.vocab > 0u);
    for (var i = local; i < count; i += WORKGROUP) {
        let entry = (start + i) * HISTORY_WORDS;
        let id = metadata_at(META_HISTORY, entry + HISTORY_TOKEN_ID);
        let generated = metadata_at(META_HISTORY, entry + HISTORY_GENERATED);
        if id == pending {
            atomicStore(&is_pending_known, 1u);
        }
        if id < row.vocab {
            penalise(row, id, generated + select(0u, 1u, id == pending));
        }
    }
    workgroupBarrier();
    if local == 0u && atomicLoad(&is_pending_known) == 0u && pending < row.vocab {
        penalise(row, pending, 1u);
    }
}

// Returns this invocation's share of (largest key, its lowest id, any bad logit).
fn adjust(row: Row, local: u32) -> vec3<u32> {
    var best = vec3<u32>(0u, NONE, 0u);
    for (var id = local; id < row.vocab; id += WORKGROUP) {
        let bits = logit_at(row.logits, id);
        best.z |= select(0u, 1u, is_bad(bits));
        scratch[row.scratch + id] = bits;
    }
    storageBarrier();
    workgroupBarrier();
    let start = row_word(row.index, SAMPLE_BIAS_START);
    let count = select(0u, row_word(row.index, SAMPLE_BIAS_LEN), row.vocab > 0u);
    for (var i = local; i < count; i += WORKGROUP) {
        let entry = (start + i) * BIAS_WORDS;
        let id = metadata_at(META_BIAS, entry + BIAS_TOKEN_ID);
        let bias = bitcast<f32>(metadata_at(META_BIAS, entry + BIAS_VALUE));
        if id < row.vocab {
            scratch[row.scratch + id] = bitcast<u32>(adjusted(row, id) + bias);
        }
    }
    storageBarrier();
    workgroupBarrier();
    penalise_history(row, local);
    storageBarrier();
    workgroupBarrier();
    let mask = row_word(row.index, SAMPLE_MASK_START);
    for (var id = local; id < row.vocab; id += WORKGROUP) {
        let bits = scratch[row.scratch + id];
        best.z |= select(0u, 1u, is_bad(bits));
        var key = key_of(bits);
        if mask != NONE {
            let word = metadata_at(META_MASKS, mask + (id >> 5u));
            key = select(KEY_LOWEST, key, ((word >> (id & 31u)) & 1u) == 1u);
        }
        scratch[row.scratch + id] = key;
        if key > best.x {
            best = vec3<u32>(key, id, best.z);
        }
    }
    storageBarrier();
    workgroupBarrier();
    return best;
}
