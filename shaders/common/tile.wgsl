// A tile of a product: 8 * ROWS_EACH rows of x times 128 rows of W, by 128 invocations. Columns are taken 32 at a time,
// and the next ones are loaded from memory while these are multiplied. They pass through workgroup memory 16 at a time,
// where a vector is four columns of a row, so that neither writes nor reads have bank conflicts: invocation i computes
// the outputs i % 16 + 16 * j of the rows i / 16 + 8 * n.
// The importer imports invocation and weight, and defines tile_x(row, vector): vector `vector` of the tile's row `row`,
// or zeros; and tile_sum(row, output, sum), which gets every sum.
// Numbers: TILE_ROWS; ROWS_EACH, of an invocation (4 or 8); VECTORS_EACH, that it loads of 16 columns of x (1 or 2).

alias TileVector = vec4<f32>;
const OUTPUTS_EACH: u32 = 8u;

var<workgroup> x_tile: array<vec4<f32>, 4u * TILE_ROWS>; // [column / 4][row]
var<workgroup> w_tile: array<vec4<f32>, 512>; // [column / 4][output]

alias XVectors = array<vec4<f32>, VECTORS_EACH>;
// [row of the invocation][its outputs, in two halves]
alias Sums = array<vec4<f32>, 2u * ROWS_EACH>;

// This invocation's share of 16 columns of x.
fn x_vectors(local: u32, sixteen: u32) -> XVectors {
    var vectors: XVectors;
#for n VECTORS_EACH
    {
        let task = local + 128u * n;
        vectors[n] = tile_x(task % TILE_ROWS, 4u * sixteen + task / TILE_ROWS);
    }
#endfor
    return vectors;
}

// Four columns: sums += x * W.
fn multiply_four(local: u32, four: u32, sums: ptr<function, Sums>) {
    let lane = local & 15u;
    let row_group = local >> 4u;
    var w: array<vec4<f32>, OUTPUTS_EACH>;
#for j 8
    w[j] = w_tile[four * 128u + 16u * j + lane];
#endfor
#for n ROWS_EACH
    {
        let values = x_tile[four * TILE_ROWS + 8u * n + row_group];
        var low = (*sums)[2u * n];
        var high = (*sums)[2u * n + 1u];
#for i 4
        low = fma(vec4<f32>(w[0][i], w[1][i], w[2][i], w[3][i]), vec4<f32>(values[i]), low);
        high = fma(vec4<f32>(w[4][i], w[5][i], w[6][i], w[7][i]), vec4<f32>(values[i]), high);
#endfor
        (*sums)[2u * n] = low;
        (*sums)[2u * n + 1u] = high;
    }
#endfor
}

fn tile_passes(at: Invocation) -> u32 {
    return 1u;
}

// The sums of columns from 32 * begin to 32 * end; `row` is the first vector of this invocation's row of W.
fn multiply_tile(at: Invocation, row: u32, begin: u32, end: u32, passes: u32) {
    let local = at.local;
    var sums: Sums;
    var w = weight_columns(row, begin);
    var x = x_vectors(local, 2u * begin);
    for (var index = begin; index < end; index++) {
#for part 2
        workgroupBarrier();
#for eight 2
        {
            let values = columns_eight(w, 2u * part + eight);
            w_tile[256u * eight + local] = values.low;
            w_tile[256u * eight + 128u + local] = values.high;
        }
#endfor
#for n VECTORS_EACH
        x_tile[local + 128u * n] = x[n];
#endfor
        workgroupBarrier();
        // Loaded during the products. The last turn loads its columns again.
        if part == 1u {
            w = weight_columns(row, min(index + 1u, end - 1u));
        }
        x = x_vectors(local, min(2u * index + part + 1u, 2u * end - 1u));
        for (var four = 0u; four < 4u; four++) {
            multiply_four(local, four, &sums);
        }
#endfor
    }
    for (var n = 0u; n < ROWS_EACH; n++) {
        for (var j = 0u; j < OUTPUTS_EACH; j++) {
            tile_sum(8u * n + (local >> 4u), 16u * j + (local & 15u), sums[2u * n + j / 4u][j % 4u]);
        }
    }
}
