//! What adapters that are not here would get: their facts, from public reports, are in `tests/data/adapters`.

use super::super::device::{self, Class, Tier, WgpuOptions};
use super::super::matrices::{self, Matrices};
use super::*;
use serde_json::Value;
use std::path::Path;

/// Text of a field; empty if it is missing.
fn text<'a>(report: &'a Value, field: &str) -> &'a str {
    report[field].as_str().unwrap_or_default()
}

fn number(report: &Value, field: &str) -> u64 {
    report[field]
        .as_u64()
        .unwrap_or_else(|| panic!("`{field}` of {report}"))
}

fn info_of(report: &Value) -> wgpu::AdapterInfo {
    let kind = match text(report, "kind") {
        "discrete" => wgpu::DeviceType::DiscreteGpu,
        "integrated" => wgpu::DeviceType::IntegratedGpu,
        "cpu" => wgpu::DeviceType::Cpu,
        kind => panic!("kind {kind}"),
    };
    let api = match text(report, "api") {
        "vulkan" => wgpu::Backend::Vulkan,
        "metal" => wgpu::Backend::Metal,
        "dx12" => wgpu::Backend::Dx12,
        api => panic!("api {api}"),
    };
    let lanes = |index: usize| report["subgroups"][index].as_u64().expect("a number") as u32;
    wgpu::AdapterInfo {
        name: text(report, "name").into(),
        driver: text(report, "driver").into(),
        vendor: number(report, "vendor") as u32,
        device: number(report, "device") as u32,
        subgroup_min_size: lanes(0),
        subgroup_max_size: lanes(1),
        ..wgpu::AdapterInfo::new(kind, api)
    }
}

fn matrices_of(report: &Value) -> Vec<wgpu::CooperativeMatrixProperties> {
    let shapes = report["matrices"].as_array().expect("a list");
    let properties = shapes.iter().map(|shape| {
        let size = |index: usize| shape[index].as_u64().expect("a number") as u32;
        wgpu::CooperativeMatrixProperties {
            m_size: size(0),
            n_size: size(1),
            k_size: size(2),
            ab_type: wgpu::CooperativeScalarType::F16,
            cr_type: wgpu::CooperativeScalarType::F32,
            saturating_accumulation: false,
        }
    });
    properties.collect()
}

fn facts_of(report: &Value) -> Facts {
    let info = info_of(report);
    let names = report["features"].as_array().expect("a list");
    let has = |name: &str| names.iter().any(|feature| feature == name);
    let mut features = wgpu::Features::empty();
    features.set(wgpu::Features::SUBGROUP, has("subgroup"));
    features.set(wgpu::Features::SHADER_F16, has("f16"));
    if has("matrices") {
        features |= matrices::features(info.backend);
    }
    let is_true = |field: &str| report[field] == true;
    Facts {
        features,
        limits: wgpu::Limits {
            max_compute_workgroup_storage_size: number(report, "workgroup_bytes") as u32,
            max_storage_buffer_binding_size: number(report, "binding_bytes"),
            max_buffer_size: number(report, "binding_bytes"),
            ..wgpu::Limits::default()
        },
        half_conversion: true,
        texels: texels::available(&info),
        matrices: matrices_of(report),
        has_translation: info.backend != wgpu::Backend::Dx12,
        cores: report["cores"].as_u64().map(|cores| cores as u32),
        dots: is_true("dots"),
        dots_of_mixed_signs: is_true("mixed_dots"),
        is_apple: is_true("apple"),
        info,
    }
}

fn expected_matrices(expected: &Value) -> Option<Matrices> {
    let field = |name: &str| expected[name].as_u64().map(|number| number as u32);
    Some(Matrices {
        height: field("height")?,
        size: field("size")?,
        lanes: field("lanes")?,
        scalar_tiles: expected["scalar_tiles"] == true,
    })
}

/// The machine in a file: the adapter that `auto` opens, its instructions, cores and matrices, and how a tile is shared
/// among subgroups.
fn check(path: &Path) {
    let file = path.display();
    let machine: Value =
        serde_json::from_slice(&std::fs::read(path).expect("a file")).expect("JSON");
    assert!(!text(&machine, "source").is_empty(), "{file}: a source");
    let reports = machine["adapters"].as_array().expect("a list");
    let infos: Vec<_> = reports.iter().map(info_of).collect();
    let expected = &machine["expect"];
    let chosen = device::choose(&infos, None).expect("there is a GPU");
    assert_eq!(chosen as u64, number(expected, "adapter"), "{file}");
    let profile = device::profile(&facts_of(&reports[chosen]), &WgpuOptions::default());
    let tier = match text(expected, "tier") {
        "T0" => Tier::T0,
        "T1" => Tier::T1,
        _ => Tier::T2,
    };
    let class = match text(expected, "class") {
        "integrated" => Class::Integrated,
        _ => Class::Discrete,
    };
    assert_eq!(
        (profile.tier, profile.class, profile.matrices),
        (tier, class, expected_matrices(&expected["matrices"])),
        "{file}"
    );
    let numbers = [profile.subgroup_size_min, profile.cores].map(u64::from);
    assert_eq!(
        numbers,
        ["lanes_min", "cores"].map(|field| number(expected, field)),
        "{file}"
    );
    assert!(!profile.texels, "{file}: images are for software adapters");
    if let Some(matrices) = profile.matrices {
        let grid = matrices.grid(64, 128);
        let tile = [
            grid.down,
            grid.across,
            grid.matrices_down,
            grid.matrices_across,
        ];
        assert_eq!(
            serde_json::json!(tile),
            expected["matrices"]["tile"],
            "{file}"
        );
    }
}

#[test]
fn known_gpus_get_their_device_tier_matrices_and_cores_without_a_flag() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/adapters");
    let files = std::fs::read_dir(folder).expect("the folder is there");
    let mut count = 0;
    for file in files {
        check(&file.expect("an entry").path());
        count += 1;
    }
    assert!(count >= 17, "{count} machines");
}
