//! `folio quantize`: a GGUF file with smaller weights.

use crate::cli::terminal::output;
use crate::cli::terminal::progress::{Phase, Unit};
use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use folio::model::{Mixture, Requantization};
use indicatif::BinaryBytes;
use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

#[derive(Args, Debug)]
pub(crate) struct QuantizeArgs {
    /// The GGUF file to read, or the first of a split one
    #[arg(value_name = "IN")]
    input: PathBuf,
    /// The GGUF file to write
    #[arg(value_name = "OUT")]
    output: PathBuf,
    /// What to quantize to: q8_0, q6_k, q5_k_m, q5_k_s, q5_1, q5_0, q4_k_m, q4_k_s, q4_1, q4_0, q3_k_m or q2_k
    #[arg(long = "type", value_name = "TYPE", default_value = "q4_k_m", value_parser = mixture)]
    mixture: Mixture,
    /// Quantize weights that are quantized already, whose errors add up
    #[arg(long)]
    allow_requantize: bool,
    /// Replace OUT if it exists
    #[arg(long)]
    force: bool,
}

fn mixture(text: &str) -> Result<Mixture, String> {
    text.parse()
}

pub(crate) fn run(args: &QuantizeArgs) -> Result<()> {
    if args.input.is_dir() {
        bail!(
            "{}: a folder; quantize reads GGUF files, which llama.cpp's convert_hf_to_gguf.py makes of folders \
             (--quantization of the other commands quantizes folders as they are loaded)",
            args.input.display()
        );
    }
    ensure!(
        args.force || !args.output.exists(),
        "{}: exists; --force replaces it",
        args.output.display()
    );
    let work = Requantization::open(&args.input, args.mixture, args.allow_requantize)?;
    output::note(format!(
        "{} of {} to {} in {}",
        BinaryBytes(work.source_bytes()),
        args.input.display(),
        BinaryBytes(work.file_bytes()),
        args.mixture
    ));
    let partial = partial_of(&args.output);
    write(&work, &partial).with_context(|| partial.display().to_string())?;
    fs::rename(&partial, &args.output).with_context(|| args.output.display().to_string())?;
    output::result(args.output.display())
}

/// The file that is written until it is whole.
fn partial_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".partial");
    name.into()
}

/// Writes a file, or what it lacks, if an earlier run began it.
fn write(work: &Requantization, path: &Path) -> Result<()> {
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(path)?;
    let phase = Phase::start("quantizing", Unit::Bytes);
    let mut done = written(work, &mut file)?;
    if done == 0 {
        file.write_all(work.header())?;
        done = work.header().len() as u64;
    } else {
        phase.note(format!("continued after {}", BinaryBytes(done)));
    }
    for (tensor, (start, pieces)) in work.tensors().enumerate() {
        if start < done {
            continue;
        }
        file.write_all(&vec![0; (start - done) as usize])?;
        done = start;
        for piece in 0..pieces {
            let bytes = work.piece(tensor, piece)?;
            file.write_all(&bytes)?;
            done += bytes.len() as u64;
            phase.update(done, work.file_bytes());
        }
    }
    file.sync_all()?;
    Ok(())
}

/// How many bytes of a file are whole tensors of this work; the others are cut off, and it is continued from there.
fn written(work: &Requantization, file: &mut File) -> Result<u64> {
    let length = file.metadata()?.len();
    let mut header = Vec::new();
    let header_bytes = work.header().len() as u64;
    let mut start = (&*file).take(header_bytes);
    start.read_to_end(&mut header)?;
    let starts = work.tensors().map(|(start, _)| start);
    let whole = if header == work.header() {
        // The last tensor that begins within the file may be cut.
        starts.filter(|start| *start <= length).last().unwrap_or(0)
    } else {
        0
    };
    file.set_len(whole)?;
    file.seek(SeekFrom::Start(whole))?;
    Ok(whole)
}
