//! `folio devices`: the devices of this machine, their limits, and which one `auto` selects and why.

use crate::cli::device::{self, Adapters};
use crate::cli::terminal::output;
use anyhow::Result;
use clap::Args;
use folio::backend::wgpu::{AdapterReport, FXC, FXC_IS_SLOW, WgpuBackend};
use folio::backend::{Backend as _, cpu::CpuBackend};
use serde_json::{Value, json};

#[derive(Args, Debug)]
pub(crate) struct DevicesArgs {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// List the adapters and print nothing, to see whether their drivers survive it
    #[arg(long = "try", hide = true)]
    is_trial: bool,
}

pub(crate) fn run(args: &DevicesArgs) -> Result<()> {
    if args.is_trial {
        WgpuBackend::adapters();
        return Ok(());
    }
    let adapters = device::survey();
    let text = if args.json {
        serde_json::to_string_pretty(&as_json(&adapters))?
    } else {
        as_text(&adapters)
    };
    output::result(text)
}

fn as_json(adapters: &Adapters) -> Value {
    let cpu = CpuBackend::default();
    let mut devices = vec![json!({
        "device": "cpu",
        "name": cpu.caps().name,
        "api": cpu.caps().api,
        "kind": format!("{:?}", cpu.caps().kind).to_lowercase(),
        "tier": cpu.caps().tier,
        "memory_bytes": cpu.caps().memory_bytes,
        "chosen": adapters.chosen_name() == "cpu",
    })];
    #[cfg(feature = "cuda")]
    devices.extend(adapters.cuda.devices.iter().map(|device| {
        let name = format!("cuda:{}", device.index);
        json!({
            "chosen": name == adapters.chosen_name(),
            "device": name,
            "name": device.name,
            "api": "cuda",
            "kind": "discrete",
            "compute_capability": format!("{}.{}", device.compute.0, device.compute.1),
            "memory_bytes": device.memory_bytes,
        })
    }));
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
            "memory_source": report.memory_source,
            "shader_compiler": report.shader_compiler,
            "tuned": device::tuned(report),
            "chosen": adapters.chosen_name() == format!("wgpu:{index}"),
        })
    }));
    let mut report =
        json!({"devices": devices, "chosen": adapters.chosen_name(), "reason": adapters.reason});
    #[cfg(feature = "cuda")]
    {
        report["cuda"] = json!({"parts": adapters.cuda.parts, "obstacle": adapters.cuda.obstacle});
    }
    report.take()
}

fn as_text(adapters: &Adapters) -> String {
    let cpu = CpuBackend::default();
    let chosen = adapters.chosen_name();
    let mark = |name: &str| if name == chosen { '*' } else { ' ' };
    let mut text = format!(
        "{} cpu     {}, {}\n",
        mark("cpu"),
        cpu.caps().name,
        cpu.caps().tier
    );
    #[cfg(feature = "cuda")]
    {
        for device in &adapters.cuda.devices {
            let (name, (major, minor)) = (format!("cuda:{}", device.index), device.compute);
            let (mark, memory) = (mark(&name), mib(device.memory_bytes));
            text += &format!(
                "{mark} {name}  {}, compute capability {major}.{minor}, memory {memory}\n",
                device.name
            );
        }
        for part in &adapters.cuda.parts {
            text += &format!("          {part}\n");
        }
    }
    for (index, report) in adapters.reports.iter().enumerate() {
        let name = format!("wgpu:{index}");
        text += &format!("{} {name}  {}\n", mark(&name), adapter_text(report));
    }
    text + &format!("auto selects {chosen}: {}", adapters.reason)
}

fn adapter_text(report: &AdapterReport) -> String {
    let kind = format!("{:?}", report.kind).to_lowercase();
    let class = format!("{:?}", report.class).to_lowercase();
    let (smallest, largest) = report.subgroup_sizes;
    let memory = match (report.memory_bytes, report.memory_source) {
        (Some(bytes), Some(source)) => format!("memory {} ({source})", mib(bytes)),
        _ => "memory unknown".to_owned(),
    };
    let compiler = match report.shader_compiler {
        None => String::new(),
        Some(FXC) => format!("\n          shaders by FXC: {FXC_IS_SLOW}"),
        Some(name) => format!(", shaders by {name}"),
    };
    format!(
        "{} ({}, {kind}), {}\n          {:?}, class {class}, subgroups {smallest}..{largest}, bindings {}, buffers {}, \
         workgroup memory {} KiB, {memory}{compiler}",
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
