//! Tells workers what to do and writes down what they did: the only maker of histories.
//!
//! Changes of one file, of names, and commits follow each other; what runs at the same time
//! concerns different files. So the history has one order.

use crate::disk::Position;
use crate::export::{SharedDisk, lock};
use crate::history::{
    Change, Commit, Event, File, History, KeyChange, Naming, Op, Rewrite, Snapshot, Span, Sync,
};
use crate::pattern;
use crate::random::Random;
use crate::subject::{Subject, Worker, run};
use crate::writer::MAPPER;

pub type Done = Result<(), String>;

/// How a write is made durable by itself, if it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    Plain,
    Append,
    OSync,
    ODsync,
    RwfDsync,
}

impl How {
    fn word(self) -> &'static str {
        match self {
            How::Plain => "plain",
            How::Append => "append",
            How::OSync => "osync",
            How::ODsync => "odsync",
            How::RwfDsync => "rwf",
        }
    }
}

/// Whether writers leave this file open.
fn keep(id: u32) -> &'static str {
    if id.is_multiple_of(2) {
        "keep"
    } else {
        "close"
    }
}

pub struct Driver {
    pub subject: Subject,
    pub random: Random,
    pub history: History,
    /// Positions at which a cut says most: after each acknowledgement and each pause.
    pub marks: Vec<Position>,
    /// What the workload is doing.
    pub passage: &'static str,
    disk: SharedDisk,
    writers: Vec<Worker>,
    mapper: Option<Worker>,
    keys: Option<Worker>,
    session: usize,
    next_id: u32,
    next_version: u32,
}

impl Driver {
    pub fn new(subject: Subject, disk: SharedDisk, random: Random) -> Driver {
        Driver {
            subject,
            random,
            history: History::default(),
            marks: Vec::new(),
            passage: "",
            disk,
            writers: Vec::new(),
            mapper: None,
            keys: None,
            session: 0,
            next_id: 1,
            next_version: 1,
        }
    }

    pub fn position(&self) -> Position {
        lock(&self.disk).position()
    }

    pub fn mark(&mut self) {
        self.marks.push(self.position());
    }

    /// Ends the session and begins the next with some writers.
    pub fn next_session(&mut self) -> Done {
        self.end_session()?;
        self.session += 1;
        for _ in 0..1 + self.random.below(3) {
            let files = self.subject.files().display().to_string();
            let own = self.subject.programs.own.display().to_string();
            let command = self.on_files(&[&own, "writer", &files]);
            self.writers.push(Worker::start(command, &self.disk)?);
        }
        // A command that came first would begin the session with a consistency of its own.
        self.writers.iter_mut().try_for_each(|writer| {
            writer.tell("here")?;
            writer.answer().map(drop)
        })
    }

    pub fn end_session(&mut self) -> Done {
        let workers = self.writers.drain(..);
        let mut workers = workers.chain(self.mapper.take()).chain(self.keys.take());
        workers.try_for_each(Worker::end)
    }

    fn on_files(&self, words: &[&str]) -> std::process::Command {
        let consistency = self.subject.consistency();
        self.subject.program(&["--consistency", consistency], words)
    }

    pub fn writer(&mut self) -> usize {
        self.random.below(self.writers.len() as u64) as usize
    }

    pub fn writers(&self) -> usize {
        self.writers.len()
    }

    /// Has a writer do this.
    pub fn tell(&mut self, writer: usize, line: &str) -> Result<Span, String> {
        let spans = self.tell_all(&[(writer, line.to_string())])?;
        spans.first().copied().ok_or("nobody was told".into())
    }

    /// Has different writers do things at the same time.
    pub fn tell_all(&mut self, lines: &[(usize, String)]) -> Result<Vec<Span>, String> {
        let begun = self.position();
        for (writer, line) in lines {
            self.writers[*writer].tell(line)?;
        }
        let mut spans = Vec::new();
        for (writer, line) in lines {
            let done = self.writers[*writer].answer();
            spans.push(Span {
                begun,
                done: Some(done.map_err(|e| format!("{e} (`{line}`)"))?),
            });
        }
        Ok(spans)
    }

    fn event(&mut self, naming: Naming, span: Span) {
        self.history.events.push(Event { naming, span });
    }

    /// Makes a directory; before the first cut.
    pub fn mkdir(&mut self, name: &str) -> Done {
        self.tell(0, &format!("mkdir {name}")).map(drop)
    }

    /// An empty file.
    pub fn create(&mut self, writer: usize, name: &str) -> Result<u32, String> {
        let span = self.tell(writer, &format!("create {name}"))?;
        Ok(self.created(name, span))
    }

    /// A file that is created and written by one open.
    pub fn make(&mut self, writer: usize, name: &str, len: u64) -> Result<u32, String> {
        let line = format!("make {} {name} {} {len}", keep(self.next_id), self.next_id);
        let span = self.tell(writer, &line)?;
        let id = self.created(name, span);
        self.wrote(id, 0, len, false, span);
        Ok(id)
    }

    fn created(&mut self, name: &str, span: Span) -> u32 {
        let id = self.next_id;
        self.next_id += 1;
        let file = File {
            id,
            ..File::default()
        };
        self.history.files.insert(id, file);
        let name = name.into();
        self.event(Naming::Create { name, id }, span);
        id
    }

    pub fn file(&self, id: u32) -> &File {
        &self.history.files[&id]
    }

    fn file_mut(&mut self, id: u32) -> &mut File {
        self.history.files.entry(id).or_default()
    }

    /// The words of a write, and its place in the history, to be added when it is done.
    pub fn write_line(&self, id: u32, name: &str, at: u64, len: u64, how: How) -> String {
        let keep = keep(id);
        let version = self.file(id).ops.len();
        let how = how.word();
        format!("write {how} {keep} {name} {id} {version} {at} {len}")
    }

    pub fn wrote(&mut self, id: u32, at: u64, len: u64, alone: bool, span: Span) {
        let passage = self.passage;
        self.file_mut(id).ops.push(Op {
            change: Change::Write { at, len },
            span,
            alone,
            passage,
        });
        if alone {
            self.marks.extend(span.done);
        }
    }

    pub fn write(&mut self, writer: usize, id: u32, at: u64, len: u64, how: How) -> Done {
        let name = self.name_of(id)?;
        let line = self.write_line(id, &name, at, len, how);
        let span = self.tell(writer, &line)?;
        let alone = !matches!(how, How::Plain | How::Append);
        self.wrote(id, at, len, alone, span);
        Ok(())
    }

    pub fn append(&mut self, writer: usize, id: u32, len: u64) -> Done {
        let at = self.file(id).size();
        self.write(writer, id, at, len, How::Append)
    }

    pub fn truncate(&mut self, writer: usize, id: u32, len: u64) -> Done {
        let name = self.name_of(id)?;
        let span = self.tell(writer, &format!("truncate {name} {len}"))?;
        let passage = self.passage;
        self.file_mut(id).ops.push(Op {
            change: Change::Truncate { len },
            span,
            alone: false,
            passage,
        });
        Ok(())
    }

    /// Cuts a file to nothing and writes it anew, in pieces.
    pub fn rewrite(&mut self, writer: usize, id: u32, len: u64, chunk: u64) -> Done {
        let name = self.name_of(id)?;
        let op = self.file(id).ops.len();
        let line = format!("rewrite {name} {id} {} {len} {chunk}", op + 1);
        let span = self.tell(writer, &line)?;
        let passage = self.passage;
        let file = self.file_mut(id);
        for change in [Change::Truncate { len: 0 }, Change::Write { at: 0, len }] {
            file.ops.push(Op {
                change,
                span,
                alone: false,
                passage,
            });
        }
        let chunk = chunk.max(1);
        file.rewrites.push(Rewrite { op, chunk, span });
        self.mark();
        Ok(())
    }

    /// Stores through a mapping, then msync: durable alone.
    pub fn map(&mut self, id: u32, at: u64, len: u64) -> Done {
        let name = self.name_of(id)?;
        let bytes = pattern::fill(id, self.file(id).ops.len() as u32, at, len as usize);
        let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let mut mapper = match self.mapper.take() {
            Some(mapper) => mapper,
            None => {
                let files = self.subject.files().display().to_string();
                let command = self.on_files(&["python3", "-c", MAPPER, &files]);
                Worker::start(command, &self.disk)?
            }
        };
        let begun = self.position();
        mapper.tell(&format!("map {name} {at} {hex}"))?;
        let done = Some(mapper.answer()?);
        self.mapper = Some(mapper);
        self.wrote(id, at, len, true, Span { begun, done });
        Ok(())
    }

    pub fn rename(&mut self, writer: usize, from: &str, to: &str) -> Done {
        let names = self.history.names();
        let id = *names.get(from).ok_or("a rename of nothing")?;
        let naming = Naming::Rename {
            from: from.into(),
            to: to.into(),
            over: names.contains_key(to),
            ops: self.file(id).ops.len(),
        };
        let span = self.tell(writer, &format!("rename {from} {to}"))?;
        self.event(naming, span);
        Ok(())
    }

    pub fn unlink(&mut self, writer: usize, name: &str) -> Done {
        let span = self.tell(writer, &format!("unlink {name}"))?;
        self.event(Naming::Unlink { name: name.into() }, span);
        Ok(())
    }

    /// Notes that a call made the first `covers` changes of a file durable.
    pub fn synced(&mut self, id: u32, covers: usize, span: Span, how: &str) {
        let Some(at) = span.done else { return };
        let how = format!("{how} in session {} at {at}", self.session);
        self.file_mut(id).syncs.push(Sync { at, covers, how });
        self.marks.push(at);
    }

    pub fn names_synced(&mut self, count: usize, span: Span) {
        if let Some(at) = span.done {
            self.history.name_syncs.push((at, count));
            self.marks.push(at);
        }
    }

    pub fn fsync(&mut self, writer: usize, id: u32) -> Done {
        let line = format!("fsync {}", self.name_of(id)?);
        let (covers, events) = (self.file(id).ops.len(), self.history.last_event_of(id));
        let span = self.tell(writer, &line)?;
        self.synced(id, covers, span, &format!("fsync by writer {writer}"));
        self.names_synced(events, span);
        Ok(())
    }

    pub fn fdatasync(&mut self, writer: usize, id: u32) -> Done {
        let line = format!("fdatasync {}", self.name_of(id)?);
        let covers = self.file(id).ops.len();
        let span = self.tell(writer, &line)?;
        self.synced(id, covers, span, &format!("fdatasync by writer {writer}"));
        Ok(())
    }

    pub fn fsync_dir(&mut self, writer: usize, dir: &str) -> Done {
        let concerns = |event: &Event| {
            let inside = |name: &str| name.starts_with(&format!("{dir}/"));
            match &event.naming {
                Naming::Create { name, .. } | Naming::Unlink { name } => inside(name),
                Naming::Rename { from, to, .. } => inside(from) || inside(to),
            }
        };
        let last = self.history.events.iter().rposition(concerns);
        let span = self.tell(writer, &format!("fsyncdir {dir}"))?;
        self.names_synced(last.map_or(0, |last| last + 1), span);
        Ok(())
    }

    /// `sync` or `syncfs`: everything.
    pub fn sync_all(&mut self, writer: usize, call: &str) -> Done {
        let span = self.tell(writer, call)?;
        if !self.subject.syncs_all() {
            return Ok(());
        }
        let covered: Vec<(u32, usize)> = self
            .history
            .files
            .iter()
            .map(|(id, file)| (*id, file.ops.len()))
            .collect();
        for (id, covers) in covered {
            self.synced(id, covers, span, call);
        }
        self.names_synced(self.history.events.len(), span);
        Ok(())
    }

    pub fn snapshot(&mut self, name: &str) -> Done {
        let pool = self.subject.dir.display().to_string();
        let words = ["snapshot", &pool, "create", name];
        let Some(mut command) = self.subject.holdfast(&words) else {
            return Ok(());
        };
        let begun = self.position();
        run(&mut command, &self.subject.programs.scratch)
            .map_err(|e| format!("snapshot create: {e}"))?;
        let done = Some(self.position());
        self.history.snapshots.push(Snapshot {
            name: name.into(),
            span: Span { begun, done },
            events: self.history.events.len(),
            commits: self.history.commits.len(),
        });
        self.mark();
        Ok(())
    }

    /// A durable put of one key by the command.
    pub fn put(&mut self, keyspace: &str, key: u32, len: usize) -> Done {
        let version = self.version();
        let pool = self.subject.dir.display().to_string();
        let text = key.to_string();
        let words = ["kv", &pool, keyspace, "put", &text];
        let Some(mut command) = self.subject.holdfast(&words) else {
            return Ok(());
        };
        let scratch = &self.subject.programs.scratch;
        let value = scratch.join("value");
        std::fs::write(&value, pattern::fill(key, version, 0, len)).map_err(|e| e.to_string())?;
        command.stdin(std::fs::File::open(&value).map_err(|e| e.to_string())?);
        let begun = self.position();
        run(&mut command, scratch).map_err(|e| format!("kv put: {e}"))?;
        let done = Some(self.position());
        let changes = vec![(keyspace.into(), key, Some((version, len)))];
        self.commit(changes, true, Span { begun, done });
        Ok(())
    }

    /// A batch through the library.
    pub fn batch(
        &mut self,
        keyspace: &str,
        changes: &[(u32, Option<usize>)],
        durable: bool,
    ) -> Done {
        if !self.subject.has_pool() {
            return Ok(());
        }
        let mut keys = match self.keys.take() {
            Some(keys) => keys,
            None => Worker::start(self.keys_command(), &self.disk)?,
        };
        let word = if durable { "durable" } else { "ordered" };
        let mut line = format!("batch {word} {keyspace}");
        let mut list = Vec::new();
        for &(key, len) in changes {
            let version = self.version();
            let len_word = len.map_or("-".into(), |len| len.to_string());
            line.push_str(&format!(" {key}:{version}:{len_word}"));
            list.push((keyspace.into(), key, len.map(|len| (version, len))));
        }
        let begun = self.position();
        keys.tell(&line)?;
        let done = Some(keys.answer()?);
        self.keys = Some(keys);
        self.commit(list, durable, Span { begun, done });
        Ok(())
    }

    fn keys_command(&self) -> std::process::Command {
        let mut command = std::process::Command::new(&self.subject.programs.own);
        command.arg("keys").arg(&self.subject.dir);
        if let Some(program) = &self.subject.programs.holdfast {
            command.env("HOLDFAST", program);
        }
        command
    }

    fn commit(&mut self, changes: Vec<KeyChange>, durable: bool, span: Span) {
        self.history.commits.push(Commit {
            changes,
            durable,
            span,
        });
        if durable {
            self.marks.extend(span.done);
        }
    }

    fn version(&mut self) -> u32 {
        self.next_version += 1;
        self.next_version
    }

    /// The name that a file has now.
    pub fn name_of(&self, id: u32) -> Result<String, String> {
        let names = self.history.names();
        let found = names.into_iter().find(|(_, of)| *of == id);
        found
            .map(|(name, _)| name)
            .ok_or(format!("file {id} has no name"))
    }
}
