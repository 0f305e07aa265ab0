//! The key of a folder of KV blocks. Only who knows it writes files that engines read from that folder, and it is in a
//! file there that nobody else may read. It is read anew for each block, so that a folder may be replaced at any time.

use crate::platform;
use std::fmt;
use std::io;
use std::path::Path;

/// Name of the file with the key.
const FILE_NAME: &str = "key";

/// What the hashes of the files in a folder are keyed with.
#[derive(Clone)]
pub struct FolderKey([u8; 32]);

impl FolderKey {
    /// A key of these bytes.
    pub fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The key of a folder. An error names its file.
    pub(super) fn read(folder: &Path) -> io::Result<Self> {
        let path = folder.join(FILE_NAME);
        let key = platform::read_secret_file(&path);
        key.map(Self)
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
    }

    /// Makes a key for a folder, unless it has one. Returns whether it had none.
    pub(super) fn make(folder: &Path) -> io::Result<bool> {
        let path = folder.join(FILE_NAME);
        let made = platform::create_own_file(&path, &[&platform::random_key()]);
        made.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))
    }

    pub(super) fn hasher(&self) -> blake3::Hasher {
        blake3::Hasher::new_keyed(&self.0)
    }
}

impl fmt::Debug for FolderKey {
    /// Nothing of the key, which must not get into a log.
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("FolderKey")
    }
}
