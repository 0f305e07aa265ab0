//! `folio devices`: what there is, what each can do, and which one `auto` takes and why.

use super::device::{self, Adapters};
use anyhow::Result;
use clap::Args;
use folio::backend::wgpu::AdapterReport;
use folio::backend::{Backend as _, cpu::CpuBackend};
use serde_json::{Value, json};
use std::io::Write as _;

#[derive(Args, Debug)]
pub(crate) struct Options {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(options: &Options) -> Result<()> {
    let adapters = device::survey();
    let text = if options.json { serde_json::to_string_pretty(&as_json(&adapters))? } else { as_text(&adapters) };
    Ok(writeln!(std::io::stdout(), "{}", text.trim_end())?)
}

fn chosen_name(adapters: &Adapters) -> String {
    adapters.chosen.map_or_else(|| "cpu".to_owned(), |index| format!("wgpu:{index}"))
}

fn as_json(adapters: &Adapters) -> Value {
    let cpu = CpuBackend::new();
    let mut devices = vec![json!({
        "device": "cpu",
        "name": cpu.caps().name,
        "api": cpu.caps().api,
        "kind": format!("{:?}", cpu.caps().kind).to_lowercase(),
        "tier": cpu.caps().tier,
        "memory_bytes": cpu.caps().memory_bytes,
        "chosen": adapters.chosen.is_none(),
    })];
    devices.extend(adapters.reports.iter().enumerate().map(|(index, report)| {
        json!({
            "device": format!("wgpu:{index}"),
            "name": report.name,
            "api": report.api,
            "driver": report.driver,
            "kind": format!("{:?}", report.kind).to_lowercase(),
            "class": format!("{:?}", report.class).to_lowercase(),
            "tier": format!("{:?}", report.tier),
            "subgroup_sizes": [report.subgroup_sizes.0, report.subgroup_sizes.1],
            "binding_bytes_max": report.binding_bytes_max,
            "buffer_bytes_max": report.buffer_bytes_max,
            "workgroup_bytes_max": report.workgroup_bytes_max,
            "memory_bytes": report.memory_bytes,
            "chosen": adapters.chosen == Some(index),
        })
    }));
    json!({"devices": devices, "chosen": chosen_name(adapters), "reason": adapters.reason})
}

fn as_text(adapters: &Adapters) -> String {
    let cpu = CpuBackend::new();
    let mark = |chosen: bool| if chosen { '*' } else { ' ' };
    let mut text = format!("{} cpu     {}, {}\n", mark(adapters.chosen.is_none()), cpu.caps().name, cpu.caps().tier);
    for (index, report) in adapters.reports.iter().enumerate() {
        text += &format!("{} wgpu:{index}  {}\n", mark(adapters.chosen == Some(index)), adapter_text(report));
    }
    text + &format!("auto takes {}: {}", chosen_name(adapters), adapters.reason)
}

fn adapter_text(report: &AdapterReport) -> String {
    let kind = format!("{:?}", report.kind).to_lowercase();
    let class = format!("{:?}", report.class).to_lowercase();
    let (smallest, largest) = report.subgroup_sizes;
    let memory =
        report.memory_bytes.map_or_else(|| "memory unknown".to_owned(), |bytes| format!("memory {}", mib(bytes)));
    format!(
        "{} ({}, {kind}), {}\n          {:?}, class {class}, subgroups {smallest}..{largest}, bindings {}, buffers {}, \
         workgroup memory {} KiB, {memory}",
        report.name,
        report.api,
        report.driver,
        report.tier,
        mib(report.binding_bytes_max),
        mib(report.buffer_bytes_max),
        report.workgroup_bytes_max / 1024,
    )
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes >> 20)
}
