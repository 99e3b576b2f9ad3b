//! Making, finding, resizing and deleting volumes.
//!
//! Invariants: a volume appears as a whole or not at all; nobody's volume is resized or deleted
//! while it is open for writing.

use super::attribute::{NAME, Properties, ROOM};
use super::content::Content;
use super::integrity::Integrity;
use super::table;
use super::writing::VolumeWriting;
use crate::error::{Error, Result};
use crate::file::{self, File, call};
use crate::inner::Reach;
use crate::pool::Pool;
use crate::sector::Sector;
use crate::walk;
use holdfast_client::{Base, Target, abi};
use holdfast_pool::layout::FILE_SIZE_MAX;

/// Of new volumes: what is in them is for their owner alone, until somebody says otherwise.
const MODE: u32 = 0o600;

/// A volume in the list of a pool's volumes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeInfo {
    /// Its name: a path below the pool's root.
    pub name: String,
    /// In bytes.
    pub size: u64,
    /// The unit of its requests.
    pub sector: Sector,
    /// Bytes that it takes of the pool.
    pub allocated: u64,
    /// What its sectors are kept from.
    pub integrity: Integrity,
    /// How it is to be written to.
    pub writing: VolumeWriting,
}

/// What a new volume is like, but for its size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VolumeShape {
    /// The unit of its requests.
    pub sector: Sector,
    /// What its sectors are kept from.
    pub integrity: Integrity,
    /// How it is to be written to.
    pub writing: VolumeWriting,
}

/// What a check found of a volume's sectors; nothing, where they are not atomic.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VolumeChecked {
    /// Those of the volume.
    pub sectors: u64,
    /// Those that were written or trimmed.
    pub written: u64,
    /// Those that are marked as unreadable.
    pub unreadable: u64,
    /// Those that have other bytes than were written to them, where there are checksums.
    pub changed: Vec<u64>,
}

impl Pool {
    /// Makes a volume of `size` bytes, which takes no space until something is written to it. Its
    /// name is that of a file below the pool's root, in a directory that exists.
    pub fn volume_create(&self, name: &str, size: u64, sector: Sector) -> Result<()> {
        let properties = Properties {
            sector,
            ..Properties::default()
        };
        self.create(name, size, properties)
    }

    /// As `volume_create`, of another shape.
    pub fn volume_create_with(&self, name: &str, size: u64, shape: VolumeShape) -> Result<()> {
        shape.writing.check()?;
        let properties = Properties {
            sector: shape.sector,
            table: (shape.integrity != Integrity::Plain).then_some(size),
            sums: shape.integrity == Integrity::Checked,
            writing: shape.writing,
        };
        self.create(name, size, properties)
    }

    fn create(&self, name: &str, size: u64, properties: Properties) -> Result<()> {
        let sector = properties.sector;
        let path = path_of(name)?;
        check_size(size, sector)?;
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        // It has no name until it is complete.
        let flags = abi::O_TMPFILE_BIT | abi::O_DIRECTORY | abi::O_RDWR;
        let file = match File::open(self, at_root(parent), flags, MODE) {
            Err(e) if e.errno() == ENOENT => {
                return Err(Error::Missing {
                    what: "directory",
                    name: parent.into(),
                });
            }
            file => file?,
        };
        let file = match properties.table {
            None => {
                file.set_size(size)?;
                file
            }
            Some(_) => {
                let most = table::size_max(sector);
                let too_large = Error::VolumeSize { size, sector, most };
                file.set_size(table::file_size(size, properties).ok_or(too_large)?)?;
                table::format(file, size, properties)?
            }
        };
        file.set_attribute(NAME, properties.to_string().as_bytes())?;
        let (from, ofd) = (Base::Ofd(file.ofd()?), abi::AT_EMPTY_PATH);
        let linked = call!(self.inner.reach()?, calls => self.as_caller(|caller| {
            calls.link(caller, (from, b""), (Base::Root, path.as_bytes()), ofd)
        }));
        match linked {
            Err(e) if e.errno() == EEXIST => Err(Error::Exists { name: name.into() }),
            linked => linked.and_then(|()| file.sync()),
        }
    }

    /// Gives the volume another name, which nothing has yet.
    pub fn volume_rename(&self, from: &str, to: &str) -> Result<()> {
        let file = locked(self, from)?;
        let (old, new) = (path_of(from)?.as_bytes(), path_of(to)?.as_bytes());
        let renamed = call!(self.inner.reach()?, calls => self.as_caller(|caller| {
            let (old, new) = ((Base::Root, old), (Base::Root, new));
            calls.rename(caller, old, new, abi::RENAME_NOREPLACE)
        }));
        match renamed {
            Err(e) if e.errno() == EEXIST => Err(Error::Exists { name: to.into() }),
            renamed => renamed.and_then(|()| file.pool().sync()),
        }
    }

    /// Gives the volume another size. What a smaller one has no room for is lost; one whose sectors
    /// are atomic cannot become smaller.
    pub fn volume_resize(&self, name: &str, size: u64) -> Result<()> {
        let volume = self.volume(name)?;
        check_size(size, volume.sector())?;
        if volume.integrity() != Integrity::Plain && size < volume.size() {
            return Err(Error::AtomicShrinks { name: name.into() });
        }
        let file = volume.inner.content.file();
        match &volume.inner.content {
            Content::Plain(_) => file.set_size(size)?,
            Content::Atomic(table) => {
                table::grow(table, size)?;
                let properties = Properties {
                    table: Some(size),
                    ..volume.inner.properties
                };
                file.set_attribute(NAME, properties.to_string().as_bytes())?;
            }
        }
        file.sync()
    }

    /// Looks at all of what makes the volume's sectors atomic, while nobody writes.
    pub fn volume_check(&self, name: &str) -> Result<VolumeChecked> {
        let volume = self.volume(name)?;
        match &volume.inner.content {
            Content::Plain(_) => Ok(VolumeChecked::default()),
            Content::Atomic(table) => {
                let checked = table.check().map_err(table::of)?;
                Ok(VolumeChecked {
                    sectors: checked.sectors,
                    written: checked.written,
                    unreadable: checked.unreadable,
                    changed: checked.changed,
                })
            }
        }
    }

    /// Deletes the volume and frees its space.
    pub fn volume_delete(&self, name: &str) -> Result<()> {
        let file = locked(self, name)?;
        file::unlink(self, path_of(name)?.as_bytes())?;
        file.pool().sync()
    }

    /// All volumes that this user can find, by name.
    pub fn volumes(&self) -> Result<Vec<VolumeInfo>> {
        let mut found = Vec::new();
        walk::files(self, &mut |path| {
            found.extend(info(self, path)?);
            Ok(false)
        })?;
        found.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(found)
    }
}

/// The file of a volume, whatever is in it, while nobody else can open it for writing.
fn locked(pool: &Pool, name: &str) -> Result<File> {
    let (file, _) = open(pool, name, true)?;
    match file.try_lock()? {
        true => Ok(file),
        false => Err(Error::InUse { name: name.into() }),
    }
}

/// The file of a volume, and what its attribute says.
pub(super) fn open(pool: &Pool, name: &str, writes: bool) -> Result<(File, Properties)> {
    let path = path_of(name)?;
    let flags = if writes { abi::O_RDWR } else { abi::O_RDONLY };
    // Whatever it is, opening it must not wait.
    let flags = flags | abi::O_NONBLOCK | abi::O_NOFOLLOW;
    let file = match File::open(pool, path.as_bytes(), flags, 0) {
        Ok(file) => file,
        Err(e) if e.errno() == ENOENT => return Err(missing(name)),
        // A directory, a symbolic link, a pipe, a socket, a device.
        Err(e) if [EISDIR, ELOOP, ENXIO, EOPNOTSUPP].contains(&e.errno()) => {
            return Err(no_volume(name));
        }
        Err(e) => return Err(e),
    };
    if file.stat()?.mode & abi::S_IFMT != abi::S_IFREG {
        return Err(no_volume(name));
    }
    let mut room = [0; ROOM];
    let found = match file.attribute(NAME, &mut room) {
        Err(e) if e.errno() == ERANGE => Some(&b"more than 256 bytes"[..]),
        found => found?,
    };
    let properties = match found {
        None => return Err(no_volume(name)),
        Some(text) => Properties::parse(text).ok_or_else(|| Error::Properties {
            name: name.into(),
            text: String::from_utf8_lossy(text).into_owned(),
        })?,
    };
    Ok((file, properties))
}

/// The path of the volume `name`.
fn path_of(name: &str) -> Result<&str> {
    match name.trim_start_matches('/') {
        "" => Err(missing(name)),
        path => Ok(path),
    }
}

fn at_root(path: &str) -> &[u8] {
    match path {
        "" => b"/",
        path => path.as_bytes(),
    }
}

fn check_size(size: u64, sector: Sector) -> Result<()> {
    let fits = (1..=FILE_SIZE_MAX).contains(&size) && size.is_multiple_of(sector.bytes());
    match fits {
        true => Ok(()),
        false => {
            let most = FILE_SIZE_MAX / sector.bytes() * sector.bytes();
            Err(Error::VolumeSize { size, sector, most })
        }
    }
}

fn missing(name: &str) -> Error {
    Error::Missing {
        what: "volume",
        name: name.into(),
    }
}

fn no_volume(name: &str) -> Error {
    Error::NoVolume { name: name.into() }
}

/// The volume that a file is, if it is one.
fn info(pool: &Pool, path: &[u8]) -> Result<Option<VolumeInfo>> {
    let of = Target::Path {
        base: Base::Root,
        path,
        nofollow: true,
    };
    let nofollow = abi::AT_SYMLINK_NOFOLLOW;
    let found = || {
        let mut room = [0; ROOM];
        let Some(text) = file::attribute(pool, of, NAME, &mut room)? else {
            return Ok(None);
        };
        let stat = call!(pool.inner.reach()?, calls => pool.as_caller(|caller| {
            calls.stat(caller, Base::Root, path, nofollow)
        }))?;
        let info = |properties: Properties| VolumeInfo {
            name: String::from_utf8_lossy(path).into_owned(),
            size: properties.table.unwrap_or(stat.size),
            sector: properties.sector,
            allocated: stat.blocks * 512,
            integrity: properties.integrity(),
            writing: properties.writing,
        };
        Ok(Properties::parse(text).map(info))
    };
    match found() {
        Err(e) if walk::is_elsewhere(&e) || Error::errno(&e) == ERANGE => Ok(None),
        found => found,
    }
}

const ENOENT: i32 = 2;
const EEXIST: i32 = 17;
const EISDIR: i32 = 21;
const ENXIO: i32 = 6;
const ELOOP: i32 = 40;
const EOPNOTSUPP: i32 = 95;
const ERANGE: i32 = 34;
