//! `holdfast volume`: create, list, resize, copy and delete volumes, and images of other formats.
//!
//! Invariants: a volume that a command makes has its name when it is complete; what has no blocks
//! in one place gets none in the other.

use crate::args::{SectorArg, VolumeArgs, VolumeCommand};
use crate::failure::{self, Failure, printed};
use crate::images;
use crate::json::Json;
use crate::kv::{escape, open_pool};
use crate::poke;
use crate::size::Size;
use holdfast::{Pool, Sector, Volume, Written};
use std::io::Write;

/// Copied at a time.
const PIECE: u64 = 4 << 20;

/// `volume`.
pub fn volume(args: &VolumeArgs, json: bool) -> Result<u8, Failure> {
    if let Ok(program) = std::env::current_exe() {
        holdfast::use_program(program);
    }
    if let VolumeCommand::Poke {
        name,
        protect,
        here,
    } = &args.command
    {
        return match here {
            true => poke::here(&args.pool, name, *protect),
            false => poke::apart(&args.pool, name, *protect, json),
        };
    }
    let pool = open_pool(&args.pool, args.slow)?;
    match &args.command {
        VolumeCommand::Create { name, size, sector } => {
            pool.volume_create(name, size.0, sector_of(*sector))?;
        }
        VolumeCommand::List => list(&pool, json)?,
        VolumeCommand::Resize { name, size, shrink } => resize(&pool, name, size.0, *shrink)?,
        VolumeCommand::Rename { from, to } => pool.volume_rename(from, to)?,
        VolumeCommand::Copy { from, to, snapshot } => copy(&pool, from, to, snapshot.as_deref())?,
        VolumeCommand::Import {
            name,
            image,
            format,
            sector,
        } => images::import(
            &args.pool,
            &pool,
            (name, sector_of(*sector)),
            image,
            format.as_deref(),
        )?,
        VolumeCommand::Image {
            name,
            image,
            format,
        } => images::write(&args.pool, &pool, name, image, format)?,
        VolumeCommand::Delete { name } => pool.volume_delete(name)?,
        VolumeCommand::Poke { .. } => {}
    }
    Ok(failure::OK)
}

fn list(pool: &Pool, json: bool) -> Result<(), Failure> {
    let volumes = pool.volumes()?;
    let mut out = std::io::stdout().lock();
    if json {
        let items = volumes.iter().map(|volume| {
            Json::Object(vec![
                ("name", Json::Text(volume.name.clone())),
                ("size", Json::Number(volume.size)),
                ("sector", Json::Number(volume.sector.bytes())),
                ("allocated", Json::Number(volume.allocated)),
            ])
        });
        return printed(writeln!(out, "{}", Json::List(items.collect()).render()));
    }
    printed(volumes.iter().try_for_each(|volume| {
        let (all, taken) = (Size(volume.size), Size(volume.allocated));
        escape::write(&mut out, volume.name.as_bytes())?;
        writeln!(out, "  {all}, {taken} in use, sectors of {}", volume.sector)
    }))
}

fn resize(pool: &Pool, name: &str, size: u64, shrink: bool) -> Result<(), Failure> {
    let old = pool.volume_to_read(name)?.size();
    if size < old && !shrink {
        let what =
            format!("volume {name:?} has {old} bytes, and those beyond {size} would be lost");
        return Err(Failure::new(what).fix("add --shrink if nothing needs them any more"));
    }
    Ok(pool.volume_resize(name, size)?)
}

/// Makes the volume `to` with what `from` has, or had in a snapshot.
fn copy(pool: &Pool, from: &str, to: &str, snapshot: Option<&str>) -> Result<(), Failure> {
    let from = match snapshot {
        Some(snapshot) => pool.snapshot(snapshot)?.volume_to_read(from)?,
        // Nobody writes to it meanwhile.
        None => pool.volume(from)?,
    };
    images::made(pool, to, (from.size(), from.sector()), |part| {
        Ok(copy_data(&from, &pool.volume(part)?)?)
    })
}

fn copy_data(from: &Volume, to: &Volume) -> holdfast::Result<()> {
    let mut room = vec![0; PIECE as usize];
    let mut at = 0;
    while at < from.size() {
        let extent = from.extent(at)?;
        while at < extent.end && !extent.hole {
            let len = (extent.end - at).min(PIECE) as usize;
            let part = room.get_mut(..len).unwrap_or_default();
            from.read(part, at)?;
            to.write(part, at, Written::AtFlush)?;
            at += len as u64;
        }
        at = extent.end;
    }
    to.flush()
}

fn sector_of(arg: SectorArg) -> Sector {
    match arg {
        SectorArg::Small => Sector::Small,
        SectorArg::Large => Sector::Large,
    }
}
