//! `penstock doctor`: this machine's hardware, the models that fit, and advice to make it faster.

mod advice;
mod machine;
mod models;

use std::io::ErrorKind;
use std::path::Path;

use outside::in_line;
use serde_json::json;

use super::colour::{Colour, Colours};
use super::estimate::CONTEXT;
use super::output::{columns, human_bytes, print_json, put};
use crate::config::{Config, Overrides};
use advice::advice;
use machine::{Device, Machine};
use models::{Fit, fits};

#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  penstock doctor
  penstock doctor --json | jq '.models[] | select(.fits) | .id'")]
pub struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub fn run(args: &DoctorArgs, config: Option<&Path>) -> anyhow::Result<()> {
    let config = Config::load(config, &Overrides::default())?;
    let machine = Machine::of_process(&config.server.models_dir);
    let models = fits(&config, &machine);
    let advice = advice(&machine, &models, config.engine.threads);
    if args.json {
        let report = json!({ "version": env!("CARGO_PKG_VERSION"), "machine": machine, "models": models, "advice": advice });
        return print_json(&report);
    }
    let colours = Colours::of_stdout();
    let title = |text: &str| colours.paint(Colour::Bold, text);
    let mut text = format!("{}\n{}\n", title("Machine"), columns(&rows(&machine)));
    text += &format!("{}\n{}\n", title(&format!("Models, each with a context of up to {CONTEXT} tokens")), columns(&table(&models)));
    let (mark, lines) = match advice.is_empty() {
        true => (colours.paint(Colour::Green, "+"), vec!["nothing to improve".to_owned()]),
        false => (colours.paint(Colour::Yellow, "!"), advice),
    };
    text += &title("Advice");
    text += "\n";
    for line in lines {
        text += &format!("{mark} {}\n", in_line(&line));
    }
    // The text contains our own colour codes. Foreign text in it was made safe cell by cell.
    match put(&text) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

fn rows(machine: &Machine) -> Vec<[String; 2]> {
    let Machine { processor, devices, nvidia, backends, disk } = machine;
    let count = |count: Option<usize>| count.map_or("?".to_owned(), |count| count.to_string());
    let limit = processor.limit.map_or(String::new(), |limit| format!(", limited to {limit:.1}"));
    let cores = format!("{} cores, {} threads{limit}", count(processor.cores), processor.threads);
    let free = disk.free.map_or("?".to_owned(), human_bytes);
    let mut rows = vec![
        ["build".to_owned(), format!("{} with {}", env!("CARGO_PKG_VERSION"), backends.join(" and "))],
        ["processor".to_owned(), format!("{}: {cores}", processor.name.as_deref().unwrap_or("unknown"))],
        ["instructions".to_owned(), format!("{} (kernels: {})", processor.features.join(" "), processor.kernels)],
    ];
    rows.extend(devices.iter().map(memory));
    let driver = nvidia.driver.as_ref().map_or("no driver".to_owned(), |version| format!("driver {version}"));
    let gpus = if nvidia.gpus == 1 { "1 GPU".to_owned() } else { format!("{} GPUs", nvidia.gpus) };
    let rest = if machine.has_gpu() { "" } else { "; models run on the CPU" };
    rows.push(["NVIDIA".to_owned(), format!("{driver}, {gpus} on the bus{rest}")]);
    rows.push(["models".to_owned(), format!("{free} free in {}", disk.folder)]);
    rows
}

fn memory(device: &Device) -> [String; 2] {
    let bytes = |bytes: Option<u64>| bytes.map_or("?".to_owned(), human_bytes);
    let name = if device.backend == "cpu" { "memory".to_owned() } else { device.name.clone() };
    [name, format!("{} of {} free", bytes(device.free), bytes(device.total))]
}

fn table(models: &[Fit]) -> Vec<[String; 5]> {
    let mut cells = vec![["MODEL", "SIZE", "NEEDS", "ON DISK", "FITS"].map(str::to_owned)];
    for model in models {
        let about = if model.estimated { "~" } else { "" };
        let bytes = |bytes: Option<u64>| bytes.map_or("?".to_owned(), human_bytes);
        let verdict = match (&model.fault, model.fits, &model.device) {
            (Some(fault), ..) => format!("cannot run: {fault}"),
            (None, Some(true), Some(device)) => device.clone(),
            (None, Some(true), None) => "yes".to_owned(),
            (None, Some(false), _) => "no".to_owned(),
            (None, None, _) => "?".to_owned(),
        };
        let needed = model.needed.map_or("?".to_owned(), |needed| format!("{about}{}", human_bytes(needed)));
        let on_disk = if model.on_disk { "yes" } else { "no" };
        cells.push([model.id.clone(), bytes(model.size), needed, on_disk.to_owned(), verdict]);
    }
    cells
}
