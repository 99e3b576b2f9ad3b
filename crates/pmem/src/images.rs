//! Every image that a power cut may leave, from a recorded log.
//!
//! What always holds here:
//! - Each image is one that the hardware of the chosen [`Model`] could leave at that point of the
//!   log; if too many exist, those given are a fixed selection for a given seed.
//! - Images are given at the end of each epoch (before each sync, and before each fence unless only
//!   syncs make durable), after each acknowledgement, and at the end. Earlier moments of an epoch
//!   leave the same images: what is not yet stored then is one of the choices of what is lost
//!   later.
//! - No image is given twice with the same number of acknowledgements. More acknowledgements make
//!   an image harder to accept, so a repeat with more is given again.

mod plan;
mod state;

use crate::record::{Event, Mark};
use crate::{Error, Medium, Region};
use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use plan::Plan;
use state::{Key, Overlay, State};

/// What may be lost, and in which pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Model {
    /// x86 with persistent memory: of each 64-byte line any prefix of its cached stores; of
    /// stores around the cache any 8-byte words; durable by flush and fence.
    Lines,
    /// Harsher: every 8-byte word on its own, cached or not; durable by flush and fence.
    Words,
    /// An ordinary file: of each 4 KiB page any prefix of its stores, since the kernel may write
    /// it back at any moment; durable by sync.
    Pages,
    /// As `Pages`, with each 512 bytes on their own.
    Sectors,
    /// Only processes die, or CPU caches survive: every store done is kept, in program order.
    /// A long store may have been done in part.
    Death,
}

impl Model {
    pub(crate) fn unit(self) -> usize {
        match self {
            Model::Lines | Model::Death => 64,
            Model::Words => 8,
            Model::Pages => 4096,
            Model::Sectors => 512,
        }
    }

    /// A store is done in pieces of this size, in order: a longer one may be kept in part.
    pub(crate) fn atom(self) -> usize {
        match self {
            Model::Lines | Model::Words => 8,
            Model::Pages | Model::Sectors | Model::Death => 64,
        }
    }

    pub(crate) fn by_sync(self) -> bool {
        matches!(self, Model::Pages | Model::Sectors)
    }
}

/// How many images to give. The same options and log give the same images.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub model: Model,
    /// All combinations are given when there are at most this many at a point.
    pub exhaustive: u64,
    /// Otherwise: at most this many images of each systematic kind.
    pub singles: u64,
    /// and this many images with just two pieces kept,
    pub pairs: u64,
    /// and this many drawn at random.
    pub random: u64,
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Options {
        let model = Model::Lines;
        Options {
            model,
            exhaustive: 4096,
            singles: 2048,
            pairs: 512,
            random: 256,
            seed: 1,
        }
    }
}

impl Options {
    pub fn new(model: Model) -> Options {
        Options {
            model,
            ..Options::default()
        }
    }
}

/// One possible state of all regions after a power cut.
pub struct Image<'a> {
    bases: &'a [&'a [u8]],
    durable: Arc<Overlay>,
    pending: Vec<(Key, Vec<u8>)>,
    before: &'a [Event],
    unit: usize,
    kept: Vec<(Key, usize)>,
}

impl<'a> Image<'a> {
    /// The log up to the power cut.
    pub fn before(&self) -> &'a [Event] {
        self.before
    }

    /// Operations that had returned: what they promised must be in the image.
    pub fn acked(&self) -> impl Iterator<Item = u64> + 'a {
        marks(self.before, Mark::Ack)
    }

    /// Operations that had begun, whether they had returned or not.
    pub fn begun(&self) -> impl Iterator<Item = u64> + 'a {
        marks(self.before, Mark::Begin)
    }

    /// What differs from the base images: (region, offset, bytes); a later one wins.
    pub fn patches(&self) -> impl Iterator<Item = (u32, u64, &[u8])> {
        let unit = self.unit as u64;
        let durable = self.durable.iter().map(|(k, d)| (*k, d));
        let pending = self.pending.iter().map(|(k, d)| (*k, d));
        durable
            .chain(pending)
            .map(move |(k, d)| (k.region, k.unit * unit, d.as_slice()))
    }

    /// The whole of one region.
    pub fn full(&self, region: u32) -> Vec<u8> {
        let mut image = Vec::new();
        self.full_into(region, &mut image);
        image
    }

    /// One region as a fresh mapping that starts as this image, to run recovery on.
    pub fn open(&self, region: u32, medium: Medium) -> Result<Region, Error> {
        Region::from_image(&self.full(region), medium)
    }

    /// The whole of one region, in a buffer that can be used again.
    pub fn full_into(&self, region: u32, image: &mut Vec<u8>) {
        image.clear();
        image.extend_from_slice(self.bases.get(region as usize).unwrap_or(&[].as_slice()));
        let all = self.patches().filter(|(r, ..)| *r == region);
        for (_, off, data) in all {
            let (off, end) = (off as usize, off as usize + data.len());
            if image.len() < end {
                image.resize(end, 0);
            }
            if let Some(room) = image.get_mut(off..end) {
                room.copy_from_slice(data);
            }
        }
    }
}

impl fmt::Debug for Image<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "power cut after {} events; pending pieces kept:",
            self.before.len()
        )?;
        for (key, n) in self.kept.iter().filter(|(_, n)| *n > 0) {
            write!(f, " {}:{:#x}+{n}", key.region, key.unit * self.unit as u64)?;
        }
        Ok(())
    }
}

/// Where a store cut short may stop: at vectors when it is short, at coarser steps when long.
fn part_end(done: usize, len: usize) -> usize {
    let step = match len {
        0..=256 => 16,
        257..=4096 => 64,
        _ => 512,
    };
    (done + step).min(len)
}

fn marks(events: &[Event], wanted: Mark) -> impl Iterator<Item = u64> {
    events.iter().filter_map(move |e| match e {
        Event::Mark { op, mark, .. } if *mark == wanted => Some(*op),
        _ => None,
    })
}

/// Gives the images of a log one after the other.
pub struct Images<'a> {
    bases: &'a [&'a [u8]],
    events: &'a [Event],
    options: Options,
    state: State<'a>,
    /// Events that `state` has seen.
    at: usize,
    /// Bytes of the next event that `state` has seen, where stores are taken in parts.
    part: usize,
    acks: u64,
    /// True when `state` or `acks` changed since images were last given.
    fresh: bool,
    finished: bool,
    plan: Option<Plan>,
    seen: BTreeSet<u128>,
}

impl<'a> Images<'a> {
    /// `bases` are the regions before the log, by region number; what lies past the end of one
    /// is taken as zero.
    pub fn new(bases: &'a [&'a [u8]], events: &'a [Event], options: Options) -> Images<'a> {
        Images {
            bases,
            events,
            options,
            state: State::new(bases, options.model),
            at: 0,
            part: 0,
            acks: 0,
            fresh: true,
            finished: false,
            plan: None,
            seen: BTreeSet::new(),
        }
    }

    /// Moves to the next point at which power may be cut; false after the last.
    fn next_point(&mut self) -> bool {
        while let Some(event) = self.events.get(self.at) {
            let by_parts = self.options.model == Model::Death;
            let stop = match event {
                // Where only syncs make durable a fence ends nothing.
                Event::Fence { .. } => !by_parts && !self.options.model.by_sync(),
                Event::Sync { .. } => !by_parts,
                Event::Store { .. } => by_parts,
                Event::Flush { .. } | Event::Mark { .. } => false,
            };
            if stop && self.fresh {
                self.open_point();
                return true;
            }
            match event {
                Event::Store { data, .. } if by_parts && self.part < data.len() => {
                    let end = part_end(self.part, data.len());
                    self.state.apply_part(event, self.part..end);
                    (self.part, self.fresh) = (end, true);
                    continue;
                }
                Event::Store { .. } => self.fresh = true,
                _ => {}
            }
            (self.at, self.part) = (self.at + 1, 0);
            self.state.apply(event);
            if matches!(
                event,
                Event::Mark {
                    mark: Mark::Ack,
                    ..
                }
            ) {
                self.acks += 1;
                self.open_point();
                return true;
            }
        }
        let last = !self.finished;
        self.finished = true;
        if last {
            self.open_point();
        }
        last
    }

    fn open_point(&mut self) {
        self.fresh = false;
        self.plan = Some(Plan::new(
            self.state.choices(),
            self.options,
            self.at as u64,
        ));
    }

    /// The image that keeps `versions` of the choices, or `None` when it was given before.
    fn image(&mut self, versions: &[usize]) -> Option<Image<'a>> {
        let choices = self.plan.as_ref()?.choices();
        let (pending, hash) = self.state.contents(choices, versions);
        if !self.seen.insert(state::mix(hash, self.acks)) {
            return None;
        }
        let kept = choices
            .iter()
            .zip(versions)
            .map(|(c, v)| (c.key, v - c.low))
            .collect();
        Some(Image {
            bases: self.bases,
            durable: self.state.overlay(),
            pending,
            before: self.events.get(..self.at).unwrap_or(self.events),
            unit: self.options.model.unit(),
            kept,
        })
    }
}

impl<'a> Iterator for Images<'a> {
    type Item = Image<'a>;

    fn next(&mut self) -> Option<Image<'a>> {
        loop {
            match self.plan.as_mut().and_then(Plan::next) {
                Some(versions) => {
                    if let Some(image) = self.image(&versions) {
                        return Some(image);
                    }
                }
                None if self.next_point() => {}
                None => return None,
            }
        }
    }
}

#[cfg(test)]
mod tests;
