// A tile of a product by cooperative matrices: TILE_ROWS rows of x times 128 rows of W, by 128 invocations. x comes
// from matmul_narrow. Each of SUBGROUPS_COUNT subgroups computes SUBGROUP_ROWS x SUBGROUP_OUTPUTS. Columns pass through
// workgroup memory 32 at a time, and the next ones are loaded meanwhile.
// The importer imports invocation and weight, and defines tile_x(row, vector): vector `vector` of the tile's row `row`,
// or zeros; and tile_sum(row, output, sum), which gets every sum.
// Numbers: TILE_ROWS, X_VECTORS (a row's share of 32 columns), SUBGROUPS_*, MATRICES_*.

#import matrices

alias TileVector = vec4<f16>;

const SUBGROUPS_COUNT: u32 = SUBGROUPS_DOWN * SUBGROUPS_ACROSS;
const SUBGROUP_ROWS: u32 = HEIGHT * MATRICES_DOWN;
const SUBGROUP_OUTPUTS: u32 = SIZE * MATRICES_ACROSS;
// Vectors from one row of a tile to the next: 32 columns, and padding so that eight rows lie in different banks.
const STRIDE: u32 = 10u;

var<workgroup> x_tile: array<TileElement, ELEMENTS * STRIDE * TILE_ROWS>;
var<workgroup> w_tile: array<TileElement, ELEMENTS * STRIDE * 128u>;
// One matrix of every subgroup, on its way to the output, and a last one for those that repeat.
var<workgroup> sum_tile: array<f32, HEIGHT * SIZE * (SUBGROUPS_COUNT + 1u)>;

fn put_x(vector: u32, values: vec4<f16>) {
#ifdef SCALAR_TILES
#for i 4
    x_tile[4u * vector + i] = values[i];
#endfor
#else
    x_tile[vector] = values;
#endif
}

fn put_w(vector: u32, values: vec4<f16>) {
#ifdef SCALAR_TILES
#for i 4
    w_tile[4u * vector + i] = values[i];
#endfor
#else
    w_tile[vector] = values;
#endif
}

fn tile_passes(at: Invocation) -> u32 {
    return passes_of(at, SUBGROUPS_COUNT);
}

alias XVectors = array<vec4<f16>, X_VECTORS>;

// This invocation's share of 32 columns of x.
fn x_vectors(local: u32, index: u32) -> XVectors {
    var vectors: XVectors;
#for n X_VECTORS
    {
        let task = local + 128u * n;
        vectors[n] = tile_x(task / 8u, 8u * index + task % 8u);
    }
#endfor
    return vectors;
}

// The sums of the matrices in sum_tile; that of subgroup 0 is at `row` and `output`.
fn take_sums(local: u32, begin: u32, end: u32, row: u32, output: u32) {
    for (var index = HEIGHT * SIZE * begin + local; index < HEIGHT * SIZE * end; index += 128u) {
        let subgroup = index / (HEIGHT * SIZE);
        let to_row = row + (subgroup / SUBGROUPS_ACROSS) * SUBGROUP_ROWS + (index / SIZE) % HEIGHT;
        let to_output = output + (subgroup % SUBGROUPS_ACROSS) * SUBGROUP_OUTPUTS + index % SIZE;
        tile_sum(to_row, to_output, sum_tile[index]);
    }
}

// The sums of columns from 32 * begin to 32 * end; `row` is the first vector of this invocation's row of W. All but
// `row` are the same in the workgroup.
fn multiply_tile(at: Invocation, row: u32, begin: u32, end: u32, passes: u32) {
    for (var pass_index = 0u; pass_index < passes; pass_index++) {
        let first_subgroup = pass_index * at.subgroups;
        let stores = min(first_subgroup + at.subgroup, SUBGROUPS_COUNT);
        let subgroup = min(stores, SUBGROUPS_COUNT - 1u);
        let first_row = (subgroup / SUBGROUPS_ACROSS) * SUBGROUP_ROWS;
        let first_output = (subgroup % SUBGROUPS_ACROSS) * SUBGROUP_OUTPUTS;
        var sums: array<MatrixSum, MATRICES_DOWN * MATRICES_ACROSS>;
#for m MATRICES_DOWN
#for n MATRICES_ACROSS
        sums[MATRICES_ACROSS * m + n] = MatrixSum();
#endfor
#endfor
        var w = weight_columns(row, begin);
        var values = x_vectors(at.local, begin);
        for (var index = begin; index < end; index++) {
            workgroupBarrier();
#for eight 4
            {
                let weights = columns_eight(w, eight);
                put_w(STRIDE * at.local + 2u * eight, vec4<f16>(weights.low));
                put_w(STRIDE * at.local + 2u * eight + 1u, vec4<f16>(weights.high));
            }
#endfor
#for n X_VECTORS
            {
                let task = at.local + 128u * n;
                put_x(STRIDE * (task / 8u) + task % 8u, values[n]);
            }
#endfor
            workgroupBarrier();
            // Loaded during the products. The last turn loads its columns again.
            let next = min(index + 1u, end - 1u);
            w = weight_columns(row, next);
            values = x_vectors(at.local, next);
            for (var column = 0u; column < 8u; column += SIZE / 4u) {
                var matrices: array<MatrixX, MATRICES_DOWN>;
#for m MATRICES_DOWN
                matrices[m] = coopLoadT<MatrixX>(
                    &x_tile[ELEMENTS * (STRIDE * (first_row + HEIGHT * m) + column)], ELEMENTS * STRIDE);
#endfor
#for n MATRICES_ACROSS
                {
                    let weights = coopLoad<MatrixW>(
                        &w_tile[ELEMENTS * (STRIDE * (first_output + SIZE * n) + column)], ELEMENTS * STRIDE);
#for m MATRICES_DOWN
                    sums[MATRICES_ACROSS * m + n] =
                        coopMultiplyAdd(matrices[m], weights, sums[MATRICES_ACROSS * m + n]);
#endfor
                }
#endfor
            }
        }
        let end_subgroup = min(first_subgroup + at.subgroups, SUBGROUPS_COUNT);
#for m MATRICES_DOWN
#for n MATRICES_ACROSS
        workgroupBarrier();
        coopStoreT(sums[MATRICES_ACROSS * m + n], &sum_tile[HEIGHT * SIZE * stores], SIZE);
        workgroupBarrier();
        take_sums(at.local, first_subgroup, end_subgroup, HEIGHT * m, SIZE * n);
#endfor
#endfor
    }
}
