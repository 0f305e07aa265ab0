//! Loops of a machine code listing, as RADV prints it: blocks that begin with `BB7:`, one instruction a line.

/// Instructions of a loop that contains no other loop.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Inner {
    /// Vector instructions that compute.
    pub(crate) vector: u32,
    /// Those of them that multiply and add f32, and what packed ones do counted twice.
    pub(crate) multiply_adds: u32,
    /// Those that multiply matrices.
    pub(crate) matrices: u32,
    /// Loads from global memory.
    pub(crate) loads: u32,
}

struct Block<'a> {
    number: u32,
    instructions: Vec<(&'a str, &'a str)>,
}

/// The innermost loop with the most vector instructions.
pub(crate) fn inner_loop(listing: &str) -> Option<Inner> {
    let blocks = blocks(listing);
    let mut loops: Vec<(u32, u32)> = Vec::new();
    for block in &blocks {
        for (operation, operands) in &block.instructions {
            let branches = operation.starts_with("s_cbranch") || *operation == "s_branch";
            if let Some(target) = operands
                .split("BB")
                .nth(1)
                .and_then(number)
                .filter(|to| branches && *to <= block.number)
            {
                loops.push((target, block.number));
            }
        }
    }
    let is_innermost = |outer: &&(u32, u32)| {
        !loops
            .iter()
            .any(|inner| inner != *outer && inner.0 >= outer.0 && inner.1 <= outer.1)
    };
    let innermost = loops.iter().filter(is_innermost);
    innermost
        .map(|range| count(&blocks, *range))
        .max_by_key(|inner| inner.vector)
}

fn blocks(listing: &str) -> Vec<Block<'_>> {
    let mut blocks: Vec<Block<'_>> = Vec::new();
    for line in listing.lines() {
        if let Some(number) = line.strip_prefix("BB").and_then(number) {
            blocks.push(Block {
                number,
                instructions: Vec::new(),
            });
        } else if let Some(block) = blocks.last_mut() {
            let text = line.split(';').next().unwrap_or_default().trim();
            let (operation, operands) = text.split_once(' ').unwrap_or((text, ""));
            if !operation.is_empty() {
                block.instructions.push((operation, operands));
            }
        }
    }
    blocks
}

/// The number that a text begins with.
fn number(text: &str) -> Option<u32> {
    let end = text
        .find(|character: char| !character.is_ascii_digit())
        .unwrap_or(text.len());
    text[..end].parse().ok()
}

fn count(blocks: &[Block<'_>], (first, last): (u32, u32)) -> Inner {
    let mut inner = Inner::default();
    let inside = blocks
        .iter()
        .filter(|block| (first..=last).contains(&block.number));
    for (operation, _) in inside.flat_map(|block| &block.instructions) {
        // RDNA 3 writes pairs of independent instructions as one: `v_dual_fmac_f32 … :: v_dual_mul_f32 …`.
        inner.vector += u32::from(operation.starts_with("v_"));
        let multiplies = ["v_fma", "v_fmac", "v_mac", "v_mad_f32", "v_dual_fmac"];
        inner.multiply_adds += u32::from(multiplies.iter().any(|name| operation.starts_with(name)));
        inner.matrices += u32::from(operation.starts_with("v_wmma"));
        inner.loads +=
            u32::from(operation.starts_with("buffer_load") || operation.starts_with("global_load"));
    }
    inner
}

#[test]
fn the_innermost_loop_with_the_most_work_is_counted() {
    let listing = "\
BB0:
\ts_mov_b32 s0, 0                        ; be800380
BB1:
\tv_add_u32_e32 v0, v1, v2               ; 12
BB2:
\tbuffer_load_dwordx4 v[0:3], v4, s[0:3], 0 offen ; e05c1000
\tv_fmac_f32_e32 v0, v1, v2              ; 12
\tv_and_b32_e32 v0, v1, v2               ; 12
\ts_cbranch_scc1 BB2                     ; bf850001
BB3:
\tv_fmac_f32_e32 v0, v1, v2              ; 12
\ts_cbranch_scc1 BB3                     ; bf850001
BB4:
\ts_branch BB1                           ; bf82fff0
BB5:
\ts_endpgm                               ; bf810000
";
    assert_eq!(
        inner_loop(listing),
        Some(Inner {
            vector: 2,
            multiply_adds: 1,
            matrices: 0,
            loads: 1
        })
    );
    assert_eq!(inner_loop("BB0:\n\ts_endpgm ; bf81\n"), None);
}
