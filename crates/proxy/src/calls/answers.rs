//! Calls whose answers are kept.
//!
//! Invariant: what is answered is what is kept, so a process gets the same whether it asks or not.

use super::{Call, Reply};
use crate::answers::{Answers, Whose};
use crate::connection;
use holdfast_client::served::answers::{ANSWER_WORDS, Asked, PLAIN, PLAIN_WORD, Question, split};
use holdfast_client::served::wire::*;
use holdfast_client::{Base, Caller, Error, LeaseSet, OfdLink, Result};
use holdfast_pmem::MutBuf;
use holdfast_pmem::env::monotonic_ms;
use holdfast_pool::layout::ROOT_INO;
use holdfast_pool::layout::value::is_number;
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
        let (here, now) = (here.unwrap_or(0), monotonic_ms());
        Ok(Reply::words(&[uid.into(), gid.into(), here, now]))
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
        if self.answers().is_none() {
            return Ok(None);
        }
        let base = self.base(0)?;
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
            // The rights are what they are until this ends.
            let Some(answers) = self.answers() else {
                return Ok(None);
            };
            let start = match base {
                Base::Root => ROOT_INO,
                base => self.client.start_of(base)?,
            };
            if is_number(start) {
                return Ok(None);
            }
            let Some(dir) = self.directory(answers, c, start, dir)? else {
                return Ok(None);
            };
            let question = Question {
                asked,
                arg,
                dir,
                name,
            };
            let reply = self.answer_to(answers, c, &question);
            if asked == Asked::Stat {
                self.look_ahead(answers, c, &question);
            }
            reply.map(Some)
        })
    }

    fn answer_to(&self, answers: &Answers, c: &Caller<'_>, q: &Question<'_>) -> Result<Reply> {
        let at = (q.dir, q.name);
        let (leases, words) = self.leased(|leases| match q.asked {
            Asked::Access => {
                let how = (q.arg & 0xff, q.arg >> 8);
                let done = self.client.leased_access(c, at, how, leases);
                done.map(|()| [0; 11])
            }
            _ => {
                let found = self.client.leased_stat(c, at, q.arg, leases);
                found.map(|(stat, has_more)| {
                    let mut words = stat_words(&stat);
                    words[PLAIN_WORD] |= if has_more { 0 } else { PLAIN };
                    words
                })
            }
        });
        settle(answers, q, &leases, words)
    }

    /// Reads something with leases; once more if what it read had to be fetched, for that recalls
    /// them.
    fn leased<T>(&self, read: impl Fn(&LeaseSet) -> Result<T>) -> (LeaseSet, Result<T>) {
        let leases = LeaseSet::default();
        let got = read(&leases);
        if leases.leases().is_none() || self.client.leases_last(&leases) {
            return (leases, got);
        }
        let leases = LeaseSet::default();
        let got = read(&leases);
        (leases, got)
    }

    /// Who asks for one name of a directory that it has just listed asks for all. A name that has
    /// to be fetched recalls the leases on the directory: the first ones may end with the last.
    fn look_ahead(&self, answers: &Answers, c: &Caller<'_>, q: &Question<'_>) {
        let names = self.member.listed.next(q.dir);
        for name in names.iter().chain(&names) {
            let question = Question { name, ..*q };
            if answers.find(&question).is_none() {
                let _ = self.answer_to(answers, c, &question);
            }
        }
    }

    /// So many bytes of the buffer are entries of an open directory.
    pub(super) fn note_listed(&self, ofd: OfdLink, len: usize) -> Result<()> {
        if self.member.answers().is_none() || len == 0 {
            return Ok(());
        }
        let mut entries = vec![0; len];
        let from = self.channel.memory.source(buffer_at(self.index), len);
        let copied = from.ok_or(Error::Invalid)?.read(&mut entries);
        copied.map_err(Error::Fault)?;
        self.member.listed.note(self.client.ino_of(ofd)?, entries);
        Ok(())
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
                let directory =
                    |leases: &LeaseSet| self.client.leased_directory(c, start, path, leases);
                let (leases, found) = self.leased(directory);
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

    /// Reads on with `read`. If there is no more then, the answer says so, with a lease: index of
    /// its word plus one, and value.
    pub(super) fn to_the_end(
        &self,
        ofd: OfdLink,
        len: u64,
        read: impl Fn(MutBuf<'_>) -> Result<usize>,
    ) -> Result<Reply> {
        let got = read(self.room(len)?)?;
        let mut reply = Reply::bytes(got);
        if got as u64 >= len {
            return Ok(reply);
        }
        let Some((index, value)) = self.lease_on(ofd)? else {
            return Ok(reply);
        };
        let mut rest = self.room(len)?;
        rest.advance(got);
        match read(rest) {
            Ok(0) => reply.words[1..3].copy_from_slice(&[u64::from(index) + 1, value]),
            Ok(more) => return Ok(Reply::bytes(got + more)),
            // The next name needs more room; what is wrong otherwise the next call tells.
            Err(_) => {}
        }
        Ok(reply)
    }

    /// A lease on what is read of an open file from here on, for a process that can use it.
    pub(super) fn lease_on(&self, ofd: OfdLink) -> Result<Option<(u32, u64)>> {
        if self.member.answers().is_none() {
            return Ok(None);
        }
        let leases = LeaseSet::default();
        self.client.lease(ofd, &leases)?;
        Ok(match leases.leases() {
            Some((list, 1)) => Some(list[0]),
            _ => None,
        })
    }

    /// The content of a file that was just opened, in the buffer: its length, and a lease.
    pub(super) fn content(&self, ofd: OfdLink) -> Option<(usize, (u32, u64))> {
        let read = |leases: &LeaseSet| {
            let room = self.room(CONTENT_MAX as u64)?;
            self.client.leased_content(ofd, room, leases)
        };
        let (leases, len) = self.leased(read);
        let (list, 1) = leases.leases()? else {
            return None;
        };
        Some((len.ok()??, list[0]))
    }

    /// What fstat(2) will say of what was just opened, which programs ask next.
    pub(super) fn keep_fstat(&self, ofd: OfdLink, ino: u64) {
        let Some(answers) = self.member.answers() else {
            return;
        };
        let question = fstat_of(ino);
        if answers.find(&question).is_none() {
            let (leases, stat) = self.leased(|leases| self.client.leased_fstat(ofd, leases));
            let _ = settle(
                answers,
                &question,
                &leases,
                stat.map(|stat| stat_words(&stat)),
            );
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
        let (leases, stat) = self.leased(|leases| self.client.leased_fstat(ofd, leases));
        let stat = stat?;
        settle(answers, &fstat_of(stat.ino), &leases, Ok(stat_words(&stat)))
    }
}

fn fstat_of(ino: u64) -> Question<'static> {
    Question {
        asked: Asked::Fstat,
        arg: 0,
        dir: ino,
        name: b"",
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
    // Other errors come from elsewhere than from what the leases are on.
    let can_be = match &words {
        Ok(_) => true,
        Err(error) => matches!(
            error,
            Error::NotFound | Error::NotDirectory | Error::Denied | Error::Loop
        ),
    };
    if let (true, Some(held)) = (can_be, leases.leases()) {
        answers.keep(question, &held, &all);
    }
    words.map(|words| Reply::words(&words))
}
