//! `holdfast volume`: create, list, resize, copy and delete volumes, and images of other formats.
//!
//! Invariants: a volume that a command makes has its name when it is complete; what has no blocks
//! in one place gets none in the other.

use crate::args::{SectorArg, VolumeArgs, VolumeCommand, WritingArgs};
use crate::failure::{self, Failure, printed};
use crate::images;
use crate::json::Json;
use crate::kv::{escape, open_pool};
use crate::poke;
use crate::size::Size;
use holdfast::{Pool, Protection, Scheme, Sector, Volume, VolumeWriting, Written};
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
    let pool = open_pool(&args.pool)?;
    match &args.command {
        VolumeCommand::Create {
            name,
            size,
            sector,
            writing,
        } => {
            let writing = chosen(*writing, VolumeWriting::default());
            writing.check()?;
            pool.volume_create(name, size.0, sector_of(*sector))?;
            keep(&pool, name, writing)?;
        }
        VolumeCommand::Set { name, writing } => set(&pool, name, *writing)?,
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
            let mut members = vec![
                ("name", Json::Text(volume.name.clone())),
                ("size", Json::Number(volume.size)),
                ("sector", Json::Number(volume.sector.bytes())),
                ("allocated", Json::Number(volume.allocated)),
            ];
            let kept = kept(volume.writing);
            members.extend(kept.map(|(name, word)| (name, Json::Text(word.into()))));
            Json::Object(members)
        });
        return printed(writeln!(out, "{}", Json::List(items.collect()).render()));
    }
    printed(volumes.iter().try_for_each(|volume| {
        let (all, taken) = (Size(volume.size), Size(volume.allocated));
        escape::write(&mut out, volume.name.as_bytes())?;
        write!(out, "  {all}, {taken} in use, sectors of {}", volume.sector)?;
        kept(volume.writing).try_for_each(|(name, word)| write!(out, ", {name} {word}"))?;
        writeln!(out)
    }))
}

/// What a volume keeps that was chosen, by its words.
fn kept(writing: VolumeWriting) -> impl Iterator<Item = (&'static str, &'static str)> {
    let VolumeWriting { protection, scheme } = writing;
    let protect = (protection != Protection::Auto).then(|| ("protect", protection.name()));
    let persist = (scheme != Scheme::Auto).then(|| ("persist", scheme.name()));
    protect.into_iter().chain(persist)
}

/// What the command line says, and `other` where it says nothing.
fn chosen(args: WritingArgs, other: VolumeWriting) -> VolumeWriting {
    VolumeWriting {
        protection: args.protect.unwrap_or(other.protection),
        scheme: args.persist.unwrap_or(other.scheme),
    }
}

fn set(pool: &Pool, name: &str, args: WritingArgs) -> Result<(), Failure> {
    if args.protect.is_none() && args.persist.is_none() {
        let failure = Failure::new("nothing is to be changed");
        return Err(failure.fix("add --protect or --persist"));
    }
    let writing = chosen(args, pool.volume_to_read(name)?.writing());
    Ok(pool.volume_set_writing(name, writing)?)
}

/// A new volume begins with the default.
fn keep(pool: &Pool, name: &str, writing: VolumeWriting) -> holdfast::Result<()> {
    match writing == VolumeWriting::default() {
        true => Ok(()),
        false => pool.volume_set_writing(name, writing),
    }
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
        keep(pool, part, from.writing())?;
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
