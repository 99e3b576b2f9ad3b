//! What `holdfast serve` serves: from the command line, or from a file of TOML.
//!
//! Invariants: a file that says anything that has no meaning is refused, by one sentence with the
//! line; nothing is made before all of it has been read.

use crate::args::{ConsistencyArg, MediumArg, ServeArgs};
use crate::failure::{self, Failure};
use crate::owner;
use crate::size::Size;
use clap::ValueEnum;
use nix::unistd::{Uid, User};
use rustix::process::geteuid;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;
use toml_edit::{Document, Item};

/// The keys that a file may have, in the order of the manual.
const KEYS: [&str; 7] = [
    "pool",
    "owner",
    "keep",
    "every",
    "size",
    "medium",
    "consistency",
];

/// A pool and how it is served.
#[derive(Debug)]
pub struct Config {
    /// The file that says so.
    pub from: Option<PathBuf>,
    pub pool: PathBuf,
    /// Whose the pool is, also before it is there.
    pub owner: Option<Owner>,
    /// Where it is saved, and where from it is restored.
    pub keep: Option<PathBuf>,
    pub every: Option<Duration>,
    /// Of a new pool, which is made if there is nothing to restore.
    pub size: Option<Size>,
    pub medium: MediumArg,
    pub consistency: ConsistencyArg,
}

/// A user of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// As the file calls it.
    pub name: String,
    pub user: u32,
    pub group: u32,
}

impl Config {
    /// As the command line or the file that it names has it.
    pub fn of(args: &ServeArgs) -> Result<Config, Failure> {
        if let Some(file) = &args.config {
            let text = std::fs::read_to_string(file).map_err(|e| {
                let fix = "write that file; holdfast.toml(5) says what is in it";
                Failure::io(file.display(), &e).fix(fix)
            });
            let config = text.and_then(|text| read(file, &text));
            return config.map_err(|failure| failure.code(failure::USAGE));
        }
        let absolute = |path: &Path| {
            let path = std::path::absolute(path);
            path.map_err(|e| Failure::io("the working directory", &e))
        };
        let keep = args.kept.keep.as_deref().map(absolute).transpose()?;
        Ok(Config {
            from: None,
            pool: args.pool.clone().unwrap_or_default(),
            owner: None,
            keep,
            every: args.kept.every.map(Into::into),
            size: None,
            medium: MediumArg::Auto,
            consistency: ConsistencyArg::Posix,
        })
    }

    /// Makes root the user whose the pool is or will be; nobody else is changed. The caller has no
    /// threads.
    pub fn become_owner(&self) -> Result<(), Failure> {
        let found = owner::of(&self.pool);
        let (Some(wanted), Some(from)) = (&self.owner, &self.from) else {
            return owner::become_owner(&self.pool);
        };
        let (from, name, pool) = (from.display(), &wanted.name, self.pool.display());
        let here = geteuid();
        if !here.is_root() && here.as_raw() != wanted.user {
            let here = here.as_raw();
            let why = format!("{from}: the owner is {name}, and this is user {here}");
            let fix = "start it as the owner or as root, or name no owner";
            return Err(Failure::new(why).fix(fix));
        }
        match found {
            Some((user, _)) if user != wanted.user => {
                let why = format!("{from}: the owner is {name}, and {pool} belongs to user {user}");
                Err(Failure::new(why).fix("name its owner, or another pool"))
            }
            Some(_) => owner::become_owner(&self.pool),
            None if !here.is_root() || wanted.user == 0 => Ok(()),
            None => owner::become_user(wanted.user, wanted.group)
                .map_err(|e| Failure::io(format!("{from}: becoming user {name}"), &e)),
        }
    }
}

/// A file of TOML, for messages with lines.
struct Source<'t> {
    file: &'t Path,
    text: &'t str,
}

impl Source<'_> {
    fn wrong(&self, at: Option<Range<usize>>, why: &str, fix: &str) -> Failure {
        let before = at.and_then(|at| self.text.get(..at.start));
        let line = before.map(|before| format!(", line {}", before.matches('\n').count() + 1));
        let (file, line) = (self.file.display(), line.unwrap_or_default());
        Failure::new(format!("{file}{line}: {why}")).fix(fix)
    }
}

/// A key that is there.
struct Entry<'t> {
    source: &'t Source<'t>,
    key: &'static str,
    item: &'t Item,
}

impl<'t> Entry<'t> {
    fn wrong(&self, why: &str, fix: &str) -> Failure {
        let why = format!("{} {why}", self.key);
        self.source.wrong(self.item.span(), &why, fix)
    }

    fn text(&self) -> Result<&'t str, Failure> {
        let fix = format!("write {} = \"...\"", self.key);
        let text = self.item.as_str().filter(|text| !text.is_empty());
        text.ok_or_else(|| self.wrong("is not a word in quotes", &fix))
    }

    fn path(&self) -> Result<PathBuf, Failure> {
        let path = PathBuf::from(self.text()?);
        match path.is_absolute() {
            true => Ok(path),
            false => Err(self.wrong("is not an absolute path", "begin it with /")),
        }
    }

    fn time(&self) -> Result<Duration, Failure> {
        let fix = "write a time such as \"30m\" or \"1h\", of one second at least";
        let time = humantime::parse_duration(self.text()?).ok();
        let time = time.filter(|time| *time >= Duration::from_secs(1));
        time.ok_or_else(|| self.wrong("is not a time to wait", fix))
    }

    fn size(&self) -> Result<Size, Failure> {
        let size = match self.item.as_integer() {
            Some(bytes) => u64::try_from(bytes).ok().map(Size),
            None => self.text()?.parse().ok(),
        };
        size.ok_or_else(|| self.wrong("is not a size", "write a size such as \"512M\" or \"4G\""))
    }

    fn one_of<T: ValueEnum>(&self) -> Result<T, Failure> {
        let names = T::value_variants().iter().filter_map(T::to_possible_value);
        let names: Vec<_> = names.map(|value| value.get_name().to_string()).collect();
        let fix = format!("write one of {}", names.join(", "));
        T::from_str(self.text()?, false).map_err(|_| self.wrong("is none that there is", &fix))
    }

    /// By name or number.
    fn owner(&self) -> Result<Owner, Failure> {
        let (name, user) = match self.item.as_integer() {
            Some(number) => {
                let user = u32::try_from(number).ok().filter(|user| *user != u32::MAX);
                let user =
                    user.ok_or_else(|| self.wrong("is not a user", "name one of /etc/passwd"))?;
                (number.to_string(), User::from_uid(Uid::from_raw(user)))
            }
            None => (self.text()?.into(), User::from_name(self.text()?)),
        };
        let found = user.map_err(|e| Failure::io(format!("looking for user {name}"), &e.into()))?;
        let numbers = found.map(|user| (user.uid.as_raw(), user.gid.as_raw()));
        // A number may be that of a user without a name, with a group of the same number.
        let alone = || self.item.as_integer()?.try_into().ok().map(|n: u32| (n, n));
        let (user, group) = numbers.or_else(alone).ok_or_else(|| {
            let why = format!("is {name}, and there is no such user");
            self.wrong(&why, "name a user of this machine")
        })?;
        Ok(Owner { name, user, group })
    }
}

fn read(file: &Path, text: &str) -> Result<Config, Failure> {
    let source = Source { file, text };
    let all = Document::parse(text).map_err(|e| {
        let fix = "write lines such as pool = \"/dev/shm/pool\"";
        source.wrong(e.span(), e.message(), fix)
    })?;
    let known = |key: &str| KEYS.contains(&key);
    if let Some((key, item)) = all.iter().find(|(key, _)| !known(key)) {
        let at = all.as_table().key(key).and_then(|key| key.span());
        let fix = format!("the keys are {}", KEYS.join(", "));
        return Err(source.wrong(at.or(item.span()), &format!("there is no key {key}"), &fix));
    }
    let entry = |key: &'static str| {
        let item = all.as_table().get(key)?;
        let source = &source;
        Some(Entry { source, key, item })
    };
    let pool = entry("pool").ok_or_else(|| {
        let fix = "add a line such as pool = \"/dev/shm/pool\"";
        source.wrong(None, "it names no pool", fix)
    })?;
    let (keep, every) = (entry("keep"), entry("every"));
    if let (None, Some(every)) = (&keep, &every) {
        return Err(every.wrong("has no meaning without keep", "say where: keep = \"/...\""));
    }
    let (medium, consistency) = (entry("medium"), entry("consistency"));
    Ok(Config {
        from: Some(file.into()),
        pool: pool.path()?,
        owner: entry("owner").map(|e| e.owner()).transpose()?,
        keep: keep.map(|e| e.path()).transpose()?,
        every: every.map(|e| e.time()).transpose()?,
        size: entry("size").map(|e| e.size()).transpose()?,
        medium: medium.map_or(Ok(MediumArg::Auto), |e| e.one_of())?,
        consistency: consistency.map_or(Ok(ConsistencyArg::Posix), |e| e.one_of())?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> String {
        read(Path::new("/f.toml"), text).unwrap_err().to_string()
    }

    #[test]
    fn a_whole_file_is_read() {
        let text = "# ours\npool = \"/dev/shm/p\"\nowner = 0\nkeep = '/b/p.hfs'\nevery = \"30m\"\n\
            size = \"4G\"\nmedium = \"memory\"\nconsistency = \"strict\"\n";
        let config = read(Path::new("/f.toml"), text).unwrap();
        assert_eq!(config.pool, Path::new("/dev/shm/p"));
        assert_eq!(config.owner.map(|o| (o.user, o.group)), Some((0, 0)));
        assert_eq!(config.keep.as_deref(), Some(Path::new("/b/p.hfs")));
        assert_eq!(config.every, Some(Duration::from_secs(1800)));
        assert_eq!(config.size, Some(Size(4 << 30)));
        assert_eq!(config.medium, MediumArg::Memory);
        assert_eq!(config.consistency, ConsistencyArg::Strict);
        let least = read(Path::new("/f.toml"), "pool = \"/p\"\nsize = 16777216").unwrap();
        assert!(least.keep.is_none() && least.owner.is_none() && least.every.is_none());
        assert_eq!(least.size, Some(Size(16 << 20)));
    }

    #[test]
    fn owners_have_names_or_numbers() {
        let owner = |word: &str| {
            let text = format!("pool = \"/p\"\nowner = {word}");
            read(Path::new("/f.toml"), &text).map(|config| config.owner.unwrap())
        };
        let root = owner("\"root\"").unwrap();
        assert_eq!((root.user, root.group), (0, 0));
        let nameless = owner("4000000").unwrap();
        assert_eq!((nameless.user, nameless.group), (4_000_000, 4_000_000));
        for bad in [
            "-1",
            "4294967295",
            "4294967296",
            "\"\"",
            "1.5",
            "\"no:such\"",
        ] {
            assert!(owner(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn what_has_no_meaning_is_named_with_its_line() {
        for (text, sentence) in [
            ("", "holdfast: /f.toml: it names no pool."),
            ("\n\npool = /p\n", "holdfast: /f.toml, line 3: "),
            (
                "pool = \"/p\"\n\n[keep]\n",
                "/f.toml, line 3: keep is not a word in quotes.",
            ),
            (
                "pool = \"/p\"\nsise = 1\n",
                "/f.toml, line 2: there is no key sise.\nFix: the keys",
            ),
            (
                "pool = \"p\"",
                "/f.toml, line 1: pool is not an absolute path.\nFix: begin it",
            ),
            (
                "pool = \"/p\"\npool = \"/q\"\n",
                "/f.toml, line 2: duplicate key",
            ),
            (
                "pool = \"/p\"\nevery = \"1h\"",
                "line 2: every has no meaning without keep.",
            ),
            (
                "pool=\"/p\"\nkeep=\"/k\"\nevery=\"x\"",
                "line 3: every is not a time to wait.",
            ),
            (
                "pool=\"/p\"\nkeep=\"/k\"\nevery=\"0s\"",
                "line 3: every is not a time to wait.",
            ),
            (
                "pool=\"/p\"\nsize = \"4 G\"",
                "line 2: size is not a size.\nFix: write a size",
            ),
            ("pool=\"/p\"\nsize = -1", "line 2: size is not a size."),
            (
                "pool=\"/p\"\nmedium = \"disk\"",
                "Fix: write one of auto, dax, file, memory",
            ),
            (
                "pool=\"/p\"\nowner = \"no:such\"",
                "line 2: owner is no:such, and there is no",
            ),
        ] {
            let said = said(text);
            assert!(said.contains(sentence), "{text:?}: {said}");
            assert_eq!(said.lines().count(), 2, "{said}");
        }
    }
}
