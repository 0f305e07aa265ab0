//! Tests of `engine/mover.rs`.

use super::*;
use crate::backend::{Capacity, Caps};
use crate::plan::inputs::{BatchInputs, Results};
use crate::plan::{Plan, WeightId};
use crate::platform::{self, block_on};
use std::time::Duration;

/// What an upload takes, which the device does beside the host.
const UPLOAD: Duration = Duration::from_millis(4);

/// A device that copies in order, and computes nothing.
#[derive(Default)]
struct Copier {
    uploads: u32,
}

impl Backend for Copier {
    type Ticket = ();
    type Saves = ();

    fn caps(&self) -> &Caps {
        unreachable!("nothing is loaded")
    }

    fn load(&mut self, _: Arc<Plan>, _: &Capacity) -> Result<(), BackendError> {
        Ok(())
    }

    fn write_weight(&mut self, _: WeightId, _: u32, _: Bytes) -> Result<(), BackendError> {
        Ok(())
    }

    fn allocate_pool(&mut self, _: &[u32]) -> Result<(), BackendError> {
        Ok(())
    }

    fn submit(&mut self, _: &BatchInputs) -> Result<(), BackendError> {
        Ok(())
    }

    async fn read(&mut self, (): ()) -> Result<Results, BackendError> {
        Ok(Results::default())
    }

    fn save_blocks(&mut self, _: &[BlockRef]) -> Result<(), BackendError> {
        Ok(())
    }

    async fn saved_blocks(&mut self, (): ()) -> Result<Vec<Bytes>, BackendError> {
        platform::pause(UPLOAD * std::mem::take(&mut self.uploads));
        Ok(Vec::new())
    }

    fn restore_blocks(&mut self, _: &[(BlockRef, Bytes)]) -> Result<(), BackendError> {
        self.uploads += 1;
        Ok(())
    }

    async fn reset(&mut self) -> Result<(), BackendError> {
        Ok(())
    }
}

#[test]
fn uploads_that_a_device_does_beside_the_host_are_not_taken_for_fast_ones() {
    let (mut mover, mut device) = (Mover::default(), Copier::default());
    let blocks = [(BlockRef { group: 0, block: 0 }, Bytes::from(vec![0; 1000]))];
    // As many tokens as bytes are computed in half the time.
    mover.rates.note_prefill(1000, UPLOAD / 2);
    for _ in 0..3 * UPLOADS_PER_MEASURED {
        block_on(mover.upload(&mut device, &blocks, false)).expect("it copies");
    }
    assert!(
        mover.rates.favor_moving(1 << 30, 1),
        "a busy device tells nothing"
    );
    device.uploads = 0;
    block_on(mover.upload(&mut device, &blocks, true)).expect("it copies");
    assert_eq!(device.uploads, 0, "it was waited for");
    for _ in 1..UPLOADS_PER_MEASURED {
        block_on(mover.upload(&mut device, &blocks, true)).expect("it copies");
    }
    assert_eq!(
        device.uploads,
        UPLOADS_PER_MEASURED - 1,
        "it is seldom waited for"
    );
    assert!(
        !mover.rates.favor_moving(1000, 1000),
        "moving takes twice as long"
    );
}
