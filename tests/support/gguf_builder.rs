//! Writes valid and invalid GGUF files.

#[derive(Clone)]
#[allow(dead_code, reason = "no test writes every type")]
pub(crate) enum Item {
    U16(u16),
    U32(u32),
    U64(u64),
    F32(f32),
    Boolean(bool),
    Text(String),
    Texts(Vec<String>),
    I32s(Vec<u32>),
    Booleans(Vec<bool>),
    F32s(Vec<f32>),
    /// Raw bytes of type and value.
    Raw(Vec<u8>),
}

#[derive(Clone)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    /// Sizes of the dimensions, innermost first.
    pub(crate) dimensions: Vec<u64>,
    pub(crate) kind: u32,
    pub(crate) offset: u64,
    pub(crate) data: Vec<u8>,
}

#[derive(Clone)]
pub(crate) struct Builder {
    pub(crate) version: u32,
    pub(crate) pairs: Vec<(String, Item)>,
    pub(crate) tensors: Vec<Tensor>,
}

impl Item {
    fn bytes(&self) -> Vec<u8> {
        let with = |kind: u32, value: &[u8]| [&kind.to_le_bytes(), value].concat();
        let list = |kind: u32, count: usize, values: Vec<u8>| {
            let head = [9u32.to_le_bytes(), kind.to_le_bytes()].concat();
            [head, (count as u64).to_le_bytes().to_vec(), values].concat()
        };
        match self {
            Self::U16(value) => with(2, &value.to_le_bytes()),
            Self::U32(value) => with(4, &value.to_le_bytes()),
            Self::U64(value) => with(10, &value.to_le_bytes()),
            Self::F32(value) => with(6, &value.to_le_bytes()),
            Self::Boolean(value) => with(7, &[u8::from(*value)]),
            Self::Text(value) => with(8, &text(value)),
            Self::Texts(values) => list(
                8,
                values.len(),
                values.iter().flat_map(|value| text(value)).collect(),
            ),
            Self::I32s(values) => list(
                5,
                values.len(),
                values
                    .iter()
                    .flat_map(|value| value.to_le_bytes())
                    .collect(),
            ),
            Self::Booleans(values) => list(
                7,
                values.len(),
                values.iter().map(|value| u8::from(*value)).collect(),
            ),
            Self::F32s(values) => list(
                6,
                values.len(),
                values
                    .iter()
                    .flat_map(|value| value.to_le_bytes())
                    .collect(),
            ),
            Self::Raw(bytes) => bytes.clone(),
        }
    }
}

fn text(value: &str) -> Vec<u8> {
    [&(value.len() as u64).to_le_bytes(), value.as_bytes()].concat()
}

impl Builder {
    pub(crate) fn set(&mut self, key: &str, item: Item) {
        self.pairs.retain(|(name, _)| name != key);
        self.pairs.push((key.into(), item));
    }

    /// Assigns every tensor its offset.
    pub(crate) fn pack(&mut self) {
        let mut offset = 0;
        for tensor in &mut self.tensors {
            tensor.offset = offset;
            offset = (offset + tensor.data.len() as u64).next_multiple_of(32);
        }
    }

    /// All that comes before the tensors' data.
    pub(crate) fn head(&self) -> Vec<u8> {
        let mut file = [b"GGUF".to_vec(), self.version.to_le_bytes().to_vec()].concat();
        file.extend((self.tensors.len() as u64).to_le_bytes());
        file.extend((self.pairs.len() as u64).to_le_bytes());
        for (key, item) in &self.pairs {
            file.extend(text(key));
            file.extend(item.bytes());
        }
        for tensor in &self.tensors {
            file.extend(text(&tensor.name));
            file.extend((tensor.dimensions.len() as u32).to_le_bytes());
            tensor
                .dimensions
                .iter()
                .for_each(|size| file.extend(size.to_le_bytes()));
            file.extend(tensor.kind.to_le_bytes());
            file.extend(tensor.offset.to_le_bytes());
        }
        file
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut file = self.head();
        for tensor in &self.tensors {
            file.resize(file.len().next_multiple_of(32), 0);
            file.extend(&tensor.data);
        }
        file
    }
}
