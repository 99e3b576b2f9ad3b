//! A story is recorded, and every image of its log is judged.
//!
//! Invariants: an image is never skipped; how many are made of a log is the options' matter. On an
//! ordinary file each image is what another boot of the machine finds, and free blocks are full of
//! bytes that no file may show.

use crate::image::{Base, DATA, Dir, JOURNAL, STALE_LEN};
use crate::judge;
use crate::model::{Mode, Model, Op};
use crate::quotas;
use crate::stack::{self, Stack};
use crate::values::{self, Change};
use holdfast_pmem::images::{Image, Images, Options};
use holdfast_pmem::record::Event;
use holdfast_pmem::{Medium, Recorder};
use holdfast_pool::format::LANES;
use holdfast_pool::format::superblock::Consistency;
use holdfast_service::CreateOptions;
use std::time::Instant;

/// Bytes of data of a pool: the smallest that there is.
const SIZE: u64 = 16 << 20;

/// What to do with a story.
#[derive(Clone, Copy)]
pub struct Plan {
    pub mode: Mode,
    pub medium: Medium,
    /// Bytes of each lane of the journal.
    pub lane_len: u64,
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
    /// A lane of the journal came to its end and went on at its beginning.
    pub came_around: bool,
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
    dir.set_lane_len(plan.lane_len);
    let log = Recorder::new();
    let watches = dir.watch(&log);
    let open = || Stack::start(stack::recovered(dir.path(), plan.medium).unwrap()).unwrap();
    let mut stack = open();
    let mut model = Model::new(plan.mode, plan.medium);
    for op in before {
        stack.call(op).unwrap();
        model.apply(op);
    }
    if plan.medium == Medium::File {
        stack.end().unwrap();
        model.apply(&Op::Rejoin);
        dir.make_stale();
        stack = open();
        stack.call(&Op::Checkpoint).unwrap();
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
    assert!(plan.medium != Medium::File || stay_in_stale(&events));
    drop(watches);
    stack.end().unwrap();
    stack::check(dir.path(), plan.medium).unwrap();
    let ops = ops.to_vec();
    Story {
        base,
        log: events,
        states,
        ops,
    }
}

/// Whether only blocks were used that had bytes of others in them.
fn stay_in_stale(log: &[Event]) -> bool {
    log.iter().all(|event| match event {
        Event::Store { region, off, .. } => *region != DATA as u32 || *off < STALE_LEN,
        _ => true,
    })
}

/// Whether a lane is written at its beginning after its end.
fn came_around(log: &[Event], lane_len: u64) -> bool {
    let mut last = [0; LANES];
    log.iter().any(|event| match event {
        Event::Store { region, off, .. } if *region == JOURNAL as u32 => {
            let (lane, at) = ((off / lane_len) as usize, off % lane_len);
            std::mem::replace(&mut last[lane], at) > at + lane_len / 2
        }
        _ => false,
    })
}

impl Story {
    /// What may be there after `acked` operations returned and one more had `begun`.
    fn allowed(&self, acked: usize, begun: usize) -> Vec<Model> {
        let is_lazy = self.states[acked].is_lazy();
        let flushed = || self.ops[..acked].iter().rposition(Op::flushes);
        let floor = match is_lazy {
            true => flushed().map_or(0, |i| i + 1),
            false => acked,
        };
        let mut allowed = Vec::new();
        for at in floor..=begun {
            let mut here = vec![self.states[at].clone()];
            if at < begun {
                here.extend(self.states[at].during(&self.ops[at]));
            }
            let after = self.states[at + 1..=begun].iter();
            for later in after.filter(|_| is_lazy) {
                here.iter_mut().for_each(|model| model.add_later(later));
            }
            allowed.extend(here);
        }
        allowed
    }
}

/// How the images of a story are looked at.
#[derive(Clone, Copy)]
struct View<'b> {
    base: &'b Base,
    medium: Medium,
    /// Ranges of keys are erased.
    ranges: bool,
    /// The machine was started again.
    rebooted: bool,
}

impl<'b> View<'b> {
    fn new(base: &'b Base, medium: Medium, ops: &[Op]) -> View<'b> {
        let rebooted = medium == Medium::File;
        let is_range = |change: &Change| matches!(change, Change::Range(..));
        let has_range = |op: &Op| matches!(op, Op::Change(all) if all.iter().any(is_range));
        View {
            base,
            medium,
            ranges: ops.iter().any(has_range),
            rebooted,
        }
    }

    fn lay(&self, image: &Image<'_>, dir: &Dir) {
        self.base.lay(image, dir);
        if self.rebooted {
            dir.reboot();
        }
    }

    /// Recovers the image in `dir`, judges it and uses it.
    fn judge(&self, image: &Image<'_>, dir: &Dir, allowed: &[Model]) -> Result<(), String> {
        self.lay(image, dir);
        let engine = stack::recovered(dir.path(), self.medium)?;
        stack::check(dir.path(), self.medium).map_err(|e| format!("after recovery: {e}"))?;
        let mut stack = Stack::start(engine)?;
        values::check_index(stack.client(), self.ranges)?;
        // Looking may change times, which the service has to know before somebody looks again.
        stack.serve(quotas::check)?;
        stack.step()?;
        let view = stack.view()?;
        let wrong = allowed.iter().map(|m| judge::compare_all(m, &view).err());
        let Some(errors) = wrong.collect::<Option<Vec<String>>>() else {
            stack.complete_quotas()?;
            stack.use_it(&view.now)?;
            stack.end()?;
            let checked = stack::check(dir.path(), self.medium);
            return checked.map_err(|e| format!("after use: {e}"));
        };
        Err(format!("not allowed: {errors:?}"))
    }
}

/// Recovers the image under the recorder: what was there before, and the log.
fn recover(view: &View<'_>, image: &Image<'_>) -> Result<(Base, Vec<Event>), String> {
    let dir = Dir::new("again");
    view.lay(image, &dir);
    let base = Base::new(dir.read());
    let log = Recorder::new();
    let watches = dir.watch(&log);
    let done = stack::recovered(dir.path(), view.medium).map(drop);
    drop(watches);
    done.map(|()| (base, log.take()))
}

/// Judges every image of the recovery of an image.
fn cut_recovery(
    view: &View<'_>,
    image: &Image<'_>,
    options: Options,
    allowed: &[Model],
    figures: &mut Figures,
) {
    let (second, events) = match recover(view, image) {
        Ok(recovered) => recovered,
        Err(why) => return figures.note(image, Err(why)),
    };
    let bases: Vec<&[u8]> = second.full.iter().map(Vec::as_slice).collect();
    let dir = Dir::new("again");
    let view = View {
        base: &second,
        ..*view
    };
    for twice in Images::new(&bases, &events, options) {
        figures.again += 1;
        let done = view.judge(&twice, &dir, allowed);
        let done = done.map_err(|e| format!("recovery of {image:?}: {e}"));
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

/// What is wrong in a run.
#[derive(Clone, Copy)]
pub enum Fault {
    /// These events never happened.
    LeftOut(Mutation),
    /// These events of recovery never happened.
    LeftOutAgain(Mutation),
    /// Recovery does not learn that power was lost.
    NoReboot,
    /// It is among the operations.
    Planted,
}

fn without(log: &[Event], mutation: Mutation) -> Vec<Event> {
    let kept = (0..log.len()).filter(|i| !mutation(log, *i));
    kept.map(|i| log[i].clone()).collect()
}

/// What the first image says that is found wrong by an error with `sign` in it.
pub fn run_faulty(
    plan: &Plan,
    (before, ops): (&[Op], &[Op]),
    fault: Fault,
    sign: &str,
) -> Option<String> {
    let mut story = record(plan, before, ops);
    if let Fault::LeftOut(mutation) = fault {
        let log = without(&story.log, mutation);
        assert!(log.len() < story.log.len(), "the mutation changes nothing");
        story.log = log;
    }
    let bases: Vec<&[u8]> = story.base.full.iter().map(Vec::as_slice).collect();
    let dir = Dir::new("faulty");
    let mut view = View::new(&story.base, plan.medium, ops);
    view.rebooted &= !matches!(fault, Fault::NoReboot);
    Images::new(&bases, &story.log, plan.images).find_map(|image| {
        let allowed = story.allowed(image.acked().count(), image.begun().count());
        let wrong = match fault {
            // Only what is there in any case makes the images of a recovery worth their time.
            Fault::LeftOutAgain(_) if image.acked().count() < ops.len() => None,
            Fault::LeftOutAgain(mutation) => {
                judge_again(&view, &image, (plan, mutation), (&allowed, sign))
            }
            _ => view.judge(&image, &dir, &allowed).err(),
        };
        wrong.filter(|e| e.contains(sign))
    })
}

/// What is wrong with the first image with that sign of a recovery that left something out.
fn judge_again(
    view: &View<'_>,
    image: &Image<'_>,
    (plan, mutation): (&Plan, Mutation),
    (allowed, sign): (&[Model], &str),
) -> Option<String> {
    let (base, log) = recover(view, image).ok()?;
    let log = without(&log, mutation);
    let bases: Vec<&[u8]> = base.full.iter().map(Vec::as_slice).collect();
    let (dir, view) = (
        Dir::new("again"),
        View {
            base: &base,
            ..*view
        },
    );
    let mut images = Images::new(&bases, &log, plan.images_again);
    images.find_map(|twice| {
        let wrong = view.judge(&twice, &dir, allowed).err();
        wrong.filter(|e| e.contains(sign))
    })
}

/// All images of a story.
pub fn run(name: &str, plan: &Plan, before: &[Op], ops: &[Op]) -> Figures {
    let started = Instant::now();
    let story = record(plan, before, ops);
    let bases: Vec<&[u8]> = story.base.full.iter().map(Vec::as_slice).collect();
    let dir = Dir::new("image");
    let view = View::new(&story.base, plan.medium, ops);
    let mut figures = Figures {
        came_around: came_around(&story.log, plan.lane_len),
        ..Figures::default()
    };
    for image in Images::new(&bases, &story.log, plan.images) {
        let (acked, begun) = (image.acked().count(), image.begun().count());
        let allowed = story.allowed(acked, begun);
        let done = view.judge(&image, &dir, &allowed);
        let done = done.map_err(|e| format!("operation {acked} {:?}: {e}", story.ops.get(acked)));
        figures.note(&image, done);
        figures.images += 1;
        if figures.images % plan.again_every == 0 {
            cut_recovery(&view, &image, plan.images_again, &allowed, &mut figures);
        }
    }
    println!(
        "{name} {:?} {:?} {:?} step {}: {} images, {} of recoveries, {} failures, {:.1} s",
        plan.medium,
        plan.images.model,
        plan.mode,
        plan.step_every,
        figures.images,
        figures.again,
        figures.failures,
        started.elapsed().as_secs_f64()
    );
    figures
}
