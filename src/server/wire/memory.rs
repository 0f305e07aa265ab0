//! [`RequestMemory`]: the memory of all requests that are parsed, that wait and that run, within one budget.
//!
//! A body is limited in bytes, but what it becomes is a multiple: each value of its JSON is charged with what the
//! largest form that a route makes of it takes. A charge ends with the response.

use super::error::ApiError;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The budget of a server and what is charged to it.
#[derive(Debug)]
pub(crate) struct RequestMemory {
    bytes_max: u64,
    charged: AtomicU64,
}

/// What one request is charged, until this is dropped.
#[derive(Debug)]
pub(crate) struct Charge {
    memory: Arc<RequestMemory>,
    bytes: AtomicU64,
}

impl RequestMemory {
    pub(crate) fn new(bytes_max: u64) -> Arc<Self> {
        Arc::new(Self {
            bytes_max,
            charged: AtomicU64::new(0),
        })
    }

    /// The charge of a new request.
    pub(crate) fn request(self: &Arc<Self>) -> Arc<Charge> {
        Arc::new(Charge {
            memory: self.clone(),
            bytes: AtomicU64::new(0),
        })
    }
}

impl Charge {
    /// Charges more bytes; refused beyond the budget.
    pub(crate) fn add(&self, bytes: u64) -> Result<(), ApiError> {
        let before = self.memory.charged.fetch_add(bytes, Ordering::AcqRel);
        self.bytes.fetch_add(bytes, Ordering::AcqRel);
        if before.saturating_add(bytes) > self.memory.bytes_max {
            return Err(ApiError::requests_too_large(self.memory.bytes_max));
        }
        Ok(())
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.memory
            .charged
            .fetch_sub(*self.bytes.get_mut(), Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests;
