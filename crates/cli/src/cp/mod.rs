//! `holdfast cp`: copies between pools and the host, and within them.
//!
//! Invariants: what has a name is whole, whoever dies; when the command ends with status 0,
//! everything is copied and durable; what cannot be copied is said, the rest is copied, and the
//! status is 1.

mod attributes;
mod content;
mod fault;
mod fresh;
mod keys;
mod node;
mod places;
mod tree;
mod word;

use crate::args::CpArgs;
use crate::failure::{self, Failure, printed, say};
use crate::json::Json;
use crate::progress::Line;
use content::{Paths, Reader};
use fault::Fault;
use fresh::Fresh;
use node::{Kind, Node};
use places::{Located, Places};
use rustix::fs::OFlags;
use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::rc::Rc;
use tree::{Into, Source, in_the_way, joined};
use word::Word;

/// `cp`.
pub fn cp(args: &CpArgs, json: bool) -> Result<u8, Failure> {
    if let Ok(program) = std::env::current_exe() {
        holdfast::use_program(program);
    }
    allow_deep_trees();
    let words: Result<Vec<_>, _> = args.paths.iter().map(|path| word::parse(path)).collect();
    let mut words = words?;
    let Some(to) = words.pop() else {
        return Err(usage("nothing to copy is named", "see holdfast cp --help"));
    };
    check(args, &words, &to)?;
    let mut copier = Copier::new(args);
    let mut places = Places::new();
    match &to {
        Word::Stream => copier.to_stream(&mut places, &words[0])?,
        to => copier.all(&mut places, &words, to)?,
    }
    copier.line = None;
    places.sync()?;
    let status = match copier.done.failed {
        0 => failure::OK,
        _ => failure::FAILED,
    };
    if json && to != Word::Stream {
        printed(writeln!(std::io::stdout(), "{}", copier.done.shown()))?;
    }
    Ok(status)
}

fn usage(what: &str, fix: &str) -> Failure {
    Failure::new(what).fix(fix).code(failure::USAGE)
}

fn check(args: &CpArgs, from: &[Word], to: &Word) -> Result<(), Failure> {
    let is_pool = |word: &Word| matches!(word, Word::Pool { .. });
    if args.snapshot.is_some() && !from.iter().any(is_pool) {
        let fix = "name a pool's path to copy, or leave out --snapshot";
        return Err(usage("nothing is copied from a pool", fix));
    }
    if args.keyspace && !is_pool(to) {
        let fix = "name a pool's path as the destination, or leave out --keyspace";
        return Err(usage("only pools have keyspaces", fix));
    }
    if from.len() > 1 && (*to == Word::Stream || from.contains(&Word::Stream)) {
        return Err(usage(
            "standard input or output is one file, and there are several",
            "copy one at a time",
        ));
    }
    Ok(())
}

/// Each directory on the way down is open.
fn allow_deep_trees() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    let _ = setrlimit(Resource::Nofile, raised);
}

/// What was done.
#[derive(Default)]
struct Done {
    files: u64,
    directories: u64,
    /// Further names of files.
    links: u64,
    /// Symbolic links and special files.
    others: u64,
    values: u64,
    bytes: u64,
    skipped: u64,
    failed: u64,
}

impl Done {
    fn shown(&self) -> String {
        let counts = [
            ("files", self.files),
            ("directories", self.directories),
            ("hard_links", self.links),
            ("others", self.others),
            ("values", self.values),
            ("bytes", self.bytes),
            ("skipped", self.skipped),
            ("failed", self.failed),
        ];
        Json::Object(counts.map(|(name, n)| (name, Json::Number(n))).into()).render()
    }
}

/// A copy that goes on.
pub struct Copier<'a> {
    args: &'a CpArgs,
    done: Done,
    line: Option<Line>,
    buffer: Vec<u8>,
    /// Where everything goes.
    base: Option<Node>,
    /// Directories in it that get something: nothing is copied from there.
    tops: HashSet<(u64, u64)>,
    /// Something was copied into directories below that.
    goes_below: bool,
    /// The destination is not there, and has a slash at its end.
    only_directories: bool,
    /// The first names, from `base`, of files with several.
    links: HashMap<(usize, u64, u64), Vec<u8>>,
}

impl Copier<'_> {
    fn new(args: &CpArgs) -> Copier<'_> {
        Copier {
            args,
            done: Done::default(),
            line: Some(Line::new("copied", 0)),
            buffer: Vec::new(),
            base: None,
            tops: HashSet::new(),
            goes_below: false,
            only_directories: false,
            links: HashMap::new(),
        }
    }

    fn failed(&mut self, failure: Failure) {
        self.done.failed += 1;
        if let Some(line) = &mut self.line {
            line.clear();
        }
        say(failure);
    }

    fn count_bytes(&mut self, n: usize) {
        self.done.bytes += n as u64;
        if let Some(line) = &mut self.line {
            line.at(self.done.bytes);
        }
    }

    /// Copies everything, and makes it durable on the host.
    fn all(&mut self, places: &mut Places, from: &[Word], to: &Word) -> Result<(), Failure> {
        let located = places.locate(to, None)?;
        let here = |e: Fault| e.of(&located.shown);
        let is_directory = located.directory().map_err(here)?;
        if let (None, Some(meta)) = (&is_directory, located.meta().map_err(here)?)
            && let (Kind::Special, [word]) = (meta.kind, from)
        {
            return self.to_special(places, word, &located);
        }
        let (mut into, name) = match is_directory {
            Some(node) => {
                let name = located.name.as_deref().unwrap_or_default();
                let shown = located.shown.clone();
                let into = Into::new(node, shown, Vec::new(), name).map_err(here)?;
                (into, None)
            }
            None => {
                self.only_directories = located.is_directory;
                self.beside(&located, from)?
            }
        };
        self.base = Some(into.node.open_dir(b".").map_err(here)?);
        for word in from {
            let done = match word {
                Word::Stream => self.from_stream(&mut into, name.as_deref()),
                word => self.one(places, word, &mut into, name.as_deref()),
            };
            done.unwrap_or_else(|failure| self.failed(failure));
        }
        self.flush(&mut into)?;
        let synced = self.sync_host();
        synced.map_err(here)
    }

    /// The destination is not there: what is copied gets its name.
    fn beside(&mut self, to: &Located, from: &[Word]) -> Result<(Into, Option<Vec<u8>>), Failure> {
        let here = |e: Fault| e.of(&to.shown);
        let Some(name) = &to.name else {
            return Err(here(rustix::io::Errno::NOENT.into()));
        };
        if from.len() > 1 && self.args.keyspace && to.meta().map_err(here)?.is_none() {
            to.dir.mkdir(name, 0o777).map_err(here)?;
            let node = to.dir.open_dir(name).map_err(here)?;
            if let Node::Pool(dir) = &node {
                tree::become_keyspace(dir, name).map_err(here)?;
            }
            let into = Into::new(node, to.shown.clone(), Vec::new(), name);
            return Ok((into.map_err(here)?, None));
        }
        if from.len() > 1 {
            let what = "it is no directory, and there is more than one thing to copy";
            return Err(here(Fault::new(what).fix("make the directory first")));
        }
        let shown = to.shown.strip_suffix(b"/").unwrap_or(&to.shown);
        let above = shown.strip_suffix(name.as_slice()).unwrap_or(shown);
        let node = to.dir.open_dir(b".").map_err(here)?;
        // The name of the directory itself is not known; it is looked for where it is one.
        let into = Into::new(node, above.to_vec(), Vec::new(), b"").map_err(here)?;
        Ok((into, Some(name.clone())))
    }

    /// Copies what one word names into `to`, under its name or `new`.
    fn one(
        &mut self,
        places: &mut Places,
        word: &Word,
        to: &mut Into,
        new: Option<&[u8]>,
    ) -> Result<(), Failure> {
        let snapshot = self.args.snapshot.as_deref();
        let snapshot = snapshot.filter(|_| matches!(word, Word::Pool { .. }));
        let located = places.locate(word, snapshot)?;
        if located.is_directory || self.only_directories {
            let meta = located.meta().map_err(|e| e.of(&located.shown))?;
            if meta.is_some_and(|meta| meta.kind != Kind::Directory) {
                let what = Fault::new("it is no directory, as a slash at the end of a name says");
                let fix = "leave out the slash, or copy into a directory that is there";
                return Err(what.fix(fix).of(&located.shown));
            }
        }
        let has_name = located.name.is_some();
        let from = Source {
            dir: Rc::new(located.dir),
            name: located.name.unwrap_or(b".".into()),
            shown: located.shown,
            place: located.place,
            follow: !self.args.is_recursive() || located.is_directory,
        };
        match (new, has_name) {
            (Some(new), _) => self.copy(&from, to, new),
            (None, true) => self.copy(&from, to, &from.name),
            // A directory without a name: all in it goes into the other one.
            (None, false) => return self.merge(&from, to),
        }
        Ok(())
    }

    fn merge(&mut self, from: &Source, to: &mut Into) -> Result<(), Failure> {
        if !self.args.is_recursive() {
            let what = Fault::new("it is a directory");
            return Err(what
                .fix("give -r to copy it with all in it")
                .of(&from.shown));
        }
        let here = |e: Fault| e.of(&from.shown);
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let node = Rc::new(from.dir.open(&from.name, flags, 0).map_err(here)?);
        let (meta, mine) = (
            node.stat().map_err(here)?,
            to.node.stat().map_err(|e| e.of(&to.shown))?,
        );
        if node.is_beside(&to.node) && meta.identity() == mine.identity() {
            return Err(here(Fault::new("a directory is not copied into itself")));
        }
        self.tops.insert(mine.identity());
        let filled = self.fill(from, &node, to);
        let dressed = self.dressed((&node, &meta), to, false);
        filled.and(dressed)
    }

    /// Standard input becomes a file or a value.
    fn from_stream(&mut self, to: &mut Into, name: Option<&[u8]>) -> Result<(), Failure> {
        let Some(name) = name.filter(|_| !self.only_directories) else {
            let what = Fault::new("standard input has no name for a file in this directory");
            return Err(what.fix("name the file").of(&to.shown));
        };
        self.stream_in(&mut std::io::stdin().lock(), to, name)
    }

    fn stream_in(
        &mut self,
        input: &mut impl std::io::Read,
        to: &mut Into,
        name: &[u8],
    ) -> Result<(), Failure> {
        let shown = joined(&to.shown, name);
        let paths = Paths {
            from: b"standard input",
            to: &shown,
        };
        let there = paths.to(to.node.find(name))?;
        if there.is_some_and(|there| there.kind == Kind::Directory) {
            return Err(in_the_way().of(&shown));
        }
        if there.is_some() && self.args.no_clobber {
            self.done.skipped += 1;
            return Ok(());
        }
        if to.sink.is_some() {
            return self.stream_to_value(input, to, name, paths);
        }
        let fresh = paths.to(Fresh::make(&to.node, 0o666))?;
        let mut at = 0;
        let put = |part: &[u8]| {
            let written = paths.to(fresh.node.write_all_at(part, at));
            at += part.len() as u64;
            written
        };
        self.stream(input, put, paths.from)?;
        if let Some(there) = &there {
            paths.to(attributes::stay(there, &fresh.node))?;
        }
        self.finish(fresh, there.is_some(), name, &shown)
    }

    /// A pipe or device of the host gets the content, as it is.
    fn to_special(
        &mut self,
        places: &mut Places,
        from: &Word,
        to: &Located,
    ) -> Result<(), Failure> {
        let here = |e: Fault| e.of(&to.shown);
        let (Node::Host(_), Some(name)) = (&to.dir, &to.name) else {
            return Err(here(Fault::new("it is neither a file nor a directory")));
        };
        let opened = to.dir.open(name, OFlags::WRONLY | OFlags::NOCTTY, 0);
        let Node::Host(file) = opened.map_err(here)? else {
            return Ok(());
        };
        let mut file = std::fs::File::from(file);
        let put = |part: &[u8]| file.write_all(part).map_err(|e| here(e.into()));
        self.out(places, from, put)
    }

    /// A file goes to standard output.
    fn to_stream(&mut self, places: &mut Places, from: &Word) -> Result<(), Failure> {
        let mut out = std::io::stdout().lock();
        let mut is_gone = false;
        let put = |part: &[u8]| match out.write_all(part) {
            Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => {
                is_gone = true;
                Err(Failure::io("standard output", &e))
            }
            written => printed(written),
        };
        let done = self.out(places, from, put);
        match is_gone {
            true => Ok(()),
            false => done.and(printed(out.flush())),
        }
    }

    fn out(
        &mut self,
        places: &mut Places,
        from: &Word,
        put: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        if *from == Word::Stream {
            return self.stream(&mut std::io::stdin().lock(), put, b"standard input");
        }
        let snapshot = self.args.snapshot.as_deref();
        let located = places.locate(from, snapshot)?;
        let here = |e: Fault| e.of(&located.shown);
        let name = located.name.as_deref().unwrap_or(b".");
        let meta = located.dir.stat_at(name, true).map_err(here)?;
        if meta.kind == Kind::Directory {
            return Err(here(
                Fault::new("it is a directory").fix("name a file in it"),
            ));
        }
        let flags = OFlags::RDONLY | OFlags::NOCTTY;
        let file = located.dir.open(name, flags, 0).map_err(here)?;
        self.stream(&mut Reader::new(&file), put, &located.shown)?;
        self.done.files += 1;
        Ok(())
    }

    /// What was written to the host is durable from here on.
    fn sync_host(&self) -> Result<(), Fault> {
        let Some(base) = &self.base else {
            return Ok(());
        };
        // Few files are synced already, and all names are here.
        match self.done.files <= tree::FEW && !self.goes_below {
            true => base.sync(),
            false => base.sync_all(),
        }
    }
}
