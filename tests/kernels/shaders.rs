//! Checks every shader variant without a device: it preprocesses, parses, validates, fits WebGPU's default limits, has
//! the params layout that Rust writes, uses what it imports, and compiles with naga's SPIR-V, MSL and HLSL backends.

use folio::backend::metadata::TABLE;
use folio::backend::wgpu::{Variant, shader_sources, variants};
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};
use naga::{AddressSpace, Expression, Literal, Module, TypeInner};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{LazyLock, OnceLock};

/// WebGPU's default limits.
const STORAGE_BUFFERS_MAX: usize = 8;
const WORKGROUP_BYTES_MAX: u32 = 16 << 10;
const INVOCATIONS_MAX: u32 = 256;

fn parse(variant: &Variant) -> Module {
    let name = variant.name();
    let text = variant
        .text()
        .unwrap_or_else(|error| panic!("{name}: {error}"));
    naga::front::wgsl::parse_str(&text)
        .unwrap_or_else(|error| panic!("{name}: {}", error.emit_to_string(&text)))
}

fn capabilities(variant: &Variant) -> Capabilities {
    let optional = [
        (variant.subgroups(), Capabilities::SUBGROUP),
        (variant.halves(), Capabilities::SHADER_FLOAT16),
        (variant.matrices(), Capabilities::COOPERATIVE_MATRIX),
    ];
    let used = optional
        .into_iter()
        .filter(|(is_used, _)| *is_used)
        .map(|(_, capability)| capability);
    used.fold(Capabilities::SHADER_FLOAT16_IN_FLOAT32, Capabilities::union)
}

/// A variant, parsed and validated.
struct Checked {
    variant: Variant,
    module: Module,
    info: ModuleInfo,
}

fn check(variant: &Variant) -> Checked {
    let name = variant.name();
    let module = parse(variant);
    let mut validator = Validator::new(ValidationFlags::all(), capabilities(variant));
    validator.subgroup_stages(naga::valid::ShaderStages::COMPUTE);
    validator.subgroup_operations(naga::valid::SubgroupOperationSet::all());
    let info = validator
        .validate(&module)
        .unwrap_or_else(|error| panic!("{name}: {error:?}"));
    Checked {
        variant: variant.clone(),
        module,
        info,
    }
}

/// All variants. Each is parsed once for all tests, by the first that reaches it.
fn checked() -> impl Iterator<Item = &'static Checked> {
    static VARIANTS: LazyLock<Vec<(Variant, OnceLock<Checked>)>> = LazyLock::new(|| {
        variants()
            .into_iter()
            .map(|variant| (variant, OnceLock::new()))
            .collect()
    });
    VARIANTS
        .iter()
        .map(|(variant, checked)| checked.get_or_init(|| check(variant)))
}

#[test]
fn every_variant_validates_within_the_default_limits() {
    assert!(
        checked().count() >= 60,
        "the table lists the variants of all kernels, not {}",
        checked().count()
    );
    for Checked {
        variant, module, ..
    } in checked()
    {
        let name = variant.name();
        assert_eq!(module.entry_points.len(), 1, "{name} has one entry point");
        let entry = &module.entry_points[0];
        assert_eq!(entry.name, "main", "{name}");
        let [x, y, z] = entry.workgroup_size;
        assert!(
            y == 1 && z == 1,
            "{name}: workgroups have one dimension, not {:?}",
            entry.workgroup_size
        );
        assert!(x <= INVOCATIONS_MAX, "{name}: {x} invocations");
        let mut storage = Vec::new();
        let mut workgroup_bytes = 0;
        for (_, variable) in module.global_variables.iter() {
            match variable.space {
                AddressSpace::Storage { .. } => {
                    storage.push(
                        variable
                            .binding
                            .as_ref()
                            .expect("a storage buffer is bound")
                            .binding,
                    );
                }
                // An image replaces a storage buffer.
                AddressSpace::Handle => {
                    storage.push(
                        variable
                            .binding
                            .as_ref()
                            .expect("an image is bound")
                            .binding,
                    );
                }
                AddressSpace::WorkGroup => {
                    workgroup_bytes += module.types[variable.ty]
                        .inner
                        .size(module.to_ctx())
                        .next_multiple_of(16);
                }
                _ => {}
            }
        }
        assert!(
            storage.len() <= STORAGE_BUFFERS_MAX,
            "{name}: {} storage buffers",
            storage.len()
        );
        // Every GPU with cooperative matrices has twice the default.
        let workgroup_bytes_max = if variant.matrices() {
            2 * WORKGROUP_BYTES_MAX
        } else {
            WORKGROUP_BYTES_MAX
        };
        assert!(
            workgroup_bytes <= workgroup_bytes_max,
            "{name}: {workgroup_bytes} bytes of workgroup memory"
        );
        storage.sort_unstable();
        let expected: Vec<u32> = (1..=storage.len() as u32).collect();
        assert_eq!(
            storage, expected,
            "{name}: storage bindings follow the params without gaps"
        );
    }
}

#[test]
fn params_lie_where_rust_writes_them() {
    for Checked {
        variant, module, ..
    } in checked()
    {
        let name = variant.name();
        let uniforms: Vec<_> = module
            .global_variables
            .iter()
            .filter(|(_, v)| v.space == AddressSpace::Uniform)
            .map(|(_, v)| v)
            .collect();
        assert_eq!(uniforms.len(), 1, "{name} has one uniform");
        let binding = uniforms[0].binding.as_ref().expect("a uniform is bound");
        assert_eq!(
            (binding.group, binding.binding),
            (0, 0),
            "{name}: params come first"
        );
        let TypeInner::Struct { members, span } = &module.types[uniforms[0].ty].inner else {
            panic!("{name}: params are a struct");
        };
        let wgsl: Vec<(String, usize)> = members
            .iter()
            .map(|m| {
                (
                    m.name.clone().expect("members are named"),
                    m.offset as usize,
                )
            })
            .collect();
        let rust: Vec<(String, usize)> = variant
            .fields()
            .iter()
            .map(|(field, offset)| ((*field).to_owned(), *offset))
            .collect();
        assert_eq!(wgsl, rust, "{name}: fields and offsets");
        assert_eq!(
            *span as usize,
            variant.params_bytes(),
            "{name}: bytes of the params"
        );
    }
}

#[test]
fn every_variant_passes_the_spirv_back_end() {
    let options = naga::back::spv::Options {
        lang_version: (1, 3),
        ..Default::default()
    };
    for Checked {
        variant,
        module,
        info,
    } in checked()
    {
        let words = naga::back::spv::write_vec(module, info, &options, None);
        let words = words.unwrap_or_else(|error| panic!("{}: {error:?}", variant.name()));
        assert_eq!(
            words[0],
            0x0723_0203,
            "{}: SPIR-V begins with its magic number",
            variant.name()
        );
    }
}

/// A variant in Metal's language.
fn msl(checked: &Checked) -> String {
    let options = naga::back::msl::Options {
        lang_version: (2, 4),
        fake_missing_bindings: true,
        zero_initialize_workgroup_memory: false,
        ..Default::default()
    };
    let Checked {
        variant,
        module,
        info,
    } = checked;
    let text = naga::back::msl::write_string(module, info, &options, &Default::default());
    text.unwrap_or_else(|error| panic!("{}: {error:?}", variant.name()))
        .0
}

/// The variants that Metal may get, in its language.
fn for_metal() -> impl Iterator<Item = (&'static Variant, String)> {
    checked()
        .filter(|checked| checked.variant.is_for_metal())
        .map(|checked| (&checked.variant, msl(checked)))
}

#[test]
fn every_variant_passes_the_msl_back_end() {
    for (variant, text) in for_metal() {
        let name = variant.name();
        assert!(text.contains("kernel void"), "{name}: a kernel was written");
    }
}

/// Apple's compiler may drop the barrier before the load of a variable of the workgroup that one invocation alone has
/// written (wgpu issue 4500), unless it was initialized.
#[test]
fn what_metal_loads_for_a_whole_workgroup_was_initialized() {
    let mut loads = 0;
    for (variant, text) in for_metal() {
        let lines: Vec<_> = text.lines().map(str::trim).collect();
        let is_barrier = |index: usize| {
            let line = lines.get(index);
            line.is_some_and(|line| line.starts_with("metal::threadgroup_barrier"))
        };
        for index in 1..lines.len() {
            // What naga writes for workgroupUniformLoad.
            let Some((_, variable)) = lines[index].split_once(" = ") else {
                continue;
            };
            let variable = variable.trim_end_matches(';');
            let is_name = variable.chars().all(|c| c.is_alphanumeric() || c == '_');
            if !(is_name && is_barrier(index - 1) && is_barrier(index + 1)) {
                continue;
            }
            loads += 1;
            let is_store = |line: &&str| line.starts_with(&format!("{variable} = "));
            let first = lines.iter().position(is_store);
            let first = first.unwrap_or_else(|| panic!("{}: {variable}", variant.name()));
            let name = variant.name();
            assert_eq!(
                lines[first],
                format!("{variable} = metal::uint4 {{}};"),
                "{name}"
            );
            assert_eq!(
                lines[first + 1],
                "}",
                "{name}: one invocation initializes it"
            );
            assert!(is_barrier(first + 2), "{name}: the others wait for that");
        }
    }
    assert!(loads >= 100, "{loads} loads were found");
}

/// Metal loads and stores matrices by pointers to their elements, with strides in elements.
#[test]
fn metal_gets_pointers_to_the_elements_of_matrices() {
    let mut calls = 0;
    for (variant, text) in for_metal().filter(|(variant, _)| variant.matrices()) {
        let name = variant.name();
        // `struct type_5 { metal::half4 inner[640]; };` and `threadgroup type_5& x_tile`.
        let elements: BTreeMap<_, _> = text
            .split("struct ")
            .filter_map(|declared| {
                let (name, body) = declared.split_once(" {")?;
                let element = body.trim_start().split_once(" inner[")?.0;
                Some((name, element))
            })
            .collect();
        let aliases: BTreeMap<_, _> = text
            .lines()
            .filter_map(|line| {
                line.strip_prefix("typedef ")?
                    .trim_end_matches(';')
                    .split_once(' ')
            })
            .map(|(of, name)| (name, of))
            .collect();
        for line in text.lines() {
            let (is_load, rest) = match (
                line.split_once("NagaCooperativeLoad(&"),
                line.split_once("simdgroup_store("),
            ) {
                (Some((_, rest)), _) => (true, rest),
                (_, Some((_, rest))) => (false, rest.split_once(", &").expect("a pointer").1),
                _ => continue,
            };
            calls += 1;
            let variable = rest
                .split_once(".inner[")
                .expect("an element of an array")
                .0;
            let declared = text
                .split_once(&format!("& {variable}\n"))
                .or_else(|| text.split_once(&format!("& {variable},")))
                .or_else(|| text.split_once(&format!("& {variable})")))
                .unwrap_or_else(|| panic!("{name}: {variable} is an argument"));
            let of = declared.0.rsplit_once(' ').expect("a type").1;
            let wanted = if is_load && variable != "scores" {
                "half"
            } else {
                "float"
            };
            let element = elements[of];
            let element = aliases.get(element).unwrap_or(&element);
            assert_eq!(*element, wanted, "{name}: {line}");
        }
    }
    assert!(calls >= 100, "{calls} calls were found");
}

#[test]
fn every_variant_passes_the_hlsl_back_end() {
    use naga::back::hlsl::ShaderModel;
    for Checked {
        variant,
        module,
        info,
    } in checked().filter(|checked| !checked.variant.halves())
    {
        // FXC, the compiler of last resort, ends with shader model 5.1, which has no subgroups.
        for shader_model in [ShaderModel::V5_1, ShaderModel::V6_0, ShaderModel::V6_4] {
            if variant.subgroups() && shader_model < ShaderModel::V6_0 {
                continue;
            }
            let options = naga::back::hlsl::Options {
                shader_model,
                fake_missing_bindings: true,
                special_constants_binding: Some(naga::back::hlsl::BindTarget {
                    space: 1,
                    ..Default::default()
                }),
                ..Default::default()
            };
            let pipeline = naga::back::hlsl::PipelineOptions::default();
            let mut text = String::new();
            let mut writer = naga::back::hlsl::Writer::new(&mut text, &options, &pipeline);
            let written = writer.write(module, info, None);
            written
                .unwrap_or_else(|error| panic!("{}, {shader_model:?}: {error:?}", variant.name()));
            assert!(
                text.contains("numthreads"),
                "{}: a kernel was written",
                variant.name()
            );
        }
    }
}

/// Khronos's own validator, which is stricter than naga. Without it the test is skipped, or fails under
/// `FOLIO_REQUIRE_GPU=1`.
#[test]
fn every_variant_is_valid_spirv() {
    if spirv_val(&["--version".as_ref()]).is_err() {
        assert!(
            std::env::var_os("FOLIO_REQUIRE_GPU").is_none(),
            "spirv-val (Debian's spirv-tools) is not installed"
        );
        println!("skipped: spirv-val (Debian's spirv-tools) is not installed");
        return;
    }
    let options = naga::back::spv::Options {
        lang_version: (1, 6),
        ..Default::default()
    };
    for Checked {
        variant,
        module,
        info,
    } in checked().filter(|checked| !checked.variant.matrices())
    {
        let words = naga::back::spv::write_vec(module, info, &options, None);
        let words = words.unwrap_or_else(|error| panic!("{}: {error:?}", variant.name()));
        validate(&words, "vulkan1.3")
            .unwrap_or_else(|message| panic!("{}: {message}", variant.name()));
    }
}

/// The SPIR-V that kernels with cooperative matrices become. A validator from before 2023.3 does not know them; then
/// the test is skipped, or fails under `FOLIO_REQUIRE_MATRICES=1`.
#[test]
fn every_variant_with_matrices_is_valid_spirv() {
    let is_required = std::env::var_os("FOLIO_REQUIRE_MATRICES").is_some();
    let is_too_old =
        |message: &str| spirv_val(&[]).is_err() || message.contains("Invalid capability operand");
    let mut count = 0;
    for variant in variants().into_iter().filter(Variant::matrices) {
        // Only systems with Vulkan have it.
        let Some(words) = variant.spirv() else { return };
        let words = words.unwrap_or_else(|error| panic!("{}: {error}", variant.name()));
        // Validators that know them also refuse the layout that naga declares of every array and struct, for Vulkan.
        match validate(&words, "spv1.6") {
            Ok(()) => count += 1,
            Err(message) if is_required || count > 0 || !is_too_old(&message) => {
                panic!("{}: {message}", variant.name())
            }
            Err(message) => {
                println!("skipped: {message}");
                return;
            }
        }
    }
    assert!(
        count >= 60,
        "all formats and sizes are validated, not {count}"
    );
}

fn spirv_val(arguments: &[&std::ffi::OsStr]) -> std::io::Result<std::process::Output> {
    std::process::Command::new("spirv-val")
        .args(arguments)
        .output()
}

/// Validates a module for an environment; the error is the validator's message.
fn validate(words: &[u32], environment: &str) -> Result<(), String> {
    let file = tempfile::NamedTempFile::new().expect("a file for the module");
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    std::fs::write(file.path(), bytes).expect("the module is written");
    let environment = [
        "--target-env".as_ref(),
        environment.as_ref(),
        file.path().as_os_str(),
    ];
    let output = spirv_val(&environment).map_err(|error| error.to_string())?;
    let message = String::from_utf8_lossy(&output.stderr).into_owned()
        + &String::from_utf8_lossy(&output.stdout);
    if output.status.success() {
        Ok(())
    } else {
        Err(message)
    }
}

/// Named `u32` constants of a module.
fn constants(module: &Module) -> BTreeMap<&str, u32> {
    let constants = module.constants.iter().filter_map(|(_, constant)| {
        let Expression::Literal(Literal::U32(value)) = module.global_expressions[constant.init]
        else {
            return None;
        };
        Some((constant.name.as_deref()?, value))
    });
    constants.collect()
}

#[test]
fn shaders_know_the_metadata_by_the_numbers_that_rust_writes_it_with() {
    let importers: Vec<_> = checked()
        .filter(|checked| {
            checked
                .variant
                .text()
                .is_ok_and(|text| text.contains("META_"))
        })
        .collect();
    assert!(
        importers.len() >= 30,
        "attention, samplers and others read the metadata, not {}",
        importers.len()
    );
    for Checked {
        variant, module, ..
    } in importers
    {
        let (name, constants) = (variant.name(), constants(module));
        for (constant, value) in TABLE {
            assert_eq!(constants.get(constant), Some(value), "{name}: {constant}");
        }
    }
}

/// One value per name: no kernel declares a constant that is in the table.
#[test]
fn no_kernel_declares_a_number_of_the_metadata_itself() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = 0;
    for folder in [
        "shaders",
        "shaders/common",
        "cuda",
        "cuda/common",
        "cuda/emulator",
    ] {
        for entry in
            std::fs::read_dir(root.join(folder)).expect("the folder is part of the repository")
        {
            let path = entry.expect("it can be listed").path();
            let Ok(text) = std::fs::read_to_string(&path) else {
                continue;
            };
            files += 1;
            for line in text.lines() {
                let mut words = line
                    .split(|c: char| !(c.is_alphanumeric() || c == '_'))
                    .filter(|word| !word.is_empty());
                let declares = words.next().is_some_and(|word| {
                    ["const", "constexpr", "override", "define"].contains(&word)
                });
                let declared = words
                    .find(|word| !["u32", "unsigned", "int"].contains(word))
                    .filter(|_| declares);
                let known = |name: &&str| TABLE.iter().any(|(known, _)| known == name);
                assert!(
                    !declared.as_ref().is_some_and(known),
                    "{}: {line}",
                    path.display()
                );
            }
        }
    }
    assert!(files > 100, "all kernels are read, not {files} files");
}

/// Names that a shader file declares at module scope, which an import of it provides.
fn declared(text: &str) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for line in text.lines() {
        let mut words = line
            .split(|c: char| !(c.is_alphanumeric() || c == '_'))
            .filter(|word| !word.is_empty());
        match words.next() {
            Some("fn" | "const" | "struct" | "override" | "alias") => {
                names.extend(words.next().map(str::to_owned));
            }
            Some("var") => {
                names.extend(
                    words
                        .find(|word| *word != "workgroup" && *word != "private")
                        .map(str::to_owned),
                );
            }
            _ => {}
        }
        if line.starts_with("@group") {
            let after = line
                .split("> ")
                .nth(1)
                .or_else(|| line.split("var<uniform> ").nth(1));
            let name = after.and_then(|rest| rest.split(':').next()).map(str::trim);
            names.extend(name.map(str::to_owned));
        }
    }
    names
}

fn imports(text: &str) -> Vec<&str> {
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("#import "))
        .collect()
}

/// All names that importing `piece` provides, including its own imports.
fn offered(piece: &str, sources: &BTreeMap<&str, &str>) -> BTreeSet<String> {
    let text = sources[format!("common/{piece}").as_str()];
    let mut names = declared(text);
    for inner in imports(text) {
        names.extend(offered(inner, sources));
    }
    names
}

#[test]
fn every_import_is_used() {
    let sources: BTreeMap<&str, &str> = shader_sources().iter().copied().collect();
    for (stem, text) in &sources {
        let code: String = text
            .lines()
            .map(|line| line.split("//").next().unwrap_or_default())
            .collect::<Vec<_>>()
            .join("\n");
        let words: BTreeSet<&str> = code
            .split(|c: char| !(c.is_alphanumeric() || c == '_'))
            .collect();
        for piece in imports(text) {
            let used = offered(piece, &sources)
                .iter()
                .any(|name| words.contains(name.as_str()));
            assert!(used, "{stem}.wgsl imports {piece} but uses nothing from it");
        }
    }
}

#[test]
fn every_source_is_reached_and_every_file_is_a_source() {
    let sources: BTreeMap<&str, &str> = shader_sources().iter().copied().collect();
    let stems: BTreeSet<&str> = variants().iter().map(Variant::stem).collect();
    let mut reached: BTreeSet<String> = stems.iter().map(|stem| (*stem).to_owned()).collect();
    let mut open: Vec<String> = reached.iter().cloned().collect();
    while let Some(stem) = open.pop() {
        for piece in imports(sources[stem.as_str()]) {
            let piece = format!("common/{piece}");
            if reached.insert(piece.clone()) {
                open.push(piece);
            }
        }
    }
    let known: BTreeSet<String> = sources.keys().map(|stem| (*stem).to_owned()).collect();
    assert_eq!(
        known, reached,
        "every shader in the table is in the variant table, or imported"
    );
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("shaders");
    let mut files = BTreeSet::new();
    for (folder, prefix) in [(root.clone(), ""), (root.join("common"), "common/")] {
        for entry in std::fs::read_dir(folder).expect("shaders/ is part of the repository") {
            let path = entry.expect("shaders/ can be listed").path();
            if path
                .extension()
                .is_some_and(|extension| extension == "wgsl")
            {
                files.insert(format!(
                    "{prefix}{}",
                    path.file_stem()
                        .expect("a file has a stem")
                        .to_string_lossy()
                ));
            }
        }
    }
    files.retain(|stem| !is_alone(stem));
    assert_eq!(files, known, "every file in shaders/ is in the table");
}

/// Whether a shader is plain WGSL without variants and not in the table: those of `folio bench`, and what is run when a
/// device is opened.
fn is_alone(stem: &str) -> bool {
    ["bench_", "probe_"]
        .iter()
        .any(|alone| stem.starts_with(alone))
}

#[test]
fn every_shader_that_is_no_step_validates() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("shaders");
    let mut count = 0;
    for entry in std::fs::read_dir(folder).expect("shaders/ is part of the repository") {
        let path = entry.expect("shaders/ can be listed").path();
        let name = path
            .file_name()
            .expect("a file has a name")
            .to_string_lossy()
            .into_owned();
        if is_alone(&name) {
            let text = std::fs::read_to_string(&path).expect("a shader is text");
            let module = naga::front::wgsl::parse_str(&text)
                .unwrap_or_else(|error| panic!("{name}: {error}"));
            let capabilities = match text.contains("enable wgpu_cooperative_matrix") {
                true => {
                    Capabilities::SHADER_FLOAT16
                        | Capabilities::SUBGROUP
                        | Capabilities::COOPERATIVE_MATRIX
                }
                false => Capabilities::SHADER_FLOAT16_IN_FLOAT32,
            };
            let mut validator = Validator::new(ValidationFlags::all(), capabilities);
            validator.subgroup_stages(naga::valid::ShaderStages::COMPUTE);
            validator
                .validate(&module)
                .unwrap_or_else(|error| panic!("{name}: {error:?}"));
            count += 1;
        }
    }
    assert!(count > 0, "there are such shaders");
}

#[test]
fn every_kernel_starts_with_a_header_that_names_its_twin() {
    for (stem, text) in shader_sources() {
        assert!(text.starts_with("// "), "{stem}.wgsl starts with a header");
        assert!(
            text.lines().count() <= 250,
            "{stem}.wgsl is at most 250 lines"
        );
        let twin = text
            .lines()
            .any(|line| line.starts_with("//") && line.contains("Twin: backend/reference/"));
        assert!(
            stem.starts_with("common/") || twin,
            "{stem}.wgsl names its twin"
        );
    }
}
