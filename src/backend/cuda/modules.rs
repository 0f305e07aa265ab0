//! Compiled and loaded kernels, by name.
//!
//! Recording asks for kernels one by one. Those that are not loaded are noted, then compiled together on all CPU cores,
//! and loaded. Then the recording is repeated.

use super::super::BackendError;
use super::driver::{Driver, Function};
use super::kernel::{ImageCache, Kernel};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

/// The loaded kernels of a device.
pub(super) struct Modules {
    cache: ImageCache,
    loaded: HashMap<Kernel, Function>,
    /// Kernels that were requested but are not loaded, with the bytes of their params.
    missing: BTreeMap<Kernel, usize>,
}

impl Modules {
    /// No kernels yet; images are cached in `folder`.
    pub(super) fn new(folder: Option<&Path>) -> Self {
        Self {
            cache: ImageCache::new(folder),
            loaded: HashMap::new(),
            missing: BTreeMap::new(),
        }
    }

    /// The kernel if it is loaded; otherwise notes it as missing.
    pub(super) fn get(&mut self, kernel: &Kernel, params_bytes: usize) -> Option<Function> {
        let found = self.loaded.get(kernel).copied();
        if found.is_none() {
            self.missing.insert(kernel.clone(), params_bytes);
        }
        found
    }

    /// The kernels that are loaded, by name.
    pub(super) fn loaded(&self) -> Vec<Kernel> {
        let mut kernels: Vec<Kernel> = self.loaded.keys().cloned().collect();
        kernels.sort();
        kernels
    }

    /// The names of the kernels of these functions, each once.
    pub(super) fn names(&self, functions: impl Iterator<Item = Function>) -> Vec<String> {
        let functions: BTreeSet<u32> = functions.map(|function| function.0).collect();
        let known = self
            .loaded
            .iter()
            .filter(|(_, function)| functions.contains(&function.0));
        let mut names: Vec<String> = known.map(|(kernel, _)| kernel.to_string()).collect();
        names.sort();
        names
    }

    /// Takes the missing kernels as loaded, for tests of what is recorded.
    #[cfg(test)]
    pub(super) fn pretend(&mut self) {
        for kernel in std::mem::take(&mut self.missing).into_keys() {
            let function = Function(u32::try_from(self.loaded.len()).expect("few kernels"));
            self.loaded.insert(kernel, function);
        }
    }

    /// The kernel of a function.
    #[cfg(test)]
    pub(super) fn kernel(&self, function: Function) -> &Kernel {
        self.loaded
            .iter()
            .find(|(_, known)| **known == function)
            .expect("a loaded function")
            .0
    }

    /// Compiles and loads the missing kernels; returns whether there were any.
    pub(super) fn load_missing(&mut self, driver: &mut dyn Driver) -> Result<bool, BackendError> {
        let missing: Vec<(Kernel, usize)> = std::mem::take(&mut self.missing).into_iter().collect();
        let images = self.images(driver, &missing);
        for ((kernel, params_bytes), image) in missing.iter().zip(images) {
            let function = match driver.load(kernel, &image?, *params_bytes) {
                Err(fault) if !fault.is_loss() && self.cache.leave_shipped() => {
                    tracing::warn!(
                        "{fault}; kernels are compiled here instead of using shipped ones"
                    );
                    let image = self.cache.image(&*driver.compiler(), kernel)?;
                    driver.load(kernel, &image, *params_bytes)?
                }
                loaded => loaded?,
            };
            self.loaded.insert(kernel.clone(), function);
        }
        Ok(!missing.is_empty())
    }

    fn images(
        &self,
        driver: &dyn Driver,
        kernels: &[(Kernel, usize)],
    ) -> Vec<Result<Vec<u8>, BackendError>> {
        let compiler = driver.compiler();
        let workers = std::thread::available_parallelism()
            .map_or(1, usize::from)
            .min(kernels.len());
        let mut images = by_workers(
            workers,
            kernels.iter().enumerate(),
            |(index, (kernel, _))| (index, self.cache.image(&*compiler, kernel)),
        );
        images.sort_by_key(|(index, _)| *index);
        let mut images: Vec<_> = images.into_iter().map(|(_, image)| image).collect();
        images.resize_with(kernels.len(), || {
            Err(BackendError::Unavailable(
                "a compiler thread ended early".into(),
            ))
        });
        images
    }
}

/// The results of `work` on all items, in any order. Each worker is a thread, which takes another item when it is done
/// with one. The results of a thread that ends early are missing.
pub(super) fn by_workers<T, R: Send>(
    workers: usize,
    items: impl Iterator<Item = T> + Send,
    work: impl Fn(T) -> R + Sync,
) -> Vec<R> {
    let queue = Mutex::new(items);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..workers)
            .map(|_| {
                scope.spawn(|| {
                    let items = std::iter::from_fn(|| {
                        queue.lock().unwrap_or_else(PoisonError::into_inner).next()
                    });
                    items.map(&work).collect::<Vec<R>>()
                })
            })
            .collect();
        workers
            .into_iter()
            .flat_map(|worker| worker.join().unwrap_or_default())
            .collect()
    })
}
