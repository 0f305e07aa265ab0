//! The models of `tests/data`, which the repository holds as archives.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

/// A file or folder of an archive, unpacked: `golden/llama` or `gguf/tiny-qwen3-Q4_0.gguf`.
pub(crate) fn model(path: &str) -> PathBuf {
    static GOLDEN: LazyLock<PathBuf> = LazyLock::new(|| unpacked("golden"));
    static NEWER: LazyLock<PathBuf> = LazyLock::new(|| unpacked("golden-newer"));
    static ENCODERS: LazyLock<PathBuf> = LazyLock::new(|| unpacked("golden-encoders"));
    static FORMATS: LazyLock<PathBuf> = LazyLock::new(|| unpacked("golden-formats"));
    static GGUF: LazyLock<PathBuf> = LazyLock::new(|| unpacked("gguf"));
    static LORA: LazyLock<PathBuf> = LazyLock::new(|| unpacked("lora"));
    static MTP: LazyLock<PathBuf> = LazyLock::new(|| unpacked("golden-mtp"));
    static VISION: LazyLock<PathBuf> = LazyLock::new(|| unpacked("golden-vision"));
    let folder = match path.split('/').next().unwrap_or(path) {
        "golden-lora" => &LORA,
        "golden-mtp" => &MTP,
        "golden-formats" => &FORMATS,
        "encoders" => &ENCODERS,
        "vision" => &VISION,
        "golden" if GOLDEN.join(path).exists() => &GOLDEN,
        "golden" => &NEWER,
        _ => &GGUF,
    };
    folder.join(path)
}

/// Unpacks an archive unless an earlier test did. The folder is named by the archive's content, and appears whole.
fn unpacked(name: &str) -> PathBuf {
    let archive = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/data/{name}.tar.xz"));
    let target = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let place = target.join(format!("{name}-{:016x}", digest(&archive)));
    if !place.exists() {
        std::fs::create_dir_all(target).expect("the folder of tests is made");
        let partial = tempfile::tempdir_in(target).expect("a folder is made");
        let status = Command::new("tar")
            .arg("-xf")
            .arg(&archive)
            .arg("-C")
            .arg(partial.path())
            .status();
        assert!(
            status.expect("tar starts").success(),
            "tar unpacks {}",
            archive.display()
        );
        if let Err(error) = std::fs::rename(partial.path(), &place) {
            assert!(place.exists(), "{}: {error}", place.display());
        }
    }
    place
}

fn digest(file: &Path) -> u64 {
    let mut hasher = DefaultHasher::new();
    std::fs::read(file)
        .expect("the archive is part of the repository")
        .hash(&mut hasher);
    hasher.finish()
}
