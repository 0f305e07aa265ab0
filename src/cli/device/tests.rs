//! Tests of `cli/device.rs`.

use super::*;

#[test]
fn devices_parse() {
    let check = |text: &str, choice: DeviceChoice| assert_eq!(text.parse(), Ok(choice), "{text}");
    check("auto", DeviceChoice::Auto);
    check("wgpu", DeviceChoice::Wgpu(None));
    check("wgpu:3", DeviceChoice::Wgpu(Some(3)));
    check("cuda:0", DeviceChoice::Cuda(Some(0)));
    check(
        "fake:lose at=4",
        DeviceChoice::Fake(Some("lose at=4".to_owned())),
    );
    for wrong in ["", "gpu", "cpu:1", "wgpu:", "wgpu:-1", "auto:2"] {
        assert!(
            wrong.parse::<DeviceChoice>().is_err(),
            "{wrong:?} is refused"
        );
    }
}

#[test]
fn an_integrated_gpu_is_taken_unless_the_processor_was_faster() {
    let adapters = |kind, rivals| Adapters {
        #[cfg(feature = "cuda")]
        cuda: CudaBackend::survey(),
        reports: vec![AdapterReport {
            index: 0,
            name: "A GPU".to_owned(),
            api: "vulkan",
            driver: "a driver".to_owned(),
            kind,
            class: Class::Integrated,
            tier: Tier::T0,
            subgroup_sizes: (0, 0),
            binding_bytes_max: 1 << 27,
            buffer_bytes_max: 1 << 28,
            workgroup_bytes_max: 1 << 14,
            memory_bytes: None,
            memory_source: None,
            shader_compiler: None,
            chosen: true,
        }],
        chosen: Some(0),
        reason: String::new(),
        rivals,
    };
    let integrated = |rivals| adapters(DeviceKind::Integrated, rivals);
    assert!(integrated(None).untried().is_some(), "it is measured first");
    assert!(
        adapters(DeviceKind::Discrete, None).untried().is_none(),
        "nothing is measured"
    );
    assert_eq!(adapters(DeviceKind::Discrete, None).best(), Some(0));
    let [fast, slow] = [900.0, 100.0].map(|speed| Speed {
        prefill: speed,
        decode: speed,
    });
    for (gpu, cpu, best) in [(fast, slow, Some(0)), (slow, fast, None)] {
        let measured = integrated(Some(Rivals { gpu, cpu }));
        assert_eq!(measured.best(), best);
        assert!(measured.untried().is_none(), "it is measured once");
    }
}
