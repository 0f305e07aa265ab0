// out (=, +=) x * W^T + bias for many rows, by cooperative matrices: SIZE x SIZE halves that a subgroup multiplies as
// one, with sums of f32. x comes from narrow_rows: halves, and for each row the power of two that they were divided by.
// Workgroup of 128: a tile of TILE_ROWS x 128, of which each of SUBGROUPS subgroups computes SUBGROUP_ROWS x
// SUBGROUP_OUTPUTS. Columns pass through workgroup memory 32 at a time, and the next ones are loaded meanwhile.
// A driver may run fewer subgroups than SUBGROUPS, of more lanes: then the tile takes several passes. If it runs more,
// the others repeat the last one's part.
// SPLITS: as in matmul_tile. Only for SPIR-V, which gets its memory model right in backend/wgpu/spirv.rs.
// Variants: weight format, BIAS, SPLITS, SIZE_8 or SIZE_16, TILE_ROWS, SUBGROUPS_*. Twin: backend/reference/matmul.rs
#import invocation
#import matmul
#import weight

#ifdef SIZE_16
const SIZE: u32 = 16u;
alias MatrixX = coop_mat16x16<f16, A>;
alias MatrixW = coop_mat16x16<f16, B>;
alias MatrixSum = coop_mat16x16<f32, C>;
#else
const SIZE: u32 = 8u;
alias MatrixX = coop_mat8x8<f16, A>;
alias MatrixW = coop_mat8x8<f16, B>;
alias MatrixSum = coop_mat8x8<f32, C>;
#endif

const SUBGROUPS_COUNT: u32 = SUBGROUPS_DOWN * SUBGROUPS_ACROSS;
const SUBGROUP_ROWS: u32 = SIZE * MATRICES_DOWN;
const SUBGROUP_OUTPUTS: u32 = SIZE * MATRICES_ACROSS;
// Vectors from one row of a tile to the next: 32 columns, and padding so that eight rows lie in different banks.
const STRIDE: u32 = 10u;

var<workgroup> x_tile: array<vec4<f16>, STRIDE * TILE_ROWS>;
var<workgroup> w_tile: array<vec4<f16>, STRIDE * 128u>;
// One matrix of every subgroup, on its way to the output, and a last one for those that repeat.
var<workgroup> sum_tile: array<f32, SIZE * SIZE * (SUBGROUPS_COUNT + 1u)>;
// Shared, so that loops with barriers are uniform even for compilers that do not tell struct members apart.
var<workgroup> range: vec3<u32>; // begin and end, in 32 columns, and passes

alias XVectors = array<vec4<f16>, X_VECTORS>;

// This invocation's share of 32 columns of x: vectors of four.
fn x_vectors(local: u32, row_start: u32, index: u32) -> XVectors {
    var vectors: XVectors;
#for n X_VECTORS
    {
        let task = local + 128u * n;
        let row = row_start + task / 8u;
        let vector = 8u * index + task % 8u;
        vectors[n] = vec4<f16>(0.0h);
        if row < params.rows && vector < 2u * params.eights {
            vectors[n] = x[row * 2u * params.eights + vector];
        }
    }
#endfor
    return vectors;
}

// What the sums of a row are multiplied with.
fn row_scale(row: u32) -> f32 {
    let exponent = i32(x[params.rows * 2u * params.eights + min(row, params.rows - 1u)].x);
    return ldexp(1.0, exponent);
}

// The matrices of sum_tile; that of subgroup 0 is at `row` and `output`.
fn emit_matrices(part: Part, local: u32, begin: u32, end: u32, row: u32, output: u32) {
    for (var index = SIZE * SIZE * begin + local; index < SIZE * SIZE * end; index += 128u) {
        let subgroup = index / (SIZE * SIZE);
        let to_row = row + (subgroup / SUBGROUPS_ACROSS) * SUBGROUP_ROWS + (index / SIZE) % SIZE;
        let to_output = output + (subgroup % SUBGROUPS_ACROSS) * SUBGROUP_OUTPUTS + index % SIZE;
        emit_part(part, to_row, to_output, sum_tile[index] * row_scale(to_row));
    }
}

@compute @workgroup_size(128)
fn main(at: Invocation) {
    fill_levels(at.local);
    let row_tiles = (params.rows + TILE_ROWS - 1u) / TILE_ROWS;
    let part = part_of(flat_workgroup(at));
    let row_start = (part.tile % row_tiles) * TILE_ROWS;
    let output_start = (part.tile / row_tiles) * 128u;
    // Outputs past the end read the last row again; emit drops them.
    let w_row = weight_row(min(output_start + at.local, params.outputs - 1u));
    if at.local == 0u {
        let passes = (SUBGROUPS_COUNT + at.subgroups - 1u) / at.subgroups;
        range = vec3<u32>(part.begin / 32u, (part.end + 31u) / 32u, passes);
    }
    let bounds = workgroupUniformLoad(&range);
    for (var pass_index = 0u; pass_index < bounds.z; pass_index++) {
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
        var w = weight_columns(w_row, bounds.x);
        var values = x_vectors(at.local, row_start, bounds.x);
        for (var index = bounds.x; index < bounds.y; index++) {
            workgroupBarrier();
#for eight 4
            {
                let weights = columns_eight(w, eight);
                w_tile[STRIDE * at.local + 2u * eight] = vec4<f16>(weights.low);
                w_tile[STRIDE * at.local + 2u * eight + 1u] = vec4<f16>(weights.high);
            }
#endfor
#for n X_VECTORS
            {
                let task = at.local + 128u * n;
                x_tile[STRIDE * (task / 8u) + task % 8u] = values[n];
            }
#endfor
            workgroupBarrier();
            // Loaded during the products. The last turn loads its columns again.
            let next = min(index + 1u, bounds.y - 1u);
            w = weight_columns(w_row, next);
            values = x_vectors(at.local, row_start, next);
            for (var column = 0u; column < 8u; column += SIZE / 4u) {
                var matrices: array<MatrixX, MATRICES_DOWN>;
#for m MATRICES_DOWN
                matrices[m] = coopLoadT<MatrixX>(&x_tile[STRIDE * (first_row + SIZE * m) + column], STRIDE);
#endfor
#for n MATRICES_ACROSS
                {
                    let weights = coopLoad<MatrixW>(&w_tile[STRIDE * (first_output + SIZE * n) + column], STRIDE);
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
        coopStoreT(sums[MATRICES_ACROSS * m + n], &sum_tile[SIZE * SIZE * stores], SIZE);
        workgroupBarrier();
        emit_matrices(part, at.local, first_subgroup, end_subgroup, row_start + SIZE * m, output_start + SIZE * n);
#endfor
#endfor
    }
}
