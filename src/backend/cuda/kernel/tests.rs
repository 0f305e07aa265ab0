//! Tests of `backend/cuda/kernel.rs`.

use super::*;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A compiler that counts its compilations.
struct Counting(AtomicUsize, &'static str);

impl Compiler for Counting {
    fn key(&self) -> String {
        self.1.to_owned()
    }

    fn source(&self, path: &str) -> Option<String> {
        (path != "missing.cu").then(|| path.to_owned())
    }

    fn compile(&self, kernel: &Kernel, source: &str) -> Result<Vec<u8>, String> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(format!("{kernel} of {source}").into_bytes())
    }
}

#[test]
fn sources_are_all_of_the_folder() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("cuda");
    let list = |folder: &str| {
        std::fs::read_dir(root.join(folder))
            .unwrap()
            .map(|entry| entry.unwrap().path())
    };
    let files = list("").chain(list("common")).filter(|path| path.is_file());
    let mut found: Vec<String> = files
        .map(|path| {
            path.strip_prefix(&root)
                .unwrap()
                .to_str()
                .unwrap()
                .to_owned()
        })
        .collect();
    found.sort();
    let mut known: Vec<&str> = SOURCES.iter().map(|(path, _)| *path).collect();
    known.sort_unstable();
    assert_eq!(found, known);
}

#[test]
fn an_image_is_compiled_once_and_for_one_compiler() {
    let folder = tempfile::tempdir().unwrap();
    let cache = ImageCache::new(Some(folder.path()));
    let (first, second) = (
        Counting(AtomicUsize::new(0), "a"),
        Counting(AtomicUsize::new(0), "b"),
    );
    let kernel = Kernel::new("k").define("N", 1);
    let image = cache.image(&first, &kernel).unwrap();
    assert_eq!(cache.image(&first, &kernel).unwrap(), image);
    cache
        .image(&first, &Kernel::new("k").define("N", 2))
        .unwrap();
    cache.image(&second, &kernel).unwrap();
    let counts = [&first, &second].map(|compiler| compiler.0.load(Ordering::Relaxed));
    assert_eq!(counts, [2, 1]);
    assert!(cache.image(&first, &Kernel::new("missing")).is_err());
}

#[test]
fn a_cut_or_changed_image_is_compiled_anew() {
    let folder = tempfile::tempdir().unwrap();
    let cache = ImageCache::new(Some(folder.path()));
    let (compiler, kernel) = (Counting(AtomicUsize::new(0), "a"), Kernel::new("k"));
    let image = cache.image(&compiler, &kernel).unwrap();
    let path = std::fs::read_dir(folder.path())
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .path();
    let whole = std::fs::read(&path).unwrap();
    let mut changed = whole.clone();
    *changed.last_mut().unwrap() ^= 1;
    for (count, damaged) in (2..).zip([&whole[..whole.len() - 1], &whole[..20], &[], &changed]) {
        std::fs::write(&path, damaged).unwrap();
        assert_eq!(cache.image(&compiler, &kernel).unwrap(), image);
        assert_eq!(compiler.0.load(Ordering::Relaxed), count);
    }
}

/// A compiler for one architecture, of some version.
struct Versioned(&'static str, Counting);

impl Compiler for Versioned {
    fn key(&self) -> String {
        format!("{} for {}", self.1.key(), self.0)
    }

    fn shipped_key(&self) -> Option<String> {
        Some(self.0.to_owned())
    }

    fn source(&self, path: &str) -> Option<String> {
        self.1.source(path)
    }

    fn compile(&self, kernel: &Kernel, source: &str) -> Result<Vec<u8>, String> {
        self.1.compile(kernel, source)
    }
}

#[test]
fn a_shipped_image_serves_every_version_of_the_compiler_on_its_architecture_alone() {
    let folder = tempfile::tempdir().unwrap();
    let kernel = Kernel::new("k");
    let compiler =
        |architecture, version| Versioned(architecture, Counting(AtomicUsize::new(0), version));
    let count = |compiler: &Versioned| compiler.1.0.load(Ordering::Relaxed);
    let old = compiler("sm_90a", "12.0");
    let name = file_name(&old, "sm_90a", &kernel, "k.cu");
    write_sealed(&folder.path().join(name), b"shipped").unwrap();
    let cache = ImageCache {
        folder: None,
        shipped: Some(folder.path().to_owned()),
    };
    let (new, other) = (compiler("sm_90a", "13.5"), compiler("sm_80", "12.0"));
    for version in [&old, &new] {
        assert_eq!(cache.image(version, &kernel).unwrap(), b"shipped");
        assert_eq!(count(version), 0);
    }
    assert_eq!(cache.image(&other, &kernel).unwrap(), b"k() of k.cu");
    cache.image(&new, &Kernel::new("other")).unwrap();
    assert_eq!(
        (count(&other), count(&new)),
        (1, 1),
        "what was not shipped is compiled"
    );
}

#[test]
fn without_a_folder_all_is_compiled() {
    let compiler = Counting(AtomicUsize::new(0), "a");
    let unwritable = ImageCache::new(Some(Path::new("/proc/none")));
    for cache in [ImageCache::new(None), unwritable] {
        cache.image(&compiler, &Kernel::new("k")).unwrap();
    }
    assert_eq!(compiler.0.load(Ordering::Relaxed), 2);
}
