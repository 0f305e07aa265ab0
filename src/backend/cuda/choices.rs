//! Which of cuBLASLt's algorithms was the fastest for each shape of a product, kept between starts.

use super::blas::ProductShape;
use super::kernel::{read_sealed, write_sealed};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The choices for one GPU, driver and library. A file that cannot be read or written costs time, but is no error.
pub(super) struct Choices {
    file: Option<PathBuf>,
    /// The place of the fastest algorithm among those that the library's heuristics propose.
    fastest: BTreeMap<ProductShape, usize>,
    is_changed: bool,
}

impl Choices {
    /// The choices of earlier starts, kept in `folder` (`None`: nowhere), for all that they depend on: the names and
    /// versions of GPU, driver and library.
    pub(super) fn open(folder: Option<&Path>, depends_on: &str) -> Self {
        let name = blake3::hash(depends_on.as_bytes()).to_hex();
        let file = folder.map(|folder| folder.join(format!("products-{}.txt", &name[..32])));
        let text = file
            .as_deref()
            .and_then(read_sealed)
            .and_then(|bytes| String::from_utf8(bytes).ok());
        let fastest = text.unwrap_or_default().lines().filter_map(parse).collect();
        Self {
            file,
            fastest,
            is_changed: false,
        }
    }

    /// The fastest algorithm, if it is known.
    pub(super) fn get(&self, shape: ProductShape) -> Option<usize> {
        self.fastest.get(&shape).copied()
    }

    /// Notes the fastest algorithm.
    pub(super) fn insert(&mut self, shape: ProductShape, algorithm: usize) {
        self.is_changed |= self.fastest.insert(shape, algorithm) != Some(algorithm);
    }

    /// Writes the file, if anything has changed.
    pub(super) fn save(&mut self) {
        let Some(file) = self.file.as_deref() else {
            return;
        };
        if !self.is_changed {
            return;
        }
        self.is_changed = false;
        let text: String = self.fastest.iter().map(line).collect();
        if let Err(error) = write_sealed(file, text.as_bytes()) {
            tracing::debug!("cannot write {}: {error}", file.display());
        }
    }
}

fn line((shape, algorithm): (&ProductShape, &usize)) -> String {
    let ProductShape {
        rows,
        outputs,
        columns,
        stride,
        wide,
        accumulate,
    } = *shape;
    format!(
        "{rows} {outputs} {columns} {stride} {} {} {algorithm}\n",
        u32::from(wide),
        u32::from(accumulate)
    )
}

fn parse(line: &str) -> Option<(ProductShape, usize)> {
    let numbers: Vec<u32> = line
        .split(' ')
        .map(str::parse)
        .collect::<Result<_, _>>()
        .ok()?;
    let [rows, outputs, columns, stride, wide, accumulate, algorithm] = numbers.try_into().ok()?;
    let shape = ProductShape {
        rows,
        outputs,
        columns,
        stride,
        wide: wide == 1,
        accumulate: accumulate == 1,
    };
    Some((shape, algorithm as usize))
}

#[cfg(test)]
mod tests;
