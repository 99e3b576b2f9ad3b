//! Calls whose answers are kept.
//!
//! Invariant: what is answered is what is kept, so a process gets the same whether it asks or not.

use super::{Call, Reply};
use crate::answers::{Answers, Whose};
use crate::connection;
use holdfast_client::served::answers::{ANSWER_WORDS, Asked, Question, split};
use holdfast_client::served::wire::*;
use holdfast_client::{Base, Caller, Error, LeaseSet, Result};
use holdfast_pool::layout::ROOT_INO;
use rustix::fd::AsFd;
use std::sync::Arc;

impl Call<'_> {
    /// The process will look for answers itself.
    pub(super) fn find_answers(&self) -> Result<Reply> {
        let (uid, gid, groups) = self.member.lasting_rights().ok_or(Error::NotSupported)?;
        let at = self.member.at.get().ok_or(Error::Invalid)?.clone();
        let whose = Whose {
            uid,
            gid,
            groups,
            at,
        };
        let answers = self.member.shared.answers.of(whose)?;
        let [kept, words] = answers.files().map(|file| file.as_fd());
        let sent = connection::send(self.member, &Note::Object.encode(), &[kept, words]);
        sent.map_err(|_| Error::WouldBlock)?;
        self.member.keep(answers);
        // 0: the working directory is outside.
        let here = self.client.start_of(Base::Cwd);
        Ok(Reply::words(&[uid.into(), gid.into(), here.unwrap_or(0)]))
    }

    /// The kept answers that this call may add to.
    fn answers(&self) -> Option<&Arc<Answers>> {
        let answers = self.member.answers()?;
        let (whose, head) = (answers.whose(), self.head);
        let is_its = (head.uid, head.gid, head.privileged) == (whose.uid, whose.gid, false);
        is_its.then_some(answers)
    }

    /// The answer to a question about the path of this call, which is kept from now on if it can
    /// be; `None`: it is not of a kind that is.
    pub(super) fn kept(&self, asked: Asked, arg: u32) -> Result<Option<Reply>> {
        let (Some(answers), base) = (self.answers(), self.base(0)?) else {
            return Ok(None);
        };
        let path = self.path(0)?;
        let base = if path.first() == Some(&b'/') {
            Base::Root
        } else {
            base
        };
        let Some((dir, name)) = split(path) else {
            return Ok(None);
        };
        self.as_caller(|c| {
            let start = match base {
                Base::Root => ROOT_INO,
                base => self.client.start_of(base)?,
            };
            let Some(dir) = self.directory(answers, c, start, dir)? else {
                return Ok(None);
            };
            let question = Question {
                asked,
                arg,
                dir,
                name,
            };
            let leases = LeaseSet::default();
            let words = match asked {
                Asked::Access => {
                    let how = (arg & 0xff, arg >> 8);
                    let done = self.client.leased_access(c, (dir, name), how, &leases);
                    done.map(|()| [0; 11])
                }
                _ => {
                    let found = self.client.leased_stat(c, (dir, name), arg, &leases);
                    found.map(|stat| stat_words(&stat))
                }
            };
            settle(answers, &question, &leases, words).map(Some)
        })
    }

    /// Where the directory's path leads; `None`: out of the pool, perhaps.
    fn directory(
        &self,
        answers: &Answers,
        c: &Caller<'_>,
        start: u64,
        path: &[u8],
    ) -> Result<Option<u64>> {
        if path.iter().all(|byte| *byte == b'/') {
            return Ok(Some(start));
        }
        let question = Question {
            asked: Asked::Directory,
            arg: 0,
            dir: start,
            name: path,
        };
        let words = match answers.find(&question) {
            Some(words) => words,
            None => {
                let leases = LeaseSet::default();
                let found = self.client.leased_directory(c, start, path, &leases);
                if let Err(Error::Outside(_)) = found {
                    return Ok(None);
                }
                let words = found.map(|dir| [dir]);
                return settle(answers, &question, &leases, words).map(|r| Some(r.words[0]));
            }
        };
        match words[0] {
            0 => Ok(Some(words[1])),
            error => Err(word_error(error, Vec::new())),
        }
    }

    /// As `kept` for fstat(2).
    pub(super) fn kept_fstat(&self) -> Result<Reply> {
        let ofd = self.ofd(0)?;
        // It needs no right, so nobody says as whom it is asked.
        let Some(answers) = self.member.answers() else {
            let stat = self.client.fstat(ofd)?;
            return Ok(Reply::words(&stat_words(&stat)));
        };
        let leases = LeaseSet::default();
        let stat = self.client.leased_fstat(ofd, &leases)?;
        let question = Question {
            asked: Asked::Fstat,
            arg: 0,
            dir: stat.ino,
            name: b"",
        };
        settle(answers, &question, &leases, Ok(stat_words(&stat)))
    }
}

/// Keeps an answer and gives it.
fn settle<const N: usize>(
    answers: &Answers,
    question: &Question<'_>,
    leases: &LeaseSet,
    words: Result<[u64; N]>,
) -> Result<Reply> {
    let mut all = [0; ANSWER_WORDS];
    match &words {
        Ok(words) => all[1..=N].copy_from_slice(words),
        Err(error) => all[0] = error_word(error),
    }
    let can_be = !matches!(words, Err(Error::Outside(_) | Error::OutsideSecond(_)));
    if let (true, Some(held)) = (can_be, leases.leases()) {
        answers.keep(question, &held, &all);
    }
    words.map(|words| Reply::words(&words))
}
