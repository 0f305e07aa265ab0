//! Direct access to the device's buffers, for kernel checks.

use super::super::{BackendError, Inspect, KvHalf};
use super::CudaBackend;
use super::driver::Command;
use crate::plan::format::KvTile;
use crate::plan::{BufferId, Storage};
use half::bf16;

/// The tiles of K or of V of one layer.
struct Tiles {
    tile: KvTile,
    address: u64,
    /// Elements of all its tiles.
    elements: usize,
}

impl CudaBackend {
    fn tiles(&self, layer: u32, half: KvHalf) -> Result<Tiles, BackendError> {
        let loaded = self.loaded()?;
        let spec = loaded
            .plan
            .kv_layers
            .get(layer as usize)
            .ok_or_else(|| BackendError::no_kv_layer(layer))?;
        if !loaded.arena.has_pool(&loaded.plan) {
            return Err(BackendError::no_pool());
        }
        let tile = loaded.capacity.kv_tile(spec.head_dim);
        let tiles = loaded.arena.blocks[spec.group as usize] as usize * spec.heads as usize;
        let address = loaded.arena.kv(layer)[usize::from(half == KvHalf::Value)];
        Ok(Tiles {
            tile,
            address,
            elements: tiles * tile.slots * tile.head_dim,
        })
    }

    /// Address and number of elements of a layer's states.
    fn states(&self, layer: u32) -> Result<(u64, usize), BackendError> {
        let loaded = self.loaded()?;
        let spec = loaded
            .plan
            .state_layers
            .get(layer as usize)
            .ok_or_else(|| BackendError::no_state_layer(layer))?;
        let elements = loaded.capacity.state_slots as usize * spec.elements as usize;
        Ok((loaded.arena.states[layer as usize], elements))
    }
}

impl Inspect for CudaBackend {
    fn write_buffer(&mut self, buffer: BufferId, values: &[f32]) -> Result<(), BackendError> {
        let loaded = self.loaded.as_ref().ok_or_else(BackendError::not_loaded)?;
        let address = loaded.arena.row_buffer(buffer);
        let spec = loaded.plan.buffer_spec(buffer);
        let rows = spec
            .rows
            .count(loaded.capacity.tokens_max, loaded.capacity.samples_max);
        let values_max = rows as usize * spec.columns as usize;
        if values.len() > values_max {
            return Err(BackendError::values(values.len(), spec.name, values_max));
        }
        match spec.storage {
            Storage::Bf16 => {
                let narrow: Vec<bf16> = values.iter().map(|value| bf16::from_f32(*value)).collect();
                self.driver.write(address, bytemuck::cast_slice(&narrow))
            }
            _ => self.driver.write(address, bytemuck::cast_slice(values)),
        }
    }

    async fn read_buffer(&mut self, buffer: BufferId, rows: u32) -> Result<Vec<f32>, BackendError> {
        let loaded = self.loaded.as_ref().ok_or_else(BackendError::not_loaded)?;
        let address = loaded.arena.row_buffer(buffer);
        let spec = loaded.plan.buffer_spec(buffer);
        let count = rows as usize * spec.columns as usize;
        if spec.storage == Storage::Bf16 {
            let mut narrow = vec![bf16::ZERO; count];
            self.driver
                .read(address, bytemuck::cast_slice_mut(&mut narrow))?;
            return Ok(narrow.into_iter().map(bf16::to_f32).collect());
        }
        let mut values = vec![0.0; count];
        self.driver
            .read(address, bytemuck::cast_slice_mut(&mut values))?;
        Ok(values)
    }

    fn write_kv(&mut self, layer: u32, half: KvHalf, values: &[f32]) -> Result<(), BackendError> {
        let Tiles {
            tile,
            address,
            elements,
        } = self.tiles(layer, half)?;
        if values.len() != elements {
            return Err(BackendError::values(values.len(), "a half", elements));
        }
        let size = tile.slots * tile.head_dim;
        let mut words = vec![0u32; elements / size * tile.words()];
        for (values, words) in values
            .chunks_exact(size)
            .zip(words.chunks_exact_mut(tile.words()))
        {
            for (slot, row) in values.chunks_exact(tile.head_dim).enumerate() {
                tile.encode(words, slot, row);
            }
        }
        self.driver.write(address, bytemuck::cast_slice(&words))
    }

    async fn read_kv(&mut self, layer: u32, half: KvHalf) -> Result<Vec<f32>, BackendError> {
        let Tiles {
            tile,
            address,
            elements,
        } = self.tiles(layer, half)?;
        let size = tile.slots * tile.head_dim;
        let mut words = vec![0u32; elements / size * tile.words()];
        self.driver
            .read(address, bytemuck::cast_slice_mut(&mut words))?;
        let mut values = vec![0.0; elements];
        for (values, words) in values
            .chunks_exact_mut(size)
            .zip(words.chunks_exact(tile.words()))
        {
            for (slot, row) in values.chunks_exact_mut(tile.head_dim).enumerate() {
                tile.decode(words, slot, row);
            }
        }
        Ok(values)
    }

    fn write_state(&mut self, layer: u32, values: &[f32]) -> Result<(), BackendError> {
        let (address, elements) = self.states(layer)?;
        if values.len() != elements {
            return Err(BackendError::values(
                values.len(),
                "the states of a layer",
                elements,
            ));
        }
        self.driver.write(address, bytemuck::cast_slice(values))
    }

    async fn read_state(&mut self, layer: u32) -> Result<Vec<f32>, BackendError> {
        let (address, elements) = self.states(layer)?;
        let mut values = vec![0.0; elements];
        self.driver
            .read(address, bytemuck::cast_slice_mut(&mut values))?;
        Ok(values)
    }

    fn write_feed(&mut self, token_ids: &[u32]) -> Result<(), BackendError> {
        let address = self.loaded()?.arena.feed;
        self.driver.write(address, bytemuck::cast_slice(token_ids))
    }

    async fn read_feed(&mut self, slots: u32) -> Result<Vec<u32>, BackendError> {
        let address = self.loaded()?.arena.feed;
        let mut ids = vec![0; slots as usize];
        self.driver
            .read(address, bytemuck::cast_slice_mut(&mut ids))?;
        Ok(ids)
    }

    fn kernels(&self) -> Vec<String> {
        let programs = self
            .loaded
            .iter()
            .flat_map(|loaded| loaded.programs.values());
        let functions = programs
            .flat_map(|program| &program.commands)
            .filter_map(|command| match command {
                Command::Kernel(launch) => Some(launch.function),
                Command::Product(_) => None,
            });
        self.modules.names(functions)
    }
}
