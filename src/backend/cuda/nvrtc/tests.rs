//! Tests of `backend/cuda/nvrtc.rs`.

use super::super::kernel::{Kernel, embedded};
use super::{Nvrtc, architecture, is_new_enough};

#[test]
fn architectures_have_their_names() {
    let known = [75, 80, 89, 90, 100, 120];
    let names =
        [(8, 0), (8, 9), (9, 0), (10, 0), (12, 0)].map(|compute| architecture(compute, &known));
    assert_eq!(
        names.map(Option::unwrap),
        ["sm_80", "sm_89", "sm_90a", "sm_100a", "sm_120"]
    );
}

#[test]
fn a_device_that_the_compiler_does_not_know_gets_ptx_of_the_newest_plain_architecture_before_it() {
    let known = [80, 86, 90, 120];
    let names = [(8, 9), (10, 3), (12, 1), (15, 0)].map(|compute| architecture(compute, &known));
    assert_eq!(
        names.map(Option::unwrap),
        ["compute_86", "compute_90", "compute_120", "compute_120"]
    );
    assert_eq!(architecture((7, 5), &known), None);
}

#[test]
fn a_version_that_is_too_old_is_refused_with_the_one_that_is_required() {
    let message = "NVRTC 11.8 is too old; 12.0 or newer is required";
    assert_eq!(is_new_enough((11, 8)), Err(message.into()));
    assert!(
        [(12, 0), (12, 9), (13, 0), (14, 2)]
            .into_iter()
            .all(|version| is_new_enough(version).is_ok())
    );
}

#[test]
fn a_folder_without_the_library_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let fault = Nvrtc::of(folder.path()).err().expect("nothing is there");
    assert_eq!(fault, format!("no NVRTC is in {}", folder.path().display()));
}

/// With NVIDIA's compiler, where there is one.
#[test]
fn an_old_compiler_compiles_for_a_new_device() {
    let nvrtc = match Nvrtc::find(u32::MAX) {
        Ok(nvrtc) => nvrtc,
        Err(missing) => {
            assert!(
                std::env::var_os("FOLIO_REQUIRE_NVRTC").is_none(),
                "{missing}"
            );
            return eprintln!("skipped: {missing}");
        }
    };
    let architecture = nvrtc
        .architecture((99, 0))
        .expect("PTX of the newest architecture");
    assert!(architecture.starts_with("compute_"), "{architecture}");
    let kernel = Kernel::new("copy_blocks");
    let source = embedded("copy_blocks.cu").expect("the kernel exists");
    let (image, _) = nvrtc
        .compile(&architecture, &kernel, &source)
        .expect("it compiles");
    let text = std::str::from_utf8(&image).expect("PTX is text");
    let target = architecture.replace("compute", "sm");
    assert!(
        text.contains(&format!(".target {target}")) && text.ends_with('\0'),
        "{}",
        &text[..400]
    );
    assert_eq!(nvrtc.architecture((8, 0)).as_deref(), Ok("sm_80"));
}
