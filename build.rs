//! Lists the kernel files, so that a new kernel needs no other change: for `shaders/` stem and text, for `cuda/` path
//! and text, each as a Rust array that the backends include.

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let root = env::var("CARGO_MANIFEST_DIR").expect("cargo sets CARGO_MANIFEST_DIR");
    let out = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    println!("cargo::rerun-if-changed=build.rs");
    for folder in ["shaders", "cuda"] {
        let mut list = String::from("&[\n");
        for part in [folder.to_owned(), format!("{folder}/common")] {
            println!("cargo::rerun-if-changed={part}");
            for name in names(&Path::new(&root).join(&part))? {
                // Those that are no steps are included where they are used.
                let is_alone = name.starts_with("bench_") || name.starts_with("probe_");
                if folder == "shaders" && is_alone {
                    continue;
                }
                let path = format!("{part}/{name}");
                let known = path[folder.len() + 1..].trim_end_matches(".wgsl");
                let text = Path::new(&root).join(&path);
                writeln!(list, "    ({known:?}, include_str!({text:?})),")
                    .expect("writing to a String cannot fail");
            }
        }
        list.push(']');
        fs::write(Path::new(&out).join(format!("{folder}.rs")), list)?;
    }
    Ok(())
}

/// The kernel files and headers in a folder, sorted by name.
fn names(folder: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if [".wgsl", ".cu", ".cuh"]
            .iter()
            .any(|extension| name.ends_with(extension))
        {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}
