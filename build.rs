//! Lists the kernels, so that a new one is a new file and nothing else: of `shaders/` stem and text, of `cuda/` path and
//! text, each as a Rust array that the backends include.

use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let root = env::var("CARGO_MANIFEST_DIR").expect("cargo names the folder of the package");
    let out = env::var("OUT_DIR").expect("cargo names a folder for what is made");
    println!("cargo::rerun-if-changed=build.rs");
    for folder in ["shaders", "cuda"] {
        let mut list = String::from("&[\n");
        for part in [folder.to_owned(), format!("{folder}/common")] {
            println!("cargo::rerun-if-changed={part}");
            for name in names(&Path::new(&root).join(&part))? {
                // The bench has its own way with these.
                if folder == "shaders" && name.starts_with("bench_") {
                    continue;
                }
                let path = format!("{part}/{name}");
                let known = path[folder.len() + 1..].trim_end_matches(".wgsl");
                let text = Path::new(&root).join(&path);
                writeln!(list, "    ({known:?}, include_str!({text:?})),").expect("a string takes text");
            }
        }
        list.push(']');
        fs::write(Path::new(&out).join(format!("{folder}.rs")), list)?;
    }
    Ok(())
}

/// The kernels in a folder and what they include, in order.
fn names(folder: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder)? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if [".wgsl", ".cu", ".cuh"].iter().any(|extension| name.ends_with(extension)) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}
