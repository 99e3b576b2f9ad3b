//! Telling clients how far the trees are.
//!
//! Invariant: `applied_seq` is published after the commit that makes it true; a lane's tail after
//! that.

use super::Session;
use crate::journal::engine::Engine;
use crate::journal::progress::Progress;
use holdfast_pool::apply::count;
use holdfast_pool::layout::{DIRENTS, TreeId, VALUES};
use std::sync::atomic::Ordering::*;

impl Session {
    /// Blocks that are not handed out.
    pub fn publish_free(&self, engine: &Engine) {
        let free = &self.memory.header().free_blocks;
        free.store(engine.store.blocks_left(), Relaxed);
    }

    /// Gives the roots that there are to the views that want just these.
    pub fn serve_views(&self, engine: &Engine) {
        let superblock = engine.store.pool.superblock();
        let packed = |tree: TreeId| {
            let root = &superblock.roots[usize::from(tree)];
            [root.addr, root.keys << 8 | u64::from(root.height)]
        };
        let ([v, of_v], [n, of_n]) = (packed(VALUES), packed(DIRENTS));
        let have = (
            engine.journal.newest_applied(),
            engine.journal.applied_seq(),
        );
        self.memory
            .serve_views(have, superblock.seq, [v, of_v, n, of_n]);
    }

    /// Tells clients how far the trees are.
    pub fn publish(&mut self, engine: &mut Engine) {
        // Before anybody learns that the trees have them.
        if let Err(e) = self.tend_quotas(engine, false) {
            self.give_up(&e.to_string(), e.errno());
        }
        self.untold = false;
        self.told = engine.passed();
        self.serve_views(engine);
        let header = self.memory.header();
        for (index, (done, passed)) in engine.journal.done.iter().zip(self.told).enumerate() {
            if let Some(lane) = self.memory.lane(index) {
                lane.applied.store(done.start, Release);
                lane.tail.store(passed.start, Release);
            }
        }
        let superblock = engine.store.pool.superblock();
        self.publish_free(engine);
        header
            .total_blocks
            .store(engine.store.pool.data_space().len(), Relaxed);
        header
            .objects
            .store(count::objects(&superblock.counts), Relaxed);
        header.trees_full.store(engine.store.trees_full(), Relaxed);
        header.ino_end.store(engine.store.ino_end(), Release);
        header.epoch.store(superblock.epoch, Release);
        header
            .applied_seq
            .store(engine.journal.applied_seq(), Release);
        self.handout.note_applied(engine.journal.applied_seq());
        self.memory.tick();
    }

    /// Before anybody learns that the record is behind us.
    pub fn tell_refused(&self, progress: &Progress) {
        if let Some((seq, why)) = &progress.refused {
            let header = self.memory.header();
            let errno = why.errno().unsigned_abs();
            header.refused_errno.store(errno, Relaxed);
            header.refused_seq.store(*seq, Release);
        }
    }
}
