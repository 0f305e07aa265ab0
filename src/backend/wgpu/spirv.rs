//! WGSL to SPIR-V for kernels with cooperative matrices.
//!
//! Such a module must declare the Vulkan memory model. naga does, but leaves every access private and every barrier
//! without availability and visibility, so that one invocation need not see what another wrote before a barrier
//! ([wgpu #8805](https://github.com/gfx-rs/wgpu/issues/8805)). [`share_memory`] adds both to naga's module. It can go
//! when naga writes them itself. WGSL can only name square matrices; [`fit_columns`] makes those of others fit.
//!
//! Numbers are those of the SPIR-V specification, version 1.6, and of `SPV_KHR_cooperative_matrix`.

use std::collections::{BTreeSet, HashMap, HashSet};
use wgpu::naga;
use wgpu::naga::back::spv;

/// Words before the first instruction; the fourth is the bound of all ids.
const HEADER_WORDS: usize = 5;
const BOUND: usize = 3;

const OP_TYPE_POINTER: u32 = 32;
const OP_TYPE_COOPERATIVE_MATRIX: u32 = 4456;
const OP_CONSTANT: u32 = 43;
const OP_FUNCTION: u32 = 54;
const OP_FUNCTION_PARAMETER: u32 = 55;
const OP_VARIABLE: u32 = 59;
const OP_LOAD: u32 = 61;
const OP_STORE: u32 = 62;
const OP_ACCESS_CHAIN: u32 = 65;
const OP_IN_BOUNDS_ACCESS_CHAIN: u32 = 66;
const OP_CONTROL_BARRIER: u32 = 224;
const OP_MEMORY_BARRIER: u32 = 225;
const OP_COOPERATIVE_MATRIX_LOAD: u32 = 4457;
const OP_COOPERATIVE_MATRIX_STORE: u32 = 4458;

/// Storage classes that invocations share.
const WORKGROUP: u32 = 4;
const STORAGE_BUFFER: u32 = 12;

/// How a matrix is used: as the first factor, as the second, as the sums.
const MATRIX_A: u32 = 0;
const MATRIX_B: u32 = 1;
const MATRIX_SUM: u32 = 2;

/// Memory operand: other invocations access the same memory.
const NON_PRIVATE_POINTER: u32 = 0x20;
/// Memory semantics: what this invocation wrote is available, and what others made available is visible.
const MAKE_AVAILABLE_AND_VISIBLE: u32 = 0x2000 | 0x4000;

/// Translates a kernel without bounds checks, as [`super::pipelines::create_module`] does for the others.
pub(crate) fn translate(text: &str) -> Result<Vec<u32>, String> {
    let module = naga::front::wgsl::parse_str(text).map_err(|error| error.emit_to_string(text))?;
    let mut validator =
        naga::valid::Validator::new(naga::valid::ValidationFlags::all(), capabilities());
    validator.subgroup_stages(naga::valid::ShaderStages::COMPUTE);
    validator.subgroup_operations(naga::valid::SubgroupOperationSet::all());
    let info = validator
        .validate(&module)
        .map_err(|error| error.emit_to_string(text))?;
    let unchecked = naga::proc::BoundsCheckPolicy::Unchecked;
    let options = spv::Options {
        // The memory model is a part of SPIR-V since 1.5.
        lang_version: (1, 5),
        flags: spv::WriterFlags::empty(),
        bounds_check_policies: naga::proc::BoundsCheckPolicies {
            index: unchecked,
            buffer: unchecked,
            image_load: unchecked,
            binding_array: unchecked,
        },
        zero_initialize_workgroup_memory: spv::ZeroInitializeWorkgroupMemoryMode::None,
        force_loop_bounding: false,
        emit_int_div_checks: false,
        ..Default::default()
    };
    let words =
        spv::write_vec(&module, &info, &options, None).map_err(|error| error.to_string())?;
    share_memory(&fit_columns(&words)?)
}

/// Gives the first factor as many columns as the second has rows, and the sums as many as it has columns. Of square
/// matrices of one size, they have them already.
pub(crate) fn fit_columns(words: &[u32]) -> Result<Vec<u32>, String> {
    let (header, body) = words
        .split_at_checked(HEADER_WORDS)
        .ok_or("the module has no header")?;
    let instructions = instructions(body)?;
    let mut constants: HashMap<u32, &[u32]> = HashMap::new();
    for (opcode, words) in &instructions {
        if let (OP_CONSTANT, [_, _, id, _]) = (*opcode, *words) {
            constants.insert(*id, words);
        }
    }
    let uses: HashMap<u32, u32> = constants
        .iter()
        .map(|(id, constant)| (*id, constant[3]))
        .collect();
    // Words of such a type: result, component, scope, rows, columns, use.
    let second = instructions
        .iter()
        .find_map(|(opcode, words)| match (*opcode, *words) {
            (OP_TYPE_COOPERATIVE_MATRIX, [_, _, _, _, rows, columns, used])
                if uses.get(used) == Some(&MATRIX_B) =>
            {
                Some([*rows, *columns])
            }
            _ => None,
        });
    let Some([rows, columns]) = second else {
        return Ok(words.to_vec());
    };
    let mut missing = BTreeSet::from([rows, columns]);
    let (mut moved, mut fitted) = (BTreeSet::new(), header.to_vec());
    for (opcode, words) in instructions {
        let mut instruction = words.to_vec();
        match (opcode, words) {
            (OP_CONSTANT, [_, _, id, _]) => {
                if moved.contains(id) {
                    continue;
                }
                missing.remove(id);
            }
            (OP_TYPE_COOPERATIVE_MATRIX, [.., used]) => {
                // What a type names comes before it.
                moved.append(&mut missing);
                let late = moved.iter().filter_map(|id| constants.remove(id));
                fitted.extend(late.flatten());
                match uses.get(used) {
                    Some(&MATRIX_A) => instruction[5] = rows,
                    Some(&MATRIX_SUM) => instruction[5] = columns,
                    _ => {}
                }
            }
            _ => {}
        }
        fitted.extend(instruction);
    }
    Ok(fitted)
}

/// What kernels with cooperative matrices use beyond WebGPU's defaults.
pub(crate) fn capabilities() -> naga::valid::Capabilities {
    use naga::valid::Capabilities;
    Capabilities::SHADER_FLOAT16
        | Capabilities::SHADER_FLOAT16_IN_FLOAT32
        | Capabilities::SUBGROUP
        | Capabilities::COOPERATIVE_MATRIX
}

/// Marks every access to shared memory as not private, and lets every barrier make writes available and visible.
pub(crate) fn share_memory(words: &[u32]) -> Result<Vec<u32>, String> {
    let mut shared = words
        .get(..HEADER_WORDS)
        .ok_or("the module has no header")?
        .to_vec();
    let mut pointers = Pointers::default();
    // The type and value of each constant of one word.
    let mut constants: HashMap<u32, (u32, u32)> = HashMap::new();
    // The semantics of barriers: the constant, and the new one that replaces it.
    let mut replaced: Vec<(u32, u32)> = Vec::new();
    let mut first_function = None;
    for (opcode, words) in instructions(&words[HEADER_WORDS..])? {
        pointers.note(opcode, words);
        let mut instruction = words.to_vec();
        match opcode {
            OP_CONSTANT if words.len() == 4 => _ = constants.insert(words[2], (words[1], words[3])),
            OP_FUNCTION => _ = first_function.get_or_insert(shared.len()),
            OP_LOAD if pointers.are_shared(words[3]) => add_operand(&mut instruction, 4),
            OP_STORE if pointers.are_shared(words[1]) => add_operand(&mut instruction, 3),
            // Result type, result, pointer, layout, stride; pointer, object, layout, stride.
            OP_COOPERATIVE_MATRIX_LOAD if pointers.are_shared(words[3]) => {
                add_operand(&mut instruction, 6);
            }
            OP_COOPERATIVE_MATRIX_STORE if pointers.are_shared(words[1]) => {
                add_operand(&mut instruction, 5);
            }
            OP_CONTROL_BARRIER => shared_semantics(&mut instruction[3], &mut shared, &mut replaced),
            OP_MEMORY_BARRIER => shared_semantics(&mut instruction[2], &mut shared, &mut replaced),
            _ => {}
        }
        shared.extend(instruction);
    }
    // Constants come before functions, after their types.
    let mut new = Vec::new();
    for (old, id) in replaced {
        let (kind, value) = constants
            .get(&old)
            .ok_or("a barrier's semantics are not a constant")?;
        new.extend([
            4 << 16 | OP_CONSTANT,
            *kind,
            id,
            value | MAKE_AVAILABLE_AND_VISIBLE,
        ]);
    }
    let first_function = first_function.ok_or("the module has no function")?;
    shared.splice(first_function..first_function, new);
    Ok(shared)
}

/// The instructions of a module, each with its opcode.
fn instructions(mut words: &[u32]) -> Result<Vec<(u32, &[u32])>, String> {
    let mut instructions = Vec::new();
    while let Some(first) = words.first() {
        let length = (first >> 16) as usize;
        let (instruction, rest) = match words.split_at_checked(length) {
            Some(split) if length > 0 => split,
            _ => return Err("the module is cut".into()),
        };
        instructions.push((first & 0xffff, instruction));
        words = rest;
    }
    Ok(instructions)
}

/// The ids of pointers.
#[derive(Default)]
struct Pointers {
    /// Storage class of each pointer type.
    classes: HashMap<u32, u32>,
    /// Pointers to memory that invocations share.
    shared: HashSet<u32>,
}

impl Pointers {
    fn note(&mut self, opcode: u32, instruction: &[u32]) {
        match (opcode, instruction) {
            (OP_TYPE_POINTER, [_, id, class, ..]) => _ = self.classes.insert(*id, *class),
            (
                OP_VARIABLE | OP_FUNCTION_PARAMETER | OP_ACCESS_CHAIN | OP_IN_BOUNDS_ACCESS_CHAIN,
                [_, kind, id, ..],
            ) if matches!(self.classes.get(kind), Some(&(WORKGROUP | STORAGE_BUFFER))) => {
                self.shared.insert(*id);
            }
            _ => {}
        }
    }

    fn are_shared(&self, id: u32) -> bool {
        self.shared.contains(&id)
    }
}

/// Adds [`NON_PRIVATE_POINTER`] to the memory operands, which follow `words` words.
fn add_operand(instruction: &mut Vec<u32>, words: usize) {
    match instruction.get_mut(words) {
        Some(operands) => *operands |= NON_PRIVATE_POINTER,
        None => {
            instruction.push(NON_PRIVATE_POINTER);
            instruction[0] += 1 << 16;
        }
    }
}

/// Replaces the id of a barrier's semantics by that of a new constant.
fn shared_semantics(id: &mut u32, module: &mut [u32], replaced: &mut Vec<(u32, u32)>) {
    let known = replaced
        .iter()
        .find(|(old, _)| old == id)
        .map(|(_, new)| *new);
    *id = known.unwrap_or_else(|| {
        let new = module[BOUND];
        module[BOUND] += 1;
        replaced.push((*id, new));
        new
    });
}

#[cfg(test)]
mod tests;
