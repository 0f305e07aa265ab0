//! Several models behind one server: what each needs, and how it is loaded.

use super::served::Served;
use crate::cli::session::{Opened, Tells};
use crate::cli::shares::{Member, Share, Shares};
use crate::cli::terminal::output::note;
use anyhow::{Result, ensure};
use folio::config::Config;
use folio::engine::DeviceQueue;
use folio::server::{FleetOptions, LoadedModel, ModelSource, ServerOptions, ServerState};
use std::time::{Duration, Instant};

/// The state of a server of several models. It plans their memory and loads none.
pub(super) fn state(
    models: Vec<Served>,
    load_timeout: Option<Duration>,
    options: ServerOptions,
) -> Result<ServerState> {
    let shares = Shares::new(&models.iter().map(member).collect::<Vec<_>>())?;
    shares.as_text().lines().for_each(note);
    let fleet = FleetOptions {
        places: shares.places.iter().map(|place| place.budget).collect(),
        load_timeout,
    };
    let sources = models
        .into_iter()
        .zip(&shares.models)
        .map(|(model, share)| {
            let device_queue = shares.places[share.place].device_queue.clone();
            source(model, share, device_queue, &options)
        });
    let sources = sources.collect();
    Ok(ServerState::with_models(sources, &fleet, options))
}

fn member(model: &Served) -> Member<'_> {
    Member {
        name: &model.names[0],
        model: &model.args.model,
        engine: &model.args.engine,
    }
}

fn source(
    model: Served,
    share: &Share,
    device_queue: DeviceQueue,
    options: &ServerOptions,
) -> ModelSource {
    let kv_cache_bytes = share.kv_cache_bytes;
    ModelSource {
        names: model.names.clone(),
        place: share.place,
        bytes: share.bytes(),
        refusal: share.fit.as_ref().err().cloned(),
        idle_unload: model.idle_unload(),
        queue_requests_max: model.args.engine.queue_requests_max(),
        outline: share.outline.clone(),
        options: model.options(options),
        load: Box::new(move || {
            load(&model, kv_cache_bytes, device_queue.clone()).map_err(|error| format!("{error:#}"))
        }),
    }
}

/// Loads a model, with the pool that the plan gives it.
fn load(
    model: &Served,
    kv_cache_bytes: Option<u64>,
    device_queue: DeviceQueue,
) -> Result<LoadedModel> {
    let (started, name) = (Instant::now(), model.names[0].clone());
    ensure!(
        model.args.adapters.adapters().is_empty(),
        "--lora, --lora-modules, --lora-folder: a server of several models has no adapters"
    );
    let config = Config {
        kv_cache_bytes,
        ..model.args.engine.config()?
    };
    let opened = Opened::named(&model.args.model, &model.args.engine)?.in_queue(device_queue);
    model.check(&opened)?;
    let session = opened
        .start(model.args.engine.device()?, config, Tells::Everything)?
        .wait_ready()?;
    note(format_args!(
        "{name} is loaded after {:.1} s",
        started.elapsed().as_secs_f64()
    ));
    let (engine, text, defaults) = (
        session.handle.clone(),
        session.text.clone(),
        model.defaults(session.defaults()),
    );
    Ok(LoadedModel {
        engine,
        text,
        images: session.images.clone(),
        defaults,
        draw_defaults: session.draw_defaults(),
        end: Box::new(move || {
            let outcome = session.close().map_err(|error| format!("{error:#}"));
            note(format_args!("{name} is unloaded"));
            outcome
        }),
    })
}
