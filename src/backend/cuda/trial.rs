//! One kernel in the emulator, outside of any plan: for tests of the emulator itself.

use super::super::BackendError;
use super::driver::{Driver as _, Function, Launch};
use super::emulator::{Emulator, Watch};
use super::kernel::Kernel;
use std::path::Path;

/// A kernel whose `Params` are pointers to buffers of words.
pub struct Trial {
    emulator: Emulator,
    function: Function,
    buffers: Vec<(u64, usize)>,
}

impl Trial {
    /// Compiles `<stem>.cu`, where `stem` is absolute or relative to `sources`, the repository's `cuda/`. Each of
    /// `defines` is 1. The buffers have this many words each.
    ///
    /// # Errors
    ///
    /// [`BackendError::Unavailable`] without a C++ compiler; [`BackendError::Kernel`] with the compiler's message.
    pub fn new(
        sources: &Path,
        stem: &'static str,
        defines: &[&'static str],
        buffers: &[usize],
        watch: Watch,
    ) -> Result<Self, BackendError> {
        let mut emulator = Emulator::open(sources, (8, 0), watch)?;
        let kernel = defines
            .iter()
            .fold(Kernel::new(stem), |kernel, name| kernel.define(name, 1));
        let image = emulator
            .compiler()
            .compile(&kernel, "")
            .map_err(|message| BackendError::Kernel {
                kernel: kernel.to_string(),
                message,
            })?;
        let function = emulator.load(&kernel, &image, 8 * buffers.len())?;
        let mut allocate =
            |words: &usize| Ok((emulator.allocate("a buffer", 4 * *words as u64)?, *words));
        let buffers = buffers
            .iter()
            .map(&mut allocate)
            .collect::<Result<_, BackendError>>()?;
        Ok(Self {
            emulator,
            function,
            buffers,
        })
    }

    /// Runs the kernel on these words, and returns what they are then. Each launch runs in another order.
    ///
    /// # Errors
    ///
    /// [`BackendError::Validation`] with the races, if they are watched.
    pub fn run(
        &mut self,
        words: &[Vec<u32>],
        (blocks, threads): (u32, u32),
        shared_bytes: u32,
    ) -> Result<Vec<Vec<u32>>, BackendError> {
        for ((address, _), words) in self.buffers.iter().zip(words) {
            self.emulator.write(*address, bytemuck::cast_slice(words))?;
        }
        let params = self
            .buffers
            .iter()
            .flat_map(|(address, _)| address.to_le_bytes())
            .collect();
        let (function, grid) = (self.function, [blocks, 1, 1]);
        self.emulator.launch(&Launch {
            function,
            grid,
            threads,
            shared_bytes,
            params,
        })?;
        let mut read = |(address, words): &(u64, usize)| {
            let mut read = vec![0; *words];
            self.emulator
                .read(*address, bytemuck::cast_slice_mut(&mut read))?;
            Ok(read)
        };
        self.buffers.iter().map(&mut read).collect()
    }
}
