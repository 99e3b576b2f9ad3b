//! Patching objects: at start-up all that are mapped, later each one as it is mapped.
//!
//! Invariants: an object is patched before any of its code that we know of runs; text is never
//! writable and executable at once; a window is replaced only if its live bytes are those of the
//! table. `BLOCKS` only gains entries that are complete; a block whose object has been replaced is
//! forgotten, but its memory stays (a thread may still be in it).
use crate::cache::{Cache, Key};
use crate::calls;
use crate::dispatch;
use crate::early::{self, Early};
use crate::elf::Elf;
use crate::entry;
use crate::env::Env;
use crate::hook::{Call, Verdict};
use crate::image::{self, Identity, Image, Unused};
use crate::lock::Lock;
use crate::maps::{self, Region};
use crate::scan;
use crate::signals;
use crate::sys::{self, PROT_EXEC, PROT_READ, PROT_WRITE, nr};
use crate::table::{Site, Table, Unpatchable};
use crate::tramp::{self, Slot};
use alloc::vec::Vec;
use core::cell::UnsafeCell;
use core::mem::size_of;
use core::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// Trampolines lie this near to the text: less than 2 GiB, with room for the object's data.
const REACH: usize = (2 << 30) - (64 << 20);
const PAGE: usize = 4096;
const BLOCKS_MAX: usize = 512;
const JMP: u8 = 0xe9;
const S_IFMT: u32 = 0o170_000;
const S_IFREG: u32 = 0o100_000;
/// How often protecting memory as executable may make us read the mappings.
const LOOKS_MAX: u32 = 64;

/// The trampolines of one executable segment.
struct Block {
    text: (AtomicUsize, AtomicUsize),
    code: (AtomicUsize, AtomicUsize),
    slots: AtomicUsize,
    count: AtomicUsize,
}

static BLOCKS: [Block; BLOCKS_MAX] = [const {
    Block {
        text: (AtomicUsize::new(0), AtomicUsize::new(0)),
        code: (AtomicUsize::new(0), AtomicUsize::new(0)),
        slots: AtomicUsize::new(0),
        count: AtomicUsize::new(0),
    }
}; BLOCKS_MAX];
static BLOCK_COUNT: AtomicUsize = AtomicUsize::new(0);
static LOCK: Lock = Lock::new();
static LOOKS: AtomicU32 = AtomicU32::new(0);

/// In the child after fork.
pub fn forked() {
    LOCK.reopen();
}

/// Figures for reports.
pub static PATCHED: AtomicU32 = AtomicU32::new(0);
pub static UNPATCHABLE: AtomicU32 = AtomicU32::new(0);

/// Where tables are kept; set once at start-up, before any hook can run.
struct CacheCell(UnsafeCell<Option<Cache>>);
// SAFETY: written once by `init`, before a site is patched or a thread can be in a hook.
unsafe impl Sync for CacheCell {}
static CACHE: CacheCell = CacheCell(UnsafeCell::new(None));

fn cache() -> Option<&'static Cache> {
    // SAFETY: only read after `init` has written it.
    unsafe { (*CACHE.0.get()).as_ref() }
}

impl Block {
    fn holds(&self, ip: usize) -> bool {
        (self.code.0.load(Ordering::Acquire)..self.code.1.load(Ordering::Acquire)).contains(&ip)
    }

    fn slots(&self) -> &'static [Slot] {
        let (at, count) = (
            self.slots.load(Ordering::Acquire),
            self.count.load(Ordering::Acquire),
        );
        if at == 0 {
            return &[];
        }
        // SAFETY: published by `publish` after the slots were written; never unmapped.
        unsafe { core::slice::from_raw_parts(at as *const Slot, count) }
    }
}

fn blocks() -> &'static [Block] {
    &BLOCKS[..BLOCK_COUNT.load(Ordering::Acquire).min(BLOCKS_MAX)]
}

/// The trampoline that `ip` is in, and where its block is.
fn slot_of(ip: usize) -> Option<(&'static Slot, usize)> {
    let block = blocks().iter().find(|b| b.holds(ip))?;
    let base = block.code.0.load(Ordering::Acquire);
    let slots = block.slots();
    let at = ip - base;
    let slot = slots.get(
        slots
            .partition_point(|s| s.start as usize <= at)
            .checked_sub(1)?,
    )?;
    (at < slot.start as usize + usize::from(slot.len)).then_some((slot, base))
}

/// For an address in a trampoline: the place in the program that it stands for.
pub fn original_of(ip: usize) -> Option<usize> {
    slot_of(ip).map(|(slot, base)| slot.original(base, ip))
}

/// Whether the trampoline at `ip` can report after its native call.
pub fn reports(ip: usize) -> bool {
    slot_of(ip).is_some_and(|(slot, _)| slot.reports())
}

/// Patches everything that is mapped now.
pub fn init(env: &Env) {
    // SAFETY: nothing is patched yet, so no hook runs; start-up is single-threaded.
    unsafe { *CACHE.0.get() = Some(Cache::locate(env)) };
    let _held = LOCK.hold();
    if let Some(early) = early::find(env) {
        signals::set_text(early.own, early.vdso);
        patch_loader(&early);
        let program = &early.program;
        patch_object(
            Room::Below(lowest_of(program)),
            program,
            Identity::of_program,
        );
        return;
    }
    let regions = maps::read();
    signals::set_text(own_region(&regions), vdso_region(&regions));
    for (i, first) in regions.iter().enumerate() {
        let is_own = is_own_file(&regions, first);
        if first.offset == 0 && first.ino != 0 && first.read && !is_own {
            patch_mapped(&regions, i);
        }
    }
}

fn own_region(regions: &[Region]) -> (usize, usize) {
    own_of(regions).map_or((0, 0), |own| (own.start, own.end))
}

fn own_of(regions: &[Region]) -> Option<&Region> {
    let ip = entry::entry_address();
    regions.iter().find(|r| (r.start..r.end).contains(&ip))
}

fn is_own_file(regions: &[Region], region: &Region) -> bool {
    own_of(regions).is_some_and(|own| region.ino == own.ino && region.dev == own.dev)
}

fn vdso_region(regions: &[Region]) -> (usize, usize) {
    regions
        .iter()
        .find(|r| r.vdso)
        .map_or((0, 0), |r| (r.start, r.end))
}

/// Where an object begins.
fn lowest_of(elf: &Elf) -> usize {
    let lowest = elf.loads.iter().map(|l| l.vaddr).min().unwrap_or(0) as usize;
    elf.bias().wrapping_add(lowest & !(PAGE - 1))
}

/// The loader, by its image if there is one.
fn patch_loader(early: &Early) -> Option<()> {
    let (program, loader) = (&early.program, &early.loader);
    let [text] = loader.mapped_text()[..] else {
        patch_object(Room::Below(lowest_of(loader)), loader, || None);
        return Some(());
    };
    let stat = program.interpreter().and_then(sys::stat_path);
    let of = stat.and_then(|stat| Identity::of_object(&stat, loader));
    let cache = cache();
    let unused = match (cache, &of) {
        (Some(cache), Some(of)) => use_image(cache, of, text).err(),
        _ => Some(Unused::Unmappable),
    };
    let Some(unused) = unused else {
        return Some(());
    };
    let room = Room::Above(loader_end(loader));
    let image = patch_text(
        room,
        text.0,
        text.1,
        &table_for(loader, || of)?,
        loader.bias(),
    );
    let above = |block: image::Block| block.base == room_above(loader_end(loader));
    if unused == Unused::Absent && image.block.is_some_and(above) {
        image::keep(cache?, &of?, text, &image);
    }
    Some(())
}

/// Behind everything of the loader. The kernel maps it first, at the top: up to the stack nothing
/// is there.
fn loader_end(loader: &Elf) -> usize {
    let ends = loader.loads.iter().map(|l| l.vaddr + l.memsz);
    loader.bias().wrapping_add(ends.max().unwrap_or(0) as usize)
}

/// Patches an object that is mapped; `of` says of which file.
fn patch_object(room: Room<'_>, elf: &Elf, of: impl FnOnce() -> Option<Identity>) -> Option<()> {
    let table = table_for(elf, of)?;
    for (start, end) in elf.mapped_text() {
        patch_text(room, start, end, &table, elf.bias());
    }
    Some(())
}

/// Patches the object whose first mapping is `regions[first]`.
fn patch_mapped(regions: &[Region], first: usize) -> Option<()> {
    let head = &regions[first];
    let same = |r: &&Region| r.ino == head.ino && r.dev == head.dev;
    let parts = regions[first..]
        .iter()
        .take_while(|r| same(r) || r.ino == 0)
        .filter(same);
    let text: Vec<&Region> = parts.filter(|r| r.exec && !r.write).collect();
    let bias_free = text.first()?;
    if is_patched(bias_free.start) {
        return None;
    }
    // SAFETY: the loader has mapped the object, and it stays during start-up.
    let elf = unsafe {
        let bytes = core::slice::from_raw_parts(head.start as *const u8, head.end - head.start);
        Elf::from_memory(bytes)
    }?;
    let table = table_for(&elf, || None)?;
    for region in text {
        patch_text(
            Room::Among(regions),
            region.start,
            region.end,
            &table,
            elf.bias(),
        );
    }
    Some(())
}

/// The table of an object: kept, or made now. `of` says of which file the object is, where that is
/// known.
fn table_for(elf: &Elf, of: impl FnOnce() -> Option<Identity>) -> Option<Table> {
    let cache = cache()?;
    let file = || Some(Key::File(of().filter(Identity::is_settled)?.name()));
    let quick = Key::of_build(elf).or_else(file);
    if let Some(table) = quick.as_ref().and_then(|key| cache.load(key)) {
        return Some(table);
    }
    let key = Key::of_build(elf).unwrap_or_else(|| Key::of_text(elf));
    let table = cache.load(&key).unwrap_or_else(|| {
        let table = scanned(elf);
        cache.store(&key, &table);
        table
    });
    if let Some(key @ Key::File(_)) = &quick {
        cache.store(key, &table);
    }
    Some(table)
}

fn scanned(elf: &Elf) -> Table {
    match scan::has_candidates(elf) {
        true => scan::scan(elf),
        false => Table::default(),
    }
}

fn is_patched(addr: usize) -> bool {
    let inside = |b: &Block| {
        (b.text.0.load(Ordering::Acquire)..b.text.1.load(Ordering::Acquire)).contains(&addr)
    };
    blocks().iter().any(inside)
}

/// Forgets the objects whose text was in `start..end`.
fn forget(start: usize, end: usize) {
    for block in blocks() {
        let text = block.text.0.load(Ordering::Acquire);
        if text < end && block.text.1.load(Ordering::Acquire) > start {
            block.text.0.store(0, Ordering::Release);
            block.text.1.store(0, Ordering::Release);
        }
    }
}

/// Patches the sites of `table` in the mapped text `start..end`; what came of it.
fn patch_text(room: Room<'_>, start: usize, end: usize, table: &Table, bias: usize) -> Image {
    let inside = |site: &&Site| {
        let at = bias.wrapping_add(site.addr as usize);
        at >= start && at + usize::from(site.len) <= end
    };
    let sites: Vec<&Site> = table.sites.iter().filter(inside).collect();
    let block = match sites.is_empty() {
        true => None,
        false => patch_while_writable(room, (start, end), &sites, bias),
    };
    let done = block.map_or(0, |block| block.count);
    let left = (sites.len() - done) as u32;
    let image = Image {
        block,
        unpatchable: Unpatchable {
            all: table.unpatchable.all + left,
            of_mappings: table.unpatchable.of_mappings + left,
        },
    };
    count(&image);
    image
}

fn count(image: &Image) {
    let done = image.block.map_or(0, |block| block.count);
    PATCHED.fetch_add(done as u32, Ordering::Relaxed);
    if image.unpatchable.all > 0 {
        UNPATCHABLE.fetch_add(image.unpatchable.all, Ordering::Relaxed);
        dispatch::on_unpatchable(image.unpatchable);
    }
}

/// The text is writable, and then not executable, only in here.
fn patch_while_writable(
    room: Room<'_>,
    text: (usize, usize),
    sites: &[&Site],
    bias: usize,
) -> Option<image::Block> {
    let len = text.1 - text.0;
    protect(text.0, len, PROT_READ | PROT_WRITE)?;
    populate(sites, bias);
    let live = |site: &&&Site| is_live(site, bias.wrapping_add(site.addr as usize));
    let live: Vec<&Site> = sites.iter().filter(live).copied().collect();
    let done = patch_sites(room, text, &live, bias);
    protect(text.0, len, PROT_READ | PROT_EXEC)?;
    done
}

/// Gets the pages that are about to be written in few calls instead of a fault for each. Only
/// speed depends on it: an older kernel refuses.
fn populate(sites: &[&Site], bias: usize) {
    const MADV_POPULATE_WRITE: usize = 23;
    let mut run = (0, 0);
    let flush = |run: (usize, usize)| {
        if run.1 > run.0 {
            let args = [run.0, run.1 - run.0, MADV_POPULATE_WRITE, 0, 0, 0];
            // SAFETY: faults in pages of a private mapping; their content stays.
            unsafe { sys::raw(nr::MADVISE, args) };
        }
    };
    for site in sites {
        let at = bias.wrapping_add(site.addr as usize);
        let page = at & !(PAGE - 1);
        let end = (at + usize::from(site.len) + PAGE - 1) & !(PAGE - 1);
        if page > run.1 + PAGE {
            flush(run);
            run = (page, end);
        } else {
            run.1 = end;
        }
    }
    flush(run);
}

fn is_live(site: &Site, at: usize) -> bool {
    // SAFETY: inside a mapped, readable text region.
    let live = unsafe { core::slice::from_raw_parts(at as *const u8, usize::from(site.len)) };
    live == site.bytes()
}

/// A block of trampolines while it is being written.
struct Draft {
    base: usize,
    len: usize,
    used: usize,
    slots: Vec<Slot>,
}

fn patch_sites(
    room: Room<'_>,
    text: (usize, usize),
    sites: &[&Site],
    bias: usize,
) -> Option<image::Block> {
    let code = tramp::GATES + sites.len() * tramp::LEN_MAX;
    let len = (code + sites.len() * size_of::<Slot>() + PAGE) & !(PAGE - 1);
    let base = place_block(room, text.0, text.1, len)?;
    let mut draft = Draft {
        base,
        len,
        used: tramp::GATES,
        slots: Vec::with_capacity(sites.len()),
    };
    // SAFETY: a fresh mapping of ours, `len` bytes long.
    let out = unsafe { core::slice::from_raw_parts_mut(base as *mut u8, len) };
    out[..tramp::GATES].copy_from_slice(&tramp::gates());
    for site in sites {
        let at = base + draft.used;
        let room = &mut out[draft.used..draft.used + tramp::LEN_MAX];
        if let Some(slot) = tramp::write(site, bias, room, at, base) {
            draft.used = (draft.used + usize::from(slot.len) + 7) & !7;
            draft.slots.push(slot);
        }
    }
    let block = seal(&draft, out)?;
    register(&block, text)?;
    redirect(&draft);
    Some(block)
}

/// Where a block of trampolines may go.
#[derive(Clone, Copy)]
enum Room<'a> {
    /// Between these mappings.
    Among(&'a [Region]),
    /// Right below this address, where an object has just been mapped; the mappings are read only
    /// if that is taken.
    Below(usize),
    /// Not far above this address, else as `Below`.
    Above(usize),
}

/// Where a block goes above an object that ends at `end`: a few pages stay free for what reads past
/// its end.
fn room_above(end: usize) -> usize {
    end.next_multiple_of(PAGE) + 16 * PAGE
}

/// Memory for trampolines near `start..end`.
fn place_block(room: Room<'_>, start: usize, end: usize, len: usize) -> Option<usize> {
    let regions = match room {
        Room::Among(regions) => regions,
        Room::Below(base) => match place_below(base, end, len) {
            Some(at) => return Some(at),
            None => &maps::read(),
        },
        Room::Above(above) => match place_at(room_above(above), len) {
            Some(at) => return Some(at),
            None => &maps::read(),
        },
    };
    let taken = blocks()
        .iter()
        .filter(|b| b.code.1.load(Ordering::Relaxed) != 0);
    let mut hint = maps::gap_near(regions, start, end, len, REACH)?;
    // Blocks made since `regions` was read: step over those that are in the way.
    for block in taken {
        let low = block.code.0.load(Ordering::Relaxed);
        let high = block.code.1.load(Ordering::Relaxed);
        if hint < high && hint + len > low {
            hint = low.checked_sub(len)? & !(PAGE - 1);
        }
    }
    for _ in 0..64 {
        let placed = sys::map_anon(hint, len, PROT_READ | PROT_WRITE, sys::MAP_FIXED_NOREPLACE);
        match placed {
            Some(at) if at == hint => return Some(at),
            Some(at) => {
                // A kernel without MAP_FIXED_NOREPLACE took it for a hint.
                let near = at.abs_diff(start).max(at.abs_diff(end)) < REACH - len;
                if near {
                    return Some(at);
                }
                // SAFETY: just mapped, unused.
                unsafe { sys::unmap(at, len) };
            }
            None => {}
        }
        hint = hint.checked_sub(len.max(1 << 20))? & !(PAGE - 1);
        if end - hint > REACH {
            return None;
        }
    }
    None
}

fn place_below(base: usize, end: usize, len: usize) -> Option<usize> {
    place_at(base.checked_sub(len).filter(|at| end - at < REACH)?, len)
}

fn place_at(hint: usize, len: usize) -> Option<usize> {
    let at = sys::map_anon(hint, len, PROT_READ | PROT_WRITE, sys::MAP_FIXED_NOREPLACE)?;
    if at != hint {
        // SAFETY: just mapped, unused; the kernel does not know MAP_FIXED_NOREPLACE.
        unsafe { sys::unmap(at, len) };
        return None;
    }
    Some(at)
}

/// Puts the slots behind the code; the block is not writable any more.
fn seal(draft: &Draft, out: &mut [u8]) -> Option<image::Block> {
    let at = (draft.used + 15) & !15;
    let slots = (draft.base + at) as *mut Slot;
    let bytes = draft.slots.len() * size_of::<Slot>();
    if at + bytes > out.len() {
        return None;
    }
    // SAFETY: inside the block (checked), aligned to 16, not yet read by anybody.
    unsafe { core::ptr::copy_nonoverlapping(draft.slots.as_ptr(), slots, draft.slots.len()) };
    protect(draft.base, draft.len, PROT_READ | PROT_EXEC)?;
    Some(image::Block {
        base: draft.base,
        len: draft.len,
        used: draft.used,
        slots_at: at,
        count: draft.slots.len(),
    })
}

/// Where the next block can be made known; asked with `LOCK` held.
fn free_entry() -> Option<&'static Block> {
    let free =
        |b: &&Block| b.text.1.load(Ordering::Relaxed) == 0 && b.count.load(Ordering::Relaxed) == 0;
    let known = BLOCK_COUNT.load(Ordering::Relaxed);
    BLOCKS.get(known).or_else(|| BLOCKS.iter().find(free))
}

/// Makes a block known.
fn register(made: &image::Block, text: (usize, usize)) -> Option<()> {
    let block = free_entry()?;
    let known = BLOCK_COUNT.load(Ordering::Relaxed);
    let slots = made.base + made.slots_at;
    block.slots.store(slots, Ordering::Release);
    block.count.store(made.count, Ordering::Release);
    block.code.0.store(made.base, Ordering::Release);
    block.code.1.store(made.base + made.used, Ordering::Release);
    block.text.0.store(text.0, Ordering::Release);
    block.text.1.store(text.1, Ordering::Release);
    BLOCK_COUNT.store((known + 1).min(BLOCKS_MAX), Ordering::Release);
    Some(())
}

fn protect(start: usize, len: usize, prot: usize) -> Option<()> {
    // SAFETY: our own block, or text that the caller is about to patch: reading stays allowed.
    let ret = unsafe { sys::raw(nr::MPROTECT, [start, len, prot, 0, 0, 0]) };
    (ret == 0).then_some(())
}

/// Writes the jumps from the windows to the trampolines; the text is writable now.
fn redirect(draft: &Draft) {
    for slot in &draft.slots {
        let window = slot.window_in(draft.base);
        let rel = (draft.base + slot.start as usize).wrapping_sub(window + 5) as u32;
        let mut jump = [JMP; 5];
        jump[1..].copy_from_slice(&rel.to_le_bytes());
        // SAFETY: the window is inside the text that the caller made writable, and at least 5
        // bytes long; the displacement fits because the block was placed within reach.
        unsafe { core::ptr::copy_nonoverlapping(jump.as_ptr(), window as *mut u8, 5) };
    }
}

/// The program maps something: if it is the text of an object, that is patched first.
pub fn mmap(call: &Call) -> Verdict {
    let [_, len, prot, flags, fd, offset] = call.args;
    let executable = prot & PROT_EXEC != 0 && prot & PROT_WRITE == 0;
    if !executable || flags & sys::MAP_ANONYMOUS != 0 {
        return Verdict::Native;
    }
    let _held = LOCK.hold();
    // SAFETY: the program's own call, with its arguments; we keep nothing in what it replaces.
    let ret = unsafe { sys::raw(nr::MMAP, call.args) };
    if !sys::is_err(ret) {
        let end = ret as usize + ((len + PAGE - 1) & !(PAGE - 1));
        forget(ret as usize, end);
        patch_new(ret as usize, end, fd, offset);
    }
    Verdict::Handled(ret)
}

/// Patches text that has just been mapped from `fd` at `offset`.
fn patch_new(start: usize, end: usize, fd: usize, offset: usize) -> Option<()> {
    let stat = sys::stat_fd(fd)?;
    if stat.mode & S_IFMT != S_IFREG || stat.size < 64 {
        return None;
    }
    let text = (start, end);
    let of = Identity::of(&stat, offset);
    let unused = match cache() {
        Some(cache) => use_image(cache, &of, text).err(),
        None => Some(Unused::Unmappable),
    };
    let Some(unused) = unused else {
        return Some(());
    };
    let object = look_into(fd, stat.size as usize, start, &of)?;
    let room = Room::Below(object.base);
    let image = patch_text(room, start, end, &object.table, object.bias);
    let below = |block: image::Block| block.base + block.len == object.base;
    if unused == Unused::Absent && image.block.is_none_or(below) {
        image::keep(cache()?, &of, text, &image);
    }
    Some(())
}

fn use_image(cache: &Cache, of: &Identity, text: (usize, usize)) -> Result<(), Unused> {
    free_entry().ok_or(Unused::Unmappable)?;
    let image = image::map(cache, of, text)?;
    if let Some(block) = &image.block {
        register(block, text).ok_or(Unused::Unmappable)?;
    }
    count(&image);
    Ok(())
}

/// An object that is being mapped.
struct Object {
    table: Table,
    bias: usize,
    /// Where it begins.
    base: usize,
}

/// Reads the object in the file `fd` of `len` bytes, whose text `of` is mapped at `start`.
fn look_into(fd: usize, len: usize, start: usize, of: &Identity) -> Option<Object> {
    let args = [0, len, PROT_READ, sys::MAP_PRIVATE, fd, 0];
    // SAFETY: a new mapping, given back below.
    let file = unsafe { sys::raw(nr::MMAP, args) };
    if sys::is_err(file) {
        return None;
    }
    // SAFETY: mapped just now; an object that shrinks meanwhile faults, as it would when it runs.
    let bytes = unsafe { core::slice::from_raw_parts(file as *const u8, len) };
    let object = object_in(bytes, start, of);
    // SAFETY: the slices made from it are gone.
    unsafe { sys::unmap(file as usize, len) };
    object
}

fn object_in(bytes: &[u8], start: usize, of: &Identity) -> Option<Object> {
    let elf = Elf::from_file(bytes)?;
    let offset = of.offset as usize;
    let holds =
        |l: &&crate::elf::Load| l.exec && l.offset as usize & !(PAGE - 1) == offset & !(PAGE - 1);
    let load = elf.loads.iter().find(holds)?;
    let bias = start.wrapping_sub(load.vaddr as usize & !(PAGE - 1));
    Some(Object {
        table: table_for(&elf, || Some(*of))?,
        bias,
        base: bias.wrapping_add(lowest_of(&elf)),
    })
}

/// The program makes memory executable: perhaps the text of an object that was relocated.
pub fn mprotect(call: &Call) -> Verdict {
    let [start, len, prot, ..] = call.args;
    let executable = prot & PROT_EXEC != 0 && prot & PROT_WRITE == 0;
    if !executable || is_patched(start) || LOOKS.load(Ordering::Relaxed) >= LOOKS_MAX {
        return Verdict::Native;
    }
    let _held = LOCK.hold();
    LOOKS.fetch_add(1, Ordering::Relaxed);
    // SAFETY: the program's own call on its own memory.
    let ret = unsafe { sys::raw(nr::MPROTECT, call.args) };
    if ret == 0 {
        patch_protected(start, start + len);
    }
    Verdict::Handled(ret)
}

fn patch_protected(start: usize, end: usize) -> Option<()> {
    let regions = maps::read();
    let text = regions
        .iter()
        .position(|r| r.ino != 0 && r.exec && r.start < end && r.end > start)?;
    let own = &regions[text];
    if is_own_file(&regions, own) {
        return None;
    }
    let first = regions[..=text]
        .iter()
        .rposition(|r| r.offset == 0 && r.ino == own.ino && r.dev == own.dev && r.read)?;
    patch_mapped(&regions, first)
}

const _: () = assert!(calls::class_is_caught(nr::MMAP) && calls::class_is_caught(nr::MPROTECT));
