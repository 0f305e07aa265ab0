//! Tests of `backend/cuda/library.rs`.

use super::*;
use std::fs;

fn touch(path: &Path) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, "").unwrap();
}

fn places(root: &Path, variables: &[(&'static str, String)]) -> Places {
    let variables = variables.to_vec();
    let find = move |name: &str| {
        variables
            .iter()
            .find(|(known, _)| *known == name)
            .map(|(_, value)| OsString::from(value))
    };
    Places {
        variables: Box::new(find),
        root: root.to_owned(),
    }
}

#[test]
fn names_hold_major_numbers() {
    for (file, stem, major) in [
        ("libnvrtc.so.13", "nvrtc", Some(13)),
        ("libnvrtc.so.12.8.93", "nvrtc", Some(12)),
        ("libnvrtc.so", "nvrtc", None),
        ("libnvrtc-builtins.so.13.0", "nvrtc", None),
        ("libnvrtc.alt.so.13", "nvrtc", None),
        ("nvrtc64_130_0.dll", "nvrtc", Some(13)),
        ("nvrtc64_120_0.alt.dll", "nvrtc", Some(12)),
        ("cublasLt64_13.dll", "cublasLt", Some(13)),
        ("libcublasLt.so.12", "cublasLt", Some(12)),
        ("libcublas.so.12", "cublasLt", None),
    ] {
        assert_eq!(major_of(file, stem), major, "{file}");
    }
}

#[test]
fn the_users_folders_come_first_and_the_driver_bounds_the_major_number() {
    let root = tempfile::tempdir().unwrap();
    let at = |path: &str| root.path().join(path);
    touch(&at("usr/local/cuda-12.4/lib64/libnvrtc.so.12"));
    touch(&at("usr/local/cuda-12.10/lib64/libnvrtc.so.12"));
    touch(&at(
        "venv/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13",
    ));
    touch(&at("named/libnvrtc.so.12.1"));
    let variables = [
        (FOLDERS_VARIABLE, at("named").display().to_string()),
        ("VIRTUAL_ENV", at("venv").display().to_string()),
    ];
    let places = places(root.path(), &variables);
    let found = |major_max| {
        places
            .candidates("nvrtc", major_max)
            .into_iter()
            .map(|found| found.path)
    };
    let python = at("venv/lib/python3.12/site-packages/nvidia/cu13/lib/libnvrtc.so.13");
    let toolkits = [
        "usr/local/cuda-12.10/lib64/libnvrtc.so.12",
        "usr/local/cuda-12.4/lib64/libnvrtc.so.12",
    ]
    .map(at);
    assert_eq!(
        found(13).collect::<Vec<_>>(),
        [
            vec![at("named/libnvrtc.so.12.1"), python],
            toolkits.to_vec()
        ]
        .concat()
    );
    assert_eq!(found(12).count(), 3);
    assert_eq!(found(11).count(), 0);
}

#[test]
fn what_is_not_a_library_is_an_error() {
    let root = tempfile::tempdir().unwrap();
    let path = root.path().join("libnvrtc.so.13");
    fs::write(&path, "no library").unwrap();
    assert!(open(&path, &["libnvrtc-builtins"]).is_err());
}
