//! A client and its service, step by step in virtual time.
//!
//! What always holds here: the seed of the scheduler decides all that happens, and when. Nobody
//! sleeps: what a story waits for takes no real time.

use super::CALLER;
use holdfast_client::mapped::{self, Segments};
use holdfast_client::{Base, Client, Error, drain, slots};
use holdfast_pmem::env::{self, Instant};
use holdfast_pmem::model::{self, Part};
use holdfast_pool::directory::LANE_LEN;
use holdfast_pool::format::LANES;
use holdfast_pool::format::superblock::Consistency;
use holdfast_service::stepping::{Engine, Session, recover};
use holdfast_service::{CreateOptions, Files};
use rustix::fd::AsFd;
use shuttle::scheduler::RandomScheduler;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const SIZE: u64 = 16 << 20;
/// Between two turns of the service, unless it is woken.
const NAP: Duration = Duration::from_millis(200);
/// After so long without a sign of life a service is gone, as the client sees it.
const PATIENCE: Duration = Duration::from_secs(10);

/// What happened, and when: in nanoseconds of virtual time since the story began.
type Trace = Vec<(u64, String)>;

struct Dir(PathBuf);

impl Dir {
    fn new() -> Dir {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        Dir(PathBuf::from(format!(
            "/dev/shm/holdfast-model-{}-{n}",
            std::process::id()
        )))
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What the parts of a story share.
struct Fixture {
    begun: Instant,
    trace: Mutex<Trace>,
    /// Nobody asks any more.
    over: AtomicBool,
}

impl Fixture {
    fn note(&self, what: String) {
        let at = self.begun.elapsed().as_nanos() as u64;
        self.trace.lock().expect("nobody panicked").push((at, what));
    }
}

fn service(dir: &Dir) -> (Engine, Session) {
    let options = CreateOptions {
        size: Some(SIZE),
        medium: None,
        consistency: Consistency::Posix,
    };
    holdfast_service::create(&dir.0, &options).expect("a pool");
    let mut engine = Engine::open(Files::open(&dir.0).expect("its files")).expect("it opens");
    recover(&mut engine).expect("nothing to recover");
    let session = Session::create(&mut engine).expect("a session");
    (engine, session)
}

fn client(engine: &Engine, session: &Session) -> Client {
    let superblock = engine.store.pool.superblock();
    let fds = session.descriptors(0).expect("descriptors");
    let segments = Segments {
        session: fds[0].as_fd(),
        meta: (fds[1].as_fd(), superblock.meta_len),
        journal: (fds[2].as_fd(), LANES as u64 * LANE_LEN),
        data: (fds[3].as_fd(), superblock.data_len),
        medium: 0,
        cpu: 0,
    };
    let mapped = mapped::map(&segments).expect("a mapped session");
    slots::register(&mapped, std::process::id(), None).expect("a slot");
    // Closing one would end the life of this process in the session.
    std::mem::forget(fds);
    Client::new(mapped, b"")
}

/// The service begins to work after `silence`, if ever, and works until nobody asks any more.
fn work(fixture: &Fixture, engine: &mut Engine, session: &mut Session, silence: Option<Duration>) {
    let Some(silence) = silence else { return };
    env::sleep(silence);
    let memory = session.memory.clone();
    let header = memory.header();
    while !fixture.over.load(Ordering::SeqCst) {
        let bell = header.doorbell.load(Ordering::Acquire);
        let turn = session.turn(engine);
        if turn.applied > 0 {
            fixture.note(format!("applied {}", turn.applied));
        }
        // As the service's own thread naps.
        header.service_sleeps.store(1, Ordering::SeqCst);
        if !turn.more && header.doorbell.load(Ordering::SeqCst) == bell {
            let woken = env::wait(&header.doorbell, bell, Some(NAP));
            fixture.note(format!("{woken:?}"));
        }
        header.service_sleeps.store(0, Ordering::SeqCst);
    }
}

/// Makes directories and waits for the trees now and then; how the last wait ended.
fn make(fixture: &Fixture, client: &Client, who: &str) -> Result<(), Error> {
    for nth in 1..=12 {
        let name = format!("{who}{nth}");
        client.mkdir(&CALLER, Base::Root, name.as_bytes(), 0o700)?;
        fixture.note(format!("made {name}"));
        if nth % 4 != 1 {
            continue;
        }
        let s = client.session();
        let seq = s.header().next_seq.load(Ordering::Acquire) - 1;
        drain::wait_applied(s, seq)?;
        fixture.note(format!("record {seq} is in the trees"));
    }
    Ok(())
}

fn once(silence: Option<Duration>) -> (Trace, Result<(), Error>) {
    model::begin();
    let dir = Dir::new();
    let (mut engine, mut session) = service(&dir);
    let client = client(&engine, &session);
    let fixture = Arc::new(Fixture {
        begun: Instant::now(),
        trace: Mutex::default(),
        over: AtomicBool::new(false),
    });
    let (ours, part) = (fixture.clone(), Part::new());
    let serving = shuttle::thread::spawn(move || {
        let _part = part;
        work(&ours, &mut engine, &mut session, silence);
        model::show_all();
        (engine, session)
    });
    let client = Arc::new(client);
    let asking = ["a", "b"].map(|who| {
        let (theirs, client, part) = (fixture.clone(), client.clone(), Part::new());
        shuttle::thread::spawn(move || {
            let _part = part;
            let done = make(&theirs, &client, who);
            model::show_all();
            done
        })
    });
    let [first, second] = asking.map(|thread| thread.join().expect("it ends"));
    assert_eq!(first, second);
    slots::exit(client.session(), true);
    fixture.over.store(true, Ordering::SeqCst);
    let (mut engine, session) = serving.join().expect("the service ends");
    session.end(&mut engine).expect("the session ends");
    model::show_all();
    (
        std::mem::take(&mut fixture.trace.lock().expect("as above")),
        first,
    )
}

/// Plays the story with one schedule, and how long that took in real time.
fn play(seed: u64, silence: Option<Duration>) -> (Trace, Result<(), Error>, Duration) {
    let found = Arc::new(Mutex::new(None));
    let out = found.clone();
    let mut config = shuttle::Config::new();
    config.stack_size = 4 << 20;
    config.max_steps = shuttle::MaxSteps::None;
    let begun = std::time::Instant::now();
    let one = RandomScheduler::new_from_seed(seed, 1);
    shuttle::Runner::new(one, config).run(move || {
        *out.lock().expect("nobody panicked") = Some(once(silence));
    });
    let (trace, done) = found
        .lock()
        .expect("as above")
        .take()
        .expect("it was played");
    (trace, done, begun.elapsed())
}

fn at(trace: &Trace, what: &str) -> Duration {
    let found = trace.iter().find(|(_, said)| said.starts_with(what));
    Duration::from_nanos(found.unwrap_or_else(|| panic!("no {what} in {trace:?}")).0)
}

/// Fails when somebody waits in real time, and when anything but the seed has a say.
#[test]
fn a_seed_decides_what_client_and_service_do_and_when() {
    let silence = Duration::from_secs(8);
    let mut all = Vec::new();
    for seed in 1..=6 {
        let (trace, done, took) = play(seed, Some(silence));
        assert_eq!(done, Ok(()));
        assert!(at(&trace, "made a1") < Duration::from_secs(1));
        let applied = at(&trace, "record");
        assert!(applied >= silence && applied < silence + Duration::from_secs(1));
        assert!(took < silence, "{took:?} of real time");
        // The client rings, and the service does not sleep to the end of its nap.
        let bells = trace.iter().filter(|(_, said)| said == "Woken").count();
        assert!(bells > 0, "nobody woke the service: {trace:?}");
        let (again, ..) = play(seed, Some(silence));
        assert_eq!(trace, again, "seed {seed}");
        all.push(trace);
    }
    all.sort();
    all.dedup();
    assert!(all.len() > 1, "the seed has no say");
}

/// Ten seconds of patience, and no more.
#[test]
fn a_service_that_never_works_is_found_out_after_ten_virtual_seconds() {
    for seed in 1..=4 {
        let (trace, done, took) = play(seed, None);
        assert_eq!(done, Err(Error::ServiceGone));
        assert!(took < PATIENCE, "{took:?} of real time");
        let (again, ..) = play(seed, None);
        assert_eq!(trace, again, "seed {seed}");
    }
}
