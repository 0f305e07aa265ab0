//! The quantized matrices among a checkpoint's tensors, by the names that each method gives to their parts.

use super::config::{Gptq, Method};
use super::matrix::{
    Codes, Factor, Groups, Matrix, Number, Numbers, Packing, Places, Scale, Zero, ZeroOrder,
    ZeroWords,
};
use super::parts::{Parts, State, Tensors, element_bytes, invalid, is_stored, sizes};
use crate::model::error::LoadError;
use crate::model::source::TensorInfo;
use crate::plan::format::{FP4_LEVELS, GROUP, Levels, NF4_LEVELS};
/// A quantized matrix, with the name and shape of the tensor that an ordinary checkpoint has.
pub(super) struct Found {
    pub(super) name: String,
    pub(super) shape: Vec<u64>,
    pub(super) matrix: Matrix,
}

impl<'a> Tensors<'a> {
    /// The matrices whose codes are in the tensor `name`; empty if it has none.
    pub(super) async fn matrices(
        self,
        name: &str,
        method: &Method,
    ) -> Result<Vec<Found>, LoadError> {
        let Some((info, (stem, end))) = self.all.get(name).zip(name.rsplit_once('.')) else {
            return Ok(Vec::new());
        };
        let has = |suffix: &str| self.all.contains_key(&format!("{name}{suffix}"));
        let found = match method {
            Method::Gptq(settings) if end == "qweight" => self.gptq(stem, info, settings)?,
            Method::Awq { group, by_rows } if end == "qweight" => {
                self.awq(stem, info, *group, *by_rows)?
            }
            Method::Scaled if end == "weight_packed" => self.packed(stem, info).await?,
            Method::Scaled if end == "weight" && (has("_scale") || has("_scale_inv")) => {
                self.scaled(name, info)?
            }
            Method::Scaled if is_stored(info, "F8_E4M3") && !end.starts_with("weight_") => {
                self.scaled(name, info)?
            }
            Method::Bitsandbytes if has(".absmax") => self.four_bits(name, info).await?,
            Method::Bitsandbytes
                if end == "weight" && self.all.contains_key(&format!("{stem}.SCB")) =>
            {
                self.eight_bits(stem, info)?
            }
            Method::Mlx(modules, default)
                if end == "weight" && self.all.contains_key(&format!("{stem}.scales")) =>
            {
                let own = modules.iter().find(|(module, _)| module == stem);
                let group = own.map_or(*default, |(_, group)| *group);
                return self.mlx(stem, info, group);
            }
            Method::Mxfp4 => match name.strip_suffix("_blocks") {
                Some(stem) => self.mxfp4(stem, info)?,
                None => return Ok(Vec::new()),
            },
            _ => return Ok(Vec::new()),
        };
        Ok(vec![found])
    }

    fn gptq(self, stem: &str, info: &'a TensorInfo, settings: &Gptq) -> Result<Found, LoadError> {
        let name = |part: &str| format!("{stem}.{part}");
        let widths = settings.widths_of(stem);
        let [words, rows] = sizes(&name("qweight"), info)?;
        let listed = self
            .all
            .get(&name("g_idx"))
            .map(|info| info.shape.as_slice());
        let columns = match listed {
            Some([columns]) => *columns as usize,
            _ => 32 * words / widths.bits.max(1),
        };
        let bits = 32 * words / columns.max(1);
        if bits != widths.bits || (columns * bits).div_ceil(32) != words {
            let message = format!(
                "has {words} words for {columns} columns, which is not {} bits",
                widths.bits
            );
            return Err(invalid(info, &name("qweight"), message));
        }
        let group = widths.group.min(columns);
        let groups = columns.div_ceil(group);
        let mut parts = Parts::new(self, info);
        parts.add(&name("qweight"), &[words, rows], &["I32", "U32"])?;
        let scales = parts.numbers(&name("scales"), &[groups, rows])?;
        let zero_words = (rows * bits).div_ceil(32);
        let zeros = parts.add(&name("qzeros"), &[groups, zero_words], &["I32", "U32"])?;
        let groups = if settings.act_order {
            Groups::Listed(parts.add(&name("g_idx"), &[columns], &["I32"])?)
        } else {
            Groups::Of(group)
        };
        let zero = ZeroWords {
            part: zeros,
            bits,
            order: ZeroOrder::RowsOfGroup(zero_words),
            offset: settings.zero_offset,
        };
        let matrix = parts.integers(
            [rows, columns],
            (Packing::Columns, bits),
            groups,
            (scales, Places::Rows),
            Zero::Words(zero),
        );
        Ok(found(name("weight"), matrix))
    }

    fn awq(
        self,
        stem: &str,
        info: &'a TensorInfo,
        group: usize,
        by_rows: bool,
    ) -> Result<Found, LoadError> {
        let name = |part: &str| format!("{stem}.{part}");
        let shape @ [first, second] = sizes(&name("qweight"), info)?;
        let [rows, columns] = if by_rows {
            [first, 8 * second]
        } else {
            [8 * second, first]
        };
        let group = group.min(columns);
        let groups = columns.div_ceil(group);
        let mut parts = Parts::new(self, info);
        parts.add(&name("qweight"), &shape, &["I32", "U32"])?;
        // By rows, groups are padded to whole words, and of short ones to several.
        let words = match group {
            32 => groups.div_ceil(8).next_multiple_of(4),
            64 => groups.div_ceil(8).next_multiple_of(2),
            _ => groups.div_ceil(8),
        };
        let (scale_shape, zero_shape, places, order) = if by_rows {
            let places = Places::Groups(8 * words);
            let order = ZeroOrder::GroupsOfRow(words);
            ([rows, 8 * words], [rows, words], places, order)
        } else {
            let order = ZeroOrder::Outputs(rows / 8);
            ([groups, rows], [groups, rows / 8], Places::Rows, order)
        };
        let scales = parts.numbers(&name("scales"), &scale_shape)?;
        let zero = if self.all.contains_key(&name("qzeros")) {
            Zero::Words(ZeroWords {
                part: parts.add(&name("qzeros"), &zero_shape, &["I32", "U32"])?,
                bits: 4,
                order,
                offset: 0,
            })
        } else {
            Zero::Fixed(8)
        };
        let packing = if by_rows {
            Packing::Rows {
                row_bytes: columns / 2,
            }
        } else {
            Packing::Outputs
        };
        let matrix = parts.integers(
            [rows, columns],
            (packing, 4),
            Groups::Of(group),
            (scales, places),
            zero,
        );
        Ok(found(name("weight"), matrix))
    }

    /// `weight_packed`: integers in words, or E2M1 in bytes.
    async fn packed(self, stem: &str, info: &'a TensorInfo) -> Result<Found, LoadError> {
        let name = |part: &str| format!("{stem}.{part}");
        let own = name("weight_packed");
        if is_stored(info, "U8") {
            return self.float4(stem, &own, info);
        }
        let [rows, words] = sizes(&own, info)?;
        let mut parts = Parts::new(self, info);
        parts.add(&own, &[rows, words], &["I32", "U32"])?;
        let columns = self
            .packed_columns(&name("weight_shape"), info, rows)
            .await?;
        let bits = 32 * words / columns;
        if !(1..=8).contains(&bits) || (columns * bits).div_ceil(32) != words {
            let message = format!(
                "has {words} words a row for {columns} columns, which is not 1 to 8 bits each"
            );
            return Err(invalid(info, &own, message));
        }
        let (scales, groups) = parts.scales_of_rows(&name("weight_scale"), rows)?;
        let group = columns.div_ceil(groups);
        let zero = if self.all.contains_key(&name("weight_zero_point")) {
            let shape = [(rows * bits).div_ceil(32), groups];
            let part = parts.add(&name("weight_zero_point"), &shape, &["I32", "U32"])?;
            Zero::Words(ZeroWords {
                part,
                bits,
                order: ZeroOrder::RowsApart(groups),
                offset: 0,
            })
        } else {
            Zero::Fixed(1 << (bits - 1))
        };
        let groups_of = match self.all.contains_key(&name("weight_g_idx")) {
            true => Groups::Listed(parts.add(&name("weight_g_idx"), &[columns], &["I32"])?),
            false => Groups::Of(group),
        };
        let packing = Packing::Rows {
            row_bytes: 4 * words,
        };
        let places = (scales, Places::Groups(groups));
        let matrix = parts.integers([rows, columns], (packing, bits), groups_of, places, zero);
        Ok(found(name("weight"), matrix))
    }

    /// The columns that `weight_shape` says.
    async fn packed_columns(
        self,
        name: &str,
        near: &TensorInfo,
        rows: usize,
    ) -> Result<usize, LoadError> {
        let info = self.part(name, near)?;
        let bytes = self.small(name, info).await?;
        let numbers: Vec<u64> = if is_stored(info, "I64") {
            let chunks = bytes.as_chunks::<8>().0.iter();
            chunks.map(|bytes| u64::from_le_bytes(*bytes)).collect()
        } else {
            let chunks = bytes.as_chunks::<4>().0.iter();
            chunks
                .map(|bytes| u32::from_le_bytes(*bytes).into())
                .collect()
        };
        match numbers[..] {
            [found, columns @ 1..0x1000_0000] if found == rows as u64 => Ok(columns as usize),
            _ => Err(invalid(
                info,
                name,
                format!("is {numbers:?}, not {rows} and a number of columns"),
            )),
        }
    }

    /// `weight` with scales beside it: bytes, E4M3, or two E2M1 a byte.
    fn scaled(self, name: &str, info: &'a TensorInfo) -> Result<Found, LoadError> {
        let stem = name.strip_suffix(".weight").unwrap_or(name);
        if self.all.contains_key(&format!("{stem}.svdquant_lora_a")) {
            return Err(invalid(
                info,
                name,
                "has an SVDQuant branch, which is not supported".into(),
            ));
        }
        if is_stored(info, "U8") {
            return self.float4(stem, name, info);
        }
        let shape @ [rows, columns] = sizes(name, info)?;
        let mut parts = Parts::new(self, info);
        let levels = if is_stored(info, "I8") {
            Levels::Signed
        } else {
            Levels::E4m3
        };
        parts.add(name, &shape, &["F8_E4M3", "I8"])?;
        let suffix = if self.all.contains_key(&format!("{name}_scale_inv")) {
            "_scale_inv"
        } else {
            "_scale"
        };
        let (numbers, places, group) = parts.scale_of(&format!("{name}{suffix}"), shape)?;
        let zero_name = format!("{stem}.weight_zero_point");
        let zero = match self.all.get(&zero_name) {
            Some(info) if levels == Levels::Signed => {
                let shape: Vec<usize> = info.shape.iter().map(|size| *size as usize).collect();
                let part = parts.add(&zero_name, &shape, &["I8"])?;
                let number = Number::I8;
                Zero::Numbers(Numbers { part, number }, 128)
            }
            _ => Zero::None,
        };
        // With zero points, signed bytes count as unsigned.
        let is_asymmetric = !matches!(zero, Zero::None);
        let column_factors = parts.optional_numbers(&format!("{stem}.pre_quant_scale"), columns)?;
        let matrix = Matrix {
            codes: Codes {
                packing: Packing::Rows { row_bytes: columns },
                bits: 8,
                inverted: if is_asymmetric { 0x80 } else { 0 },
            },
            levels: if is_asymmetric {
                Levels::Unsigned(0)
            } else {
                levels
            },
            groups: Groups::Of(group),
            scale: Scale {
                numbers,
                places,
                factor: Factor::None,
            },
            zero,
            column_factors,
            ..parts.matrix(rows, columns)
        };
        Ok(found(name.into(), matrix))
    }

    /// E2M1 in bytes, the even columns in the low nibbles: MXFP4 or NVFP4 by the type of the scales.
    fn float4(self, stem: &str, own: &str, info: &'a TensorInfo) -> Result<Found, LoadError> {
        let name = |part: &str| format!("{stem}.{part}");
        let shape @ [rows, bytes] = sizes(own, info)?;
        let columns = 2 * bytes;
        let mut parts = Parts::new(self, info);
        parts.add(own, &shape, &["U8"])?;
        let (numbers, groups) = parts.scales_of_rows(&name("weight_scale"), rows)?;
        let group = columns / groups;
        let expected = match numbers.number {
            Number::E8m0 => GROUP,
            Number::E4m3 => GROUP / 2,
            _ => 0,
        };
        if group != expected || columns % group.max(1) != 0 {
            let message = format!(
                "has {groups} scales for {columns} columns: only E2M1 with U8 scales per 32 or F8_E4M3 per 16 is read"
            );
            return Err(invalid(info, own, message));
        }
        let factor = if self.all.contains_key(&name("weight_scale_2")) {
            Factor::Times(parts.one_number(&name("weight_scale_2"))?)
        } else if self.all.contains_key(&name("weight_global_scale")) {
            Factor::Over(parts.one_number(&name("weight_global_scale"))?)
        } else {
            Factor::None
        };
        let column_factors = parts.optional_numbers(&name("pre_quant_scale"), columns)?;
        let packing = Packing::Rows { row_bytes: bytes };
        let places = Places::Groups(groups);
        let mut matrix = parts.floats([rows, columns], packing, group, (numbers, places), factor);
        matrix.column_factors = column_factors;
        Ok(found(name("weight"), matrix))
    }

    /// gpt-oss's experts: `stem_blocks` and `stem_scales`.
    fn mxfp4(self, stem: &str, info: &'a TensorInfo) -> Result<Found, LoadError> {
        let own = format!("{stem}_blocks");
        let [experts, rows, groups, bytes] = sizes(&own, info)?;
        let mut parts = Parts::new(self, info);
        parts.add(&own, &[experts, rows, groups, GROUP / 2], &["U8"])?;
        let part = parts.add(&format!("{stem}_scales"), &[experts, rows, groups], &["U8"])?;
        let numbers = Numbers {
            part,
            number: Number::E8m0,
        };
        let packing = Packing::Rows {
            row_bytes: groups * bytes,
        };
        let columns = groups * GROUP;
        let places = Places::Groups(groups);
        let size = [experts * rows, columns];
        let matrix = parts.floats(size, packing, GROUP, (numbers, places), Factor::None);
        Ok(Found {
            shape: [experts, rows, columns].map(|size| size as u64).into(),
            ..found(stem.into(), matrix)
        })
    }

    /// The table that 4 bits of bitsandbytes index, by its name and levels; the file's own must be the same.
    async fn table(
        self,
        name: &str,
        info: &'a TensorInfo,
    ) -> Result<(&'static str, Levels), LoadError> {
        let state = |kind: &str| format!("{name}.quant_state.bitsandbytes__{kind}");
        let (kind, levels, table) = if self.all.contains_key(&state("fp4")) {
            ("fp4", Levels::Fp4, FP4_LEVELS)
        } else if self.all.contains_key(&state("nf4")) {
            ("nf4", Levels::Nf4, NF4_LEVELS)
        } else {
            return Err(self.missing(&state("nf4"), info));
        };
        let map = format!("{name}.quant_map");
        let of_file = self.small(&map, self.part(&map, info)?).await?;
        let of_file = of_file.as_chunks::<4>().0.iter().copied();
        if of_file.map(f32::from_le_bytes).eq(table) {
            Ok((kind, levels))
        } else {
            Err(invalid(info, &map, format!("is not the table of {kind}")))
        }
    }

    /// bitsandbytes' 4 bits: blocks of the flattened matrix, whose shape is a JSON text in a tensor.
    async fn four_bits(self, name: &str, info: &'a TensorInfo) -> Result<Found, LoadError> {
        let (kind, levels) = self.table(name, info).await?;
        let state = format!("{name}.quant_state.bitsandbytes__{kind}");
        let state = State::read(self, &state, info).await?;
        let [rows, columns] = state.shape;
        let mut parts = Parts::new(self, info);
        let shape: Vec<usize> = info.shape.iter().map(|size| *size as usize).collect();
        let stored: u64 = info.shape.iter().product::<u64>() * element_bytes(info).unwrap_or(0);
        if stored != (rows * columns).div_ceil(2) as u64 {
            let message = format!("has {stored} bytes, not half of {rows} × {columns}");
            return Err(invalid(info, name, message));
        }
        parts.add(name, &shape, &["U8", "BF16", "F16", "F32"])?;
        let (numbers, factor) = parts.absmax(name, &state)?;
        let matrix = Matrix {
            codes: Codes {
                packing: Packing::Flat,
                bits: 4,
                inverted: 0,
            },
            levels,
            groups: Groups::Of(state.block),
            scale: Scale {
                numbers,
                places: Places::Flat(state.block),
                factor,
            },
            ..parts.matrix(rows, columns)
        };
        Ok(found(name.into(), matrix))
    }

    /// bitsandbytes' 8 bits: signed bytes, with the largest magnitude of each row.
    fn eight_bits(self, stem: &str, info: &'a TensorInfo) -> Result<Found, LoadError> {
        let name = format!("{stem}.weight");
        let shape @ [rows, columns] = sizes(&name, info)?;
        let mut parts = Parts::new(self, info);
        parts.add(&name, &shape, &["I8"])?;
        let numbers = parts.numbers(&format!("{stem}.SCB"), &[rows])?;
        let matrix = Matrix {
            codes: Codes {
                packing: Packing::Rows { row_bytes: columns },
                bits: 8,
                inverted: 0,
            },
            levels: Levels::Signed,
            groups: Groups::Of(columns),
            scale: Scale {
                numbers,
                places: Places::Row,
                factor: Factor::OverConstant(127.0),
            },
            ..parts.matrix(rows, columns)
        };
        Ok(found(name, matrix))
    }

    /// MLX: streams of codes in words. Experts are stacked, and become one matrix each.
    fn mlx(self, stem: &str, info: &'a TensorInfo, group: usize) -> Result<Vec<Found>, LoadError> {
        let own = format!("{stem}.weight");
        let stacked = stem.rsplit_once(".switch_mlp.");
        let Some((module, projection)) = stacked else {
            let [rows, words] = sizes(&own, info)?;
            let matrix = self.mlx_matrix(stem, info, group, ([rows, words], None))?;
            return Ok(vec![found(own, matrix)]);
        };
        let [experts, rows, words] = sizes(&own, info)?;
        (0..experts)
            .map(|expert| {
                let place = Some((expert, experts));
                let matrix = self.mlx_matrix(stem, info, group, ([rows, words], place))?;
                let name = format!("{module}.experts.{expert}.{projection}.weight");
                Ok(found(name, matrix))
            })
            .collect()
    }

    /// One matrix, or the expert with this number of so many.
    fn mlx_matrix(
        self,
        stem: &str,
        info: &'a TensorInfo,
        group: usize,
        ([rows, words], expert): ([usize; 2], Option<(usize, usize)>),
    ) -> Result<Matrix, LoadError> {
        let own = format!("{stem}.weight");
        let scales = format!("{stem}.scales");
        let scale_info = self.part(&scales, info)?;
        let groups = scale_info.shape.last().map_or(0, |size| *size as usize);
        let columns = groups * group;
        let bits = 32 * words / columns.max(1);
        let fits = (1..=8).contains(&bits) && bits != 7 && (columns * bits).div_ceil(32) == words;
        if !fits {
            let message = format!(
                "has {words} words and {groups} scales a row, which is no group of {group}"
            );
            return Err(invalid(info, &own, message));
        }
        let mut parts = Parts::new(self, info);
        let shape = |sizes: [usize; 2]| match expert {
            Some((_, experts)) => vec![experts, sizes[0], sizes[1]],
            None => sizes.to_vec(),
        };
        parts.add(&own, &shape([rows, words]), &["U32", "I32"])?;
        let row_bytes = 4 * words;
        let codes = (Packing::Rows { row_bytes }, bits);
        let places = Places::Groups(groups);
        let size = [rows, columns];
        let mut matrix = if is_stored(scale_info, "U8") {
            let part = parts.add(&scales, &shape([rows, groups]), &["U8"])?;
            parts.mlx_floats(size, codes, group, (part, places))
        } else {
            let numbers = parts.numbers(&scales, &shape([rows, groups]))?;
            let minima = parts.numbers(&format!("{stem}.biases"), &shape([rows, groups]))?;
            let zero = Zero::Minimum(minima);
            parts.integers(size, codes, Groups::Of(group), (numbers, places), zero)
        };
        if let Some((expert, experts)) = expert {
            matrix.narrow(expert as u64, experts as u64);
        }
        Ok(matrix)
    }
}

fn found(name: String, mut matrix: Matrix) -> Found {
    matrix.format = matrix.device_format();
    Found {
        name,
        shape: vec![matrix.rows as u64, matrix.columns as u64],
        matrix,
    }
}
