//! A story is recorded, and every image of its log is judged.
//!
//! Invariant: an image is never skipped; how many are made of a log is the options' matter.

use crate::image::{Base, Dir};
use crate::judge;
use crate::model::{Mode, Model, Op};
use crate::stack::{self, Stack};
use holdfast_pmem::Recorder;
use holdfast_pmem::images::{Image, Images, Options};
use holdfast_pmem::record::Event;
use holdfast_pool::format::superblock::Consistency;
use holdfast_service::CreateOptions;
use std::time::Instant;

/// Bytes of data of a pool: the smallest that there is.
const SIZE: u64 = 16 << 20;

/// What to do with a story.
#[derive(Clone, Copy)]
pub struct Plan {
    pub mode: Mode,
    /// The service works after so many operations.
    pub step_every: usize,
    pub images: Options,
    /// Of so many images one is recovered under the recorder, and its recovery cut again.
    pub again_every: usize,
    pub images_again: Options,
}

/// A story's log and everything that may be found.
struct Story {
    base: Base,
    log: Vec<Event>,
    /// After so many operations.
    states: Vec<Model>,
    ops: Vec<Op>,
}

#[derive(Debug, Default)]
pub struct Figures {
    pub images: usize,
    /// Images of recoveries that were cut.
    pub again: usize,
    /// What was wrong, and where, first.
    pub failures: usize,
    pub first: Option<String>,
}

fn consistency(mode: Mode) -> Consistency {
    match mode {
        Mode::Posix => Consistency::Posix,
        Mode::Sync => Consistency::Sync,
        Mode::Strict => Consistency::Strict,
    }
}

/// Runs `before` and then, under the recorder, `ops`.
fn record(plan: &Plan, before: &[Op], ops: &[Op]) -> Story {
    let dir = Dir::new("story");
    let options = CreateOptions {
        size: Some(SIZE),
        medium: None,
        consistency: consistency(plan.mode),
    };
    holdfast_service::create(dir.path(), &options).unwrap();
    let log = Recorder::new();
    let watches = dir.watch(&log);
    let mut stack = Stack::start(stack::recovered(dir.path()).unwrap()).unwrap();
    let mut model = Model::new(plan.mode);
    for op in before {
        stack.call(op).unwrap();
        model.apply(op);
    }
    stack.step().unwrap();
    log.take();
    let base = Base::new(dir.read());
    let mut states = vec![model.clone()];
    for (i, op) in ops.iter().enumerate() {
        log.begin(i as u64);
        stack.call(op).unwrap();
        log.ack(i as u64);
        model.apply(op);
        states.push(model.clone());
        if (i + 1) % plan.step_every == 0 {
            stack.step().unwrap();
        }
    }
    let events = log.events();
    drop(watches);
    stack.end().unwrap();
    stack::check(dir.path()).unwrap();
    let ops = ops.to_vec();
    Story {
        base,
        log: events,
        states,
        ops,
    }
}

impl Story {
    /// What may be there after `acked` operations returned and one more had `begun`.
    fn allowed(&self, acked: usize, begun: usize) -> Vec<Model> {
        let mut allowed = vec![self.states[acked].clone()];
        if begun > acked {
            allowed.push(self.states[begun].clone());
            allowed.extend(self.states[acked].during(&self.ops[acked]));
        }
        allowed
    }
}

/// Recovers what is in `dir`, judges it and uses it.
fn judge(dir: &Dir, allowed: &[Model]) -> Result<(), String> {
    let engine = stack::recovered(dir.path())?;
    stack::check(dir.path()).map_err(|e| format!("after recovery: {e}"))?;
    let mut stack = Stack::start(engine)?;
    let view = stack.view()?;
    let errors: Vec<String> = allowed
        .iter()
        .filter_map(|m| judge::compare(m, &view).err())
        .collect();
    if errors.len() == allowed.len() {
        return Err(format!("not allowed: {errors:?}"));
    }
    stack.use_it(&view)?;
    stack.end()?;
    stack::check(dir.path()).map_err(|e| format!("after use: {e}"))
}

/// Recovers the image under the recorder and judges every image of that.
fn cut_recovery(
    base: &Base,
    image: &Image<'_>,
    options: Options,
    allowed: &[Model],
    figures: &mut Figures,
) {
    let dir = Dir::new("again");
    base.lay(image, &dir);
    let second = Base::new(dir.read());
    let log = Recorder::new();
    let watches = dir.watch(&log);
    let done = stack::recovered(dir.path()).map(drop);
    drop(watches);
    figures.note(image, done);
    let events = log.take();
    let bases: Vec<&[u8]> = second.full.iter().map(Vec::as_slice).collect();
    let dir = Dir::new("again");
    for twice in Images::new(&bases, &events, options) {
        second.lay(&twice, &dir);
        figures.again += 1;
        let done = judge(&dir, allowed).map_err(|e| format!("recovery of {image:?}: {e}"));
        figures.note(&twice, done);
    }
}

impl Figures {
    fn note(&mut self, image: &Image<'_>, done: Result<(), String>) {
        if let Err(why) = done {
            self.failures += 1;
            self.first
                .get_or_insert_with(|| format!("{image:?}: {why}"));
        }
    }
}

/// Says of an event of a log that the code should have left it out.
pub type Mutation = fn(&[Event], usize) -> bool;

/// The first image that is found wrong when the events of a mutation never happened.
pub fn run_mutated(plan: &Plan, before: &[Op], ops: &[Op], mutation: Mutation) -> Option<String> {
    let mut story = record(plan, before, ops);
    let kept = |i: &usize| !mutation(&story.log, *i);
    let log: Vec<Event> = (0..story.log.len())
        .filter(kept)
        .map(|i| story.log[i].clone())
        .collect();
    assert!(log.len() < story.log.len(), "the mutation changes nothing");
    story.log = log;
    let bases: Vec<&[u8]> = story.base.full.iter().map(Vec::as_slice).collect();
    let dir = Dir::new("mutated");
    Images::new(&bases, &story.log, plan.images).find_map(|image| {
        let allowed = story.allowed(image.acked().count(), image.begun().count());
        story.base.lay(&image, &dir);
        judge(&dir, &allowed).err()
    })
}

/// All images of a story.
pub fn run(name: &str, plan: &Plan, before: &[Op], ops: &[Op]) -> Figures {
    let started = Instant::now();
    let story = record(plan, before, ops);
    let bases: Vec<&[u8]> = story.base.full.iter().map(Vec::as_slice).collect();
    let dir = Dir::new("image");
    let mut figures = Figures::default();
    for image in Images::new(&bases, &story.log, plan.images) {
        let (acked, begun) = (image.acked().count(), image.begun().count());
        let allowed = story.allowed(acked, begun);
        story.base.lay(&image, &dir);
        let done = judge(&dir, &allowed);
        let done = done.map_err(|e| format!("operation {acked} {:?}: {e}", story.ops.get(acked)));
        figures.note(&image, done);
        figures.images += 1;
        if figures.images % plan.again_every == 0 {
            cut_recovery(
                &story.base,
                &image,
                plan.images_again,
                &allowed,
                &mut figures,
            );
        }
    }
    println!(
        "{name} {:?} step {}: {} images, {} of recoveries, {} failures, {:.1} s",
        plan.mode,
        plan.step_every,
        figures.images,
        figures.again,
        figures.failures,
        started.elapsed().as_secs_f64()
    );
    figures
}
