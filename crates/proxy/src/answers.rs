//! Answers that are kept for all processes of the same rights (`holdfast_client::served::answers`).
//!
//! Invariants: processes share kept answers only if they are one user in one group with the same
//! other groups, for good, and the pool appears to them at the same place; so what one of them may
//! see all may. Who has other rights than that is answered call by call.

use holdfast_client::served::answers::{ANSWERS_LEN, AnswerTable, Held, Question};
use holdfast_client::{Client, Error, Result};
use holdfast_pmem::SharedMem;
use holdfast_pool::session::{LEASES_LEN, LeaseWords};
use rustix::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};

/// Whose answers a proxy keeps at a time.
const KEPT_MAX: usize = 4;

/// As whom answers are given, and where the pool appears.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Whose {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
    pub at: Box<[u8]>,
}

/// The answers for some processes.
pub struct Answers {
    whose: Whose,
    kept: AnswerTable,
    /// To be sent.
    file: OwnedFd,
    words: Arc<Words>,
}

/// The words of the session's leases.
pub struct Words {
    memory: SharedMem,
    /// To be sent.
    file: OwnedFd,
}

impl Words {
    fn all(&self) -> Option<&LeaseWords> {
        self.memory.at(0)
    }
}

impl Answers {
    /// As whom the answers are given.
    pub fn whose(&self) -> &Whose {
        &self.whose
    }

    /// What the processes get.
    pub fn files(&self) -> [&OwnedFd; 2] {
        [&self.file, &self.words.file]
    }

    /// They count for one more term.
    pub fn renew(&self, gives: impl FnOnce() -> bool) {
        self.kept.renew(gives);
    }

    pub fn find(&self, q: &Question<'_>) -> Option<[u64; 12]> {
        self.kept.find(self.words.all()?, q)
    }

    pub fn keep(&self, q: &Question<'_>, held: &Held, words: &[u64]) {
        if let Some(all) = self.words.all() {
            self.kept.keep(all, q, held, words);
        }
    }
}

/// All answers that a proxy keeps; the most recent ones are the last.
#[derive(Default)]
pub struct AllAnswers {
    words: Option<Arc<Words>>,
    list: Mutex<Vec<Arc<Answers>>>,
}

impl AllAnswers {
    /// Leases on what `client` sees are given from now on, if they can be.
    pub fn begin(client: &Client) -> AllAnswers {
        let begun = || -> Result<Words> {
            let file = client.give_leases()?;
            let memory = SharedMem::blank(LEASES_LEN).map_err(Error::Memory)?;
            let access = holdfast_pmem::Access::ReadOnly;
            memory
                .replace(file.as_fd(), access)
                .map_err(Error::Memory)?;
            Ok(Words { memory, file })
        };
        match begun() {
            Ok(words) => AllAnswers {
                words: Some(Arc::new(words)),
                ..AllAnswers::default()
            },
            Err(e) => {
                tracing::debug!("no answers are kept: {e}");
                AllAnswers::default()
            }
        }
    }

    /// Those for such processes. `NotSupported`: none can be kept.
    pub fn of(&self, whose: Whose) -> Result<Arc<Answers>> {
        let words = self.words.as_ref().ok_or(Error::NotSupported)?;
        let mut list = self.list.lock().unwrap_or_else(PoisonError::into_inner);
        let found = list.iter().position(|answers| answers.whose == whose);
        let answers = match found {
            Some(at) => list.remove(at),
            None => Arc::new(create(whose, words)?),
        };
        if list.len() >= KEPT_MAX {
            list.remove(0);
        }
        list.push(answers.clone());
        Ok(answers)
    }
}

fn create(whose: Whose, words: &Arc<Words>) -> Result<Answers> {
    let made = SharedMem::create_for_readers("holdfast-answers", ANSWERS_LEN);
    let (file, memory) = made.map_err(Error::Memory)?;
    Ok(Answers {
        whose,
        kept: AnswerTable::new(memory),
        file,
        words: words.clone(),
    })
}
