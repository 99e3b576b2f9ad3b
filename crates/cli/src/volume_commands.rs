//! `holdfast volume`: create, list, resize, copy and delete volumes, and images of other formats.
//!
//! Invariants: a volume that a command makes has its name when it is complete; what has no blocks
//! in one place gets none in the other.

use crate::args::{SectorArg, ShapeArgs, VolumeArgs, VolumeCommand, WritingArgs};
use crate::failure::{self, Failure, printed};
use crate::images;
use crate::json::Json;
use crate::kv::{escape, open_pool};
use crate::new_volume::{self, Shape};
use crate::poke;
use crate::size::Size;
use holdfast::{Integrity, Pool, Protection, Scheme, Sector, VolumeWriting};
use std::io::Write;

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
        VolumeCommand::Create { name, size, like } => {
            shape(*like, size.0).create(&pool, name)?;
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
            like,
        } => images::import(
            &args.pool,
            &pool,
            (name, shape(*like, 0)),
            image,
            format.as_deref(),
        )?,
        VolumeCommand::Image {
            name,
            image,
            format,
        } => images::write(&args.pool, &pool, name, image, format)?,
        VolumeCommand::Check { name } => return check(&pool, name, json),
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
                ("integrity", Json::Text(word_of(volume.integrity).into())),
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
        let kind = match volume.integrity {
            Integrity::Plain => "sectors",
            Integrity::Atomic => "atomic sectors",
            Integrity::Checked => "atomic sectors with checksums",
        };
        write!(out, "  {all}, {taken} in use, {kind} of {}", volume.sector)?;
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

fn resize(pool: &Pool, name: &str, size: u64, shrink: bool) -> Result<(), Failure> {
    let old = pool.volume_to_read(name)?.size();
    if size < old && !shrink {
        let (old, size) = (Size(old), Size(size));
        let what =
            format!("volume {name:?} has {old:#}, and what is beyond {size:#} would be lost");
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
    new_volume::made(pool, to, Shape::of(&from), |part| {
        Ok(new_volume::copy(&from, &pool.volume(part)?)?)
    })
}

/// The words of JSON.
fn word_of(integrity: Integrity) -> &'static str {
    match integrity {
        Integrity::Plain => "plain",
        Integrity::Atomic => "atomic",
        Integrity::Checked => "checked",
    }
}

/// Looks at the table of a volume whose sectors are atomic.
fn check(pool: &Pool, name: &str, json: bool) -> Result<u8, Failure> {
    let checked = pool.volume_check(name)?;
    let bad = match checked.changed.is_empty() {
        true => failure::OK,
        false => failure::FAILED,
    };
    let mut out = std::io::stdout().lock();
    if json {
        let changed = checked.changed.iter().map(|sector| Json::Number(*sector));
        let members = vec![
            ("sectors", Json::Number(checked.sectors)),
            ("written", Json::Number(checked.written)),
            ("unreadable", Json::Number(checked.unreadable)),
            ("changed", Json::List(changed.collect())),
        ];
        printed(writeln!(out, "{}", Json::Object(members).render()))?;
        return Ok(bad);
    }
    printed(checked.changed.iter().try_for_each(|sector| {
        writeln!(
            out,
            "sector {sector} has other bytes than were written to it"
        )
    }))?;
    printed(match checked.sectors {
        0 => writeln!(out, "it has no table that could be damaged"),
        all => writeln!(
            out,
            "{all} sectors, {} of them written, {} unreadable, {} changed",
            checked.written,
            checked.unreadable,
            checked.changed.len()
        ),
    })?;
    Ok(bad)
}

fn shape(like: ShapeArgs, size: u64) -> Shape {
    Shape {
        size,
        sector: sector_of(like.sector),
        integrity: match (like.atomic, like.checksum) {
            (_, true) => Integrity::Checked,
            (true, false) => Integrity::Atomic,
            (false, false) => Integrity::Plain,
        },
        writing: chosen(like.writing, VolumeWriting::default()),
    }
}

fn sector_of(arg: SectorArg) -> Sector {
    match arg {
        SectorArg::Small => Sector::Small,
        SectorArg::Large => Sector::Large,
    }
}
