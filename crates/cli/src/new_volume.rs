//! Volumes that get their content before their name.
//!
//! Invariant: what has no blocks in one place gets none in the other.

use crate::failure::Failure;
use holdfast::{Integrity, Pool, Sector, Volume, VolumeShape, VolumeWriting, Written};

/// Copied at a time.
const PIECE: u64 = 4 << 20;

/// What a new volume is like.
#[derive(Clone, Copy)]
pub struct Shape {
    pub size: u64,
    pub sector: Sector,
    pub integrity: Integrity,
    pub writing: VolumeWriting,
}

impl Shape {
    pub fn of(volume: &Volume) -> Shape {
        Shape {
            size: volume.size(),
            sector: volume.sector(),
            integrity: volume.integrity(),
            writing: volume.writing(),
        }
    }

    pub fn create(self, pool: &Pool, name: &str) -> holdfast::Result<()> {
        let shape = VolumeShape {
            sector: self.sector,
            integrity: self.integrity,
            writing: self.writing,
        };
        pool.volume_create_with(name, self.size, shape)
    }
}

/// Makes the volume `name` by what fills another one, which then gets its name.
pub fn made(
    pool: &Pool,
    name: &str,
    shape: Shape,
    fill: impl FnOnce(&str) -> Result<(), Failure>,
) -> Result<(), Failure> {
    // In the end it would be refused all the same.
    match pool.volume_to_read(name) {
        Err(e) if e.is_missing() => {}
        _ => return Err(holdfast::Error::Exists { name: name.into() }.into()),
    }
    let part = part_of(name);
    shape.create(pool, &part)?;
    let filled = fill(&part).and_then(|()| Ok(pool.volume_rename(&part, name)?));
    if filled.is_err() {
        pool.volume_delete(&part)?;
    }
    filled
}

/// What is used of a volume without a table for as long as `with` needs it: programs read and write
/// its file.
pub fn with_plain(
    pool: &Pool,
    name: &str,
    shape: Shape,
    with: impl FnOnce(&str) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let plain = format!("{}.plain", part_of(name));
    let integrity = Integrity::Plain;
    Shape { integrity, ..shape }.create(pool, &plain)?;
    let done = with(&plain);
    pool.volume_delete(&plain)?;
    done
}

fn part_of(name: &str) -> String {
    format!("{name}.part-{}", std::process::id())
}

/// Copies what `from` has to `to`, which has nothing yet and no smaller size.
pub fn copy(from: &Volume, to: &Volume) -> holdfast::Result<()> {
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
